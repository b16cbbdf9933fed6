// Vectors of 16 floats for CPUs: loads, stores and a 16 x 16 transposition.
//
// They are loaded and stored through pointers, because the compiler of PoCL 3.0 fails on vload16, vstore16, select
// and fma of 16 floats on a CPU with AVX-512.

// Before a loop whose iterations only share what they read. The plan may give an output the memory of an input that each
// point reads before it writes it; the test of the compiler for overlapping arrays would then choose the scalar loop.
#ifdef __clang__
#define VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define VECTORIZE
#endif

typedef float16 __attribute__((aligned(4))) loose16;
typedef int16 __attribute__((aligned(4))) loose_int16;
#define GLOAD(i, p) (*(const __global loose16 *)((p) + 16 * (i)))
#define PLOAD(i, p) (*(const loose16 *)((p) + 16 * (i)))
#define PSTORE(v, i, p) (*(loose16 *)((p) + 16 * (i)) = (v))
#ifdef HALF
// 16 halves; half.cl explains the arithmetic.
typedef ushort16 __attribute__((aligned(2))) loose_half16;
inline float16 half_values(ushort16 bits) {
  const uint16 all = convert_uint16(bits), size = (all & 0x7fffu) << 13;
  const uint16 most = size >= 0x0f800000u ? (uint16)(0x7f800000u) : (uint16)(0u);
  return as_float16(as_uint16(as_float16(size) * 0x1p112f) | most | (all & 0x8000u) << 16);
}
#define HLOAD(i, p) half_values(*(const __global loose_half16 *)((p) + 16 * (i)))
#endif

// b[at] and b[at .. at + 15], where b holds floats or halves. `halves` is a constant at every call.
inline float load1(const __global void *b, int halves, int at) {
#ifdef HALF
  if (halves) return GET_HALF((const __global HALF *)b, at);
#endif
  return ((const __global float *)b)[at];
}

inline float16 load16(const __global void *b, int halves, int at) {
#ifdef HALF
  if (halves) return HLOAD(0, (const __global HALF *)b + at);
#endif
  return GLOAD(0, (const __global float *)b + at);
}

#define LANES16 ((int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))

// Transposes a square of 16 x 16: row[i][j] = square[j][i]. Four times, row i is interleaved with row i + 8.
inline void turned(const float *square, float16 *row) {
#pragma unroll
  for (int i = 0; i < 16; ++i) row[i] = PLOAD(i, square);
#pragma unroll
  for (int turn = 0; turn < 4; ++turn) {
    float16 mixed[16];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      mixed[2 * i].even = row[i].lo, mixed[2 * i].odd = row[i + 8].lo;
      mixed[2 * i + 1].even = row[i].hi, mixed[2 * i + 1].odd = row[i + 8].hi;
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) row[i] = mixed[i];
  }
}
