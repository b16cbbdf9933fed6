// Contractions: matrix products, convolutions and their two gradients, as one implicit GEMM.
//
//     acc[g, m, n] = sum over k of A(g, m, k) * B(g, k, n),   then EPILOGUE at that point
//
// Nothing is unfolded in memory: A and B are index maps over views of any strides. Columns n and
// terms k are numbers of three digits, and an element of B exists where its pixel is inside:
//
//     MODE    m            n                k                 A(m, k)         B(k, n)
//     MATMUL  row          column           k                 a[.., m, k]     b[.., k, n]
//     CONV    out channel  image, row, col  tap, tap, chan    w[m, c, r, s]   x[i, c, y*u + r*e, ..]
//     WEIGHT  out channel  chan, tap, tap   image, row, col   dy[i, m, y, x]  x[i, c, r*u + y*e, ..]
//
// (pixels count from `off`, minus the padding)
//
// The gradient in x of a convolution of stride t is t*t convolutions of stride 1, one for each
// residue ("phase") of the pixel: only the taps r with (phase + pad - r*dil) % t == 0 meet it, and
// they are every `skip`-th from the first. So conv_input is CONV with phases; conv has one phase.
//
// REGISTER variant (LOCAL 0): one work-item, one block of `rows` x `cols`; no local memory.
//
//                          cols (panels of NT)          for each chunk of KC terms
//                       +----+----+----+----+             pack A of the block    [rows][KC]
//                       | Bp |    |    |    | KC          for each panel
//                       +----+----+----+----+               pack B               [KC][NT]
//              KC         NT                                for each MR rows
//            +----+     +----+----+----+----+                 MR accumulators of float16 += a*B[k]
//         MR | Ap |     |acc |    |    |    |                 total += accumulators
//            +----+     +----+----+----+----+
//       rows |    |     |    |  total  |    |         chunk sums keep the error of long sums small
//            +----+     +----+----+----+----+
//
// LOCAL variant (LOCAL 1): one work-group of WX x WY, one tile of (WY*PM) x (WX*PN).
//
//                 KT          x -> WX items, item x has columns x, x+WX, x+2*WX ...
//               +----+     +-----------------+
//            TM | As |  y  |  x  x  x  x     |   As, Bs in local memory, sums in registers; loads
//               +----+  |  |  WX apart, PN   |   run along k or along m (n), whichever is contiguous
//                       WY +-----------------+
//
// With SPLIT 1 the k range is cut: split s writes its sums to part[s, g, m, n] and `combine` adds
// them in order and runs the epilogue. (WEIGHT has none, and dw is dense in [g, m, n]: a single
// part is the output.) No atomics anywhere: the same input gives the same bits.

#define MATMUL 0
#define CONV 1
#define WEIGHT 2
#ifndef MODE
#define MODE MATMUL
#endif
#ifndef LOCAL  // 1: tiles in local memory, for GPUs; 0: register tiles, for CPUs
#define LOCAL 0
#endif
#ifndef SPLIT  // 1: write partial sums, for `combine`; WEIGHT has no epilogue and always does
#define SPLIT (MODE == WEIGHT)
#endif
#ifndef BATCH  // leading dimensions of a matmul, 0 to 3
#define BATCH 0
#endif
#ifndef PHASED  // CONV: 1 if there may be more than one phase
#define PHASED 0
#endif
#ifndef KC     // REGISTER: terms packed, and added up, at a time
#define KC 256
#endif
#ifndef RUN    // LOCAL: terms added up before they join a larger sum: a dot product of n terms errs
#define RUN 32 // like one of 32 + n/32, which is less than PyTorch's own float32 does
#endif
#ifndef MR     // REGISTER: the register tile has MR rows of NV float16; 6 of 1 fit 16 registers of
#define MR 6   // 256 bits
#endif
#ifndef NV
#define NV 1
#endif
#define NT (16 * NV)  // REGISTER: columns of a panel
#ifndef ROWS   // REGISTER: most rows of a block, a multiple of MR
#define ROWS 384
#endif
#ifndef TOTAL  // REGISTER: most elements of a block
#define TOTAL 32768
#endif
#ifndef WX     // LOCAL: work-items across
#define WX 16
#endif
#ifndef WY     // LOCAL: work-items down
#define WY 8
#endif
#ifndef PM     // LOCAL: rows of a work-item
#define PM 8
#endif
#ifndef PN     // LOCAL: columns of a work-item
#define PN 4
#endif
#ifndef KT     // LOCAL: terms of a tile, a divisor of RUN
#define KT 16
#endif
#ifndef EPILOGUE  // statements that use acc and d0, d1, ..; its parameters begin with a comma
#define EPILOGUE_PARAMS , __global float *out, int e0, int e1, int e2, int e3
#if MODE == MATMUL && BATCH == 0
#define EPILOGUE out[d0 * e0 + d1 * e1] = acc;
#elif MODE == MATMUL && BATCH == 1
#define EPILOGUE out[d0 * e0 + d1 * e1 + d2 * e2] = acc;
#else
#define EPILOGUE out[d0 * e0 + d1 * e1 + d2 * e2 + d3 * e3] = acc;
#endif
#endif

// ---------------------------------------------------------------------------------- index maps

#if MODE == MATMUL
#define MAP_PARAMS int sets, int M, int N, int K, int a_0, int a_m, int a_k, int a_size, \
    int b_0, int b_n, int b_k, int b_size, \
    int g_y, int g_x, int a_gz, int a_gy, int a_gx, int b_gz, int b_gy, int b_gx
#else
// A: a_c, a_r, a_s are its strides in k's image-or-channel, row and column digit.
// B: b_n, b_c its strides in the image-or-channel digit of n and of k; b_h, b_w those of a pixel.
#define MAP_PARAMS int sets, int M, int N, int K, \
    int a_0, int a_m, int a_g, int a_c, int a_r, int a_s, int a_size, \
    int b_0, int b_g, int b_n, int b_c, int b_h, int b_w, int b_size, int H, int W, \
    int n_y, int n_x, int k_c, int k_r, int k_s, \
    int u_h, int u_w, int e_h, int e_w, int off_h, int off_w, \
    int out_h, int out_w, int phase_h, int phase_w, int skip_h, int skip_w
#endif

// The maps of one g: what the kernel arguments become once group and phase are known.
typedef struct {
  int M, N, K;
  int a_0, a_m, a_c, a_r, a_s, a_size;
  int b_0, b_n, b_c, b_h, b_w, b_size, H, W;
  int n_y, n_x, k_c, k_r, k_s;
  int u_h, u_w, e_h, e_w, off_h, off_w;
} Map;

// Terms k, k+1, .. k+len-1 in which all but one digit stand still: offsets at the first of them,
// steps from one to the next; h and w are what they add to the pixel of a column.
typedef struct { int len, a, a_step, b, b_step, h, w; } Run;

// A column: offset in B and pixel.
typedef struct { int at, h, w; } Column;

inline Run run_from(const Map *p, int k, int end) {
  Run t;
#if MODE == MATMUL
  t.len = end - k;
  t.a = k * p->a_c, t.a_step = p->a_c;
  t.b = k * p->b_c, t.b_step = p->b_c;
  t.h = t.w = 0;
#elif MODE == CONV
  const int tap = k / p->k_c, c = k - tap * p->k_c, r = tap / p->k_s, s = tap - r * p->k_s;
  t.len = min(p->k_c - c, end - k);
  t.h = r * p->e_h, t.w = s * p->e_w;
  t.a = c * p->a_c + r * p->a_r + s * p->a_s, t.a_step = p->a_c;
  t.b = c * p->b_c + t.h * p->b_h + t.w * p->b_w, t.b_step = p->b_c;
#else
  const int row = k / p->k_s, s = k - row * p->k_s, i = row / p->k_r, r = row - i * p->k_r;
  t.len = min(p->k_s - s, end - k);
  t.h = r * p->e_h, t.w = s * p->e_w;
  t.a = i * p->a_c + r * p->a_r + s * p->a_s, t.a_step = p->a_s;
  t.b = i * p->b_c + t.h * p->b_h + t.w * p->b_w, t.b_step = p->e_w * p->b_w;
#endif
  return t;
}

inline Column column(const Map *p, int n) {
  Column j;
#if MODE == MATMUL
  j.at = p->b_0 + n * p->b_n, j.h = j.w = 0;
#else
  const int line = n / p->n_x, x = n - line * p->n_x, i = line / p->n_y, y = line - i * p->n_y;
  j.h = y * p->u_h + p->off_h, j.w = x * p->u_w + p->off_w;
  j.at = p->b_0 + i * p->b_n + j.h * p->b_h + j.w * p->b_w;
#endif
  return j;
}

#if PHASED
// The taps of one phase along one axis: the first and how many; changes offset, step and stride
// so that digit 0, 1, .. of the tap means those taps.
inline int taps(int phase, int phases, int skip, int count,
                int *off, int *step, int *a_tap, int *a_0) {
  int first = 0;
  while (first < skip && (phase + *off + first * *step) % phases) ++first;
  if (first >= min(skip, count)) return 0;
  *a_0 += first * *a_tap;
  *off = (phase + *off + first * *step) / phases;
  *step = skip * *step / phases;
  *a_tap *= skip;
  return (count - 1 - first) / skip + 1;
}
#endif

#if MODE == MATMUL
#define MAP_OF(g) \
  const int gx = (g) % g_x, gy = (g) / g_x % g_y, gz = (g) / g_x / g_y; \
  Map map; \
  map.M = M, map.N = N, map.K = K, map.a_size = a_size, map.b_size = b_size; \
  map.a_0 = a_0 + gz * a_gz + gy * a_gy + gx * a_gx, map.a_m = a_m, map.a_c = a_k; \
  map.b_0 = b_0 + gz * b_gz + gy * b_gy + gx * b_gx, map.b_n = b_n, map.b_c = b_k;
#else
#define MAP_OF(g) \
  const int groups = sets / (phase_h * phase_w), group = (g) % groups; \
  Map map; \
  map.M = M, map.N = N, map.K = K, map.a_size = a_size, map.b_size = b_size, map.H = H, map.W = W; \
  map.a_0 = a_0 + group * a_g, map.a_m = a_m, map.a_c = a_c, map.a_r = a_r, map.a_s = a_s; \
  map.b_0 = b_0 + group * b_g, map.b_n = b_n, map.b_c = b_c, map.b_h = b_h, map.b_w = b_w; \
  map.n_y = n_y, map.n_x = n_x, map.k_c = k_c, map.k_r = k_r, map.k_s = k_s; \
  map.u_h = u_h, map.u_w = u_w, map.e_h = e_h, map.e_w = e_w; \
  map.off_h = off_h, map.off_w = off_w; \
  PHASE(g)
#if PHASED
#define PHASE(g) \
  const int px = (g) / groups % phase_w, py = (g) / groups / phase_w; \
  map.k_r = taps(py, phase_h, skip_h, k_r, &map.off_h, &map.e_h, &map.a_r, &map.a_0); \
  map.k_s = taps(px, phase_w, skip_w, k_s, &map.off_w, &map.e_w, &map.a_s, &map.a_0); \
  map.K = k_c * map.k_r * map.k_s;
#else
#define PHASE(g)
#endif
#endif

// STORE(value, m, n): the coordinates of a point, then the epilogue.
// STORE_AT(value, m, i, y, x) the same, with the digits of n.
#if MODE == MATMUL
#if BATCH == 0
#define POINT(m, n) const int d0 = (m), d1 = (n);
#elif BATCH == 1
#define POINT(m, n) const int d0 = gx, d1 = (m), d2 = (n);
#elif BATCH == 2
#define POINT(m, n) const int d0 = gy, d1 = gx, d2 = (m), d3 = (n);
#else
#define POINT(m, n) const int d0 = gz, d1 = gy, d2 = gx, d3 = (m), d4 = (n);
#endif
#define STORE(value, m, n) { const float acc = (value); POINT(m, n) EPILOGUE }
#else
#if PHASED
#define POINT(m, i, y, x) \
  const int d0 = (i), d1 = group * M + (m), d2 = (y) * phase_h + py, d3 = (x) * phase_w + px;
#else
#define POINT(m, i, y, x) const int d0 = (i), d1 = group * M + (m), d2 = (y), d3 = (x);
#endif
#if PHASED  // phases may reach past the last row or column of the image
#define STORE_AT(value, m, i, y, x) \
  { const float acc = (value); POINT(m, i, y, x) if (d2 < out_h && d3 < out_w) { EPILOGUE } }
#else
#define STORE_AT(value, m, i, y, x) { const float acc = (value); POINT(m, i, y, x) EPILOGUE }
#endif
#define STORE(value, m, n) \
  { const int line_ = (n) / n_x; STORE_AT(value, m, line_ / n_y, line_ % n_y, (n) - line_ * n_x) }
#endif

#if SPLIT
#undef STORE
#define STORE(value, m, n) part[(get_global_id(2) * M + (m)) * N + (n)] = (value);
#define OUT_PARAMS , __global float *part
#else
#define OUT_PARAMS EPILOGUE_PARAMS
#endif

#if defined(COMBINE)

// One work-item a point of the output.
#if MODE == WEIGHT
__kernel void combine(const __global float *part, int splits, int all, __global float *out) {
  const int at = get_global_id(0);
  if (at >= all) return;
  float sum = 0.0f;
  for (int s = 0; s < splits; ++s) sum += part[s * all + at];
  out[at] = sum;
}
#else
__kernel void combine(MAP_PARAMS, const __global float *part, int splits EPILOGUE_PARAMS) {
  const int at = get_global_id(0), all = sets * M * N;
  if (at >= all) return;
  const int n = at % N, row = at / N, m = row % M;
  MAP_OF(row / M)
  float sum = 0.0f;
  for (int s = 0; s < splits; ++s) sum += part[s * all + at];
  STORE(sum, m, n)
}
#endif

#elif !LOCAL

// ---------------------------------------------------------------------------------- REGISTER

#define PITCH (KC + 16)  // a row of the packed A; with KC alone rows would share cache sets

// Wide loads and stores through pointers: the built-in vload16, vstore16 and select of 16 floats do
// not survive PoCL 3.0's compiler on a CPU with AVX-512.
typedef float16 __attribute__((aligned(4))) loose16;
typedef int16 __attribute__((aligned(4))) loose_int16;
#define GLOAD(i, p) (*(const __global loose16 *)((p) + 16 * (i)))
#define PLOAD(i, p) (*(const loose16 *)((p) + 16 * (i)))
#define PSTORE(v, i, p) (*(loose16 *)((p) + 16 * (i)) = (v))

// b[at .. at + 15*step], step 1 or 2, with 0 outside [first, stop); nothing outside the buffer is
// read.
inline float16 load_some(const __global float *b, int size, int at, int step, int first, int stop) {
  if (first >= min(stop, 16) || stop <= 0) return (float16)(0.0f);
  const int all = first <= 0 && stop >= 16;
  if (step == 1 && all) return GLOAD(0, b + at);
  float16 row;
  if (at >= 0 && at + 16 * step <= size) {
    row = GLOAD(0, b + at);
    if (step == 2) row.lo = row.even, row.hi = GLOAD(1, b + at).even;
    if (all) return row;
  } else {
    float some[16];
    for (int j = 0; j < 16; ++j) some[j] = (j >= first && j < stop) ? b[at + j * step] : 0.0f;
    row = PLOAD(0, some);
  }
  const int16 i = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return (i >= first && i < stop) ? row : (float16)(0.0f);
}

// to[i][j] = square[j][i], a square of 16; four times, interleave row i with row i + 8.
inline void transpose(const float *square, float *to, int pitch) {
  float16 row[16];
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
#pragma unroll
  for (int i = 0; i < 16; ++i) PSTORE(row[i], 0, to + i * pitch);
}

// Ap[row][PITCH] of `rows` rows from m_first; up to 15 rows and terms past the last are scratch.
inline void pack_a(const Map *p, const __global float *a, float *pack, int m_first, int rows,
                   int k, int end) {
  while (k < end) {
    const Run t = run_from(p, k, end);
    const int from = p->a_0 + t.a + m_first * p->a_m;
    if (p->a_m == 1 && t.a_step != 1) {
      for (int i = 0; i < t.len; i += 16) {
        for (int m = 0; m < rows; m += 16) {
          float square[256];
          for (int j = 0; j < 16; ++j)
            PSTORE(load_some(a, p->a_size, from + m + (i + j) * t.a_step, 1, 0,
                               i + j < t.len ? rows - m : 0), j, square);
          transpose(square, pack + m * PITCH + i, PITCH);
        }
      }
    } else {
      for (int m = 0; m < rows; ++m) {
        const __global float *line = a + from + m * p->a_m;
        if (t.a_step == 1) {
          int i = 0;
          for (; i + 16 <= t.len; i += 16) PSTORE(GLOAD(0, line + i), 0, pack + m * PITCH + i);
          for (; i < t.len; ++i) pack[m * PITCH + i] = line[i];
        } else {
          for (int i = 0; i < t.len; ++i) pack[m * PITCH + i] = line[i * t.a_step];
        }
      }
    }
    k += t.len, pack += t.len;
  }
}

#define LANES16 ((int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))

#if MODE == CONV
// Columns of a panel that lie in one row of the image: lanes [first, stop), as if the row went on
// to both sides: `at`, `h`, `w` are those of lane 0.
typedef struct { int first, stop, at, h, w; } Segment;

// 16 columns, from n, of Bp[k][NT]. A row of the image is read as a vector, every pixel or every
// second (gap 1 or 2), masked where the pixel is outside or in another row; a panel over few rows
// is a blend of as many vectors. Else one by one.
inline void pack_b(const Map *p, const __global float *b, float *pack, int n, int k, int end) {
  Segment rows[16];
  const int live = min(16, p->N - n), gap = p->u_w * p->b_w;
  int count = 0, x = n % p->n_x, y = n / p->n_x % p->n_y, image = n / p->n_x / p->n_y;
  for (int j = 0; j < live; ++count) {
    Segment row;
    row.first = j, row.stop = min(live, j + p->n_x - x);
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
        // lanes whose pixel, u_w * lane - left, is in [0, W)
        const int first = max(row.first, p->u_w == 1 ? left : (left + 1) >> 1);
        const int stop = min(row.stop, p->u_w == 1 ? right : (right + 1) >> 1);
        if (first >= stop) continue;
        whole = first == 0 && stop == 16;
        near &= at + min(last, 0) >= 0 && at + max(last, 0) + gap * 16 <= p->b_size;
        from[used] = at, mask[used++] = LANES16 >= first && LANES16 < stop;
      }
    }
    if (!near) {
      for (int i = 0; i < t.len; ++i) PSTORE((float16)(0.0f), 0, pack + i * NT);
      for (int q = 0; q < count; ++q) {
        const Segment row = rows[q];
        if ((uint)(row.h + t.h) >= (uint)p->H) continue;
        for (int j = row.first; j < row.stop; ++j) {
          const __global float *line = b + row.at + t.b + j * gap;
          if ((uint)(row.w + t.w + j * p->u_w) < (uint)p->W)
            for (int i = 0; i < t.len; ++i) pack[i * NT + j] = line[i * t.b_step];
        }
      }
    } else if (gap == 1 && whole) {
      const __global float *line = b + from[0];
      for (int i = 0; i < t.len; ++i) PSTORE(GLOAD(0, line + i * t.b_step), 0, pack + i * NT);
    } else if (gap == 1 && used == 1) {
      const __global float *line = b + from[0];
      const int16 inside = mask[0];
      for (int i = 0; i < t.len; ++i)
        PSTORE(inside ? GLOAD(0, line + i * t.b_step) : (float16)(0.0f), 0, pack + i * NT);
    } else if (gap == 1 && used == 2) {
      const __global float *one = b + from[0], *two = b + from[1];
      const int16 in_one = mask[0], in_two = mask[1];
      for (int i = 0; i < t.len; ++i) {
        const float16 rest = in_two ? GLOAD(0, two + i * t.b_step) : (float16)(0.0f);
        PSTORE(in_one ? GLOAD(0, one + i * t.b_step) : rest, 0, pack + i * NT);
      }
    } else {
      for (int i = 0; i < t.len; ++i) {
        float16 all = (float16)(0.0f);
        for (int q = 0; q < used; ++q) {
          const __global float *line = b + from[q] + i * t.b_step;
          float16 row = GLOAD(0, line);
          if (gap == 2) row.lo = row.even, row.hi = GLOAD(1, line).even;
          all = mask[q] ? row : all;
        }
        PSTORE(all, 0, pack + i * NT);
      }
    }
    k += t.len, pack += t.len * NT;
  }
}

#else
// 16 columns, from n, of Bp[k][NT]; up to 15 rows past the last term are scratch. In order of
// preference: columns side by side in memory come in vectors; terms side by side come in vectors,
// masked where the pixel is outside, and are transposed; else one by one.
inline void pack_b(const Map *p, const __global float *b, float *pack, int n, int k, int end) {
  int at[16], h[16], low[16], high[16], first[16], stop[16];
  const int live = min(16, p->N - n);
  Column c = column(p, n);
#if MODE == WEIGHT
  int x = n % p->n_x, y = n / p->n_x % p->n_y, image = n / p->n_x / p->n_y;
#endif
  for (int j = 0; j < 16; ++j) {
    at[j] = c.at, h[j] = c.h;
#if MODE == MATMUL
    c.at += p->b_n;
#else
    // the columns [low, high) of k for which this tap is inside
    low[j] = (max(-c.w, 0) + p->e_w - 1) / p->e_w;
    high[j] = (max(p->W - c.w, 0) + p->e_w - 1) / p->e_w;
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
      const __global float *from = b + start;
      for (int i = 0; i < t.len; ++i) PSTORE(GLOAD(0, from + i * t.b_step), 0, pack + i * NT);
      return;
    }
    if (p->b_n == 1 && start + min(last, 0) >= 0 && start + max(last, 0) + 16 <= p->b_size) {
      const __global float *from = b + start;
      const int16 mask = LANES16 < live;
      for (int i = 0; i < t.len; ++i)
        PSTORE(mask ? GLOAD(0, from + i * t.b_step) : (float16)(0.0f), 0, pack + i * NT);
      return;
    }
#endif
    for (int j = 0; j < 16; ++j) {
      first[j] = 0, stop[j] = j < live ? t.len : 0;
#if MODE == WEIGHT
      const int s = t.w / p->e_w;
      first[j] = max(low[j] - s, 0);
      stop[j] = (uint)(h[j] + t.h) < (uint)p->H ? min(high[j] - s, stop[j]) : 0;
#endif
    }
    if (t.b_step == 1 || t.b_step == 2) {
      for (int i = 0; i < t.len; i += 16) {
        float square[256];
        for (int j = 0; j < 16; ++j)
          PSTORE(load_some(b, p->b_size, at[j] + t.b + i * t.b_step, t.b_step,
                             first[j] - i, stop[j] - i), j, square);
        transpose(square, pack + i * NT, NT);
      }
    } else {
      for (int j = 0; j < 16; ++j) {
        const __global float *from = b + at[j] + t.b;
        const int begin = min(first[j], t.len), until = max(stop[j], begin);
        for (int i = 0; i < begin; ++i) pack[i * NT + j] = 0.0f;
        for (int i = begin; i < until; ++i) pack[i * NT + j] = from[i * t.b_step];
        for (int i = until; i < t.len; ++i) pack[i * NT + j] = 0.0f;
      }
    }
    k += t.len, pack += t.len * NT;
  }
}
#endif

// total[MR][NT], rows `cols` apart, += Ap[MR][terms] * Bp[terms][NT]
inline void multiply(const float *pa, const float *pb, float *total, int cols, int terms) {
  float16 sum[MR][NV];
#pragma unroll
  for (int i = 0; i < MR; ++i)
#pragma unroll
    for (int v = 0; v < NV; ++v) sum[i][v] = (float16)(0.0f);
  for (int k = 0; k < terms; ++k) {
    float16 row[NV];
#pragma unroll
    for (int v = 0; v < NV; ++v) row[v] = PLOAD(k * NV + v, pb);
#pragma unroll
    for (int i = 0; i < MR; ++i)
#pragma unroll
      for (int v = 0; v < NV; ++v) sum[i][v] += pa[i * PITCH + k] * row[v];
  }
#pragma unroll
  for (int i = 0; i < MR; ++i)
#pragma unroll
    for (int v = 0; v < NV; ++v)
      PSTORE(PLOAD(v, total + i * cols) + sum[i][v], v, total + i * cols);
}

__kernel void contract(const __global float *a, const __global float *b, MAP_PARAMS,
                       int rows, int cols, int k_part OUT_PARAMS) {
  float pa[(ROWS + 15) * PITCH], pb[(KC + 15) * NT], total[TOTAL];
  const int z = get_global_id(2), split = z / sets;
  MAP_OF(z % sets)
  const int n_first = get_global_id(0) * cols, m_first = get_global_id(1) * rows;
  const int n_count = min(cols, N - n_first), m_count = min(rows, M - m_first);
  const int tiles = (m_count + MR - 1) / MR, k_stop = min(map.K, (split + 1) * k_part);
  for (int m = 0; m < tiles * MR; ++m)
    for (int n = 0; n < cols; n += 16) PSTORE((float16)(0.0f), 0, total + m * cols + n);
  for (int k = split * k_part; k < k_stop; k += KC) {
    const int end = min(k + KC, k_stop);
    pack_a(&map, a, pa, m_first, m_count, k, end);
    for (int n = 0; n < n_count; n += NT) {
      for (int v = 0; v < NT; v += 16) pack_b(&map, b, pb + v, n_first + n + v, k, end);
      for (int i = 0; i < tiles; ++i)
        multiply(pa + i * MR * PITCH, pb, total + i * MR * cols + n, cols, end - k);
    }
  }
  for (int m = 0; m < m_count; ++m) {
    const float *from = total + m * cols;
#if MODE == MATMUL || SPLIT
    for (int n = 0; n < n_count; ++n) STORE(from[n], m_first + m, n_first + n)
#else
    int x = n_first % n_x, y = n_first / n_x % n_y, i = n_first / n_x / n_y;
    for (int n = 0; n < n_count;) {
      const int stop = min(n_x - x, n_count - n);  // the end of the image's row, or of the block
      for (int j = 0; j < stop; ++j) STORE_AT(from[n + j], m_first + m, i, y, x + j)
      n += stop, x = 0;
      if (++y == n_y) y = 0, ++i;
    }
#endif
  }
}

#else

// ---------------------------------------------------------------------------------- LOCAL

#define TM (WY * PM)
#define TN (WX * PN)
#define ITEMS (WX * WY)

__kernel __attribute__((reqd_work_group_size(WX, WY, 1)))
void contract(const __global float *a, const __global float *b, MAP_PARAMS,
              int a_along_k, int b_along_k, int k_part OUT_PARAMS) {
  __local float as[KT][TM + 1], bs[KT][TN + 1];
#if MODE != MATMUL
  __local Column columns[TN];
  __local int4 terms[2][KT];  // offset in A, offset in B, h, w
#endif
  const int z = get_group_id(2), split = z / sets;
  MAP_OF(z % sets)
  const int x0 = get_local_id(0), y0 = get_local_id(1), item = y0 * WX + x0;
  const int n_first = get_group_id(0) * TN, m_first = get_group_id(1) * TM;
  const int k_first = split * k_part, k_stop = min(map.K, (split + 1) * k_part);
  float sum[PM][PN], total[PM][PN];
#pragma unroll
  for (int i = 0; i < PM; ++i)
#pragma unroll
    for (int j = 0; j < PN; ++j) sum[i][j] = total[i][j] = 0.0f;
#if MODE != MATMUL
  for (int j = item; j < TN; j += ITEMS) columns[j] = column(&map, min(n_first + j, N - 1));
  // a phase may have no taps, and then no digits to count with
  for (int k = item; k < KT && k_first < k_stop; k += ITEMS) {
    const Run t = run_from(&map, min(k_first + k, k_stop - 1), k_stop);
    terms[0][k] = (int4)(t.a, t.b, t.h, t.w);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
  for (int k = k_first, turn = 0; k < k_stop; k += KT, turn ^= 1) {
    for (int e = item; e < KT * TM; e += ITEMS) {
      const int kk = a_along_k ? e % KT : e / TM, mm = a_along_k ? e / KT : e % TM;
      const int m = m_first + mm;
      float value = 0.0f;
      if (k + kk < k_stop && m < M) {
#if MODE == MATMUL
        value = a[map.a_0 + m * map.a_m + (k + kk) * map.a_c];
#else
        value = a[map.a_0 + m * map.a_m + terms[turn][kk].x];
#endif
      }
      as[kk][mm] = value;
    }
    for (int e = item; e < KT * TN; e += ITEMS) {
      const int kk = b_along_k ? e % KT : e / TN, nn = b_along_k ? e / KT : e % TN;
      float value = 0.0f;
      if (k + kk < k_stop && n_first + nn < N) {
#if MODE == MATMUL
        value = b[map.b_0 + (n_first + nn) * map.b_n + (k + kk) * map.b_c];
#else
        const int4 t = terms[turn][kk];
        const Column c = columns[nn];
        if ((uint)(c.h + t.z) < (uint)H && (uint)(c.w + t.w) < (uint)W) value = b[c.at + t.y];
#endif
      }
      bs[kk][nn] = value;
    }
#if MODE != MATMUL
    // the terms of the next tile, into the half that this one does not read
    for (int i = item; i < KT; i += ITEMS) {
      const Run t = run_from(&map, min(k + KT + i, k_stop - 1), k_stop);
      terms[turn ^ 1][i] = (int4)(t.a, t.b, t.h, t.w);
    }
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 4
    for (int kk = 0; kk < KT; ++kk) {
      float row[PN];
#pragma unroll
      for (int j = 0; j < PN; ++j) row[j] = bs[kk][x0 + j * WX];
#pragma unroll
      for (int i = 0; i < PM; ++i) {
        const float left = as[kk][y0 + i * WY];
#pragma unroll
        for (int j = 0; j < PN; ++j) sum[i][j] += left * row[j];
      }
    }
    if ((k + KT - k_first) % RUN == 0 || k + KT >= k_stop) {
#pragma unroll
      for (int i = 0; i < PM; ++i)
#pragma unroll
        for (int j = 0; j < PN; ++j) total[i][j] += sum[i][j], sum[i][j] = 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#pragma unroll
  for (int j = 0; j < PN; ++j) {
    const int n = n_first + x0 + j * WX;
    if (n >= N) continue;
#if MODE != MATMUL && !SPLIT
    const int across = n / n_x, x = n - across * n_x, i_n = across / n_y, y = across - i_n * n_y;
#endif
#pragma unroll
    for (int i = 0; i < PM; ++i) {
      const int m = m_first + y0 + i * WY;
      if (m >= M) continue;
#if MODE != MATMUL && !SPLIT
      STORE_AT(total[i][j], m, i_n, y, x)
#else
      STORE(total[i][j], m, n)
#endif
    }
  }
}
#endif
