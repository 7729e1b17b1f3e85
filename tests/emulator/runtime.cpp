/* libcudart.so.13: the part of CUDA's runtime that TVM calls, with the CPU's memory as the device's.
 *
 * Everything is done at once, so streams have nothing to do; events keep the time. New memory is full of NaN.
 */
#include <time.h>

#include <cstdlib>
#include <cstring>

namespace {

constexpr int kSuccess = 0, kNotSupported = 801;
constexpr size_t kMemoryBytes = size_t{1} << 34;

/* Attributes by number, as CUDA numbers them. */
int attribute(int number) {
  switch (number) {
    case 1: /* threads of a block */
    case 2:
    case 3:
    case 4:
      return 1024;
    case 8: /* bytes of shared memory of a block */
      return 49152;
    case 10: /* threads of a warp */
      return 32;
    case 12: /* registers of a block */
      return 65536;
    case 13: /* clock in kHz */
      return 1410000;
    case 16: /* multiprocessors */
      return 108;
    case 38: /* bytes of the second cache */
      return 41943040;
    case 75: /* compute capability: 8.0 */
      return 8;
    default:
      return 0;
  }
}

}  // namespace

extern "C" {

int cudaGetDeviceCount(int* count) {
  *count = 1;
  return kSuccess;
}

int cudaGetDevice(int* device) {
  *device = 0;
  return kSuccess;
}

int cudaSetDevice(int) { return kSuccess; }

int cudaDeviceGetAttribute(int* value, int number, int) {
  *value = attribute(number);
  return kSuccess;
}

/* The name's 256 bytes, two identifiers of 16 and 8, a mask of 4, then the bytes of memory. */
int cudaGetDeviceProperties(void* properties, int) {
  std::memcpy(static_cast<char*>(properties) + 288, &kMemoryBytes, sizeof(kMemoryBytes));
  return kSuccess;
}

int cudaMemGetInfo(size_t* left, size_t* all) {
  *left = *all = kMemoryBytes;
  return kSuccess;
}

int cudaMalloc(void** made, size_t bytes) {
  if (posix_memalign(made, 256, bytes + 256)) return 2;
  std::memset(*made, 0xff, bytes);
  return kSuccess;
}

int cudaMallocHost(void** made, size_t bytes) { return cudaMalloc(made, bytes); }

int cudaFree(void* memory) {
  std::free(memory);
  return kSuccess;
}

int cudaFreeHost(void* memory) { return cudaFree(memory); }

int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void*) {
  std::memmove(to, from, bytes);
  return kSuccess;
}

int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, 0, stream);
}

int cudaEventCreate(void** event) {
  *event = new timespec();
  return kSuccess;
}

int cudaEventDestroy(void* event) {
  delete static_cast<timespec*>(event);
  return kSuccess;
}

int cudaEventRecord(void* event, void*) {
  return clock_gettime(CLOCK_MONOTONIC, static_cast<timespec*>(event)) ? 1 : kSuccess;
}

int cudaEventElapsedTime(float* ms, void* first, void* last) {
  auto *from = static_cast<timespec*>(first), *to = static_cast<timespec*>(last);
  *ms = 1e3f * (to->tv_sec - from->tv_sec) + 1e-6f * (to->tv_nsec - from->tv_nsec);
  return kSuccess;
}

const char* cudaGetErrorName(int) { return "EmulatorError"; }
const char* cudaGetErrorString(int) { return "the emulator cannot do that"; }

#define DONE(name) \
  int name(...) { return kSuccess; }
#define REFUSED(name) \
  int name(...) { return kNotSupported; }

DONE(cudaGetLastError)
DONE(cudaPeekAtLastError)
DONE(cudaEventSynchronize)
DONE(cudaStreamCreate)
DONE(cudaStreamCreateWithFlags)
DONE(cudaStreamDestroy)
DONE(cudaStreamSynchronize)
DONE(cudaStreamWaitEvent)
REFUSED(cudaGraphDestroy)
REFUSED(cudaGraphExecDestroy)
REFUSED(cudaGraphInstantiate)
REFUSED(cudaGraphLaunch)
REFUSED(cudaStreamBeginCapture)
REFUSED(cudaStreamEndCapture)

}  // extern "C"
