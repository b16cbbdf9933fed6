// Contractions: matrix products, convolutions and their two gradients, as one implicit GEMM.
//
//     acc[g, m, n] = sum over k of A(g, m, k) * B(g, k, n),   then EPILOGUE for that element
//
// Nothing is unfolded in memory. A and B are index maps over views with any strides. In convolutions, the
// column n and the term k are numbers of three digits. An element of B whose pixel is outside the image is 0.
//
//     MODE    m            n                k                 A(m, k)         B(k, n)
//     MATMUL  row          column           k                 a[.., m, k]     b[.., k, n]
//     CONV    out channel  image, row, col  tap, tap, chan    w[m, c, r, s]   x[i, c, y*u + r*e, ..]
//     WEIGHT  out channel  chan, tap, tap   image, row, col   dy[i, m, y, x]  x[i, c, r*u + y*e, ..]
//
// `u` is the step in pixels of the digits of n, and `e` that of the digits of k. The offset `off` is added to each
// pixel; in conv it is minus the padding.
//
// The set g is the phase and the group of a convolution, or the batch of a matmul with the digits (gz, gy, gx).
//
// Phases. The gradient of a convolution with stride t, with respect to its input, is t*t convolutions with
// stride 1: one per residue ("phase") of the input pixel modulo t. A tap r reaches a phase only if
// (phase + pad - r*dilation) % t == 0. Those taps are every `skip`-th one, counted from the first. So
// conv_input is CONV with phases, and conv is CONV with one phase.
//
// This file holds the index maps and the stores. A program is this file followed by one of
// contract_register.cl, direct.cl or few.cl (CPUs), contract_local.cl (GPUs) and contract_combine.cl.
//
// With SPLIT 1 the range of k is cut into parts. Part s writes its sums to part[s, g, m, n]; then `combine` adds
// them in order and runs the epilogue. WEIGHT has no epilogue and dw is dense in [g, m, n], so a single part is
// already the output. There are no atomics: the same input gives the same bits.

#define MATMUL 0
#define CONV 1
#define WEIGHT 2
#ifndef MODE
#define MODE MATMUL
#endif
#ifndef LOCAL  // 1: contract_local.cl follows (GPUs); 0: a kernel for CPUs
#define LOCAL 0
#endif
#ifndef SPLIT  // 1: write partial sums instead of running the epilogue; always in WEIGHT
#define SPLIT (MODE == WEIGHT)
#endif
#ifndef BATCH  // leading dimensions of a matmul, 0 to 3
#define BATCH 0
#endif
#ifndef PHASED  // CONV, 1: there may be more than one phase
#define PHASED 0
#endif
#ifndef EPILOGUE  // statements that use acc and the coordinates d0, d1, ..; EPILOGUE_PARAMS begins with a comma
#define EPILOGUE_PARAMS , __global float *out, int e0, int e1, int e2, int e3
#if MODE == MATMUL && BATCH == 0
#define EPILOGUE out[d0 * e0 + d1 * e1] = acc;
#elif MODE == MATMUL && BATCH == 1
#define EPILOGUE out[d0 * e0 + d1 * e1 + d2 * e2] = acc;
#else
#define EPILOGUE out[d0 * e0 + d1 * e1 + d2 * e2 + d3 * e3] = acc;
#endif
#endif

#ifndef A_HALF  // 1: A is stored in halves, and half.cl comes before this file
#define A_HALF 0
#endif
#ifndef B_HALF
#define B_HALF 0
#endif
#if A_HALF
#define A_TYPE HALF
#define A_GET(p, i) GET_HALF(p, i)
#define A_GET16(p) HLOAD(0, p)
#else
#define A_TYPE float
#define A_GET(p, i) (p)[i]
#define A_GET16(p) GLOAD(0, p)
#endif
#if B_HALF
#define B_TYPE HALF
#define B_GET(p, i) GET_HALF(p, i)
#define B_GET16(p) HLOAD(0, p)
#else
#define B_TYPE float
#define B_GET(p, i) (p)[i]
#define B_GET16(p) GLOAD(0, p)
#endif

// Half arithmetic: both operands are rounded to halves. Products, and sums of a few of them, are computed in halves;
// these short sums are added up in floats. Needs cl_khr_fp16.
#ifndef ARITH_HALF  // 1: half arithmetic
#define ARITH_HALF 0
#endif
#if ARITH_HALF
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define TERM half
#define TERM4 half4
#else
#define TERM float
#define TERM4 float4
#endif

// ---------------------------------------------------------------------------------- index maps

#if MODE == MATMUL
#define MAP_PARAMS int sets, int M, int N, int K, int a_0, int a_m, int a_k, int a_size, \
    int b_0, int b_n, int b_k, int b_size, \
    int g_y, int g_x, int a_gz, int a_gy, int a_gx, int b_gz, int b_gy, int b_gx
#else
// A: offset a_0; strides a_m (m), a_g (group) and a_c, a_r, a_s (the digits of k: channel or image, row, column).
// B: offset b_0; strides b_g (group), b_n and b_c (the digits of n and of k that are a channel or an image),
//    b_h and b_w (row and column of a pixel). The image has H x W pixels.
// n has the digits (channel or image, n_y, n_x), k the digits (k_c, k_r, k_s).
#define MAP_PARAMS int sets, int M, int N, int K, \
    int a_0, int a_m, int a_g, int a_c, int a_r, int a_s, int a_size, \
    int b_0, int b_g, int b_n, int b_c, int b_h, int b_w, int b_size, int H, int W, \
    int n_y, int n_x, int k_c, int k_r, int k_s, \
    int u_h, int u_w, int e_h, int e_w, int off_h, int off_w, \
    int out_h, int out_w, int phase_h, int phase_w, int skip_h, int skip_w
#endif

// The index maps of one set g: the kernel arguments after the group and the phase have been applied.
typedef struct {
  int M, N, K;
  int a_0, a_m, a_c, a_r, a_s, a_size;
  int b_0, b_n, b_c, b_h, b_w, b_size, H, W;
  int n_y, n_x, k_c, k_r, k_s;
  int u_h, u_w, e_h, e_w, off_h, off_w;
} Map;

// A run: terms k, k+1, .. k+len-1 that differ in one digit only. a and b are the offsets of the first term, a_step
// and b_step the distances from one term to the next. h and w are added to the pixel of a column.
typedef struct { int len, a, a_step, b, b_step, h, w; } Run;

// A column of B: its offset, and the row and column of its pixel.
typedef struct { int at, h, w; } Column;

// The run of terms that begins at k and stays before `end`.
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
// Finds the taps of one phase along one axis and returns their number. Changes the offset, the step and the
// stride so that tap digits 0, 1, .. stand for exactly these taps.
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

// MAP_OF(g) declares `map`, the index maps of set g, and the coordinates of the set that POINT needs.
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

// STORE(value, m, n) declares the coordinates of an element and runs the epilogue.
// STORE_AT(value, m, i, y, x) does the same with the digits of n, which saves the divisions.
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
#if PHASED  // A phase may reach past the last row or column of the image.
#define STORE_AT(value, m, i, y, x) \
  { const float acc = (value); POINT(m, i, y, x) if (d2 < out_h && d3 < out_w) { EPILOGUE } }
#else
#define STORE_AT(value, m, i, y, x) { const float acc = (value); POINT(m, i, y, x) EPILOGUE }
#endif
#define STORE(value, m, n) \
  { const int line_ = (n) / n_x; STORE_AT(value, m, line_ / n_y, line_ % n_y, (n) - line_ * n_x) }
#endif

#ifndef OUT_HALF  // WEIGHT, 1: the output is stored in halves
#define OUT_HALF 0
#endif
#if OUT_HALF
#define OUT_TYPE HALF
#define PUT(value, i, p) PUT_HALF(value, i, p)
#else
#define OUT_TYPE float
#define PUT(value, i, p) (p)[i] = (value)
#endif

#if SPLIT
#undef STORE
#define STORE(value, m, n) PUT(value, (get_global_id(2) * M + (m)) * N + (n), part);
#define OUT_PARAMS , __global OUT_TYPE *part
#else
#define OUT_PARAMS EPILOGUE_PARAMS
#endif
