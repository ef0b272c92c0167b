// A CUDA driver that computes nothing: it keeps the rules that the launcher relies on, and a log of what it was asked.
//
// Context of device i: 0x1000 + i. Stream s belongs to device (s >> 16) - 1. A function belongs to one library and one
// context, and launches only in its own context and within the shared-memory limit that was set for it.
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { kSuccess = 0, kInvalidValue = 1, kInvalidContext = 201, kInvalidHandle = 400, kLaunchFailed = 719 };
enum { kMaxDevices = 4, kMaxLibraries = 64, kLogBytes = 1 << 20 };

typedef struct { uint32_t id, pad; uint32_t value[16]; } LaunchAttribute;
typedef struct {
  uint32_t grid[3], block[3], shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  uint32_t attribute_count;
} LaunchConfig;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char text[kLogBytes];
static size_t text_size;
static int capability[2] = {9, 0}, device_count = 2, open_devices = 0, driver_version = 12040, clusters = 66;
static char failing_call[64];
static int failing_result;
static size_t params[32][2], param_count;
static int libraries, limits[kMaxLibraries][kMaxDevices];
static __thread uintptr_t contexts[8];
static __thread int depth;
static __thread int capture_mode;

static void say(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&mutex);
  text_size += vsnprintf(text + text_size, kLogBytes - text_size, format, arguments);
  if (text_size >= kLogBytes) text_size = kLogBytes - 1;
  pthread_mutex_unlock(&mutex);
  va_end(arguments);
}

#define CALL(name) \
  if (strcmp(failing_call, #name) == 0) return failing_result
#define NEEDS_CONTEXT \
  if (depth == 0) return kInvalidContext

// --- What the test sets and reads ---

const char* fake_log(void) { return text; }
void fake_reset(void) {
  text_size = 0, text[0] = 0, failing_call[0] = 0, param_count = 0;
  capability[0] = 9, capability[1] = 0, device_count = 2, open_devices = 0, driver_version = 12040, clusters = 66;
}
void fake_fail(const char* call, int result) { strncpy(failing_call, call, 63), failing_result = result; }
void fake_device(int major, int minor, int count, int version, int max_clusters) {
  capability[0] = major, capability[1] = minor, device_count = count, driver_version = version, clusters = max_clusters;
}
void fake_param(size_t offset, size_t size) { params[param_count][0] = offset, params[param_count++][1] = size; }
void fake_open_devices(int mask) { open_devices = mask; }
int fake_context_depth(void) { return depth; }

// --- The driver API ---

int cuInit(unsigned flags) { CALL(cuInit); say("cuInit %u\n", flags); return kSuccess; }
int cuDriverGetVersion(int* version) { *version = driver_version; return kSuccess; }
int cuGetErrorName(int error, const char** name) {
  *name = error == kInvalidValue ? "CUDA_ERROR_INVALID_VALUE" : error == kInvalidContext ? "CUDA_ERROR_INVALID_CONTEXT"
        : error == kLaunchFailed ? "CUDA_ERROR_LAUNCH_FAILED" : error == 200 ? "CUDA_ERROR_INVALID_IMAGE"
        : error == kInvalidHandle ? "CUDA_ERROR_INVALID_HANDLE" : NULL;
  return *name ? kSuccess : kInvalidValue;
}
int cuGetErrorString(int error, const char** string) { (void)error; *string = "as the test wants"; return kSuccess; }
int cuDeviceGetCount(int* count) { *count = device_count; return kSuccess; }
int cuDeviceGet(int* device, int ordinal) {
  CALL(cuDeviceGet);
  if (ordinal < 0 || ordinal >= device_count) return kInvalidValue;
  *device = ordinal;
  return kSuccess;
}
int cuDeviceGetName(char* name, int size, int device) { snprintf(name, size, "Fake GPU %d", device); return kSuccess; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  CALL(cuDeviceGetAttribute);
  switch (attribute) {
    case 16: *value = 132; return kSuccess;            // multiprocessors
    case 75: *value = capability[0]; return kSuccess;  // compute capability
    case 76: *value = capability[1]; return kSuccess;
  }
  return kInvalidValue;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { (void)device; *bytes = (size_t)1 << 37; return kSuccess; }
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0, *active = open_devices >> device & 1;
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)(uintptr_t)(0x1000 + device); return kSuccess; }
int cuCtxGetCurrent(void** context) { *context = (void*)(depth ? contexts[depth - 1] : 0); return kSuccess; }
int cuCtxPushCurrent_v2(void* context) {
  if (depth == 8) return kInvalidContext;
  contexts[depth++] = (uintptr_t)context;
  return kSuccess;
}
int cuCtxPopCurrent_v2(void** context) {
  NEEDS_CONTEXT;
  *context = (void*)contexts[--depth];
  return kSuccess;
}
int cuCtxGetDevice(int* device) { NEEDS_CONTEXT; *device = (int)(contexts[depth - 1] - 0x1000); return kSuccess; }
int cuStreamGetCtx(void* stream, void** context) {
  CALL(cuStreamGetCtx);
  *context = (void*)(((uintptr_t)stream >> 16) - 1 + 0x1000);
  return kSuccess;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  int before = capture_mode;
  capture_mode = *mode, *mode = before;
  return kSuccess;
}
int cuLibraryLoadData(uintptr_t* library, const char* image, void* o, void* v, unsigned n, void* lo, void* lv, unsigned ln) {
  (void)o, (void)v, (void)n, (void)lo, (void)lv, (void)ln;
  CALL(cuLibraryLoadData);
  if (capture_mode != 2) return kLaunchFailed;  // loading while a graph is recorded needs the relaxed mode
  pthread_mutex_lock(&mutex);
  *library = ++libraries % kMaxLibraries;
  memset(limits[*library], 0, sizeof limits[*library]);
  pthread_mutex_unlock(&mutex);
  say("cuLibraryLoadData %.16s\n", image);
  return kSuccess;
}
int cuLibraryUnload(uintptr_t library) { (void)library; say("cuLibraryUnload\n"); return kSuccess; }
int cuLibraryGetKernel(uintptr_t* kernel, uintptr_t library, const char* name) {
  CALL(cuLibraryGetKernel);
  *kernel = library;
  say("cuLibraryGetKernel %s\n", name);
  return kSuccess;
}
int cuKernelGetFunction(uintptr_t* function, uintptr_t kernel) {
  CALL(cuKernelGetFunction);
  NEEDS_CONTEXT;
  *function = (kernel << 8) | (contexts[depth - 1] - 0x1000);
  return kSuccess;
}
int cuFuncLoad(uintptr_t function) { (void)function; say("cuFuncLoad\n"); return kSuccess; }
int cuFuncSetAttribute(uintptr_t function, int attribute, int value) {
  CALL(cuFuncSetAttribute);
  if (attribute != 8 || value > 232448) return kInvalidValue;
  limits[function >> 8][function & 255] = value;
  say("cuFuncSetAttribute shared=%d\n", value);
  return kSuccess;
}
int cuFuncGetParamInfo(uintptr_t function, size_t index, size_t* offset, size_t* size) {
  (void)function;
  if (index >= param_count) return kInvalidValue;
  *offset = params[index][0], *size = params[index][1];
  return kSuccess;
}
int cuOccupancyMaxActiveClusters(int* count, uintptr_t function, const LaunchConfig* config) {
  (void)function;
  CALL(cuOccupancyMaxActiveClusters);
  if (config->attribute_count != 1) return kInvalidValue;
  *count = clusters;
  say("cuOccupancyMaxActiveClusters cluster=%u shared=%u\n", config->attributes[0].value[0], config->shared_bytes);
  return kSuccess;
}
int cuTensorMapEncodeTiled(uint8_t* map, int type, uint32_t rank, void* address, const uint64_t* dims, const uint64_t* strides,
                           const uint32_t* box, const uint32_t* steps, int interleave, int swizzle, int promotion, int fill) {
  CALL(cuTensorMapEncodeTiled);
  if ((uintptr_t)map % 64 != 0 || (uintptr_t)address % 16 != 0) return kInvalidValue;
  memset(map, 0xEE, 128);
  memcpy(map, &address, 8);
  say("cuTensorMapEncodeTiled type=%d rank=%u dims=%lu,%lu,%lu strides=%lu,%lu box=%u,%u,%u steps=%u,%u,%u interleave=%d "
      "swizzle=%d promotion=%d fill=%d\n", type, rank, dims[0], dims[1], dims[2], strides[0], strides[1], box[0], box[1],
      box[2], steps[0], steps[1], steps[2], interleave, swizzle, promotion, fill);
  return kSuccess;
}
int cuMemsetD8Async(uint64_t address, unsigned char value, size_t count, void* stream) {
  CALL(cuMemsetD8Async);
  say("cuMemsetD8Async address=%lu value=%u count=%zu stream=%lu\n", address, value, count, (uintptr_t)stream);
  return kSuccess;
}
int cuLaunchKernelEx(const LaunchConfig* config, uintptr_t function, void** kernel_params, void** extra) {
  CALL(cuLaunchKernelEx);
  NEEDS_CONTEXT;
  const uintptr_t device = ((uintptr_t)config->stream >> 16) - 1;
  if ((function & 255) != device) return kInvalidHandle;
  if ((int)config->shared_bytes > limits[function >> 8][device]) return kInvalidValue;
  if (kernel_params == NULL || extra != NULL) return kInvalidValue;
  if (config->attribute_count != 1 || config->attributes[0].id != 4) return kInvalidValue;  // the cluster's shape
  if (config->grid[0] % config->attributes[0].value[0] != 0) return kInvalidValue;
  say("cuLaunchKernelEx device=%lu grid=%u,%u,%u block=%u,%u,%u cluster=%u,%u,%u shared=%u stream=%lu\n", device,
      config->grid[0], config->grid[1], config->grid[2], config->block[0], config->block[1], config->block[2],
      config->attributes[0].value[0], config->attributes[0].value[1], config->attributes[0].value[2], config->shared_bytes,
      (uintptr_t)config->stream);
  for (size_t i = 0; i < param_count; ++i) {
    uint64_t start = 0;
    memcpy(&start, kernel_params[i], params[i][1] < 8 ? params[i][1] : 8);
    say("param %zu: %lu\n", i, start);
  }
  return kSuccess;
}
