/* What nvcc gives CUDA code, for a C++ compiler: the kernels that TVM writes become functions of one
 * thread, whose index changes (driver.cpp). */
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
/* Blocks run one after another, so that one copy of what they share is enough. */
#define __shared__ static

struct Index {
  unsigned x, y, z;
};

extern "C" {
extern Index threadIdx, blockIdx;
void __syncthreads();
/* cp.async: nothing is copied before it is waited for. */
void emulator_copy(void* to, const void* from, int bytes, int taken);
void emulator_commit();
void emulator_wait(int groups);
/* The value that another thread of the warp gives at the same call. */
unsigned long long emulator_shuffle(unsigned long long value, int lane);
}

#define VECTORS(type, name)                                    \
  struct alignas(2 * sizeof(type)) name##2 {                   \
    type x, y;                                                 \
  };                                                           \
  struct name##3 {                                             \
    type x, y, z;                                              \
  };                                                           \
  struct alignas(4 * sizeof(type)) name##4 {                   \
    type x, y, z, w;                                           \
  };                                                           \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

VECTORS(signed char, char)
VECTORS(unsigned char, uchar)
VECTORS(short, short)
VECTORS(unsigned short, ushort)
VECTORS(int, int)
VECTORS(unsigned, uint)
VECTORS(float, float)
VECTORS(double, double)

struct alignas(16) longlong2 {
  long long x, y;
};
struct alignas(16) longlong4 {
  long long x, y, z, w;
};
inline longlong2 make_longlong2(long long x, long long y) { return {x, y}; }
inline longlong4 make_longlong4(long long x, long long y, long long z, long long w) {
  return {x, y, z, w};
}

template <typename T>
T __ldg(const T* from) {
  return *from;
}

template <typename A, typename B>
auto max(A a, B b) {
  return a < b ? b : a;
}
template <typename A, typename B>
auto min(A a, B b) {
  return b < a ? b : a;
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

template <typename T>
T emulator_of_lane(T value, int lane) {
  unsigned long long bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  bits = emulator_shuffle(bits, lane);
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline int emulator_lane() { return threadIdx.x % 32; }
template <typename T>
T __shfl_sync(unsigned, T value, int lane, int = 32) {
  return emulator_of_lane(value, lane);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, int by, int = 32) {
  int lane = emulator_lane() + by;
  return emulator_of_lane(value, lane < 32 ? lane : emulator_lane());
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
  return emulator_of_lane(value, emulator_lane() ^ mask);
}
inline unsigned __activemask() { return ~0u; }

/* It stands between `static` and the type, where C++ takes attributes of g++ only. */
#define alignas(bytes) __attribute__((aligned(bytes)))
