// Plain CUDA kernels whose PTX, made by nvcc, the emulated device runs in tests:
//   nvcc -arch=sm_90 -ptx plain_kernels.cu -o plain_kernels.ptx

// Sum of n floats: shuffles inside a warp, shared memory between warps, one atomic per block.
extern "C" __global__ void reduce_sum(const float* in, float* out, int n) {
  __shared__ float partial[32];
  float sum = 0.0f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.0f;
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) atomicAdd(out, sum);
  }
}

// Transpose through a padded shared tile; rows and columns need not be multiples of the tile.
extern "C" __global__ void transpose(const int* in, int* out, int rows, int columns) {
  __shared__ int tile[32][33];
  int column = blockIdx.x * 32 + threadIdx.x;
  for (int j = threadIdx.y; j < 32; j += blockDim.y) {
    int row = blockIdx.y * 32 + j;
    if (row < rows && column < columns) tile[j][threadIdx.x] = in[row * columns + column];
  }
  __syncthreads();
  int row = blockIdx.y * 32 + threadIdx.x;
  for (int j = threadIdx.y; j < 32; j += blockDim.y) {
    int out_row = blockIdx.x * 32 + j;
    if (out_row < columns && row < rows) out[out_row * rows + row] = tile[threadIdx.x][j];
  }
}

// Lanes leave the loop at different times, and branch inside of it.
extern "C" __global__ void collatz(const unsigned* in, unsigned* steps, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned long long x = in[i];
  unsigned count = 0;
  while (x != 1) {
    if (x & 1)
      x = 3 * x + 1;
    else
      x >>= 1;
    ++count;
    if (count > 1000) break;
  }
  steps[i] = count;
}

// Warp votes, matches, bit counts, integer division, a switch, double precision.
extern "C" __global__ void mixture(const int* in, int* out, double* ratio, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int x = i < n ? in[i] : 0;
  unsigned odd = __ballot_sync(0xffffffffu, x & 1);
  unsigned same = __match_any_sync(0xffffffffu, x % 4);
  int r;
  switch (((x % 7) + 7) % 7) {
    case 0:
      r = x / 3;
      break;
    case 1:
      r = x * x;
      break;
    case 2:
      r = __popc(x);
      break;
    case 3:
      r = __clz(x);
      break;
    case 4:
      r = -x;
      break;
    case 5:
      r = __brev(x);
      break;
    default:
      r = x % 10;
      break;
  }
  if (i < n) {
    out[i] = r + __popc(odd) + __ffs(same);
    ratio[i] = (double)x / 3.0 + (double)r;
  }
}

// A rotation of values around the CTAs of a cluster through distributed shared memory.
extern "C" __global__ void cluster_rotate(const int* in, int* out) {
  __shared__ int mine[64];
  unsigned rank, size, local, remote;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  mine[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  local = (unsigned)__cvta_generic_to_shared(&mine[threadIdx.x]);
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"((rank + 1) % size));
  int value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(remote) : "memory");
  out[blockIdx.x * blockDim.x + threadIdx.x] = value;
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
