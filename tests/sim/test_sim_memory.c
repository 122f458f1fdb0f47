/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: device memory, its addresses, copies in all forms, faults and injected failures. */
#include "tests/sim/driver_test.h"

#define CHUNK   16384u
#define N_SEEDS 4

static CUmemGenericAllocationHandle create(size_t bytes)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle h;

    ok(cuMemCreate(&h, bytes, &prop, 0));
    return h;
}

static CUdeviceptr reserve(size_t bytes)
{
    CUdeviceptr p;

    ok(cuMemAddressReserve(&p, bytes, 0, 0, 0));
    return p;
}

static CUresult set_access(CUdeviceptr p, size_t bytes, CUmemAccess_flags flags)
{
    const CUmemAccessDesc desc = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}, flags};

    return cuMemSetAccess(p, bytes, &desc, 1);
}

START_TEST(two_addresses_are_one_memory)
{
    dt_start_seeded(_i, "");
    const CUmemGenericAllocationHandle h = create(CHUNK);
    const CUdeviceptr a = reserve(CHUNK), b = reserve(2 * (size_t)CHUNK) + CHUNK;

    ok(cuMemMap(a, CHUNK, 0, h, 0));
    ok(cuMemMap(b, CHUNK, 0, h, 0));
    ok(set_access(a, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    ok(set_access(b, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ));
    dt_fill(NULL, a, 77, CHUNK / 4);
    ck_assert_uint_eq(dt_word(NULL, b + CHUNK - 4), 77);
    ok(cuMemRelease(h));
    ok(cuMemUnmap(a, CHUNK));
    ck_assert_uint_eq(dt_word(NULL, b), 77); /* mapped memory outlives its handle */
    ok(cuMemUnmap(b, CHUNK));
    ok(cuMemAddressFree(a, CHUNK));
}
END_TEST

START_TEST(mapping_has_rules)
{
    dt_start("");
    const CUmemGenericAllocationHandle h = create(CHUNK), g = create(CHUNK);
    const CUdeviceptr a = reserve(4 * (size_t)CHUNK);
    CUmemGenericAllocationHandle again;
    size_t free_before, free_after, total;
    unsigned long long flags;
    const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};

    fails(cuMemMap(a, CHUNK, 4096, h, 0), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemMap(a, CHUNK / 2, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemMap(a + 4 * (size_t)CHUNK, CHUNK, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemMap(a + 1, CHUNK, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemMap(a, CHUNK, 0, h, 0));
    fails(cuMemMap(a, CHUNK, 0, g, 0), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemMap(a + CHUNK, CHUNK, 0, g, 0));
    fails(set_access(a, 3 * (size_t)CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
          CUDA_ERROR_INVALID_VALUE);
    ok(set_access(a, 2 * (size_t)CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    ok(cuMemGetAccess(&flags, &here, a));
    ck_assert_uint_eq(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    fails(cuMemAddressFree(a, 4 * (size_t)CHUNK), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemUnmap(a, CHUNK / 2), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemUnmap(a, 3 * (size_t)CHUNK), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(a + 100)));
    ck_assert_uint_eq(again, h);
    ok(cuMemUnmap(a, 2 * (size_t)CHUNK));
    ok(cuMemGetInfo(&free_before, &total));
    ok(cuMemRelease(h));
    ok(cuMemRelease(g));
    ok(cuMemGetInfo(&free_after, &total));
    ck_assert_uint_eq(free_after - free_before, CHUNK); /* h was retained once more */
    ok(cuMemRelease(again));
    fails(cuMemRelease(again), CUDA_ERROR_INVALID_VALUE);
    ok(cuMemAddressFree(a, 4 * (size_t)CHUNK));
}
END_TEST

/* A kernel touches an address; the context is broken from then on. */
static void expect_fault(CUdeviceptr p)
{
    CUdeviceptr more;

    dt_fill(NULL, p, 1, 1);
    fails(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    fails(cuMemAlloc(&more, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
    fails(cuStreamQuery(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
}

START_TEST(touching_what_is_not_there_breaks_the_context)
{
    CUdeviceptr p = 0;

    dt_start("eager=0");
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);

    switch (_i) {
    case 0: /* reserved only */
        p = reserve(CHUNK);
        break;
    case 1: /* mapped, no access */
        p = reserve(CHUNK);
        ok(cuMemMap(p, CHUNK, 0, create(CHUNK), 0));
        break;
    case 2: /* read only */
        p = reserve(CHUNK);
        ok(cuMemMap(p, CHUNK, 0, create(CHUNK), 0));
        ok(set_access(p, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ));
        break;
    case 3: /* freed */
        p = dt_alloc(CHUNK);
        ok(cuMemFree(p));
        break;
    case 4: /* freed in stream order */
        ok(cuMemAllocAsync(&p, CHUNK, s));
        ok(cuMemFreeAsync(p, s));
        ok(cuStreamSynchronize(s));
        break;
    case 5: /* over the end */
        p = dt_alloc(CHUNK) + CHUNK;
        break;
    default: /* unmapped while a launch is queued */
        p = reserve(CHUNK);
        ok(cuMemMap(p, CHUNK, 0, create(CHUNK), 0));
        ok(set_access(p, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
        dt_fill(NULL, p, 1, 1);
        ok(cuMemUnmap(p, CHUNK));
        break;
    }
    expect_fault(p);
}
END_TEST

START_TEST(pageable_sources_are_read_at_the_call_and_pinned_ones_later)
{
    uint32_t pageable = 1, *pinned;

    dt_start("eager=0");
    const CUstream s = dt_stream(CU_STREAM_NON_BLOCKING);
    const CUdeviceptr x = dt_alloc(4096);

    ok(cuMemHostAlloc((void **)&pinned, 4096, 0));
    *pinned = 1;
    ok(cuMemcpyHtoDAsync(x, &pageable, 4, s));
    ok(cuMemcpyHtoDAsync(x + 4, pinned, 4, s));
    pageable = *pinned = 2;
    ck_assert_uint_eq(dt_word(s, x), 1);
    ck_assert_uint_eq(dt_word(s, x + 4), 2);
    for (int i = 0; i < 4; i++) {
        ok(cuMemcpyDtoD(x + 8, x, 4));
    }
    fails(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY); /* does not wait */
    ok(cuMemcpyDtoH(&pageable, x + 8, 4));
    ck_assert_uint_eq(pageable, 1);
}
END_TEST

START_TEST(boxes_are_copied_row_by_row)
{
    uint8_t from[6 * 8], to[6 * 8];

    dt_start("");
    size_t pitch;
    CUdeviceptr p;

    for (size_t i = 0; i < sizeof from; i++) {
        from[i] = (uint8_t)i;
    }
    ok(cuMemAllocPitch(&p, &pitch, 8, 6, 4));
    ck_assert_uint_ge(pitch, 8);
    CUDA_MEMCPY2D down = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = from,
                          .srcPitch = 8,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = p,
                          .dstPitch = pitch,
                          .WidthInBytes = 8,
                          .Height = 6};
    ok(cuMemcpy2D(&down));
    CUDA_MEMCPY3D up = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                        .srcDevice = p,
                        .srcPitch = pitch,
                        .srcHeight = 3,
                        .srcXInBytes = 1,
                        .srcY = 1,
                        .dstMemoryType = CU_MEMORYTYPE_HOST,
                        .dstHost = to,
                        .dstPitch = 8,
                        .dstHeight = 3,
                        .WidthInBytes = 5,
                        .Height = 2,
                        .Depth = 2};
    memset(to, 0xee, sizeof to);
    ok(cuMemcpy3D(&up));
    for (size_t z = 0; z < 2; z++) {
        for (size_t y = 0; y < 2; y++) {
            ck_assert_mem_eq(to + (z * 3 + y) * 8, from + (z * 3 + y + 1) * 8 + 1, 5);
            ck_assert_uint_eq(to[(z * 3 + y) * 8 + 5], 0xee);
        }
    }
    ok(cuMemsetD2D16(p, pitch, 0x1234, 3, 2));
    ok(cuMemcpyDtoH(to, p + pitch, 8));
    ck_assert_mem_eq(to, "\x34\x12\x34\x12\x34\x12\x0e\x0f", 8);
    down.dstPitch = 4;
    fails(cuMemcpy2D(&down), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(batches_and_peers_are_copied)
{
    dt_start("devices=2");
    const CUstream s = dt_stream(0);
    CUcontext other;
    CUdeviceptr far;
    const CUdeviceptr x = dt_alloc(4096), y = dt_alloc(4096);

    dt_fill(s, x, 5, 8);
    CUdeviceptr dsts[] = {y, y + 8}, srcs[] = {x, x + 4};
    size_t sizes[] = {4, 8}, none = 0;
    CUmemcpyAttributes attrs = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};

    ok(cuMemcpyBatchAsync(dsts, srcs, sizes, 2, &attrs, &none, 1, s));
    ck_assert_uint_eq(dt_word(s, y + 12), 5);
    fails(cuMemcpyBatchAsync(dsts, srcs, sizes, 2, &attrs, &none, 1, NULL),
          CUDA_ERROR_INVALID_VALUE);
    ok(cuDevicePrimaryCtxRetain(&other, 1));
    ok(cuCtxPushCurrent(other));
    ok(cuMemAlloc(&far, 4096));
    ok(cuMemcpyPeer(far, other, y, dt_ctx, 16));
    ck_assert_uint_eq(dt_word(NULL, far + 12), 5);
    ok(cuCtxPopCurrent(NULL));
    ck_assert_uint_eq(dt_word(NULL, y), 5);
}
END_TEST

/* Exported by every driver; headers name it in their own way. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);

START_TEST(peers_are_pairs_of_contexts)
{
    dt_start("devices=2");
    CUcontext far, other, popped;

    ok(cuDevicePrimaryCtxRetain(&far, 1));
    ok(cuCtxCreate_v2(&other, 0, 1));
    ok(cuCtxPopCurrent(&popped));
    fails(cuCtxEnablePeerAccess(dt_ctx, 0), CUDA_ERROR_INVALID_CONTEXT);
    ok(cuCtxEnablePeerAccess(far, 0));
    fails(cuCtxEnablePeerAccess(far, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    fails(cuCtxDisablePeerAccess(other), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    ok(cuCtxEnablePeerAccess(other, 0));
    ok(cuCtxDisablePeerAccess(far));
    fails(cuCtxDisablePeerAccess(far), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    ok(cuCtxDisablePeerAccess(other));
    ok(cuCtxDestroy(other));
    fails(cuCtxEnablePeerAccess(other, 0), CUDA_ERROR_INVALID_CONTEXT);
}
END_TEST

START_TEST(addresses_tell_what_they_are)
{
    dt_start("");
    const CUdeviceptr p = dt_alloc(5000);
    CUdeviceptr base, pool_p;
    size_t size;
    unsigned type;
    int ordinal;
    void *host;
    CUcontext ctx;

    ok(cuMemGetAddressRange(&base, &size, p + 4999));
    ck_assert_uint_eq(base, p);
    ck_assert_uint_eq(size, 5000);
    fails(cuMemGetAddressRange(&base, &size, p + 5000), CUDA_ERROR_NOT_FOUND);
    ok(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    ck_assert_uint_eq(type, CU_MEMORYTYPE_DEVICE);
    ok(cuPointerGetAttribute(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    ck_assert_ptr_eq(ctx, dt_ctx);
    ok(cuMemHostAlloc(&host, 100, 0));
    ok(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                             (CUdeviceptr)(uintptr_t)host));
    ck_assert_uint_eq(type, CU_MEMORYTYPE_HOST);
    fails(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                (CUdeviceptr)(uintptr_t)&type),
          CUDA_ERROR_INVALID_VALUE);
    CUpointer_attribute both[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *data[] = {&type, &ordinal};
    ok(cuPointerGetAttributes(2, both, data, (CUdeviceptr)(uintptr_t)&type));
    ck_assert_uint_eq(type, 0);
    ok(cuMemAllocAsync(&pool_p, 700, NULL));
    ok(cuMemGetAddressRange(&base, &size, pool_p + 1));
    ck_assert_uint_eq(size, 700);
    ok(cuMemFreeHost(host));
    fails(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
    fails(cuMemFree(p + 1), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(managed_memory_is_the_hosts_too)
{
    CUdeviceptr p;

    dt_start(_i == 0 ? "" : "check=1");
    ok(cuMemAllocManaged(&p, 4096, CU_MEM_ATTACH_GLOBAL));
    *(uint32_t *)(uintptr_t)p = 4;
    dt_add(NULL, p, 1, 1);
    ok(cuCtxSynchronize());
    ck_assert_uint_eq(*(uint32_t *)(uintptr_t)p, 5);
}
END_TEST

START_TEST(memory_is_limited)
{
    dt_start("");
    CUdeviceptr p, q;
    size_t before, after, total;

    ok(cuMemGetInfo(&before, &total));
    ck_assert_uint_eq(total, 64u << 20);
    ok(cuMemAlloc(&p, before - (1u << 20)));
    fails(cuMemAlloc(&q, 2u << 20), CUDA_ERROR_OUT_OF_MEMORY);
    fails(cuMemAllocAsync(&q, 2u << 20, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    ok(cuMemFree(p));
    ok(cuMemGetInfo(&after, &total));
    ck_assert_uint_eq(before, after);
    fails(cuMemAlloc(&q, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(failures_are_injected_when_asked)
{
    CUdeviceptr p;
    unsigned n_failed = 0;

    dt_start("fail=cuMemAlloc:2,fail=cuMemcpyDtoH:2+:CUDA_ERROR_ECC_UNCORRECTABLE,"
             "fail=cuStreamCreate:~50%");
    ok(cuMemAlloc(&p, 64));
    fails(cuMemAlloc(&p, 64), CUDA_ERROR_OUT_OF_MEMORY);
    ok(cuMemAlloc(&p, 64));
    uint32_t word;
    ok(cuMemcpyDtoH(&word, p, 4));
    fails(cuMemcpyDtoH(&word, p, 4), CUDA_ERROR_ECC_UNCORRECTABLE);
    fails(cuMemcpyDtoH(&word, p, 4), CUDA_ERROR_ECC_UNCORRECTABLE);
    for (unsigned i = 0; i < 100; i++) {
        CUstream s;
        const CUresult result = cuStreamCreate(&s, 0);
        ck_assert(result == CUDA_SUCCESS || result == CUDA_ERROR_UNKNOWN);
        n_failed += result != CUDA_SUCCESS;
    }
    ck_assert_uint_gt(n_failed, 20);
    ck_assert_uint_lt(n_failed, 80);
}
END_TEST

START_TEST(bad_options_stop_the_program)
{
    static const char *const bad[] = {"mem",
                                      "mem=x",
                                      "granularity=3K",
                                      "memory=1G",
                                      "fail=cuMemCreat:1",
                                      "fail=cuMemCreate:0",
                                      "fail=cuMemCreate:1:CUDA_ERROR_SILLY",
                                      "check=2",
                                      "seed="};

    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));
    setenv("SIMCUDA", bad[_i], 1);
    (void)cuInit(0);
}
END_TEST

START_TEST(virtual_memory_management_can_be_missing)
{
    int value = 1;
    CUdeviceptr p;

    dt_start("vmm=0,version=12040");
    ok(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    ck_assert_int_eq(value, 0);
    fails(cuMemAddressReserve(&p, CHUNK, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
    ok(cuDriverGetVersion(&value));
    ck_assert_int_eq(value, 12040);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("memory");
    TCase *tc = tcase_create("memory");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, two_addresses_are_one_memory, 0, N_SEEDS);
    tcase_add_test(tc, mapping_has_rules);
    tcase_add_loop_test(tc, touching_what_is_not_there_breaks_the_context, 0, 7);
    tcase_add_test(tc, pageable_sources_are_read_at_the_call_and_pinned_ones_later);
    tcase_add_test(tc, boxes_are_copied_row_by_row);
    tcase_add_test(tc, batches_and_peers_are_copied);
    tcase_add_test(tc, peers_are_pairs_of_contexts);
    tcase_add_test(tc, addresses_tell_what_they_are);
    tcase_add_loop_test(tc, managed_memory_is_the_hosts_too, 0, 2);
    tcase_add_test(tc, memory_is_limited);
    tcase_add_test(tc, failures_are_injected_when_asked);
    tcase_add_loop_exit_test(tc, bad_options_stop_the_program, 2, 0, 9);
    tcase_add_test(tc, virtual_memory_management_can_be_missing);
    suite_add_tcase(s, tc);
    return ps_check_main(s);
}
