/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses in the parameters of launches and graph nodes, and what every wrapper does with the
 * addresses found. Any thread; no state but the fact that a capture was ever begun (hooks_life.c).
 */
#include "shim/hooks.h"
#include "shim/hooks_life.h"
#include "shim/params.h"

/* ---- around the job's call ---- */

/*
 * Asked of the stream itself: a capture spreads to other streams by events. On the legacy stream
 * the driver answers with an error while another stream is capturing; nothing may be put into it
 * then. True also when the driver does not say: what a capture may hold is pinned, which is never
 * wrong.
 */
bool ps_hook_capturing(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    if (!ps_capture_ever_begun()) {
        return false;
    }
    CUresult r = ps_driver.cuStreamIsCapturing(stream, &status);

    if (r != CUDA_SUCCESS && r != CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
        r = ps_driver.cuStreamIsCapturing(stream, &status);
    }
    return r != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUresult ps_hook_begin_slow(struct ps_touches *touch, struct ps_touches *pin, CUstream stream)
{
    CUresult r;

    if (touch->n != 0 && ps_hook_capturing(stream)) {
        r = ps_touch_pin(touch,
                         stream); /* the node names the address for as long as the graph lives */
        ps_touches_init(touch);
    } else {
        r = ps_touch_enter(touch, stream);
    }
    if (r == CUDA_SUCCESS) {
        r = ps_touch_pin(pin, stream);
        if (r != CUDA_SUCCESS && touch->n != 0) {
            ps_touch_leave(touch, stream);
        }
    }
    return r;
}

/* ---- launches ---- */

void ps_scan_launch(struct ps_touches *t, CUfunction f, void *const *kernel_params,
                    void *const *extra)
{
    if (!ps_window_live() || f == NULL) {
        return;
    }
    if (extra != NULL && kernel_params == NULL) {
        ps_params_scan_extra(t, extra);
    }
    if (kernel_params != NULL && extra == NULL && !ps_params_scan_kernel(t, f, kernel_params)) {
        ps_hook_unseen("the driver does not tell a kernel's parameters");
    }
}

void ps_scan_launch_list(struct ps_touches *pin, const CUDA_LAUNCH_PARAMS_v1 *list, unsigned count)
{
    for (unsigned i = 0; list != NULL && i < count; i++) {
        ps_scan_launch(pin, list[i].function, list[i].kernelParams, NULL);
    }
}

/* ---- graph nodes: what they name stays pinned, since replays pass no hook ---- */

void ps_scan_kernel_node(struct ps_touches *pin, const CUDA_KERNEL_NODE_PARAMS_v1 *node)
{
    if (node != NULL) {
        ps_scan_launch(pin, node->func, node->kernelParams, node->extra);
    }
}

void ps_scan_kernel_node_v2(struct ps_touches *pin, const CUDA_KERNEL_NODE_PARAMS_v2 *node)
{
    if (node != NULL) {
        const CUfunction f = node->func != NULL ? node->func : (CUfunction)(void *)node->kern;

        ps_scan_launch(pin, f, node->kernelParams, node->extra);
    }
}

void ps_scan_memset_node(struct ps_touches *pin, const CUDA_MEMSET_NODE_PARAMS_v1 *node)
{
    if (node != NULL) {
        ps_scan_rect(pin, node->dst, node->pitch, node->width * node->elementSize, node->height);
    }
}

void ps_scan_memop_node(struct ps_touches *pin, const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 *node)
{
    if (node != NULL) {
        ps_scan_memops(pin, pin, node->paramArray, node->count);
    }
}

#if CUDA_VERSION >= 12020
void ps_scan_graph_node(struct ps_touches *pin, const CUgraphNodeParams *node)
{
    if (node == NULL) {
        return;
    }
    switch ((int)node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        const CUfunction f =
            node->kernel.func != NULL ? node->kernel.func : (CUfunction)(void *)node->kernel.kern;

        ps_scan_launch(pin, f, node->kernel.kernelParams, node->kernel.extra);
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        ps_scan_copy3d(pin, pin, &node->memcpy.copyParams);
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        ps_scan_rect(pin, node->memset.dst, node->memset.pitch,
                     node->memset.width * node->memset.elementSize, node->memset.height);
        break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        ps_scan_memops(pin, pin, node->memOp.paramArray, node->memOp.count);
        break;
    default: /* the others name no memory of ours */
        break;
    }
}
#endif

void ps_scan_resource(struct ps_touches *pin, const CUDA_RESOURCE_DESC_v1 *resource)
{
    if (resource == NULL) {
        return;
    }
    if (resource->resType == CU_RESOURCE_TYPE_LINEAR) {
        ps_scan_range(pin, resource->res.linear.devPtr, resource->res.linear.sizeInBytes);
    } else if (resource->resType == CU_RESOURCE_TYPE_PITCH2D) {
        ps_scan_range(pin, resource->res.pitch2D.devPtr, 1);
    }
}
