// Matrix products with few rows on CPUs. The terms of A's rows are contiguous in memory, and the terms of B's columns
// (`dots`) or the columns of B's rows (`stream`). Nothing is packed: with few rows, packing B takes as long as
// multiplying. contract_maps.cl and wide.cl come before this file.
//
//              16 terms at a time                   A lane of an accumulator sums every 16th term. At the end of a
//            +----+----+----+ ..   row m            chunk, 16 accumulators become one vector of 16 results, tile[4][4].
//            +----+----+----+ ..   column n
//
//   for each chunk of KC terms            the chunk of ROWS rows of A stays in the first cache,
//     for each ROWS rows of A             that of all columns of the block in the second
//       for each 4 columns of B
//         for each 4 rows: 16 accumulators
//
// Indexing: get_global_id(0) is the block of `cols` columns, (1) the block of `rows` rows, (2) the set. K is a multiple
// of 16. Rows and columns past the end repeat the last one. `total` holds tiles: [row / 4][column / 4][4][4].

#ifndef KC     // terms of a chunk, a multiple of 16
#define KC 512
#endif
#ifndef ROWS   // rows of A that share a chunk, a multiple of 4
#define ROWS 16
#endif
#ifndef TOTAL  // the most elements of a block
#define TOTAL 32768
#endif
#ifndef STREAM // 1: the columns of B are contiguous, not its terms
#define STREAM 0
#endif
#ifndef MR     // STREAM: rows of A that share a vector of B: 4, 8, 12 or 16
#define MR 16
#endif
#ifndef AHEAD  // 1: asks the memory for the next columns or rows of B, if B is not in a cache
#define AHEAD 0
#endif
#ifndef COLS   // the most columns of a block, a multiple of 16
#define COLS 512
#endif

typedef float4 __attribute__((aligned(4))) loose4;

// The sums of 16 vectors: element i is the sum of the lanes of row[i]. Four times, two vectors become one.
inline float16 sums(float16 *row) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
    row[i] = (float16)(row[i].lo, row[i + 8].lo) + (float16)(row[i].hi, row[i + 8].hi);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float16 x = row[i], y = row[i + 4];
    row[i] = (float16)(x.s0123, y.s0123, x.s89ab, y.s89ab) + (float16)(x.s4567, y.s4567, x.scdef, y.scdef);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float16 x = row[i], y = row[i + 2];
    row[i] = (float16)(x.s01, y.s01, x.s45, y.s45, x.s89, y.s89, x.scd, y.scd) +
             (float16)(x.s23, y.s23, x.s67, y.s67, x.sab, y.sab, x.sef, y.sef);
  }
  float16 left, right;
  left.even = row[0].even, left.odd = row[1].even, right.even = row[0].odd, right.odd = row[1].odd;
  return left + right;
}

#if STREAM
// As `dots`, for a B whose columns are contiguous: reads 16 rows of B side by side, each of them from its start to its
// end, as memory likes it. A vector of B serves MR rows of A. N is a multiple of 16 too. `total` is [rows][cols].
__kernel void stream(const __global float *a, const __global float *b, MAP_PARAMS, int rows, int cols OUT_PARAMS) {
  float total[TOTAL], turn[256];
  const int z = get_global_id(2), n_first = get_global_id(0) * cols, m_first = get_global_id(1) * rows;
  MAP_OF(z)
  const int n_count = min(cols, N - n_first), m_count = min(rows, M - m_first);
  for (int k = 0; k < K; k += 16)
    for (int m = 0; m < m_count; m += MR) {
      float square[256];
      float16 left[16];
#pragma unroll
      for (int i = 0; i < MR; ++i)
        PSTORE(GLOAD(0, a + map.a_0 + (m_first + min(m + i, m_count - 1)) * a_m + k), i, square);
      turned(square, left);
#pragma unroll
      for (int i = 0; i < 16; ++i) PSTORE(left[i], i, turn);
      const int ahead = k + 32 <= K ? 16 * b_k : 0;
      for (int n = 0; n < n_count; n += 16) {
        const __global float *from = b + map.b_0 + k * b_k + n_first + n;
        float *to = total + m * cols + n;
        float16 sum[MR];
#pragma unroll
        for (int i = 0; i < MR; ++i) sum[i] = (float16)(0.0f);
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          const float16 right = GLOAD(0, from + j * b_k);
#if AHEAD
          __builtin_prefetch((const void *)(size_t)(from + ahead + j * b_k));
#endif
#pragma unroll
          for (int i = 0; i < MR; ++i) sum[i] += turn[16 * j + i] * right;
        }
#pragma unroll
        for (int i = 0; i < MR; ++i)
          PSTORE(k ? PLOAD(0, to + i * cols) + sum[i] : sum[i], 0, to + i * cols);
      }
    }
  for (int m = 0; m < m_count; ++m) {
    const float *from = total + m * cols;
    VECTORIZE
    for (int n = 0; n < n_count; ++n) STORE(from[n], m_first + m, n_first + n)
  }
}
#else
__kernel void dots(const __global float *a, const __global float *b, MAP_PARAMS, int rows, int cols OUT_PARAMS) {
  float total[TOTAL];
  const int z = get_global_id(2), n_first = get_global_id(0) * cols, m_first = get_global_id(1) * rows;
  MAP_OF(z)
  const int n_count = min(cols, N - n_first), m_count = min(rows, M - m_first);
  const int tiles = (m_count + 3) / 4, groups = (n_count + 3) / 4;
  for (int k = 0; k < K; k += KC) {
    const int terms = min(KC, K - k);
    for (int first = 0; first < tiles; first += ROWS / 4)
      for (int g = 0; g < groups; ++g) {
        const __global float *column[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) column[j] = b + map.b_0 + (n_first + min(4 * g + j, n_count - 1)) * b_n + k;
        for (int t = first; t < min(first + ROWS / 4, tiles); ++t) {
          const __global float *line[4];
          float16 sum[16];
#pragma unroll
          for (int i = 0; i < 4; ++i) line[i] = a + map.a_0 + (m_first + min(4 * t + i, m_count - 1)) * a_m + k;
#pragma unroll
          for (int i = 0; i < 16; ++i) sum[i] = (float16)(0.0f);
#if AHEAD
          const int ahead = t == first && 4 * g + 7 < n_count ? 4 * b_n : 0;
#endif
          for (int at = 0; at < terms; at += 16) {
            float16 right[4];
#if AHEAD
#pragma unroll
            for (int j = 0; j < 4; ++j) __builtin_prefetch((const void *)(size_t)(column[j] + ahead + at));
#endif
#pragma unroll
            for (int j = 0; j < 4; ++j) right[j] = GLOAD(0, column[j] + at);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float16 left = GLOAD(0, line[i] + at);
#pragma unroll
              for (int j = 0; j < 4; ++j) sum[4 * i + j] += left * right[j];
            }
          }
          float *to = total + 16 * (t * groups + g);
          const float16 all = sums(sum);
          PSTORE(k ? PLOAD(0, to) + all : all, 0, to);
        }
      }
  }
  for (int m = 0; m < m_count; ++m) {
    float from[COLS];
    const float *line = total + 16 * (m / 4 * groups) + m % 4 * 4;
    for (int g = 0; g < groups; ++g) *(loose4 *)(from + 4 * g) = *(const loose4 *)(line + 16 * g);
    VECTORIZE
    for (int n = 0; n < n_count; ++n) STORE(from[n], m_first + m, n_first + n)
  }
}
#endif
