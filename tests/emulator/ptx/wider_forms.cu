// More of what nvcc emits: device functions, local arrays, printf, halves, mma.sync, cp.async, spin locks:
//   nvcc -arch=sm_90 -ptx wider_forms.cu -o wider_forms.ptx
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdio>

__device__ __noinline__ float helper(float x, int n) {
  float s = 0;
  for (int i = 0; i < n; ++i) s += x / (i + 1);
  return s;
}

extern "C" __global__ void calls(const float* in, float* out, int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < n) {
    out[i] = helper(in[i], i % 5) + expf(in[i] * 0.01f) + sinf(in[i]);
    if (in[i] > 1e30f) printf("big %f\n", in[i]);
  }
}
extern "C" __global__ void sw(const int* in, int* out, int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i >= n) return;
  int r = 0, x = in[i];
  switch (x & 15) {
    case 0:
      r = x * 3;
      break;
    case 1:
      r = x ^ 77;
      break;
    case 2:
      r = x - 9;
    case 3:
      r += x >> 2;
      break;
    case 4:
      r = 7;
      break;
    case 5:
      r = x / 7;
      break;
    case 6:
      r = x % 5;
      break;
    case 7:
      r = -x;
      break;
    case 8:
      r = x << 3;
      break;
    case 9:
      r = 1;
      break;
    default:
      r = 99;
  }
  out[i] = r;
}
extern "C" __global__ void localarr(const int* in, int* out, int n) {
  int a[40];
  int i = threadIdx.x;
  if (i >= n) return;
  for (int j = 0; j < 40; ++j) a[j] = in[(i * 7 + j) % n];
  int s = 0;
  for (int j = 0; j < 40; ++j) s += a[(in[i] + j) % 40] * j;
  out[i] = s;
}
extern "C" __global__ void halves(const __half* a, const __nv_bfloat16* b, float* out, __half2* o2, int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i >= n) return;
  out[i] = __half2float(__hadd(a[i], __float2half(1.5f))) * __bfloat162float(__hmul(b[i], b[i]));
  o2[i] = __hfma2(__half2half2(a[i]), __floats2half2_rn(2.f, 3.f), __half2half2(a[i]));
}
__constant__ int table_[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
__device__ int counter_ = 5;
extern "C" __global__ void constants(int* out) {
  out[threadIdx.x] = table_[threadIdx.x % 16] + atomicAdd(&counter_, 1) * 0;
  __threadfence();
}
extern "C" __global__ void wide(const unsigned long long* a, unsigned long long* o, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  o[i] = __umul64hi(a[i], a[(i + 1) % n]) + a[i] / (a[(i + 3) % n] | 1) + (a[i] % 1000003ull) + __popcll(a[i]) +
         (unsigned long long)((double)a[i] * 0.5);
}
extern "C" __global__ void spin(int* flag, int* out) {  // block 0 waits for block 1
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0)
      while (atomicAdd(flag, 0) == 0) {
      }
    __syncthreads();
    out[threadIdx.x] = ((volatile int*)flag)[1];
  } else if (threadIdx.x == 0) {
    flag[1] = 42;
    __threadfence();
    atomicExch(flag, 1);
  }
}
extern "C" __global__ void lock(int* mutex, int* total) {  // every lane takes a spin lock: needs independent threads
  bool done = false;
  while (!done) {
    if (atomicCAS(mutex, 0, 1) == 0) {
      total[0] += 1;
      __threadfence();
      atomicExch(mutex, 0);
      done = true;
    }
  }
}
extern "C" __global__ void mma16(const __nv_bfloat16* a, const __nv_bfloat16* b,
                                 float* c) {  // a 16x16 row, b 8x16 (n,k), c 16x8; ldmatrix
  __shared__ __align__(16) __nv_bfloat16 sa[256], sb[128];
  int t = threadIdx.x;
  for (int i = t; i < 256; i += 32) sa[i] = a[i];
  for (int i = t; i < 128; i += 32) sb[i] = b[i];
  __syncwarp();
  unsigned ra[4], rb[2];
  float d[4] = {1, 1, 1, 1};
  unsigned pa = __cvta_generic_to_shared(&sa[(t % 16) * 16 + (t / 16) * 8]);
  unsigned pb = __cvta_generic_to_shared(&sb[(t % 8) * 16 + ((t / 8) % 2) * 8]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3])
               : "r"(pa));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(rb[0]), "=r"(rb[1]) : "r"(pb));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
  for (int i = 0; i < 4; ++i) c[(t / 4 + 8 * (i / 2)) * 8 + (t % 4) * 2 + i % 2] = d[i];
}
extern "C" __global__ void cpasync(const int* in, int* out, int n) {
  __shared__ __align__(16) int buf[2][128];
  int t = threadIdx.x;
  unsigned s0 = __cvta_generic_to_shared(&buf[0][t * 4]), s1 = __cvta_generic_to_shared(&buf[1][t * 4]);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(s0), "l"(in + t * 4));
  asm volatile("cp.async.commit_group;");
  for (int i = 0; i < n; ++i) {
    if (i + 1 < n)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(i % 2 ? s0 : s1), "l"(in + (i + 1) * 128 + t * 4));
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    for (int j = 0; j < 4; ++j) out[i * 128 + j * 32 + t] = buf[i % 2][(j * 32 + t) ^ 5] + 1;
    __syncthreads();
  }
}
extern "C" __global__ void lane_pair(
    int* out) {  // one lane waits on a flag that another lane of its warp sets: independent progress
  __shared__ volatile int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncwarp();
  if (threadIdx.x == 3) {
    while (flag == 0) {
    }
    out[0] = 7;
  } else if (threadIdx.x == 5) {
    __threadfence_block();
    flag = 1;
    out[1] = 8;
  }
}
extern "C" __global__ void naive_lock(int* mutex,
                                      int* total) {  // the loop whose winner leaves it: deadlocks in lockstep
  while (atomicCAS(mutex, 0, 1) != 0) {
  };
  *(volatile int*)total = *(volatile int*)total + 1;
  __threadfence();
  atomicExch(mutex, 0);
}
// Eight-bit floats and 24-bit products.
extern "C" __global__ void eight_bits(const float* in, unsigned short* e4m3, unsigned short* e5m2, float* back, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  unsigned short a, b;
  unsigned halves;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(a) : "f"(in[2 * i + 1]), "f"(in[2 * i]));
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(b) : "f"(in[2 * i + 1]), "f"(in[2 * i]));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(a));
  e4m3[i] = a;
  e5m2[i] = b;
  back[2 * i] = __low2float(*reinterpret_cast<__half2*>(&halves));
  back[2 * i + 1] = __high2float(*reinterpret_cast<__half2*>(&halves));
}
extern "C" __global__ void products_24(const int* in, int* out, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  int lo, hi;
  asm("mul24.lo.s32 %0, %1, %2;" : "=r"(lo) : "r"(in[i]), "r"(in[(i + 1) % n]));
  asm("mad24.hi.u32 %0, %1, %2, %3;" : "=r"(hi) : "r"(in[i]), "r"(in[(i + 1) % n]), "r"(7));
  out[2 * i] = lo;
  out[2 * i + 1] = hi;
}
