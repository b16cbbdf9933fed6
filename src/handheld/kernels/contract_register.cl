// Contractions on CPUs. One work-item computes one block of `rows` x `cols` results, without local memory.
// It copies ("packs") A and B into small dense arrays, so that the inner loop reads them in order and needs no
// test. contract_maps.cl and wide.cl come before this file.
//
//                          cols (panels of NT)          for each chunk of KC terms
//                       +----+----+----+----+             pack A of the block    [rows][KC]
//                       | Bp |    |    |    | KC          for each panel
//                       +----+----+----+----+               pack B               [KC][NT]
//              KC         NT                                for each MR rows
//            +----+     +----+----+----+----+                 MR accumulators of float16 += a*B[k]
//         MR | Ap |     |acc |    |    |    |                 total += accumulators
//            +----+     +----+----+----+----+
//       rows |    |     |    |  total  |    |
//            +----+     +----+----+----+----+
//
// Indexing: get_global_id(0) is the block along n, (1) the block along m, (2) the part of k and the set. With
// phases, (0) and (2) change places. A sum in registers has at most RUN terms before it is added to `total`;
// this keeps the error of long sums small.

#ifndef KC     // terms of a chunk
#define KC 256
#endif
#ifndef RUN    // terms of a sum in registers: several short sums have a smaller error than a long one
#define RUN 64
#endif
#ifndef MR     // the register tile has MR rows of NV float16; 6 rows of 1 fit 16 registers of 256 bits
#define MR 6
#endif
#ifndef NV
#define NV 1
#endif
#define NT (16 * NV)  // columns of a panel
#ifndef ROWS   // the most rows of a block, a multiple of MR
#define ROWS 384
#endif
#ifndef TOTAL  // the most elements of a block, for example 132 x 256 or 66 x 512
#define TOTAL 33792
#endif

#ifndef BLOCK  // half arithmetic: terms of a sum in halves
#define BLOCK 8
#endif
#if ARITH_HALF
typedef half16 __attribute__((aligned(2))) loose_term16;
#define TERM16 half16
#define TSTORE(v, i, p) (*(loose_term16 *)((p) + 16 * (i)) = __builtin_convertvector(v, half16))
#define TLOAD(i, p) (*(const loose_term16 *)((p) + 16 * (i)))
#define TGLOAD(i, p) (*(const __global loose_term16 *)((p) + 16 * (i)))
#else
typedef loose16 loose_term16;
#define TERM16 float16
#define TSTORE PSTORE
#define TLOAD PLOAD
#define TGLOAD GLOAD
#endif

#ifndef PACKED  // 1: the launch before, `pack`, has packed B as [set][panel][k][NT]
#define PACKED 0
#endif
#if PACKED
#define PANEL const __global TERM *
#define PANEL_LOAD TGLOAD
#define B_ARG TERM
#else
#define B_ARG B_TYPE
#define PANEL const TERM *
#define PANEL_LOAD TLOAD
#endif

// min and max of PoCL 3.0 are function calls, which take as long as packing a row.
inline int lesser(int a, int b) { return a < b ? a : b; }
inline int greater(int a, int b) { return a > b ? a : b; }

#define PITCH (KC + 16)  // Length of a row of the packed A. With KC alone, all rows would map to the same cache sets.

// The 16 elements b[at + j*step], step 1 or 2, with 0 for lanes j outside [first, stop). Never reads outside the
// buffer of `size` elements.
inline float16 load_some(const __global void *b, int halves, int size, int at, int step,
                         int first, int stop) {
  if (first >= lesser(stop, 16) || stop <= 0) return (float16)(0.0f);
  const int all = first <= 0 && stop >= 16;
  if (step == 1 && all) return load16(b, halves, at);
  float16 row;
  if (at >= 0 && at + 16 * step <= size) {
    row = load16(b, halves, at);
    if (step == 2) row.lo = row.even, row.hi = load16(b, halves, at + 16).even;
    if (all) return row;
  } else {
    float some[16];
    for (int j = 0; j < 16; ++j)
      some[j] = (j >= first && j < stop) ? load1(b, halves, at + j * step) : 0.0f;
    row = PLOAD(0, some);
  }
  return (LANES16 >= first && LANES16 < stop) ? row : (float16)(0.0f);
}

// to[i][j] = square[j][i]; rows of `to` are `pitch` elements apart.
inline void transpose(const float *square, TERM *to, int pitch) {
  float16 row[16];
  turned(square, row);
#pragma unroll
  for (int i = 0; i < 16; ++i) TSTORE(row[i], 0, to + i * pitch);
}

// Packs `rows` rows of A from row m_first, terms [k, end), as pack[row][PITCH]. May overwrite up to 15 rows and
// 15 terms past the last.
inline void pack_a(const Map *p, const __global A_TYPE *a, TERM *pack, int m_first, int rows,
                   int k, int end) {
  while (k < end) {
    const Run t = run_from(p, k, end);
    const int from = p->a_0 + t.a + m_first * p->a_m;
    if (p->a_m == 1 && t.a_step != 1) {
      for (int i = 0; i < t.len; i += 16) {
        for (int m = 0; m < rows; m += 16) {
          float square[256];
          for (int j = 0; j < 16; ++j)
            PSTORE(load_some(a, A_HALF, p->a_size, from + m + (i + j) * t.a_step, 1, 0,
                               i + j < t.len ? rows - m : 0), j, square);
          transpose(square, pack + m * PITCH + i, PITCH);
        }
      }
    } else {
      for (int m = 0; m < rows; ++m) {
        const __global A_TYPE *line = a + from + m * p->a_m;
        if (t.a_step == 1) {
          int i = 0;
          for (; i + 16 <= t.len; i += 16) TSTORE(A_GET16(line + i), 0, pack + m * PITCH + i);
          for (; i < t.len; ++i) pack[m * PITCH + i] = A_GET(line, i);
        } else {
          for (int i = 0; i < t.len; ++i) pack[m * PITCH + i] = A_GET(line, i * t.a_step);
        }
      }
    }
    k += t.len, pack += t.len;
  }
}

#if MODE == CONV
// The columns of a panel that lie in one row of the image: lanes [first, stop). `at`, `h` and `w` belong to lane 0,
// as if the row continued to both sides.
typedef struct { int first, stop, at, h, w; } Segment;

// Packs 16 columns of B from column n, terms [k, end), as pack[term][NT]. A row of the image is read as a vector of
// every pixel or every second pixel (gap 1 or 2). Lanes whose pixel is outside the image or in another row are
// masked. If the 16 columns cover up to 5 rows of the image, one vector per row is read and they are blended.
// Otherwise elements are read one by one.
inline void pack_b(const Map *p, const __global B_TYPE *b, TERM *pack, int n, int k, int end) {
  Segment rows[16];
  const int live = lesser(16, p->N - n), gap = p->u_w * p->b_w;
  int count = 0, x = n % p->n_x, y = n / p->n_x % p->n_y, image = n / p->n_x / p->n_y;
  for (int j = 0; j < live; ++count) {
    Segment row;
    row.first = j, row.stop = lesser(live, j + p->n_x - x);
    row.h = y * p->u_h + p->off_h, row.w = (x - j) * p->u_w + p->off_w;
    row.at = p->b_0 + image * p->b_n + row.h * p->b_h + row.w * p->b_w;
    rows[count] = row;
    j = row.stop, x = 0;
    if (++y == p->n_y) y = 0, ++image;
  }
  const int vectors = (gap == 1 || (gap == 2 && p->u_w == 2)) && count <= 5;
  while (k < end) {
    const Run t = run_from(p, k, end);
    const int last = (t.len - 1) * t.b_step;
    int from[5], near = vectors, used = 0, whole = 0;
    int16 mask[5];
    if (vectors) {
      for (int q = 0; q < count; ++q) {
        const Segment row = rows[q];
        if ((uint)(row.h + t.h) >= (uint)p->H) continue;
        const int at = row.at + t.b, left = -(row.w + t.w), right = p->W + left;
        // The lanes whose pixel, u_w * lane - left, is in [0, W).
        const int first = greater(row.first, p->u_w == 1 ? left : (left + 1) >> 1);
        const int stop = lesser(row.stop, p->u_w == 1 ? right : (right + 1) >> 1);
        if (first >= stop) continue;
        whole = first == 0 && stop == 16;
        near &= at + lesser(last, 0) >= 0 && at + greater(last, 0) + gap * 16 <= p->b_size;
        from[used] = at, mask[used++] = LANES16 >= first && LANES16 < stop;
      }
    }
    if (!near) {
      for (int i = 0; i < t.len; ++i) TSTORE((float16)(0.0f), 0, pack + i * NT);
      for (int q = 0; q < count; ++q) {
        const Segment row = rows[q];
        if ((uint)(row.h + t.h) >= (uint)p->H) continue;
        for (int j = row.first; j < row.stop; ++j) {
          const __global B_TYPE *line = b + row.at + t.b + j * gap;
          if ((uint)(row.w + t.w + j * p->u_w) < (uint)p->W)
            for (int i = 0; i < t.len; ++i) pack[i * NT + j] = B_GET(line, i * t.b_step);
        }
      }
    } else if (gap == 1 && whole) {
      const __global B_TYPE *line = b + from[0];
      for (int i = 0; i < t.len; ++i) TSTORE(B_GET16(line + i * t.b_step), 0, pack + i * NT);
    } else if (gap == 1 && used == 1) {
      const __global B_TYPE *line = b + from[0];
      const int16 inside = mask[0];
      for (int i = 0; i < t.len; ++i)
        TSTORE(inside ? B_GET16(line + i * t.b_step) : (float16)(0.0f), 0, pack + i * NT);
    } else if (gap == 1 && used == 2) {
      const __global B_TYPE *one = b + from[0], *two = b + from[1];
      const int16 in_one = mask[0], in_two = mask[1];
      for (int i = 0; i < t.len; ++i) {
        const float16 rest = in_two ? B_GET16(two + i * t.b_step) : (float16)(0.0f);
        TSTORE(in_one ? B_GET16(one + i * t.b_step) : rest, 0, pack + i * NT);
      }
    } else {
      for (int i = 0; i < t.len; ++i) {
        float16 all = (float16)(0.0f);
        for (int q = 0; q < used; ++q) {
          const __global B_TYPE *line = b + from[q] + i * t.b_step;
          float16 row = B_GET16(line);
          if (gap == 2) row.lo = row.even, row.hi = B_GET16(line + 16).even;
          all = mask[q] ? row : all;
        }
        TSTORE(all, 0, pack + i * NT);
      }
    }
    k += t.len, pack += t.len * NT;
  }
}

#else
// Packs 16 columns of B from column n, terms [k, end), as pack[term][NT]. May overwrite up to 15 terms past the
// last. In order of preference: columns that are contiguous in memory are read as vectors; terms that are
// contiguous are read as vectors, masked where the pixel is outside, and transposed; other elements are read one
// by one.
inline void pack_b(const Map *p, const __global B_TYPE *b, TERM *pack, int n, int k, int end) {
  int at[16], h[16], low[16], high[16], first[16], stop[16];
  const int live = lesser(16, p->N - n);
  Column c = column(p, n);
#if MODE == WEIGHT
  int x = n % p->n_x, y = n / p->n_x % p->n_y, image = n / p->n_x / p->n_y;
#endif
  for (int j = 0; j < 16; ++j) {
    at[j] = c.at, h[j] = c.h;
#if MODE == MATMUL
    c.at += p->b_n;
#else
    // The column digits [low, high) of k for which this tap is inside the image.
    low[j] = (greater(-c.w, 0) + p->e_w - 1) / p->e_w;
    high[j] = (greater(p->W - c.w, 0) + p->e_w - 1) / p->e_w;
    if (++x == p->n_x) x = 0, ++y;
    if (y == p->n_y) y = 0, ++image;
    c.h = y * p->u_h + p->off_h, c.w = x * p->u_w + p->off_w;
    c.at = p->b_0 + image * p->b_n + c.h * p->b_h + c.w * p->b_w;
#endif
  }
  while (k < end) {
    const Run t = run_from(p, k, end);
    const int last = (t.len - 1) * t.b_step, start = at[0] + t.b;
#if MODE == MATMUL
    if (p->b_n == 1 && live == 16) {
      const __global B_TYPE *from = b + start;
      for (int i = 0; i < t.len; ++i) TSTORE(B_GET16(from + i * t.b_step), 0, pack + i * NT);
      return;
    }
    if (p->b_n == 1 && start + lesser(last, 0) >= 0 && start + greater(last, 0) + 16 <= p->b_size) {
      const __global B_TYPE *from = b + start;
      const int16 mask = LANES16 < live;
      for (int i = 0; i < t.len; ++i)
        TSTORE(mask ? B_GET16(from + i * t.b_step) : (float16)(0.0f), 0, pack + i * NT);
      return;
    }
#endif
    for (int j = 0; j < 16; ++j) {
      first[j] = 0, stop[j] = j < live ? t.len : 0;
#if MODE == WEIGHT
      const int s = t.w / p->e_w;
      first[j] = greater(low[j] - s, 0);
      stop[j] = (uint)(h[j] + t.h) < (uint)p->H ? lesser(high[j] - s, stop[j]) : 0;
#endif
    }
    if (t.b_step == 1 || t.b_step == 2) {
      for (int i = 0; i < t.len; i += 16) {
        float square[256];
        for (int j = 0; j < 16; ++j)
          PSTORE(load_some(b, B_HALF, p->b_size, at[j] + t.b + i * t.b_step, t.b_step,
                             first[j] - i, stop[j] - i), j, square);
        transpose(square, pack + i * NT, NT);
      }
    } else {
      for (int j = 0; j < 16; ++j) {
        const __global B_TYPE *from = b + at[j] + t.b;
        const int begin = lesser(first[j], t.len), until = greater(stop[j], begin);
        for (int i = 0; i < begin; ++i) pack[i * NT + j] = 0.0f;
        for (int i = begin; i < until; ++i) pack[i * NT + j] = B_GET(from, i * t.b_step);
        for (int i = until; i < t.len; ++i) pack[i * NT + j] = 0.0f;
      }
    }
    k += t.len, pack += t.len * NT;
  }
}
#endif

// total[MR][NT] += Ap[MR][terms] * Bp[terms][NT]; rows of `total` are `cols` elements apart.
inline void multiply(const TERM *pa, PANEL pb, float *total, int cols, int terms) {
  float16 sum[MR][NV];
#pragma unroll
  for (int i = 0; i < MR; ++i)
#pragma unroll
    for (int v = 0; v < NV; ++v) sum[i][v] = (float16)(0.0f);
#if ARITH_HALF
  for (int first = 0; first < terms; first += BLOCK) {
    const int stop = lesser(first + BLOCK, terms);
#define SUMS few
    half16 few[MR][NV];  // the sums of BLOCK products
#pragma unroll
    for (int i = 0; i < MR; ++i)
#pragma unroll
      for (int v = 0; v < NV; ++v) few[i][v] = (half16)(0);
#else
  {
    const int first = 0, stop = terms;
#define SUMS sum
#endif
    for (int k = first; k < stop; ++k) {
      TERM16 row[NV];
#pragma unroll
      for (int v = 0; v < NV; ++v) row[v] = PANEL_LOAD(k * NV + v, pb);
#pragma unroll
      for (int i = 0; i < MR; ++i)
#pragma unroll
        for (int v = 0; v < NV; ++v) SUMS[i][v] += pa[i * PITCH + k] * row[v];
    }
#if ARITH_HALF
#pragma unroll
    for (int i = 0; i < MR; ++i)
#pragma unroll
      for (int v = 0; v < NV; ++v) sum[i][v] += __builtin_convertvector(few[i][v], float16);
#endif
  }
#pragma unroll
  for (int i = 0; i < MR; ++i)
#pragma unroll
    for (int v = 0; v < NV; ++v)
      PSTORE(PLOAD(v, total + i * cols) + sum[i][v], v, total + i * cols);
}

#if PACKED
// Packs one chunk of one panel of B. get_global_id: chunk of KC terms, panel, set.
__kernel void pack(const __global B_TYPE *b, MAP_PARAMS, __global TERM *panel) {
  TERM pb[(KC + 15) * NT];
  const int k = get_global_id(0) * KC, n = get_global_id(1) * NT, z = get_global_id(2);
  MAP_OF(z)
  const int end = lesser(k + KC, map.K);
  __global TERM *to = panel + ((z * get_global_size(1) + get_global_id(1)) * map.K + k) * NT;
  for (int v = 0; v < NT; v += 16) pack_b(&map, b, pb + v, n + v, k, end);
  for (int i = 0; i < (end - k) * NT; i += 16) *(__global loose_term16 *)(to + i) = TLOAD(0, pb + i);
}
#endif

__kernel void contract(const __global A_TYPE *a, const __global B_ARG *b, MAP_PARAMS,
                       int rows, int cols, int k_part OUT_PARAMS) {
  TERM pa[(ROWS + 15) * PITCH];
  float total[TOTAL];
#if !PACKED
  TERM pb[(KC + 15) * NT];
#endif
// Phases have different numbers of taps, and neighbouring work-items run on one thread. With the phase in dimension
// 0 each thread gets all phases, so that the load is even.
#if PHASED && !SPLIT
  const int z = get_global_id(0), n_first = get_global_id(2) * cols, split = 0;
#else
  const int z = get_global_id(2), n_first = get_global_id(0) * cols, split = z / sets;
#endif
  MAP_OF(z % sets)
  const int m_first = get_global_id(1) * rows;
  const int n_count = lesser(cols, N - n_first), m_count = lesser(rows, M - m_first);
  const int tiles = (m_count + MR - 1) / MR, k_stop = lesser(map.K, (split + 1) * k_part);
  for (int m = 0; m < tiles * MR; ++m)
    for (int n = 0; n < cols; n += 16) PSTORE((float16)(0.0f), 0, total + m * cols + n);
  for (int k = split * k_part; k < k_stop; k += KC) {
    const int end = lesser(k + KC, k_stop);
    pack_a(&map, a, pa, m_first, m_count, k, end);
    for (int n = 0; n < n_count; n += NT) {
#if PACKED
      const int panel = z % sets * ((N + NT - 1) / NT) + (n_first + n) / NT;
      PANEL pb = b + (panel * map.K + k) * NT;
#else
      for (int v = 0; v < NT; v += 16) pack_b(&map, b, pb + v, n_first + n + v, k, end);
#endif
      for (int i = 0; i < tiles; ++i)
        for (int r = 0; r < end - k; r += RUN)
          multiply(pa + i * MR * PITCH + r, pb + r * NT, total + i * MR * cols + n, cols,
                   lesser(RUN, end - k - r));
    }
  }
  for (int m = 0; m < m_count; ++m) {
    const float *from = total + m * cols;
#if MODE == MATMUL || SPLIT
    VECTORIZE
    for (int n = 0; n < n_count; ++n) STORE(from[n], m_first + m, n_first + n)
#else
    int x = n_first % n_x, y = n_first / n_x % n_y, i = n_first / n_x / n_y;
    for (int n = 0; n < n_count;) {
      const int stop = lesser(n_x - x, n_count - n);  // up to the end of the image row or of the block
      VECTORIZE
      for (int j = 0; j < stop; ++j) STORE_AT(from[n + j], m_first + m, i, y, x + j)
      n += stop, x = 0;
      if (++y == n_y) y = 0, ++i;
    }
#endif
  }
}
