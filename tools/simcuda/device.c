/* SPDX-License-Identifier: Apache-2.0 */
/* simcuda: the driver itself and its devices: start, version, names, attributes, error texts. Under the big lock. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "tools/simcuda/core.h"

CUresult CUDAAPI cuInit(unsigned int Flags)
{
    SIM_ENTER(SIM_ANYTIME, t);
    if (Flags != 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (sim_options.devices == 0) {
        return sim_leave(CUDA_ERROR_NO_DEVICE);
    }
    sim_initialised = true;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDriverGetVersion(int *driverVersion)
{
    SIM_ENTER(SIM_ANYTIME, t);
    if (driverVersion == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *driverVersion = sim_options.version;
    return sim_leave(CUDA_SUCCESS);
}

static const struct sim_error_row *error_row(CUresult error)
{
    for (size_t i = 0; i < sim_error_n_rows; i++) {
        if (sim_error_rows[i].value == (int)error) {
            return &sim_error_rows[i];
        }
    }
    return NULL;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **pStr)
{
    SIM_ENTER(SIM_ANYTIME, t);
    const struct sim_error_row *row = error_row(error);
    if (pStr == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *pStr = row == NULL ? NULL : row->name;
    return sim_leave(row == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char **pStr)
{
    /* The name in words: "illegal address". Made once for each error, under the lock. */
    static char texts[256][64];
    const struct sim_error_row *row = error_row(error);
    if (pStr == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (row == NULL) {
        *pStr = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    char *text = texts[(size_t)(row - sim_error_rows) % 256];
    if (text[0] == '\0') {
        const char *name = strncmp(row->name, "CUDA_ERROR_", 11) == 0 ? row->name + 11 : "no error";
        size_t i = 0;
        for (; i < sizeof texts[0] - 1 && name[i] != '\0'; i++) {
            text[i] = (char)(name[i] == '_' ? ' ' : tolower((unsigned char)name[i]));
        }
    }
    *pStr = text;
    sim_unlock();
    return CUDA_SUCCESS;
}

static CUresult check(CUdevice dev, const void *out)
{
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return dev >= 0 && dev < sim_options.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal)
{
    SIM_ENTER(0, t);
    const CUresult result = check(ordinal, device);
    if (result == CUDA_SUCCESS) {
        *device = ordinal;
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuDeviceGetCount(int *count)
{
    SIM_ENTER(0, t);
    if (count == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *count = sim_options.devices;
    return sim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceGetName(char *name, int len, CUdevice dev)
{
    SIM_ENTER(0, t);
    const CUresult result = check(dev, name);
    if (result == CUDA_SUCCESS && len > 0) {
        snprintf(name, (size_t)len, "simcuda");
    }
    return sim_leave(result);
}

static void fill_uuid(CUuuid *uuid, CUdevice dev)
{
    memset(uuid, 0, sizeof *uuid);
    memcpy(uuid->bytes, "simcuda", 7);
    memcpy(&uuid->bytes[12], &dev, sizeof dev); /* the last four */
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    SIM_ENTER(0, t);
    const CUresult result = check(dev, uuid);
    if (result == CUDA_SUCCESS) {
        fill_uuid(uuid, dev);
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    SIM_ENTER(0, t);
    const CUresult result = check(dev, uuid);
    if (result == CUDA_SUCCESS) {
        fill_uuid(uuid, dev);
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    SIM_ENTER(0, t);
    const CUresult result = check(dev, bytes);
    if (result == CUDA_SUCCESS) {
        *bytes = sim_options.mem;
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    SIM_ENTER(0, t);
    const CUresult result = check(dev, pciBusId);
    if (result == CUDA_SUCCESS && len > 0) {
        snprintf(pciBusId, (size_t)len, "0000:%02X:00.0", (unsigned)dev + 1);
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    SIM_ENTER(0, t);
    unsigned domain, bus;
    if (dev == NULL || pciBusId == NULL || sscanf(pciBusId, "%x:%x:", &domain, &bus) != 2) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    const CUresult result = check((int)bus - 1, dev);
    if (result == CUDA_SUCCESS) {
        *dev = (int)bus - 1;
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    SIM_ENTER(0, t);
    const CUresult result = check(dev, major);
    if (result == CUDA_SUCCESS && minor != NULL) {
        *major = 9;
        *minor = 0;
    }
    return sim_leave(minor == NULL ? CUDA_ERROR_INVALID_VALUE : result);
}

/* NOLINTNEXTLINE(readability-function-size): a flat table */
static int attribute(CUdevice_attribute attrib)
{
    static const struct {
        CUdevice_attribute attrib;
        int value;
    } rows[] = {
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
        {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
        {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
        {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
        {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
        {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
        {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
        {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
        {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000},
        {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 50 << 20},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
        {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
        {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
        {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
        {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
        {CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, 1},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
        {CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].attrib == attrib) {
            return rows[i].value;
        }
    }
    if (attrib == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID) {
        return sim_options.numa;
    }
    return attrib == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED && sim_options.vmm;
}

CUresult CUDAAPI cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    SIM_ENTER(0, t);
    CUresult result = check(dev, pi);
    if (result == CUDA_SUCCESS && ((int)attrib < 1 || attrib >= CU_DEVICE_ATTRIBUTE_MAX)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *pi = attrib == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? dev + 1 : attribute(attrib);
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    SIM_ENTER(0, t);
    CUresult result = check(dev, canAccessPeer);
    if (result == CUDA_SUCCESS) {
        result = check(peerDev, canAccessPeer);
    }
    if (result == CUDA_SUCCESS) {
        *canAccessPeer = dev != peerDev;
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib,
                                         CUdevice srcDevice, CUdevice dstDevice)
{
    SIM_ENTER(0, t);
    CUresult result = check(srcDevice, value);
    if (result == CUDA_SUCCESS) {
        result = check(dstDevice, value);
    }
    if (result == CUDA_SUCCESS && srcDevice == dstDevice) {
        result = CUDA_ERROR_INVALID_DEVICE;
    }
    if (result == CUDA_SUCCESS) {
        *value = attrib != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK;
    }
    return sim_leave(result);
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t *free, size_t *total)
{
    SIM_ENTER(SIM_CTX, t);
    if (free == NULL || total == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *total = sim_options.mem;
    *free = sim_options.mem - sim_phys_used(sim_ctx_current(t)->device);
    return sim_leave(CUDA_SUCCESS);
}
