/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches, in every form, of kernels that name their operands in every way: by pointer, beside and behind their
 * tensor, in structures (packed too, with stale words around), in arrays of addresses that a kernel or a copy has
 * brought to the device. The model computes the same on the host.
 */
#include "tests/fuzz/calls.h"

#include "tests/sim/sim_kernels.h"
#include "tools/simcuda/testkernels.h"

void fz_model_rows(uint8_t *to, uint64_t n_valid, uint64_t n, uint64_t seed)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t word = i < n_valid ? test_mix(seed + i) : 0;

        memcpy(to + 8 * i, &word, sizeof(word));
    }
}

void fz_model_mix(uint8_t *to, const uint8_t *a, const uint8_t *b, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t x;
        uint64_t y;

        memcpy(&x, a + 8 * i, sizeof(x));
        memcpy(&y, b + 8 * i, sizeof(y));
        x = test_mix(x + y);
        memcpy(to + 8 * i, &x, sizeof(x));
    }
}

/* ---- launching ---- */

static CUfunction function_of(struct fz_world *w, const char *name, bool kernel)
{
    CUfunction f;
    CUkernel k;

    if (!kernel) {
        OK(cuModuleGetFunction, &f, w->module, name);
        return f;
    }
    PLAIN(cuLibraryGetKernel(&k, w->library, name));
    OK(cuKernelGetFunction, &f, k);
    return f;
}

static void launch_ex(const struct fz_use *u, CUfunction f, void **params, void **extra)
{
    CUlaunchConfig c = {.gridDimX = 3,
                        .gridDimY = 1,
                        .gridDimZ = 1,
                        .blockDimX = 32,
                        .blockDimY = 1,
                        .blockDimZ = 1,
                        .hStream = u->handle};

    if (u->ptds) {
        OK(cuLaunchKernelEx_ptsz, &c, f, params, extra);
    } else {
        OK(cuLaunchKernelEx, &c, f, params, extra);
    }
}

static void launch(const struct fz_use *u, CUfunction f, void **params, void **extra)
{
    if (u->ptds) {
        OK(cuLaunchKernel_ptsz, f, 4, 1, 1, 32, 1, 1, 0, u->handle, params, extra);
    } else {
        OK(cuLaunchKernel, f, 4, 1, 1, 32, 1, 1, 0, u->handle, params, extra);
    }
}

static void launch_cooperative(const struct fz_use *u, CUfunction f, void **params)
{
    if (u->ptds) {
        OK(cuLaunchCooperativeKernel_ptsz, f, 2, 2, 1, 32, 1, 1, 0, u->handle, params);
    } else {
        OK(cuLaunchCooperativeKernel, f, 2, 2, 1, 32, 1, 1, 0, u->handle, params);
    }
}

/* All parameters have eight bytes, but the first, which has first_bytes. */
void fz_launch(struct fz_world *w, const struct fz_use *u, const char *name, void **params,
               unsigned n, size_t first_bytes)
{
    const unsigned form = fz_u8(&w->in);
    uint8_t buffer[1024];
    size_t size = first_bytes;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    CUfunction f = function_of(w, name, form % 16 >= 12);

    if (form % 8 == 6) {
        OK(cuFuncLoad, f);
    }
    memcpy(buffer, params[0], first_bytes);
    for (unsigned i = 1; i < n; i++, size += 8) {
        memcpy(buffer + size, params[i], 8);
    }
    FZ_SAY("launch of %s, form %u\n", name, form % 8);
    switch (form % 8) {
    case 0:
        launch(u, f, NULL, extra);
        break;
    case 1:
        launch_ex(u, f, params, NULL);
        break;
    case 2:
        launch_ex(u, f, NULL, extra);
        break;
    case 3:
        launch_cooperative(u, f, params);
        break;
    default:
        launch(u, f, params, NULL);
        break;
    }
}

/* n_valid of n words, then zeros. */
static void rows(struct fz_world *w, const struct fz_use *u, struct fz_tensor *t, uint64_t n_valid,
                 uint64_t n)
{
    uint64_t seed = fz_u8(&w->in) * UINT64_C(0x100000001b3);

    fz_use(w, t, u->lane, true);
    fz_issue(w, u->lane);
    fz_launch(w, u, "test_rows", (void *[]){&t->at, &n_valid, &n, &seed}, 4, 8);
    fz_issued(w, u->lane);
    fz_model_rows(t->model, n_valid, n, seed);
}

void fz_define(struct fz_world *w, struct fz_tensor *t, const struct fz_use *u)
{
    const uint64_t n = t->bytes / 8;

    rows(w, u, t, n / (1 + fz_below(&w->in, 4)), n);
    if (t->bytes % 8 != 0) {
        fz_use(w, t, u->lane, true);
        fz_issue(w, u->lane);
        ON_LANE(cuMemsetD8Async, *u, t->at + 8 * n, 0x77, t->bytes % 8);
        fz_issued(w, u->lane);
        memset(t->model + 8 * n, 0x77, t->bytes % 8);
    }
    t->defined = true;
}

/* ---- operations ---- */

/* As many words as all have. */
static uint64_t words(const struct fz_tensor *a, const struct fz_tensor *b,
                      const struct fz_tensor *c)
{
    size_t bytes = a->bytes < b->bytes ? a->bytes : b->bytes;

    bytes = bytes < c->bytes ? bytes : c->bytes;
    return bytes / 8;
}

static void pointers(struct fz_world *w, const struct fz_use *u, struct fz_tensor *t[3],
                     unsigned form)
{
    const uint64_t n = words(t[0], t[1], t[2]);
    CUdeviceptr at = t[0]->at;
    uint64_t k = 1 + form / 8;
    uint64_t m = n;

    if (form % 4 != 0 && t[0] == t[2]) {
        return; /* these kernels read what another block writes */
    }
    fz_use(w, t[0], u->lane, false);
    if (form % 4 == 0) {
        fz_use(w, t[1], u->lane, false);
    }
    fz_use(w, t[2], u->lane, true);
    fz_issue(w, u->lane);
    switch (form % 4) {
    case 0:
        fz_launch(w, u, "test_mix2", (void *[]){&at, &t[1]->at, &t[2]->at, &m}, 4, 8);
        fz_model_mix(t[2]->model, t[0]->model, t[1]->model, n);
        break;
    case 1:
        at += 8 * n;
        fz_launch(w, u, "test_from_end", (void *[]){&at, &m, &t[2]->at}, 3, 8);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t x;

            memcpy(&x, t[0]->model + 8 * (n - 1 - i), sizeof(x));
            x = test_mix(x);
            memcpy(t[2]->model + 8 * i, &x, sizeof(x));
        }
        break;
    case 2:
        at -= 8 * k;
        fz_launch(w, u, "test_from_before", (void *[]){&at, &k, &t[2]->at, &m}, 4, 8);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t x;

            memcpy(&x, t[0]->model + 8 * i, sizeof(x));
            x = test_mix(x);
            memcpy(t[2]->model + 8 * i, &x, sizeof(x));
        }
        break;
    default:
        fz_launch(w, u, "test_copy", (void *[]){&at, &t[2]->at, &m}, 3, 8);
        memcpy(t[2]->model, t[0]->model, 8 * n);
        break;
    }
    fz_issued(w, u->lane);
}

/* Pointers at steps of four bytes, and words that nobody set. */
static void packed(struct fz_world *w, const struct fz_use *u, struct fz_tensor *from,
                   struct fz_tensor *to)
{
    struct sim_packed_args args;
    const uint64_t stale[2] = {fz_stale(w), fz_stale(w)};

    if (from == to) {
        return;
    }
    memset(&args, fz_u8(&w->in), sizeof(args));
    memcpy(args.more_unused + 4, stale, sizeof(stale));
    args.n = (uint32_t)(from->bytes < to->bytes ? from->bytes : to->bytes);
    args.dst = to->at;
    args.src = from->at;
    fz_use(w, from, u->lane, false);
    fz_use(w, to, u->lane, true);
    fz_issue(w, u->lane);
    fz_launch(w, u, "sim_packed", (void *[]){&args}, 1, sizeof(args));
    fz_issued(w, u->lane);
    memcpy(to->model, from->model, args.n);
}

/*
 * A product. Its operands stand in the parameters; or a kernel or a copy brings them to the device, and
 * the product names only where.
 */
static void products(struct fz_world *w, const struct fz_use *u, struct fz_tensor *t[3],
                     unsigned form)
{
    struct test_operands o;
    struct fz_tensor *list = form % 3 == 0 ? NULL : fz_tensor_choose(w, u);
    uint64_t n_used = 1;

    memset(&o, 0, sizeof(o));
    o.spare[0] = fz_stale(w);
    o.product[3].a = fz_stale(w);
    o.scratch[1] = fz_stale(w);
    o.n_used = n_used;
    o.product[0] = (struct test_product){t[0]->at, t[1]->at, t[2]->at, words(t[0], t[1], t[2])};
    if (list == t[0] || list == t[1] || list == t[2]) {
        return;
    }
    if (list != NULL) {
        fz_use(w, list, u->lane, true);
    }
    for (unsigned i = 0; i < 3; i++) {
        fz_use(w, t[i], u->lane, i == 2);
    }
    fz_issue(w, u->lane);
    if (list == NULL) {
        fz_launch(w, u, "test_by_value", (void *[]){&o}, 1, sizeof(o));
    } else if (form % 3 == 1) {
        fz_launch(w, u, "test_prepare", (void *[]){&o, &list->at}, 2, sizeof(o));
    } else {
        uint8_t *host = fz_host(w, sizeof(o.product));

        memcpy(host, o.product, sizeof(o.product));
        ON_LANE(cuMemcpyHtoDAsync_v2, *u, list->at, host, sizeof(o.product[0]));
    }
    if (list != NULL) {
        memcpy(list->model, &o.product[0], sizeof(o.product[0]));
        fz_issue(w, u->lane);
        fz_launch(w, u, "test_grouped", (void *[]){&list->at, &n_used}, 2, 8);
    }
    fz_issued(w, u->lane);
    fz_model_mix(t[2]->model, t[0]->model, t[1]->model, o.product[0].n);
}

void fz_op_kernel(struct fz_world *w)
{
    const struct fz_use u = fz_lane_choose(w);
    struct fz_tensor *t[3];
    const unsigned form = fz_u8(&w->in);

    for (unsigned i = 0; i < 3; i++) {
        t[i] = fz_tensor_choose(w, &u);
        if (t[i] == NULL) {
            return;
        }
    }
    switch (form % 4) {
    case 0:
        packed(w, &u, t[0], t[1]);
        break;
    case 1:
        products(w, &u, t, form / 4);
        break;
    default:
        pointers(w, &u, t, form / 4);
        break;
    }
}

/* A layer as jobs have them: a region, tensors made and filled in it, most of it padding. */
void fz_op_layer(struct fz_world *w)
{
    const unsigned shape = fz_u8(&w->in);
    const struct fz_use u = fz_lane_choose(w);

    fz_push(w, 0);
    for (unsigned i = 0; i < 1 + shape % 3; i++) {
        const size_t bytes = 4096 * (size_t)(1 + shape / 4 % 8) + 8 * (shape / 32) + shape % 2;
        struct fz_tensor *t = fz_tensor_alloc(w, bytes, &u);

        if (t != NULL) {
            fz_define(w, t, &u);
        }
    }
    if (shape % 16 != 15) {
        fz_pop(w);
    }
}

/* Newest first: reads each tensor to its end and frees it. */
void fz_op_backward(struct fz_world *w)
{
    const unsigned n = 1 + fz_below(&w->in, 8);
    const struct fz_use u = fz_lane_choose(w);

    for (unsigned i = 0; i < n; i++) {
        struct fz_tensor *t = NULL;

        for (unsigned back = 0; back < FZ_TENSORS && t == NULL; back++) {
            struct fz_tensor *c = &w->tensor[(w->last + FZ_TENSORS - back) % FZ_TENSORS];

            t = c->live && !c->busy && c->defined ? c : NULL;
        }
        if (t == NULL) {
            return;
        }
        uint8_t *host = fz_host(w, t->bytes);

        fz_use(w, t, u.lane, false);
        fz_issue(w, u.lane);
        ON_LANE(cuMemcpyDtoHAsync_v2, u, host, t->at, t->bytes);
        fz_issued(w, u.lane);
        fz_expect(w, host, t->model, t->bytes);
        fz_tensor_free(w, t);
    }
}
