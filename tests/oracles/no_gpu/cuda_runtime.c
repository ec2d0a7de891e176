/* The part of CUDA's runtime that torch's allocator talks to, with host memory in place of a GPU's.
 *
 * Memory is promised and not touched: copies and fills above a mebibyte are left out, and kernels
 * are not started. What is not here succeeds and does nothing (build.py). */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cuda.h>
#include <driver_types.h>
#include <vector_types.h>

#define GRANULE ((size_t)2 << 20) /* cuMemGetAllocationGranularity of an H100 */
#define TOUCHED ((size_t)1 << 20)
#define MOST_BLOCKS 65536

typedef cudaError_t Status;
typedef void *Handle;

static size_t number_of(const char *variable, size_t otherwise) {
    const char *text = getenv(variable);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static size_t card_bytes(void) { return number_of("NO_GPU_BYTES", (size_t)80 << 30); }

/* Bytes of the card that are taken, all devices together. */
static size_t taken;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread Status last_error;
static __thread int current_device;

static int take(size_t size) {
    pthread_mutex_lock(&lock);
    int fits = size <= card_bytes() - taken;
    if (fits) taken += size;
    pthread_mutex_unlock(&lock);
    return fits;
}

static void give_back(size_t size) {
    pthread_mutex_lock(&lock);
    taken -= size;
    pthread_mutex_unlock(&lock);
}

static void *addresses(size_t size) {
    char *found = mmap(NULL, size + GRANULE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return (void *)(((size_t)found + GRANULE - 1) & ~(GRANULE - 1));
}

static Handle new_handle(void) {
    static size_t last = 0x1000;
    return (Handle)__sync_add_and_fetch(&last, 16);
}

/* Memory */

static struct { void *address; size_t size; } blocks[MOST_BLOCKS];
static int num_blocks;

Status cudaMalloc(void **address, size_t size) {
    if (num_blocks == MOST_BLOCKS || !take(size)) return last_error = cudaErrorMemoryAllocation;
    *address = addresses(size);
    pthread_mutex_lock(&lock);
    blocks[num_blocks].address = *address;
    blocks[num_blocks++].size = size;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

Status cudaFree(void *address) {
    size_t size = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < num_blocks && !size; i++)
        if (blocks[i].address == address) {
            size = blocks[i].size;
            blocks[i] = blocks[--num_blocks];
        }
    pthread_mutex_unlock(&lock);
    give_back(size);
    if (size) munmap(address, size);
    return cudaSuccess;
}

Status cudaMemGetInfo(size_t *unused, size_t *total) {
    *total = card_bytes();
    *unused = *total - taken;
    return cudaSuccess;
}

Status cudaHostAlloc(void **address, size_t size, unsigned flags) {
    *address = malloc(size);
    return cudaSuccess;
}

Status cudaFreeHost(void *address) {
    free(address);
    return cudaSuccess;
}

Status cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, Handle stream) {
    if (size <= TOUCHED) memmove(to, from, size);
    return cudaSuccess;
}

Status cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    return cudaMemcpyAsync(to, from, size, kind, NULL);
}

Status cudaMemsetAsync(void *to, int value, size_t size, Handle stream) {
    if (size <= TOUCHED) memset(to, value, size);
    return cudaSuccess;
}

Status cudaMemset(void *to, int value, size_t size) {
    return cudaMemsetAsync(to, value, size, NULL);
}

Status cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *address) {
    memset(found, 0, sizeof *found);
    found->type = cudaMemoryTypeDevice;
    found->devicePointer = (void *)address;
    return cudaSuccess;
}

Status cudaGetSymbolAddress(void **address, const void *symbol) {
    static char zeros[1 << 20];
    *address = zeros;
    return cudaSuccess;
}

/* Memory that is mapped, of expandable segments; a handle is its size in granules */

static Status granularity(size_t *size, const void *properties, int kind) {
    *size = GRANULE;
    return cudaSuccess;
}

static Status reserve(CUdeviceptr *at, size_t size, size_t align, CUdeviceptr hint,
                      unsigned long long flags) {
    *at = (CUdeviceptr)addresses(size);
    return cudaSuccess;
}

static Status create(unsigned long long *handle, size_t size, const void *properties,
                     unsigned long long flags) {
    if (!take(size)) return cudaErrorMemoryAllocation;
    *handle = size / GRANULE;
    return cudaSuccess;
}

static Status release(unsigned long long handle) {
    give_back(handle * GRANULE);
    return cudaSuccess;
}

static Status current_context(void **context) {
    *context = (void *)1;
    return cudaSuccess;
}

static Status nothing(void) { return cudaSuccess; }

static const struct { const char *name; void *function; } driver[] = {
    {"cuMemGetAllocationGranularity", granularity},
    {"cuMemAddressReserve", reserve},
    {"cuMemCreate", create},
    {"cuMemRelease", release},
    {"cuCtxGetCurrent", current_context},
};

Status cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                        unsigned long long flags, int *status) {
    *function = nothing;
    for (size_t i = 0; i < sizeof driver / sizeof *driver; i++)
        if (!strcmp(name, driver[i].name)) *function = driver[i].function;
    if (status) *status = 0;
    return cudaSuccess;
}

/* The device */

Status cudaGetDeviceCount(int *count) {
    *count = (int)number_of("NO_GPU_DEVICES", 1);
    return cudaSuccess;
}

Status cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}

Status cudaSetDevice(int device) {
    current_device = device;
    return cudaSuccess;
}

Status cudaGetLastError(void) {
    Status found = last_error;
    last_error = cudaSuccess;
    return found;
}

Status cudaPeekAtLastError(void) { return last_error; }

const char *cudaGetErrorString(Status status) {
    return status == cudaErrorMemoryAllocation ? "out of memory" : "no GPU";
}

const char *cudaGetErrorName(Status status) { return cudaGetErrorString(status); }

Status cudaDriverGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}

Status cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }

Status cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
    *found = (struct cudaDeviceProp){
        .name = "NVIDIA H100 80GB HBM3",
        .totalGlobalMem = card_bytes(),
        .major = 9,
        .multiProcessorCount = 132,
        .warpSize = 32,
        .maxThreadsPerBlock = 1024,
        .maxThreadsPerMultiProcessor = 2048,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535},
        .sharedMemPerBlock = 48 << 10,
        .sharedMemPerBlockOptin = 227 << 10,
        .sharedMemPerMultiprocessor = 228 << 10,
        .regsPerBlock = 65536,
        .regsPerMultiprocessor = 65536,
        .l2CacheSize = 50 << 20,
        .unifiedAddressing = 1,
    };
    return cudaSuccess;
}

Status cudaDeviceGetAttribute(int *value, int attribute, int device) {
    struct cudaDeviceProp known;
    cudaGetDeviceProperties(&known, device);
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = known.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = known.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = known.multiProcessorCount; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)known.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)known.sharedMemPerBlockOptin; break;
    default: *value = 1;
    }
    return cudaSuccess;
}

Status cudaDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, size, "0000:%02x:00.0", device);
    return cudaSuccess;
}

Status cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* Streams, events, kernels: all is over as soon as it is asked for */

Status cudaStreamCreate(Handle *made) {
    *made = new_handle();
    return cudaSuccess;
}

Status cudaStreamCreateWithPriority(Handle *made, unsigned flags, int priority) {
    return cudaStreamCreate(made);
}

Status cudaEventCreate(Handle *made) { return cudaStreamCreate(made); }

Status cudaEventCreateWithFlags(Handle *made, unsigned flags) { return cudaStreamCreate(made); }

Status cudaEventElapsedTime(float *milliseconds, Handle from, Handle to) {
    *milliseconds = 1;
    return cudaSuccess;
}

Status cudaStreamGetPriority(Handle stream, int *priority) {
    *priority = 0;
    return cudaSuccess;
}

Status cudaStreamIsCapturing(Handle stream, int *capturing) {
    *capturing = 0;
    return cudaSuccess;
}

Status cudaStreamGetCaptureInfo(Handle stream, int *capturing, void *id, void *graph, void *nodes,
                                void *edges, void *count) {
    return cudaStreamIsCapturing(stream, capturing);
}

Status cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *kernel) {
    memset(found, 0, sizeof *found);
    found->numRegs = 32;
    found->maxThreadsPerBlock = 1024;
    found->ptxVersion = found->binaryVersion = 90;
    return cudaSuccess;
}

Status cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *kernel,
                                                              int threads, size_t shared,
                                                              unsigned flags) {
    *count = 8;
    return cudaSuccess;
}

Status cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *kernel, int threads,
                                                     size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, kernel, threads, shared, 0);
}

/* What the compiler of kernels calls */

static __thread struct { dim3 grid, block; size_t shared; Handle stream; } launch;

Handle *__cudaRegisterFatBinary(void *code) {
    static Handle registered[1];
    return registered;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, Handle stream) {
    launch.grid = grid;
    launch.block = block;
    launch.shared = shared;
    launch.stream = stream;
    return 0;
}

Status __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, Handle *stream) {
    *grid = launch.grid;
    *block = launch.block;
    *shared = launch.shared;
    *stream = launch.stream;
    return cudaSuccess;
}

Status __cudaGetKernel(Handle *kernel, const void *function) {
    *kernel = (Handle)function;
    return cudaSuccess;
}
