/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each kind of wrapper asks of the engine, and in which order around the driver's call. The
 * window is [WINDOW, WINDOW + SIZE); a stream argument is printed as sN, with 1 and 2 for the
 * legacy and per-thread default streams.
 */
#include "shim/cuda_api.h"

#include "tests/support/check_main.h"

#include <pthread.h>
#include <string.h>

#include "tests/preload/preloaded.h"

#define WINDOW UINT64_C(0x7f3000000000)
#define SIZE   (UINT64_C(8) << 30)
#define A      (WINDOW + 0x1000)
#define B      (WINDOW + 0x140000000)
#define HOST   UINT64_C(0x500000)
#define S9     ((CUstream)(uintptr_t)9)
#define F      ((CUfunction)(uintptr_t)0x77000)

static void *cuda;
static struct fake_control *fake;
static struct engine_double *d;

/* The function that a job would get. */
#define GET(_symbol, _type) ((_type)need(dlsym(cuda, #_symbol), #_symbol))

#define LOG(_text)                                                                                 \
    do {                                                                                           \
        ck_assert_str_eq(d->log, _text);                                                           \
        d->log[0] = '\0';                                                                          \
    } while (0)

static void setup(void)
{
    fake->reset();
    memset(d, 0, sizeof(*d));
    set_window(WINDOW, SIZE);
}

static void launch(void **params, void **extra, CUstream stream)
{
    const PFN_cuLaunchKernel_v4000 f = GET(cuLaunchKernel, PFN_cuLaunchKernel_v4000);

    ck_assert_int_eq(f(F, 1, 1, 1, 1, 1, 1, 0, stream, params, extra), CUDA_SUCCESS);
}

static void purge(void)
{
    GET(cuModuleUnload, PFN_cuModuleUnload_v2000)(NULL);
}

/* ---- launches ---- */

START_TEST(a_launch_touches_what_its_parameters_name)
{
    const uint64_t sizes[] = {8, 4, 8, 24, 0};
    uint64_t a = A, outside = 0x7f2fffffffff, s[3] = {1, B + 5, WINDOW + SIZE};
    uint32_t small = 3;
    void *params[] = {&a, &small, &outside, s};

    purge();
    fake->param_sizes = sizes;
    launch(params, NULL, S9);
    LOG("enter 7f3000001000 7f3140000005 s9;leave s9;");
    ck_assert_int_eq(fake->calls("cuLaunchKernel"), 1);
}
END_TEST

START_TEST(a_launch_that_names_nothing_asks_nothing)
{
    const uint64_t sizes[] = {8, 0};
    uint64_t x = 42;
    void *params[] = {&x};

    purge();
    fake->param_sizes = sizes;
    launch(params, NULL, S9);
    LOG("");
    ck_assert_int_eq(fake->calls("cuStreamIsCapturing"), 0);
}
END_TEST

START_TEST(layouts_are_asked_for_once_until_an_unload)
{
    const uint64_t two[] = {8, 8, 0}, one[] = {8, 0};
    uint64_t a = A;
    void *params[] = {&a, NULL};

    purge();
    fake->param_sizes = one;
    launch(params, NULL, S9);
    const int asked = fake->calls("cuFuncGetParamInfo");

    launch(params, NULL, S9);
    ck_assert_int_eq(fake->calls("cuFuncGetParamInfo"), asked);
    d->log[0] = '\0';
    /* The handle is another kernel's now, with one more parameter. */
    GET(cuLibraryUnload, PFN_cuLibraryUnload_v12000)(NULL);
    uint64_t b = B;

    params[1] = &b;
    fake->param_sizes = two;
    launch(params, NULL, S9);
    LOG("enter 7f3000001000 7f3140000000 s9;leave s9;");
    /* And back: a layout seen before is as good as new. */
    purge();
    fake->param_sizes = one;
    params[1] = NULL;
    launch(params, NULL, S9);
    LOG("enter 7f3000001000 s9;leave s9;");
}
END_TEST

START_TEST(a_kernel_handle_may_stand_for_a_function)
{
    const uint64_t sizes[] = {8, 0};
    uint64_t a = A;
    void *params[] = {&a};

    purge();
    fake->is_kernel = 1;
    fake->param_sizes = sizes;
    launch(params, NULL, S9);
    LOG("enter 7f3000001000 s9;leave s9;");
}
END_TEST

START_TEST(a_kernel_without_parameters_is_no_riddle)
{
    purge();
    launch((void *[]){NULL}, NULL, S9);
    LOG("");
}
END_TEST

START_TEST(extra_is_searched_whole)
{
    struct __attribute__((packed)) {
        uint32_t x;
        uint64_t a; /* at offset 4 */
        char pad[200];
        uint64_t b; /* at offset 212 */
    } buffer = {.x = 1, .a = A, .b = B};
    size_t size = sizeof(buffer);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};

    launch(NULL, extra, S9);
    LOG("enter 7f3000001000 7f3140000000 s9;leave s9;");
    size = 211; /* the end is kept to */
    launch(NULL, extra, S9);
    LOG("enter 7f3000001000 s9;leave s9;");
}
END_TEST

/* Against a search that does nothing clever, for all alignments and places. */
START_TEST(the_search_finds_every_address_at_four_byte_steps)
{
    for (size_t shift = 0; shift < 4; shift++) {
        for (size_t at = 0; at + 8 <= 200; at++) {
            unsigned char bytes[256] = {0};
            const uint64_t a = B + at;
            size_t size = 200;
            void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, bytes + shift,
                             CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};

            memcpy(bytes + shift + at, &a, sizeof(a));
            launch(NULL, extra, S9);
            ck_assert_msg((d->log[0] != '\0') == (at % 4 == 0), "at %zu, shifted by %zu: '%s'", at,
                          shift, d->log);
            d->log[0] = '\0';
        }
    }
}
END_TEST

/* What surrounds the address looks like one at first sight: its high half is the window's, but it lies beyond. */
START_TEST(the_search_finds_every_address_in_every_size)
{
    static const size_t some[] = {8,   12,  16,  20,  31,  60,  64,  68,   252,  256,
                                  260, 264, 500, 512, 519, 768, 772, 1024, 1300, 4096};

    set_window(WINDOW, UINT64_C(5) << 30);
    for (size_t k = 0; k < sizeof(some) / sizeof(*some); k++) {
        size_t size = some[k];

        for (size_t at = 0; at + 8 <= size; at += 4) {
            static uint64_t words[513];
            const uint64_t a = WINDOW + 0x1000 + at;
            void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, words, CU_LAUNCH_PARAM_BUFFER_SIZE,
                             &size, CU_LAUNCH_PARAM_END};
            char expected[64];

            for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
                words[i] = WINDOW + UINT64_C(0x1c0000000);
            }
            memcpy((char *)words + at, &a, sizeof(a));
            if (at % 8 != 0) { /* the halves beside it must not make another one */
                memset((char *)words + at - 4, 0, 4);
                memset((char *)words + at + 8, 0, 4);
            }
            snprintf(expected, sizeof(expected), "enter %llx s9;leave s9;", (unsigned long long)a);
            launch(NULL, extra, S9);
            ck_assert_msg(strcmp(d->log, expected) == 0, "%zu bytes, at %zu: '%s'", size, at,
                          d->log);
            d->log[0] = '\0';
        }
    }
}
END_TEST

START_TEST(the_search_finds_every_address_among_many_parameters)
{
    enum { MOST = 27 };

    for (unsigned n = 1; n <= MOST; n++) {
        uint64_t sizes[MOST + 2] = {0}, words[MOST + 1];
        void *params[MOST + 1];

        for (unsigned i = 0; i <= n; i++) {
            sizes[i] = i == n / 2 ? 4 : 8; /* one that can hold none parts them */
            words[i] = WINDOW + SIZE + i;
            params[i] = &words[i];
        }
        purge();
        fake->param_sizes = sizes;
        for (unsigned i = 0; i <= n; i++) {
            words[i] = A;
            params[(i + 1) % (n + 1)] = NULL;
            launch(params, NULL, S9);
            ck_assert_msg((d->log[0] != '\0') == (i != n / 2), "%u of %u: '%s'", i, n, d->log);
            d->log[0] = '\0';
            words[i] = WINDOW - 8;
            params[(i + 1) % (n + 1)] = &words[(i + 1) % (n + 1)];
        }
    }
}
END_TEST

START_TEST(the_default_stream_is_that_of_the_variant)
{
    const uint64_t sizes[] = {8, 0};
    uint64_t a = A;
    void *params[] = {&a};

    purge();
    fake->param_sizes = sizes;
    launch(params, NULL, NULL);
    LOG("enter 7f3000001000 s1;leave s1;");
    GET(cuLaunchKernel_ptsz, PFN_cuLaunchKernel_v7000_ptsz)
    (F, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
    LOG("enter 7f3000001000 s2;leave s2;");
    CUlaunchConfig config = {.hStream = S9};

    GET(cuLaunchKernelEx, PFN_cuLaunchKernelEx_v11060)(&config, F, params, NULL);
    LOG("enter 7f3000001000 s9;leave s9;");
    config.hStream = NULL;
    GET(cuLaunchKernelEx_ptsz, PFN_cuLaunchKernelEx_v11060_ptsz)(&config, F, params, NULL);
    LOG("enter 7f3000001000 s2;leave s2;");
    GET(cuLaunchCooperativeKernel, PFN_cuLaunchCooperativeKernel_v9000)
    (F, 1, 1, 1, 1, 1, 1, 0, S9, params);
    LOG("enter 7f3000001000 s9;leave s9;");
}
END_TEST

START_TEST(a_launch_on_many_devices_pins)
{
    const uint64_t sizes[] = {8, 0};
    uint64_t a = A, b = B;
    void *first[] = {&a}, *second[] = {&b};
    CUDA_LAUNCH_PARAMS_v1 list[2] = {{.function = F, .kernelParams = first},
                                     {.function = F, .kernelParams = second}};

    purge();
    fake->param_sizes = sizes;
    GET(cuLaunchCooperativeKernelMultiDevice, PFN_cuLaunchCooperativeKernelMultiDevice_v9000)
    (list, 2, 0);
    LOG("pin 7f3000001000 7f3140000000 s1;");
}
END_TEST

START_TEST(data_that_cannot_come_back_is_the_jobs_to_know)
{
    d->enter_result = CUDA_ERROR_ILLEGAL_ADDRESS;
    ck_assert_int_eq(GET(cuMemsetD8Async, PFN_cuMemsetD8Async_v3020)(A, 0, 4, S9),
                     CUDA_ERROR_ILLEGAL_ADDRESS);
    LOG("enter 7f3000001000 7f3000001003 s9;");
    ck_assert_int_eq(fake->calls("cuMemsetD8Async"), 0);
}
END_TEST

/* ---- copies and fills ---- */

START_TEST(copies_touch_both_ends)
{
    GET(cuMemcpyDtoDAsync_v2, PFN_cuMemcpyDtoDAsync_v3020)(A, B, 16, S9);
    LOG("enter 7f3000001000 7f300000100f 7f3140000000 7f314000000f s9;leave s9;");
    GET(cuMemcpyDtoH_v2, PFN_cuMemcpyDtoH_v3020)((void *)HOST, A, 16);
    LOG("enter 7f3000001000 7f300000100f s1;leave s1;");
    GET(cuMemcpyDtoH_v2_ptds, PFN_cuMemcpyDtoH_v7000_ptds)((void *)HOST, A, 16);
    LOG("enter 7f3000001000 7f300000100f s2;leave s2;");
    GET(cuMemcpyPeer, PFN_cuMemcpyPeer_v4000)(A, NULL, B, NULL, 1);
    LOG("enter 7f3000001000 7f3140000000 s1;leave s1;");
    GET(cuMemcpyDtoDAsync_v2, PFN_cuMemcpyDtoDAsync_v3020)(A, B, 0, S9);
    LOG("");
}
END_TEST

START_TEST(copies_of_boxes_touch_their_effective_addresses)
{
    CUDA_MEMCPY2D_v2 two = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                            .srcDevice = A,
                            .srcPitch = 100,
                            .srcY = 2,
                            .srcXInBytes = 3,
                            .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                            .dstDevice = B,
                            .WidthInBytes = 10,
                            .Height = 4};

    GET(cuMemcpy2DAsync_v2, PFN_cuMemcpy2DAsync_v3020)(&two, S9);
    LOG("enter 7f30000010cb 7f3000001200 s9;leave s9;"); /* +203 and +203+309 */
    CUDA_MEMCPY3D_v2 three = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                              .srcHost = NULL,
                              .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                              .dstDevice = B,
                              .dstZ = 1,
                              .dstPitch = 16,
                              .dstHeight = 4,
                              .WidthInBytes = 8,
                              .Height = 2,
                              .Depth = 2};

    GET(cuMemcpy3D_v2_ptds, PFN_cuMemcpy3D_v7000_ptds)(&three);
    LOG("enter 7f3140000040 7f3140000097 s2;leave s2;"); /* +64 and +64+87 */
    CUDA_MEMCPY3D_PEER_v1 peer = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                  .srcDevice = A,
                                  .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                  .dstDevice = 0x1000,
                                  .WidthInBytes = 8,
                                  .Height = 1,
                                  .Depth = 1};

    GET(cuMemcpy3DPeerAsync, PFN_cuMemcpy3DPeerAsync_v4000)(&peer, S9);
    LOG("enter 7f3000001000 7f3000001007 s9;leave s9;");
}
END_TEST

START_TEST(batches_touch_every_operation)
{
    CUdeviceptr dsts[2] = {A, 0x1000}, srcs[2] = {0x2000, B};
    size_t sizes[2] = {1, 1}, failed = 0;

    fake->memory_type = CU_MEMORYTYPE_DEVICE;
    GET(cuMemcpyBatchAsync, PFN_cuMemcpyBatchAsync_v12080)
    (dsts, srcs, sizes, 2, NULL, NULL, 0, &failed, S9);
    LOG("enter 7f3000001000 7f3140000000 s9;leave s9;");
    GET(cuMemcpyBatchAsync_v2_ptsz, PFN_cuMemcpyBatchAsync_v13000_ptsz)
    (dsts, srcs, sizes, 2, NULL, NULL, 0, NULL);
    LOG("enter 7f3000001000 7f3140000000 s2;leave s2;");
    CUDA_MEMCPY3D_BATCH_OP_v1 op = {0};

    op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.dst.op.ptr.ptr = A;
    op.src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    op.extent = (CUextent3D){8, 1, 1};
    GET(cuMemcpy3DBatchAsync_v2, PFN_cuMemcpy3DBatchAsync_v13000)(1, &op, 0, S9);
    LOG("enter 7f3000001000 s9;leave s9;");
}
END_TEST

START_TEST(fills_touch_their_range)
{
    GET(cuMemsetD32_v2, PFN_cuMemsetD32_v3020)(A, 0, 4);
    LOG("enter 7f3000001000 7f300000100f s1;leave s1;");
    GET(cuMemsetD2D16Async_ptsz, PFN_cuMemsetD2D16Async_v7000_ptsz)(A, 100, 0, 4, 3, NULL);
    LOG("enter 7f3000001000 7f30000010cf s2;leave s2;"); /* 2 * 100 + 8 - 1 */
}
END_TEST

START_TEST(an_uploaded_address_pins_its_tensor)
{
    uint64_t table[4] = {1, A, 3, B};
    uint32_t packed[5] = {0, (uint32_t)A, (uint32_t)(A >> 32), 0, 0};
    const PFN_cuMemcpyHtoDAsync_v3020 up = GET(cuMemcpyHtoDAsync_v2, PFN_cuMemcpyHtoDAsync_v3020);

    up(0x1000, table, sizeof(table), S9);
    LOG("pin 7f3000001000 7f3140000000 s9;");
    up(0x1000, packed, sizeof(packed), S9);
    LOG("pin 7f3000001000 s9;");
    up(B, table, 16, S9);
    LOG("enter 7f3140000000 7f314000000f s9;pin 7f3000001000 s9;leave s9;");
    /* Not read: larger than a table of addresses would be, or not the host's to read. */
    up(0x1000, (void *)HOST, (64 << 10) + 8, S9);
    LOG("");
    fake->memory_type = CU_MEMORYTYPE_DEVICE;
    up(0x1000, (void *)HOST, 64, S9);
    LOG("");
    fake->memory_type = 0;
    GET(cuMemcpyAsync, PFN_cuMemcpyAsync_v4000)(0x1000, (CUdeviceptr)(uintptr_t)table, 16, S9);
    LOG("pin 7f3000001000 s9;");
    CUDA_MEMCPY2D_v2 two = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                            .srcHost = table,
                            .srcPitch = 16,
                            .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                            .dstDevice = 0x1000,
                            .WidthInBytes = 8,
                            .Height = 2};

    GET(cuMemcpy2D_v2, PFN_cuMemcpy2D_v3020)(&two); /* words 0 and 2 */
    LOG("");
    two.srcXInBytes = 8;
    GET(cuMemcpy2D_v2, PFN_cuMemcpy2D_v3020)(&two);
    LOG("pin 7f3000001000 7f3140000000 s1;");
}
END_TEST

START_TEST(stream_memory_operations_touch_and_carry)
{
    GET(cuStreamWriteValue64_v2, PFN_cuStreamWriteValue64_v11070)(S9, 0x1000, B, 0);
    LOG("pin 7f3140000000 s9;");
    GET(cuStreamWaitValue32, PFN_cuStreamWaitValue32_v8000)(S9, A, 1, 0);
    LOG("enter 7f3000001000 7f3000001003 s9;leave s9;");
    CUstreamBatchMemOpParams_v1 ops[2] = {0};

    ops[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    ops[0].writeValue.address = 0x1000;
    ops[0].writeValue.value64 = A;
    ops[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    ops[1].waitValue.address = B;
    GET(cuStreamBatchMemOp_v2_ptsz, PFN_cuStreamBatchMemOp_v11070_ptsz)(NULL, 2, ops, 0);
    LOG("enter 7f3140000000 7f3140000003 s2;pin 7f3000001000 s2;leave s2;");
}
END_TEST

/* ---- allocations ---- */

START_TEST(a_stream_ordered_allocation_is_offered)
{
    CUdeviceptr p = 0;
    const PFN_cuMemAllocAsync_v11020 alloc = GET(cuMemAllocAsync, PFN_cuMemAllocAsync_v11020);

    d->alloc = A;
    ck_assert_int_eq(alloc(&p, 100, S9), CUDA_SUCCESS);
    ck_assert_uint_eq(p, A);
    LOG("alloc 100 s9;");
    ck_assert_int_eq(fake->calls("cuMemAllocAsync"), 0);
    GET(cuMemAllocAsync_ptsz, PFN_cuMemAllocAsync_v11020_ptsz)(&p, 100, NULL);
    LOG("alloc 100 s2;");
    d->alloc = 0;
    ck_assert_int_eq(alloc(&p, 100, S9), CUDA_SUCCESS);
    LOG("alloc 100 s9;");
    ck_assert_int_eq(fake->calls("cuMemAllocAsync"), 1);
    alloc(&p, 0, S9);
    alloc(NULL, 100, S9);
    LOG("");
}
END_TEST

START_TEST(only_the_default_pool_is_taken_over)
{
    CUdeviceptr p = 0;
    const PFN_cuMemAllocFromPoolAsync_v11020 from =
        GET(cuMemAllocFromPoolAsync, PFN_cuMemAllocFromPoolAsync_v11020);

    d->alloc = A;
    from(&p, 100, (CUmemoryPool)0x1000, S9);
    LOG("alloc 100 s9;");
    from(&p, 100, (CUmemoryPool)0x2000, S9);
    LOG("note 100;");
    fake->pools[1] = 0x2000; /* the job has put another pool in the default one's place */
    GET(cuMemAllocAsync, PFN_cuMemAllocAsync_v11020)(&p, 100, S9);
    LOG("note 100;");
    ck_assert_int_eq(fake->calls("cuMemAllocAsync"), 1);
}
END_TEST

START_TEST(other_allocations_are_counted_and_left_alone)
{
    CUdeviceptr p = 0;
    size_t pitch = 512;

    GET(cuMemAlloc_v2, PFN_cuMemAlloc_v3020)(&p, 100);
    LOG("note 100;");
    GET(cuMemAllocPitch_v2, PFN_cuMemAllocPitch_v3020)(&p, &pitch, 500, 3, 4);
    LOG("note 1536;");
    GET(cuMemAllocManaged, PFN_cuMemAllocManaged_v6000)(&p, 7, 1);
    LOG("note 7;");
}
END_TEST

START_TEST(frees_of_ours_are_the_engines)
{
    const PFN_cuMemFreeAsync_v11020 release = GET(cuMemFreeAsync, PFN_cuMemFreeAsync_v11020);

    d->owned = 1;
    ck_assert_int_eq(release(A, S9), CUDA_SUCCESS);
    LOG("free 7f3000001000 s9;");
    ck_assert_int_eq(GET(cuMemFree_v2, PFN_cuMemFree_v3020)(A), CUDA_SUCCESS);
    LOG("free_sync 7f3000001000;");
    ck_assert_int_eq(fake->calls("cuMemFreeAsync") + fake->calls("cuMemFree_v2"), 0);
    release(0x1000, S9);
    LOG("");
    d->owned = 0; /* an address of the window that nobody has: the driver's to refuse */
    release(A, S9);
    LOG("free 7f3000001000 s9;");
    ck_assert_int_eq(fake->calls("cuMemFreeAsync"), 2);
}
END_TEST

START_TEST(out_of_memory_is_tried_once_more)
{
    CUevent event;
    const PFN_cuEventCreate_v2000 create = GET(cuEventCreate, PFN_cuEventCreate_v2000);

    d->give_back = 1;
    fake->fail_next("cuEventCreate", CUDA_ERROR_OUT_OF_MEMORY, 1);
    ck_assert_int_eq(create(&event, 0), CUDA_SUCCESS);
    LOG("give_back;");
    ck_assert_int_eq(fake->calls("cuEventCreate"), 2);
    fake->fail_next("cuEventCreate", CUDA_ERROR_OUT_OF_MEMORY, 1);
    ck_assert_int_eq(create(&event, 0), CUDA_ERROR_OUT_OF_MEMORY); /* nothing left to give */
    LOG("give_back;");
    fake->fail_next("cuEventCreate", CUDA_ERROR_INVALID_VALUE, 1);
    ck_assert_int_eq(create(&event, 0), CUDA_ERROR_INVALID_VALUE);
    LOG("");
    d->give_back = 1;
    fake->fail_next("cuMemsetD8Async", CUDA_ERROR_OUT_OF_MEMORY, 1);
    GET(cuMemsetD8Async, PFN_cuMemsetD8Async_v3020)(A, 0, 1, S9);
    LOG("enter 7f3000001000 s9;give_back;leave s9;");
}
END_TEST

/* ---- captures and life ---- */

START_TEST(a_capturing_stream_pins)
{
    fake->capture_status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    GET(cuMemsetD8Async, PFN_cuMemsetD8Async_v3020)(A, 0, 1, S9);
    LOG("enter 7f3000001000 s9;leave s9;"); /* nothing was ever captured: not even asked */
    ck_assert_int_eq(fake->calls("cuStreamIsCapturing"), 0);
    GET(cuStreamBeginCapture_v2_ptsz, PFN_cuStreamBeginCapture_v10010_ptsz)(NULL, 0);
    LOG("capture s2;");
    GET(cuMemsetD8Async, PFN_cuMemsetD8Async_v3020)(A, 0, 1, S9);
    LOG("pin 7f3000001000 s9;");
    d->owned = 0; /* the engine refuses under capture */
    GET(cuMemFreeAsync, PFN_cuMemFreeAsync_v11020)(A, S9);
    LOG("free 7f3000001000 s9;");
    ck_assert_int_eq(fake->calls("cuMemFreeAsync"), 1);
    fake->capture_status = 0;
    GET(cuMemsetD8Async, PFN_cuMemsetD8Async_v3020)(A, 0, 1, S9);
    LOG("enter 7f3000001000 s9;leave s9;");
    fake->fail_next("cuStreamIsCapturing", CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 1);
    GET(cuMemsetD8_v2, PFN_cuMemsetD8_v3020)(A, 0, 1);
    LOG("pin 7f3000001000 s1;");
}
END_TEST

START_TEST(graph_nodes_pin)
{
    const uint64_t sizes[] = {8, 0};
    uint64_t a = A;
    void *params[] = {&a};
    CUDA_KERNEL_NODE_PARAMS_v2 kernel = {.kern = (CUkernel)(void *)F, .kernelParams = params};

    purge();
    fake->param_sizes = sizes;
    GET(cuGraphAddKernelNode_v2, PFN_cuGraphAddKernelNode_v12000)(NULL, NULL, NULL, 0, &kernel);
    LOG("pin 7f3000001000 s1;");
    CUDA_MEMSET_NODE_PARAMS_v1 set = {.dst = A, .elementSize = 4, .width = 4, .height = 1};

    GET(cuGraphExecMemsetNodeSetParams, PFN_cuGraphExecMemsetNodeSetParams_v10020)
    (NULL, NULL, &set, NULL);
    LOG("pin 7f3000001000 7f300000100f s1;");
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};

    node.memcpy.copyParams = (CUDA_MEMCPY3D_v2){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                                .srcDevice = A,
                                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                                .dstDevice = B,
                                                .WidthInBytes = 1,
                                                .Height = 1,
                                                .Depth = 1};
    GET(cuGraphAddNode_v2, PFN_cuGraphAddNode_v12030)(NULL, NULL, NULL, NULL, 0, &node);
    LOG("pin 7f3140000000 7f3000001000 s1;");
}
END_TEST

START_TEST(ends_are_told_before_and_beginnings_after)
{
    CUstream stream = NULL;

    GET(cuStreamCreate, PFN_cuStreamCreate_v2000)(&stream, 1);
    LOG("created s0 1;");
    fake->fail_next("cuStreamCreate", CUDA_ERROR_INVALID_VALUE, 1);
    GET(cuStreamCreate, PFN_cuStreamCreate_v2000)(&stream, 1);
    LOG("");
    GET(cuStreamDestroy_v2, PFN_cuStreamDestroy_v4000)(S9);
    LOG("destroying s9;destroyed 1;");
    fake->fail_next("cuStreamDestroy_v2", CUDA_ERROR_INVALID_VALUE, 1);
    GET(cuStreamDestroy_v2, PFN_cuStreamDestroy_v4000)(S9);
    LOG("destroying s9;");
    GET(cuCtxDestroy_v2, PFN_cuCtxDestroy_v4000)((CUcontext)(uintptr_t)5);
    LOG("context 5;gone;");
    fake->fail_next("cuCtxDestroy_v2", CUDA_ERROR_INVALID_CONTEXT, 1);
    GET(cuCtxDestroy_v2, PFN_cuCtxDestroy_v4000)((CUcontext)(uintptr_t)5);
    LOG("context 5;stays;");
    GET(cuDevicePrimaryCtxReset_v2, PFN_cuDevicePrimaryCtxReset_v11000)(3);
    LOG("primary 3;gone;");
    fake->fail_next("cuDevicePrimaryCtxReset_v2", CUDA_ERROR_INVALID_DEVICE, 1);
    GET(cuDevicePrimaryCtxReset_v2, PFN_cuDevicePrimaryCtxReset_v11000)(3);
    LOG("primary 3;stays;");
    GET(cuDevicePrimaryCtxRelease_v2, PFN_cuDevicePrimaryCtxRelease_v11000)(3);
    LOG("primary 3;stays;");
    fake->primary_active = 0;
    GET(cuDevicePrimaryCtxRelease_v2, PFN_cuDevicePrimaryCtxRelease_v11000)(3);
    LOG("primary 3;gone;");
    GET(cuCtxEnablePeerAccess, PFN_cuCtxEnablePeerAccess_v4000)((CUcontext)(uintptr_t)6, 0);
    LOG("peer 6;");
    GET(cuMemPoolSetAccess, PFN_cuMemPoolSetAccess_v11020)((CUmemoryPool)0x1000, NULL, 2);
    LOG("access 1000 2;");
}
END_TEST

/* ---- queries ---- */

START_TEST(ours_answer_as_pool_memory)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    CUmemoryPool pool = NULL;
    uint64_t id = 0;

    d->owned = 1;
    GET(cuMemGetAddressRange_v2, PFN_cuMemGetAddressRange_v3020)(&base, &size, A);
    ck_assert_uint_eq(base, WINDOW);
    ck_assert_uint_eq(size, 1 << 20);
    const PFN_cuPointerGetAttribute_v4000 get =
        GET(cuPointerGetAttribute, PFN_cuPointerGetAttribute_v4000);

    ck_assert_int_eq(get(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, A), CUDA_SUCCESS);
    ck_assert_ptr_eq(pool, (void *)0x1000);
    ck_assert_int_eq(get(&id, CU_POINTER_ATTRIBUTE_HOST_POINTER, A), CUDA_ERROR_INVALID_VALUE);
    LOG("");
    ck_assert_int_eq(get(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, A), CUDA_SUCCESS);
    ck_assert_uint_eq(id & 0xff, 7);
    LOG("pin 7f3000001000 s1;");
    CUpointer_attribute which[2] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                    CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void *host = &host, *data[2] = {&size, &host};

    size = 0;
    GET(cuPointerGetAttributes, PFN_cuPointerGetAttributes_v7000)(2, which, data, A);
    ck_assert_uint_eq(size, 1 << 20);
    ck_assert_ptr_null(host);
    ck_assert_int_eq(fake->calls("cuPointerGetAttribute") + fake->calls("cuPointerGetAttributes"),
                     0);
    get(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, 0x1000);
    ck_assert_int_eq(fake->calls("cuPointerGetAttribute"), 1);
}
END_TEST

START_TEST(ours_cannot_be_exported_or_mapped)
{
    CUmemGenericAllocationHandle handle;
    CUipcMemHandle ipc;

    d->owned = 1;
    ck_assert_int_eq(GET(cuIpcGetMemHandle, PFN_cuIpcGetMemHandle_v4010)(&ipc, A),
                     CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(GET(cuMemRetainAllocationHandle,
                         PFN_cuMemRetainAllocationHandle_v11000)(&handle, (void *)(uintptr_t)A),
                     CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(GET(cuMemUnmap, PFN_cuMemUnmap_v10020)(A, 1), CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr both[2] = {0x1000, A};

    ck_assert_int_eq(
        GET(cuMemDiscardBatchAsync, PFN_cuMemDiscardBatchAsync_v13000)(both, NULL, 2, 0, S9),
        CUDA_ERROR_INVALID_VALUE);
    ck_assert_int_eq(fake->calls("cuIpcGetMemHandle") + fake->calls("cuMemUnmap") +
                         fake->calls("cuMemDiscardBatchAsync"),
                     0);
    GET(cuMemUnmap, PFN_cuMemUnmap_v10020)(0x1000, 1);
    ck_assert_int_eq(fake->calls("cuMemUnmap"), 1);
    LOG("");
    GET(cuMemGetHandleForAddressRange, PFN_cuMemGetHandleForAddressRange_v11070)
    (&handle, A, 1, 1, 0);
    LOG("pin 7f3000001000 s1;");
    ck_assert_int_eq(fake->calls("cuMemGetHandleForAddressRange"), 1);
}
END_TEST

START_TEST(pool_figures_hold_our_bytes)
{
    uint64_t value = 5;
    const PFN_cuMemPoolGetAttribute_v11020 get =
        GET(cuMemPoolGetAttribute, PFN_cuMemPoolGetAttribute_v11020);

    d->used = 100;
    d->reserved = 1000;
    get((CUmemoryPool)0x1000, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value);
    ck_assert_uint_eq(value, 105);
    get((CUmemoryPool)0x1000, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &value);
    ck_assert_uint_eq(value, 1105);
    get((CUmemoryPool)0x1000, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
    ck_assert_uint_eq(value, 1105);
    GET(cuMemPoolTrimTo, PFN_cuMemPoolTrimTo_v11020)((CUmemoryPool)0x1000, 0);
    LOG("trim 1000;");
}
END_TEST

START_TEST(what_keeps_an_address_pins)
{
    CUDA_RESOURCE_DESC_v1 linear = {.resType = CU_RESOURCE_TYPE_LINEAR};
    CUtensorMap map;
    unsigned flag = 1;

    linear.res.linear.devPtr = A;
    linear.res.linear.sizeInBytes = 1;
    GET(cuTexObjectCreate, PFN_cuTexObjectCreate_v5000)(NULL, &linear, NULL, NULL);
    LOG("pin 7f3000001000 s1;");
    GET(cuTensorMapReplaceAddress, PFN_cuTensorMapReplaceAddress_v12000)
    (&map, (void *)(uintptr_t)A);
    LOG("pin 7f3000001000 s1;");
    GET(cuPointerSetAttribute, PFN_cuPointerSetAttribute_v6000)
    (&flag, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, A);
    LOG("pin 7f3000001000 s1;");
}
END_TEST

int main(void)
{
    cuda = load_cuda();
    fake = load_fake(cuda);
    fake->reset();
    d = load_double();
    Suite *s = suite_create("hooks");
    TCase *t = tcase_create("all");

    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_test(t, a_capturing_stream_pins); /* before any capture was begun */
    tcase_add_test(t, a_launch_touches_what_its_parameters_name);
    tcase_add_test(t, a_launch_that_names_nothing_asks_nothing);
    tcase_add_test(t, layouts_are_asked_for_once_until_an_unload);
    tcase_add_test(t, a_kernel_handle_may_stand_for_a_function);
    tcase_add_test(t, a_kernel_without_parameters_is_no_riddle);
    tcase_add_test(t, extra_is_searched_whole);
    tcase_add_test(t, the_search_finds_every_address_at_four_byte_steps);
    tcase_add_test(t, the_search_finds_every_address_in_every_size);
    tcase_add_test(t, the_search_finds_every_address_among_many_parameters);
    tcase_add_test(t, the_default_stream_is_that_of_the_variant);
    tcase_add_test(t, a_launch_on_many_devices_pins);
    tcase_add_test(t, data_that_cannot_come_back_is_the_jobs_to_know);
    tcase_add_test(t, copies_touch_both_ends);
    tcase_add_test(t, copies_of_boxes_touch_their_effective_addresses);
    tcase_add_test(t, batches_touch_every_operation);
    tcase_add_test(t, fills_touch_their_range);
    tcase_add_test(t, an_uploaded_address_pins_its_tensor);
    tcase_add_test(t, stream_memory_operations_touch_and_carry);
    tcase_add_test(t, a_stream_ordered_allocation_is_offered);
    tcase_add_test(t, only_the_default_pool_is_taken_over);
    tcase_add_test(t, other_allocations_are_counted_and_left_alone);
    tcase_add_test(t, frees_of_ours_are_the_engines);
    tcase_add_test(t, out_of_memory_is_tried_once_more);
    tcase_add_test(t, graph_nodes_pin);
    tcase_add_test(t, ends_are_told_before_and_beginnings_after);
    tcase_add_test(t, ours_answer_as_pool_memory);
    tcase_add_test(t, ours_cannot_be_exported_or_mapped);
    tcase_add_test(t, pool_figures_hold_our_bytes);
    tcase_add_test(t, what_keeps_an_address_pins);
    suite_add_tcase(s, t);
    return ps_check_main(s);
}
