// Softmax and cross-entropy of each row of logits, and the row turned into its own gradient in place.
//
// A row of GPT-2's vocabulary is 100 KB: it fits in shared memory, two of them in one multiprocessor. So each byte is read
// from memory once and written once, where a kernel that reads the row again for its second pass misses the cache.
//
// Each warp owns the same slice of every row, and nobody else touches its part of shared memory: it can ask for the next row's
// slice as soon as it has finished with this one's, without waiting for the other warps. They meet once a row, to join
// their maxima and sums.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int WARPS = THREADS / 32;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;
constexpr float LOWEST = -1.0e30f;  // not minus infinity: the difference of two of those is not a number

__device__ __forceinline__ float low_half(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ u32 pack(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ void ask(u32 slice, const void* from, u32 bytes, u32 barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(slice),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier), "r"(parity)
      : "memory");
}

struct Sum {  // of exp(x - top)
  float top, sum;
};

__device__ __forceinline__ Sum join(Sum a, Sum b) {
  const float top = fmaxf(a.top, b.top);
  return {top, a.sum * exp2_fast((a.top - top) * LOG2_E) + b.sum * exp2_fast((b.top - top) * LOG2_E)};
}

__device__ __forceinline__ Sum join_warp(Sum s) {
#pragma unroll
  for (int step = 16; step; step /= 2) {
    s = join(s, {__shfl_xor_sync(~0u, s.top, step), __shfl_xor_sync(~0u, s.sum, step)});
  }
  return s;
}

// Eight logits; what lies behind the vocabulary is padding and counts for nothing.
__device__ __forceinline__ void unpack(uint4 unit, int column, int vocab, float (&x)[8]) {
  x[0] = low_half(unit.x), x[1] = high_half(unit.x), x[2] = low_half(unit.y), x[3] = high_half(unit.y);
  x[4] = low_half(unit.z), x[5] = high_half(unit.z), x[6] = low_half(unit.w), x[7] = high_half(unit.w);
  if (column + 8 > vocab) {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = column + i < vocab ? x[i] : LOWEST;
  }
}

// `columns` is a multiple of 8, logits begin at a multiple of 16 bytes; dynamic shared memory holds one row.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
loss_rows(uint4* logits, const long long* targets, float* losses, const float* scale_at, int rows, int columns, int vocab,
          int wants_gradient) {
  extern __shared__ __align__(128) uint4 row_units[];
  __shared__ __align__(8) u64 barriers[WARPS];
  __shared__ Sum parts[2][WARPS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int units = columns / 8, each = (units + WARPS - 1) / WARPS;
  const int first = warp * each, count = max(0, min(each, units - first));
  const int counted = min(count, max(0, (vocab + 7) / 8 - first));  // those that hold a part of the vocabulary
  const uint4* mine = row_units + first;
  const u32 slice = (u32)__cvta_generic_to_shared(mine), barrier = (u32)__cvta_generic_to_shared(&barriers[warp]);
  const u32 bytes = count * 16;
  if (lane == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (blockIdx.x < rows && count) ask(slice, logits + (long long)blockIdx.x * units + first, bytes, barrier);
  }
  __syncwarp();
  const float scale = *scale_at;
  u32 turn = 0;
  for (int row = blockIdx.x; row < rows; row += gridDim.x, turn++) {
    const int target = (int)targets[row];
    if (count) wait(barrier, turn & 1);
    Sum s = {LOWEST, 0.0f};
    for (int at = lane; at < counted; at += 32) {
      float x[8];
      unpack(mine[at], (first + at) * 8, vocab, x);
      float top = s.top;
#pragma unroll
      for (int i = 0; i < 8; i++) top = fmaxf(top, x[i]);
      s.sum *= exp2_fast((s.top - top) * LOG2_E);
      s.top = top;
      const float shift = -top * LOG2_E;
#pragma unroll
      for (int i = 0; i < 8; i++) s.sum += exp2_fast(fmaf(x[i], LOG2_E, shift));
    }
    s = join_warp(s);
    if (lane == 0) parts[turn & 1][warp] = s;
    __syncthreads();  // one a row: the next row's parts are kept elsewhere
    s = join_warp(lane < WARPS ? parts[turn & 1][lane] : Sum{LOWEST, 0.0f});
    const float log2_sum = s.top * LOG2_E + __log2f(s.sum);
    // A target that does not count has no gradient; one in the padding cannot be predicted.
    if (threadIdx.x == 0 && target < 0) losses[row] = 0.0f;
    if (threadIdx.x == 0 && target >= vocab) losses[row] = __int_as_float(0x7f800000);
    const float factor = target >= 0 ? scale : 0.0f;
    const float shift = __log2f(factor) - log2_sum;
    uint4* out = logits + (long long)row * units + first;
    for (int at = lane; at < count; at += 32) {
      float x[8];
      const int column = (first + at) * 8, hit = target - column;
      unpack(mine[at], column, vocab, x);
      if (hit >= 0 && hit < 8 && target < vocab) {
        float found = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) found = hit == i ? x[i] : found;
        losses[row] = log2_sum * LN_2 - found;
      }
      if (!wants_gradient) continue;
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = exp2_fast(fmaf(x[i], LOG2_E, shift));
      if (hit >= 0 && hit < 8) {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] -= hit == i ? factor : 0.0f;
      }
      out[at] = {pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])};
    }
    __syncwarp();
    const int next = row + gridDim.x;
    if (lane == 0 && next < rows && count) ask(slice, logits + (long long)next * units + first, bytes, barrier);
  }
}
