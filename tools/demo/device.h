/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device as the demo's model sees it: allocations, launches, copies and streams through the
 * CUDA driver, which is found at run time as libcudart finds it. An ordinary program: any failure
 * is said on stderr and ends it. Calls may come from any thread that has called demo_device_enter;
 * none is kept from another by a lock.
 */
#ifndef DEMO_DEVICE_H
#define DEMO_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>
#include <cudaTypedefs.h>

#include "tools/demo/args.h"

#define DEMO_KERNELS(_x)                                                                           \
    _x(fill_random) _x(arange) _x(count) _x(rmsnorm) _x(rmsnorm_backward) _x(add_relu) _x(relu)    \
        _x(relu_backward) _x(router) _x(assign) _x(sort) _x(gather) _x(index_copy) _x(silu)        \
            _x(gate) _x(swiglu_backward) _x(combine) _x(combine_backward) _x(gather_backward)      \
                _x(router_backward) _x(loss) _x(sum) _x(sgd) _x(prepare) _x(product)

enum demo_kernel {
#define DEMO_ID(_name) DEMO_K_##_name,
    DEMO_KERNELS(DEMO_ID)
#undef DEMO_ID
        DEMO_N_KERNELS
};

struct demo_driver {
#define DEMO_FN(_name, _version, _asked) PFN_##_name##_v##_version _name;
#include "tools/demo/device_fns.def"
#undef DEMO_FN
};

/* Written by demo_device_open only. */
struct demo_device {
    struct demo_driver cu;
    void *library;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction kernels[DEMO_N_KERNELS];
    char name[128];
    bool simulated; /* the software driver: sizes are chosen for a slow machine */
    int n_blocks;   /* the largest grid */
};

/* Exit status of the program when there is no driver or no device. */
#define DEMO_EXIT_NO_DEVICE 77

void demo_device_open(struct demo_device *dev);
void demo_device_close(struct demo_device *dev);
/* Makes the context current in the calling thread. */
void demo_device_enter(const struct demo_device *dev);

CUdeviceptr demo_alloc(const struct demo_device *dev, CUstream stream, uint64_t bytes);
/* Frees *ptr in the order of the stream and sets it to 0. */
void demo_free(const struct demo_device *dev, CUstream stream, CUdeviceptr *ptr);
void demo_zero(const struct demo_device *dev, CUstream stream, CUdeviceptr ptr, uint64_t bytes);
void demo_copy(const struct demo_device *dev, CUstream stream, CUdeviceptr to, CUdeviceptr from,
               uint64_t bytes);
/* Returns when the bytes have arrived. */
void demo_read(const struct demo_device *dev, void *to, CUdeviceptr from, size_t bytes);

/*
 * The calling thread's parameter blocks. They are never cleared: words that a launch does not set
 * still hold what an earlier launch of the thread left there, addresses of tensors long freed among
 * them, as on a reused stack.
 */
struct demo_args *demo_args(void);
struct demo_prepare *demo_prepare_args(void);
struct demo_product *demo_product_args(void);

/*
 * Launches a kernel that takes struct demo_args with the calling thread's; n_items: independent
 * items of work.
 */
void demo_launch(const struct demo_device *dev, CUstream stream, enum demo_kernel kernel,
                 int64_t n_items);
/* Launches prepare and product with the calling thread's parameters; n_tiles: upper bound. */
void demo_launch_prepare(const struct demo_device *dev, CUstream stream);
void demo_launch_product(const struct demo_device *dev, CUstream stream, int64_t n_tiles);

CUstream demo_stream_create(const struct demo_device *dev);
void demo_stream_destroy(const struct demo_device *dev, CUstream stream);
void demo_stream_wait(const struct demo_device *dev, CUstream stream);
/* Orders all later work of `after` behind what `before` holds now. Nothing if they are the same. */
void demo_stream_order(const struct demo_device *dev, CUstream before, CUstream after);

/* Bytes of device memory in use, as the driver reports them. */
uint64_t demo_used_bytes(const struct demo_device *dev);
/*
 * The driver's own exact peak since the call before in *bytes_p, where it keeps one; what is in use
 * now begins the next.
 */
bool demo_take_exact_peak(const struct demo_device *dev, uint64_t *bytes_p);

#endif
