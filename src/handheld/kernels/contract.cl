// Contractions: matrix products, convolutions and their two gradients, as one implicit GEMM.
//
//     acc[g, m, n] = sum over k of A(g, m, k) * B(g, k, n),   then EPILOGUE at that point
//
// Nothing is unfolded in memory: A and B are index maps over views of any strides. Columns n and
// terms k are numbers of three digits, and an element of B exists where its pixel is inside:
//
//     MODE     m             n                k                A(m, k)          B(k, n)
//     MATMUL   row           column           k                a[.., m, k]      b[.., k, n]
//     CONV     out channel   image, row, col  tap, tap, chan   w[m, c, r, s]    x[i, c, row*u + r*e + off, ..]
//     WEIGHT   out channel   chan, tap, tap   image, row, col  dy[i, m, p, q]   x[i, c, r*u + p*e + off, ..]
//
// The gradient in x of a convolution of stride t is t*t convolutions of stride 1, one for each
// residue ("phase") of the pixel: only the taps r with (phase + pad - r*dil) % t == 0 meet it, and
// they are every `skip`-th from the first. So conv_input is CONV with phases; conv has one phase.
//
// REGISTER variant (LOCAL 0): one work-item, one block of `rows` x `cols`; no local memory.
//
//                          cols (panels of NT)          for each chunk of KC terms
//                       +----+----+----+----+             pack A of the block    [rows/MR][KC][MR]
//                       | Bp |    |    |    | KC          for each panel
//                       +----+----+----+----+               pack B               [KC][NT]
//              KC         NT                                for each MR rows
//            +----+     +----+----+----+----+                 MR accumulators of float16 += a*B[k]
//         MR | Ap |     |acc |    |    |    |                 total += accumulators
//            +----+     +----+----+----+----+
//       rows |    |     |    |  total  |    |           chunk sums keep the error of long sums small
//            +----+     +----+----+----+----+
//
// LOCAL variant (LOCAL 1): one work-group of WX x WY, one tile of (WY*PM) x (WX*PN).
//
//                 KT          x -> WX items, item x has columns x, x+WX, x+2*WX ...
//               +----+     +-----------------+
//            TM | As |  y  |  x  x  x  x     |   As, Bs in local memory, sums in registers; loads run
//               +----+  |  |  WX apart, PN   |   along k or along m (n), whichever is contiguous
//                       WY +-----------------+
//
// With SPLIT 1 the k range is cut: split s writes its sums to part[s, g, m, n] and `combine` adds
// them in order and runs the epilogue. No atomics anywhere: the same input gives the same bits.

#define MATMUL 0
#define CONV 1
#define WEIGHT 2
#ifndef MODE
#define MODE MATMUL
#endif
#ifndef LOCAL  // 1: tiles in local memory, for GPUs; 0: register tiles, for CPUs
#define LOCAL 0
#endif
#ifndef SPLIT  // 1: write partial sums, for `combine`
#define SPLIT 0
#endif
#ifndef BATCH  // leading dimensions of a matmul, 0 to 3
#define BATCH 0
#endif
#ifndef KC     // terms in one chunk sum
#define KC 256
#endif
#ifndef MR     // REGISTER: rows of the register tile; 6 float16 fit 16 registers of 256 bits
#define MR 6
#endif
#ifndef ROWS   // REGISTER: most rows of a block, a multiple of MR
#define ROWS 96
#endif
#ifndef COLS   // REGISTER: most columns of a block, a multiple of NT
#define COLS 256
#endif
#define NT 16  // REGISTER: columns of a panel, one float16
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
#ifndef KT     // LOCAL: terms of a tile, a divisor of KC
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
#define MAP_PARAMS int sets, int M, int N, int K, int a_0, int a_m, int a_k, \
    int b_0, int b_n, int b_k, int b_size, \
    int g_y, int g_x, int a_gz, int a_gy, int a_gx, int b_gz, int b_gy, int b_gx
#else
// A: a_c, a_r, a_s are its strides in k's image-or-channel, row and column digit.
// B: b_n, b_c its strides in the image-or-channel digit of n and of k; b_h, b_w those of a pixel.
#define MAP_PARAMS int sets, int M, int N, int K, int a_0, int a_m, int a_g, int a_c, int a_r, int a_s, \
    int b_0, int b_g, int b_n, int b_c, int b_h, int b_w, int b_size, int H, int W, \
    int n_y, int n_x, int k_c, int k_r, int k_s, \
    int u_h, int u_w, int e_h, int e_w, int off_h, int off_w, \
    int out_h, int out_w, int phase_h, int phase_w, int skip_h, int skip_w
#endif

// The maps of one g: what the kernel arguments become once group and phase are known.
typedef struct {
  int M, N, K;
  int a_0, a_m, a_c, a_r, a_s;
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

#if MODE != MATMUL
// The taps of one phase along one axis: the first and how many; changes offset, step and stride
// so that digit 0, 1, .. of the tap means those taps.
inline int taps(int phase, int phases, int skip, int count, int *off, int *step, int *a_tap, int *a_0) {
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
  map.M = M, map.N = N, map.K = K, map.b_size = b_size; \
  map.a_0 = a_0 + gz * a_gz + gy * a_gy + gx * a_gx, map.a_m = a_m, map.a_c = a_k; \
  map.b_0 = b_0 + gz * b_gz + gy * b_gy + gx * b_gx, map.b_n = b_n, map.b_c = b_k;
#else
#define MAP_OF(g) \
  const int groups = sets / (phase_h * phase_w), group = (g) % groups; \
  const int px = (g) / groups % phase_w, py = (g) / groups / phase_w; \
  Map map; \
  map.M = M, map.N = N, map.K = K, map.b_size = b_size, map.H = H, map.W = W; \
  map.a_0 = a_0 + group * a_g, map.a_m = a_m, map.a_c = a_c, map.a_r = a_r, map.a_s = a_s; \
  map.b_0 = b_0 + group * b_g, map.b_n = b_n, map.b_c = b_c, map.b_h = b_h, map.b_w = b_w; \
  map.n_y = n_y, map.n_x = n_x, map.k_c = k_c, map.k_r = k_r, map.k_s = k_s; \
  map.u_h = u_h, map.u_w = u_w, map.e_h = e_h, map.e_w = e_w, map.off_h = off_h, map.off_w = off_w; \
  PHASE
#if MODE == CONV
#define PHASE \
  map.k_r = taps(py, phase_h, skip_h, k_r, &map.off_h, &map.e_h, &map.a_r, &map.a_0); \
  map.k_s = taps(px, phase_w, skip_w, k_s, &map.off_w, &map.e_w, &map.a_s, &map.a_0); \
  map.K = k_c * map.k_r * map.k_s;
#else
#define PHASE
#endif
#endif

// STORE(value, m, n): the coordinates of a point, then the epilogue. `y`, `x`, `i` are n's digits.
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
#define STORE_AT(value, m, i, y, x) STORE(value, m, x)
#else
#if MODE == CONV
#define POINT(m, i, y, x) \
  const int d0 = (i), d1 = group * M + (m), d2 = (y) * phase_h + py, d3 = (x) * phase_w + px;
#else
#define POINT(m, i, y, x) const int d0 = group * M + (m), d1 = (i), d2 = (y), d3 = (x);
#endif
// phases may reach past the last row or column of the image
#define STORE_AT(value, m, i, y, x) \
  { const float acc = (value); POINT(m, i, y, x) if (d2 < out_h && d3 < out_w) { EPILOGUE } }
#define STORE(value, m, n) \
  { const int line_ = (n) / n_x; STORE_AT(value, m, line_ / n_y, line_ % n_y, (n) - line_ * n_x) }
#endif

#if SPLIT
#undef STORE
#undef STORE_AT
#define STORE(value, m, n) part[(get_global_id(2) * M + (m)) * N + (n)] = (value);
#define OUT_PARAMS , __global float *part
#else
#define OUT_PARAMS EPILOGUE_PARAMS
#endif

#if defined(COMBINE)

// One work-item a point of the output.
__kernel void combine(MAP_PARAMS, const __global float *part, int splits EPILOGUE_PARAMS) {
  const int at = get_global_id(0), all = sets * M * N;
  if (at >= all) return;
  const int n = at % N, row = at / N, m = row % M;
  MAP_OF(row / M)
  float sum = 0.0f;
  for (int s = 0; s < splits; ++s) sum += part[s * all + at];
  STORE(sum, m, n)
}

#elif !LOCAL

// ---------------------------------------------------------------------------------- REGISTER

// Ap[row / MR][k][row % MR]; rows past M repeat the last, and are never stored.
inline void pack_a(const Map *p, const __global float *a, float *pack, int m_first, int rows, int k, int end) {
  for (int done = 0; k < end;) {
    const Run t = run_from(p, k, end);
    for (int row = 0; row < rows; ++row) {
      const __global float *from = a + p->a_0 + min(m_first + row, p->M - 1) * p->a_m + t.a;
      float *to = pack + (row / MR * KC + done) * MR + row % MR;
      for (int i = 0; i < t.len; ++i) to[i * MR] = from[i * t.a_step];
    }
    k += t.len, done += t.len;
  }
}

// Bp[k][NT] of NT columns from n. Where the columns lie side by side in memory and a load of all
// of them stays inside the buffer, one vector load takes them and a mask drops those outside.
inline void pack_b(const Map *p, const __global float *b, float *pack, int n, int k, int end) {
  int at[NT], h[NT], low[NT], high[NT];
  const int live = min(NT, p->N - n);
  int side_by_side = 1;
  for (int j = 0; j < NT; ++j) {
    const Column c = column(p, min(n + j, p->N - 1));
    at[j] = j < live ? c.at : at[0] + j;
    side_by_side &= at[j] == at[0] + j;
    h[j] = c.h;
#if MODE == CONV
    low[j] = c.w, high[j] = 0;
#elif MODE == WEIGHT
    // the k columns [low, high) for which this tap is inside
    low[j] = (max(-c.w, 0) + p->e_w - 1) / p->e_w;
    high[j] = (max(p->W - c.w, 0) + p->e_w - 1) / p->e_w;
#endif
  }
  while (k < end) {
    const Run t = run_from(p, k, end);
    const int last = (t.len - 1) * t.b_step, start = at[0] + t.b;
    int inside[NT];
    int every = live == NT;
    for (int j = 0; j < NT; ++j) {
      inside[j] = j < live ? -1 : 0;
#if MODE == CONV
      const uint y = h[j] + t.h, x = low[j] + t.w;
      inside[j] = (j < live && y < (uint)p->H && x < (uint)p->W) ? -1 : 0;
      every &= inside[j];
#endif
    }
    if (MODE != WEIGHT && side_by_side && start + min(last, 0) >= 0
        && start + max(last, 0) + NT <= p->b_size) {
      const __global float *from = b + start;
      const int16 mask = vload16(0, inside);
      if (every) {
        for (int i = 0; i < t.len; ++i) vstore16(vload16(0, from + i * t.b_step), i, pack);
      } else {
        for (int i = 0; i < t.len; ++i)
          vstore16(select((float16)(0.0f), vload16(0, from + i * t.b_step), mask), i, pack);
      }
    } else {
      for (int j = 0; j < NT; ++j) {
        int first = 0, stop = inside[j] ? t.len : 0;
#if MODE == WEIGHT
        const int s = k % p->k_s;
        if ((uint)(h[j] + t.h) >= (uint)p->H) stop = 0;
        first = max(low[j] - s, 0);
        stop = min(high[j] - s, stop);
#endif
        const __global float *from = b + at[j] + t.b;
        for (int i = 0; i < t.len; ++i)
          pack[i * NT + j] = (i >= first && i < stop) ? from[i * t.b_step] : 0.0f;
      }
    }
    k += t.len, pack += t.len * NT;
  }
}

// total[MR][NT] += Ap[terms][MR] * Bp[terms][NT]
inline void multiply(const float *pa, const float *pb, float *total, int terms) {
  float16 sum[MR];
#pragma unroll
  for (int i = 0; i < MR; ++i) sum[i] = (float16)(0.0f);
  for (int k = 0; k < terms; ++k) {
    const float16 row = vload16(k, pb);
#pragma unroll
    for (int i = 0; i < MR; ++i) sum[i] += pa[k * MR + i] * row;
  }
#pragma unroll
  for (int i = 0; i < MR; ++i) vstore16(vload16(i, total) + sum[i], i, total);
}

__kernel void contract(const __global float *a, const __global float *b, MAP_PARAMS,
                       int rows, int cols, int k_part OUT_PARAMS) {
  float pa[ROWS * KC], pb[KC * NT], total[ROWS * COLS];
  const int z = get_global_id(2), split = z / sets;
  MAP_OF(z % sets)
  const int n_first = get_global_id(0) * cols, m_first = get_global_id(1) * rows;
  const int n_stop = min(n_first + cols, N), m_count = min(rows, M - m_first);
  const int tiles = (m_count + MR - 1) / MR, k_stop = min(map.K, (split + 1) * k_part);
  for (int i = 0; i < tiles * MR * cols / NT; ++i) vstore16((float16)(0.0f), i, total);
  for (int k = split * k_part; k < k_stop; k += KC) {
    const int end = min(k + KC, k_stop);
    pack_a(&map, a, pa, m_first, tiles * MR, k, end);
    for (int n = n_first; n < n_stop; n += NT) {
      pack_b(&map, b, pb, n, k, end);
      for (int i = 0; i < tiles; ++i)
        multiply(pa + i * MR * KC, pb, total + ((n - n_first) * tiles + i * NT) * MR, end - k);
    }
  }
  for (int m = 0; m < m_count; ++m) {
#if MODE == MATMUL || SPLIT
    for (int n = n_first; n < n_stop; n += NT) {
      const float *from = total + ((n - n_first) / NT * tiles * MR + m) * NT;
      for (int j = 0; j < min(NT, N - n); ++j) STORE(from[j], m_first + m, n + j)
    }
#else
    int x = n_first % n_x, y = n_first / n_x % n_y, i = n_first / n_x / n_y;
    for (int n = n_first; n < n_stop;) {
      // up to the end of the panel or of the image's row
      const int count = min(min(NT - (n - n_first) % NT, n_x - x), n_stop - n);
      const float *from = total + ((n - n_first) / NT * tiles * MR + m) * NT + (n - n_first) % NT;
      for (int j = 0; j < count; ++j) STORE_AT(from[j], m_first + m, i, y, x + j)
      n += count, x += count;
      if (x == n_x) x = 0, ++y;
      if (y == n_y) y = 0, ++i;
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
  for (int k = item; k < KT; k += ITEMS) {
    const Run t = run_from(&map, min(k_first + k, max(k_stop - 1, 0)), k_stop);
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
    if ((k + KT - k_first) % KC == 0 || k + KT >= k_stop) {
#pragma unroll
      for (int i = 0; i < PM; ++i)
#pragma unroll
        for (int j = 0; j < PN; ++j) total[i][j] += sum[i][j], sum[i][j] = 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#pragma unroll
  for (int i = 0; i < PM; ++i) {
    const int m = m_first + y0 + i * WY;
#pragma unroll
    for (int j = 0; j < PN; ++j) {
      const int n = n_first + x0 + j * WX;
      if (m < M && n < N) STORE(total[i][j], m, n)
    }
  }
}
#endif
