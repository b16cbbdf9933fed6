// Contractions on GPUs. One work-group of WX*WY*SLICES work-items ("items") computes one tile of TM x TN results.
// contract_maps.cl comes before this file.
//
//                 +--------------+ - +--+       for each KT terms
//                 |      Bs          |  | KT      fetch: the next KT terms, into registers
//           KT    +--------------+ - +--+         multiply: sum += As * Bs of the previous KT terms;
//         +----+  +----+----+ - +----+              the items of slice s take the s-th part of them
//         |    |  |4 x4|    |   |4 x4|            store: the fetched terms into the other As and Bs
//      TM | As |  +----+----+ - +----+            one barrier
//         |    |  |    |    |   |    |
//         +    +  +    +    +   +    +          An item has PM/4 x PN/4 blocks of 4x4 results, which are
//         |    |  |4 x4|    |   |4 x4|          WY*4 rows and WX*4 columns apart. It reads As and Bs as
//         +----+  +----+----+ - +----+          float4; its neighbours read the float4s next to them.
//                       TN
//
// Indexing: get_group_id(0) is the tile along n, (1) the tile along m, (2) the part of k and the set.
//
// A line is a row of A or a column of B: an offset, and for B also a pixel. Each item loads the same lines in
// every step, so that their offsets stay in registers. A term adds an offset to A and to B, and a distance to the
// pixel. If the offset is k times a constant, it is computed (A_STEPS, B_STEPS); otherwise it comes from a table
// of the KT terms in local memory.
//
// Loads run along the lines or along k, whichever is contiguous in memory. They are float4 if strides and offsets
// are multiples of four. Along k, 8 terms of a line are loaded by neighbouring items.
//
// At the end the sums pass through local memory. There the slices are added up, neighbouring items get
// neighbouring results to store, and the epilogue appears in the program only once.
//
// MATRIX: matrix units multiply (contract_matrix.cl).

#ifndef WX        // work-items across
#define WX 16
#endif
#ifndef WY        // work-items down
#define WY 8
#endif
#ifndef PM        // rows per item, 4 or 8
#define PM 8
#endif
#ifndef PN        // columns per item, 4 or 8
#define PN 4
#endif
#ifndef KT        // terms per step, a multiple of 8 and of SLICES
#define KT 16
#endif
#ifndef SLICES    // parts of the KT terms, each with its own items
#define SLICES 1
#endif
// UNROLL: terms multiplied in a row, a divisor of KT/SLICES. A large number hides the latency of reading As and Bs;
// a small one leaves registers for a second work-group on the compute unit.
#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef MATRIX    // 1: multiply on matrix units; WX is a multiple of 4, WY and PN of 8, SLICES is 1
#define MATRIX 0
#endif
#ifndef BUFFERS   // copies of As and Bs: 2, or 1 for devices with little local memory
#define BUFFERS 2
#endif
#ifndef RUN       // terms of the first level of a sum, a multiple of KT; 0: one level only
#define RUN 256
#endif
#ifndef A_ALONG_K // 1: neighbouring items load along k
#define A_ALONG_K 0
#endif
#ifndef B_ALONG_K
#define B_ALONG_K 0
#endif
#ifndef A_VEC     // elements per load, 1 or 4
#define A_VEC 1
#endif
#ifndef B_VEC
#define B_VEC 1
#endif
#ifndef A_STEPS   // 1: the offset of term k is k*a_step
#define A_STEPS (MODE == MATMUL)
#endif
#ifndef B_STEPS
#define B_STEPS (MODE == MATMUL)
#endif
#ifndef B_CHECK   // 1: pixels may lie outside the image
#define B_CHECK (MODE != MATMUL)
#endif
#ifndef B_TAPS    // 1: a term has at most 32 taps, so that one number says of a line which taps lie inside the image
#define B_TAPS 0
#endif

#ifndef TEXTURE   // 1: A and B are read through textures, which some GPUs cache better
#define TEXTURE 0
#endif
#if TEXTURE
#define INPUTS __read_only image1d_buffer_t a, __read_only image1d_buffer_t b, int a_start, int b_start
#define A_PLACE(at) (a_start + (at))
#define B_PLACE(at) (b_start + (at))
#define FLOAT_1(p, at) read_imagef(p, at).x
#define FLOAT_4(p, at) read_imagef(p, (at) / 4)
#define HALF_1(p, at) read_imagef(p, at).x
#define HALF_4(p, at) read_imagef(p, (at) / 4)
#define TERM_1(p, at) read_imageh(p, at).x
#define TERM_4(p, at) read_imageh(p, (at) / 4)
#else
#define INPUTS const __global A_TYPE *a, const __global B_TYPE *b
#define A_PLACE(at) (at)
#define B_PLACE(at) (at)
#define FLOAT_1(p, at) (p)[at]
#define FLOAT_4(p, at) (*(const __global float4 *)((p) + (at)))
#define HALF_1(p, at) GET_HALF(p, at)
#define HALF_4(p, at) vload_half4(0, (const __global half *)((p) + (at)))
#define TERM_1(p, at) ((const __global half *)(p))[at]
#define TERM_4(p, at) (*(const __global half4 *)((p) + (at)))
#endif
// Halves in memory are terms of half arithmetic as they are; floats are rounded.
#if ARITH_HALF && A_HALF
#define A_1(at) TERM_1(a, A_PLACE(at))
#define A_4(at) TERM_4(a, A_PLACE(at))
#elif ARITH_HALF
#define A_1(at) convert_half_rte(FLOAT_1(a, A_PLACE(at)))
#define A_4(at) convert_half4_rte(FLOAT_4(a, A_PLACE(at)))
#elif A_HALF
#define A_1(at) HALF_1(a, A_PLACE(at))
#define A_4(at) HALF_4(a, A_PLACE(at))
#else
#define A_1(at) FLOAT_1(a, A_PLACE(at))
#define A_4(at) FLOAT_4(a, A_PLACE(at))
#endif
#if ARITH_HALF && B_HALF
#define B_1(at) TERM_1(b, B_PLACE(at))
#define B_4(at) TERM_4(b, B_PLACE(at))
#elif ARITH_HALF
#define B_1(at) convert_half_rte(FLOAT_1(b, B_PLACE(at)))
#define B_4(at) convert_half4_rte(FLOAT_4(b, B_PLACE(at)))
#elif B_HALF
#define B_1(at) HALF_1(b, B_PLACE(at))
#define B_4(at) HALF_4(b, B_PLACE(at))
#else
#define B_1(at) FLOAT_1(b, B_PLACE(at))
#define B_4(at) FLOAT_4(b, B_PLACE(at))
#endif

#define TM (WY * PM)
#define TN (WX * PN)
#define ITEMS (WX * WY * SLICES)
#define A_PITCH (TM + 4)  // Length of a row of As. The extra 4 put stores of loads along k into different banks.
#define B_PITCH (TN + 4)
#define TABLE (!A_STEPS || !B_STEPS || B_CHECK)

// How loads are distributed. Neighbouring items take A_DEEP terms of a line, so all lines need A_ACROSS loads. If
// that is more than there are items, each item loads A_LINES lines. If it is less, all items together load A_TERMS
// terms at a time. A_TURNS repetitions cover the KT terms.
#define A_DEEP (!A_ALONG_K ? 1 : ITEMS < 8 ? A_VEC : 8)
#define B_DEEP (!B_ALONG_K ? 1 : ITEMS < 8 ? B_VEC : 8)
#define A_ACROSS (TM * A_DEEP / A_VEC)
#define B_ACROSS (TN * B_DEEP / B_VEC)
#define A_LINES (A_ACROSS > ITEMS ? A_ACROSS / ITEMS : 1)
#define B_LINES (B_ACROSS > ITEMS ? B_ACROSS / ITEMS : 1)
#define A_TERMS ((A_ACROSS < ITEMS ? ITEMS / A_ACROSS : 1) * A_DEEP)
#define B_TERMS ((B_ACROSS < ITEMS ? ITEMS / B_ACROSS : 1) * B_DEEP)
#define A_TURNS (A_TERMS < KT ? KT / A_TERMS : 1)
#define B_TURNS (B_TERMS < KT ? KT / B_TERMS : 1)

#if A_VEC == 4
#define A_VALUE TERM4
#define LOAD_A(at) A_4(at)
#else
#define A_VALUE TERM
#define LOAD_A(at) A_1(at)
#endif
#if B_VEC == 4
#define B_VALUE TERM4
#define LOAD_B(at) B_4(at)
#else
#define B_VALUE TERM
#define LOAD_B(at) B_1(at)
#endif

// The first line and the first term that an item loads, and the distance to its next line (A_APART).
#define FIRST_LINE(across, along_k, deep, vec) \
  ((along_k) ? item % (across) / ((deep) / (vec)) : item % (across) * (vec))
#define FIRST_TERM(across, along_k, deep, vec) \
  (item / (across) * (deep) + ((along_k) ? item % ((deep) / (vec)) * (vec) : 0))
#define A_APART (A_ALONG_K ? ITEMS * A_VEC / A_DEEP : ITEMS * A_VEC)
#define B_APART (B_ALONG_K ? ITEMS * B_VEC / B_DEEP : ITEMS * B_VEC)

// Floats of local memory. Terms in halves need half of it, but the sums of one row of every item must fit.
#define ROW (SLICES * WY * TN)
#define ALL_TERMS (BUFFERS * KT * (A_PITCH + B_PITCH))
#define POOL (!ARITH_HALF ? ALL_TERMS : ALL_TERMS / 2 > ROW ? ALL_TERMS / 2 : ROW)
// DOWN: how many rows of each item fit in local memory at a time when the sums pass through it.
#define ROOM (POOL / ROW)
#if ROOM >= 4
#define DOWN 4
#elif ROOM >= 2
#define DOWN 2
#else
#define DOWN 1
#endif

// 32 neighbouring items form a block of 8 x 4 items instead of a row. So they read fewer different float4s.
#define LX (WX < 8 ? WX : 8)
#define LY (WY < 32 / LX ? WY : 32 / LX)

#if MATRIX
// The sums of an item. Its float4 j of a row is column AT(j) of the tile, in float4s.
#define SUM_TYPE float
#define SUM_COUNT PN
#define NONE 0.0f
#define SUM4(sums, i, j) (float4)(sums[i][4 * (j)], sums[i][4 * (j) + 1], sums[i][4 * (j) + 2], sums[i][4 * (j) + 3])
#define AT(j) ((j) / 2 * 2 * WX + (j) % 2 + x0)
#else
#define SUM_TYPE float4
#define SUM_COUNT (PN / 4)
#define NONE (float4)(0.0f)
#define SUM4(sums, i, j) sums[i][j]
#define AT(j) ((j) * WX + x0)
#endif

inline void put_down(__local TERM *to, int pitch, TERM4 value) {
  to[0] = value.x, to[pitch] = value.y, to[2 * pitch] = value.z, to[3 * pitch] = value.w;
}

#if A_ALONG_K && A_VEC == 4
#define PUT_A(to, value) put_down(to, A_PITCH, value)
#else
#define PUT_A(to, value) *(__local A_VALUE *)(to) = (value)
#endif
#if B_ALONG_K && B_VEC == 4
#define PUT_B(to, value) put_down(to, B_PITCH, value)
#else
#define PUT_B(to, value) *(__local B_VALUE *)(to) = (value)
#endif

#if TABLE
// Here term k has the digits channel (or image), row, column in CONV too, so that dense weights are contiguous
// along k. (contract_register.cl uses the order row, column, channel in CONV.)
typedef struct { int c, r, s; } Digits;

inline Digits digits(const Map *p, int k) {
  Digits d;
  const int line = k / p->k_s;
  d.s = k - line * p->k_s, d.c = line / p->k_r, d.r = line - d.c * p->k_r;
  return d;
}

// The digits of a sum, with carries. Divisions would take longer.
inline Digits plus(const Map *p, Digits d, Digits more) {
  d.s += more.s, d.r += more.r, d.c += more.c;
  if (d.s >= p->k_s) d.s -= p->k_s, ++d.r;
  if (d.r >= p->k_r) d.r -= p->k_r, ++d.c;
  return d;
}

// An entry of the table: offset in A, offset in B, and the distance h, w that is added to the pixel. B_TAPS: the bit of
// the tap instead of h.
inline int4 term(const Map *p, Digits d) {
  const int h = d.r * p->e_h, w = d.s * p->e_w;
  return (int4)(d.c * p->a_c + d.r * p->a_r + d.s * p->a_s,
                d.c * p->b_c + h * p->b_h + w * p->b_w, B_TAPS ? 1 << (d.r * p->k_s + d.s) : h, w);
}
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void contract(INPUTS, MAP_PARAMS,
              int a_step, int b_step, int k_part OUT_PARAMS) {
  __local float4 pool4[POOL / 4];
  __local float *pool = (__local float *)pool4;
#if TABLE
  __local int4 terms[2][KT];
  __local Digits place[KT], tile;  // digits of the terms written last; digits of KT, the distance between tiles
#endif
  const int z = get_group_id(2), split = z / sets, item = get_local_id(0);
  MAP_OF(z % sets)
  const int n_first = get_group_id(0) * TN, m_first = get_group_id(1) * TM;
  const int k_first = split * k_part, k_stop = min(map.K, (split + 1) * k_part);
  const int slice = item / (WX * WY), inner = item % (WX * WY);
#if MATRIX
  const int warp_x = inner / 32 % (WX / 4) * 8, warp_y = inner / 32 / (WX / 4) * 8;
  const int x0 = warp_x + inner % 4 * 2, y0 = warp_y + inner % 32 / 4;
#else
  const int lane = inner % (LX * LY), patch = inner / (LX * LY);
  const int x0 = patch % (WX / LX) * LX + lane % LX, y0 = patch / (WX / LX) * LY + lane / LX;
#endif

  // Lines past the last one load the last line again. Their results are not stored.
  const int a_line = FIRST_LINE(A_ACROSS, A_ALONG_K, A_DEEP, A_VEC);
  const int b_line = FIRST_LINE(B_ACROSS, B_ALONG_K, B_DEEP, B_VEC);
  const int a_term = FIRST_TERM(A_ACROSS, A_ALONG_K, A_DEEP, A_VEC);
  const int b_term = FIRST_TERM(B_ACROSS, B_ALONG_K, B_DEEP, B_VEC);
  int a_at[A_LINES];
  Column b_at[B_LINES];
#pragma unroll
  for (int i = 0; i < A_LINES; ++i) {
    const int m = m_first + a_line + i * A_APART;
    a_at[i] = map.a_0 + min(m, M - (A_ALONG_K ? 1 : A_VEC)) * map.a_m;
  }
#pragma unroll
  for (int i = 0; i < B_LINES; ++i) {
    const int n = n_first + b_line + i * B_APART;
    b_at[i] = column(&map, min(n, N - (B_ALONG_K ? 1 : B_VEC)));
#if B_CHECK && B_TAPS
    int inside = 0;  // the taps that lie inside the image
    for (int r = 0, bit = 1; r < map.k_r; ++r)
      for (int s = 0; s < map.k_s; ++s, bit <<= 1)
        if ((uint)(b_at[i].h + r * map.e_h) < (uint)H && (uint)(b_at[i].w + s * map.e_w) < (uint)W) inside |= bit;
    b_at[i].h = inside;
#endif
  }

  A_VALUE a_next[A_TURNS * A_LINES];
  B_VALUE b_next[B_TURNS * B_LINES];
  SUM_TYPE sum[PM][SUM_COUNT];
#if RUN
  SUM_TYPE total[PM][SUM_COUNT];
#endif
#pragma unroll
  for (int i = 0; i < PM; ++i)
#pragma unroll
    for (int j = 0; j < SUM_COUNT; ++j) {
      sum[i][j] = NONE;
#if RUN
      total[i][j] = NONE;
#endif
    }
#if TABLE
  if (k_first < k_stop) {  // A phase without taps has no digits: k_r or k_s is 0.
    if (item == 0) tile = digits(&map, KT);
    for (int i = item; i < KT; i += ITEMS) {
      place[i] = digits(&map, k_first + i);
      terms[0][i] = term(&map, place[i]);
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#endif

  // Each turn fetches the KT terms at `next` and multiplies the KT terms before them, if there are any.
  for (int next = k_first, turn = 0; next < k_stop + KT; next += KT, turn ^= 1) {
    if (next < k_stop) {
#pragma unroll
      for (int t = 0; t < A_TURNS; ++t) {
        const int kk = a_term + t * A_TERMS;
#if A_STEPS
        const int at = (next + kk) * a_step;
#else
        const int at = terms[turn][kk % KT].x;
#endif
#pragma unroll
        for (int i = 0; i < A_LINES; ++i) {
          A_VALUE value = (A_VALUE)(0);
          if (next + kk < k_stop && (A_TERMS <= KT || kk < KT))
            value = LOAD_A(a_at[i] + at);
          a_next[t * A_LINES + i] = value;
        }
      }
#pragma unroll
      for (int t = 0; t < B_TURNS; ++t) {
        const int kk = b_term + t * B_TERMS;
#if !B_STEPS || B_CHECK
        const int4 there = terms[turn][kk % KT];
#endif
#if B_STEPS
        const int at = (next + kk) * b_step;
#else
        const int at = there.y;
#endif
#pragma unroll
        for (int i = 0; i < B_LINES; ++i) {
          B_VALUE value = (B_VALUE)(0);
          int inside = next + kk < k_stop && (B_TERMS <= KT || kk < KT);
#if B_CHECK && B_TAPS
          inside = inside && b_at[i].h & there.z;
#elif B_CHECK
          inside = inside && (uint)(b_at[i].h + there.z) < (uint)H &&
                   (uint)(b_at[i].w + there.w) < (uint)W;
#endif
          if (inside) value = LOAD_B(b_at[i].at + at);
          b_next[t * B_LINES + i] = value;
        }
      }
#if TABLE
      // Write the table for the following turn into the half that this turn does not read.
      for (int i = item; i < KT; i += ITEMS) {
        const Digits d = plus(&map, place[i], tile);
        place[i] = d;
        terms[turn ^ 1][i] = term(&map, d);
      }
#endif
    }

    if (next > k_first) {
      __local const TERM4 *from = (__local const TERM4 *)pool4 +
                                  (BUFFERS == 2 && !turn ? KT * (A_PITCH + B_PITCH) / 4 : 0);
#if MATRIX
      const int own = inner % 4 * 2;  // the first of the two terms of this item
      __local const float4 *as = from + own * (A_PITCH / 4) + y0;
      __local const float4 *bs = from + KT * A_PITCH / 4 + own * (B_PITCH / 4) + warp_x + inner % 32 / 4;
#pragma unroll 1
      for (int kk = 0; kk < KT; kk += UNROLL)
        multiply(as + kk * (A_PITCH / 4), A_PITCH / 4, bs + kk * (B_PITCH / 4), B_PITCH / 4, sum);
#else
      __local const TERM4 *as = from + slice * (KT / SLICES) * (A_PITCH / 4) + y0;
      __local const TERM4 *bs =
          from + KT * A_PITCH / 4 + slice * (KT / SLICES) * (B_PITCH / 4) + x0;
#pragma unroll 1
      for (int kk = 0; kk < KT / SLICES; kk += UNROLL) {
#if ARITH_HALF
#define SUMS few
        half4 few[PM][PN / 4];  // the sums of UNROLL products
#pragma unroll
        for (int i = 0; i < PM; ++i)
#pragma unroll
          for (int j = 0; j < PN / 4; ++j) few[i][j] = (half4)(0);
#else
#define SUMS sum
#endif
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
          TERM4 right[PN / 4];
#pragma unroll
          for (int j = 0; j < PN / 4; ++j) right[j] = bs[(kk + u) * (B_PITCH / 4) + j * WX];
#pragma unroll
          for (int i = 0; i < PM / 4; ++i) {
            const TERM4 left = as[(kk + u) * (A_PITCH / 4) + i * WY];
#pragma unroll
            for (int j = 0; j < PN / 4; ++j) {
              SUMS[4 * i][j] += left.x * right[j];
              SUMS[4 * i + 1][j] += left.y * right[j];
              SUMS[4 * i + 2][j] += left.z * right[j];
              SUMS[4 * i + 3][j] += left.w * right[j];
            }
          }
        }
#if ARITH_HALF
#pragma unroll
        for (int i = 0; i < PM; ++i)
#pragma unroll
          for (int j = 0; j < PN / 4; ++j) sum[i][j] += convert_float4(few[i][j]);
#endif
      }
#endif
#if RUN
      if ((next - k_first) % RUN == 0 || next >= k_stop) {
#pragma unroll
        for (int i = 0; i < PM; ++i)
#pragma unroll
          for (int j = 0; j < SUM_COUNT; ++j) total[i][j] += sum[i][j], sum[i][j] = NONE;
      }
#endif
    }

#if BUFFERS == 1
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    if (next < k_stop) {
      __local TERM *as = (__local TERM *)pool4 + (BUFFERS == 2 && turn ? KT * (A_PITCH + B_PITCH) : 0);
      __local TERM *bs = as + KT * A_PITCH;
#pragma unroll
      for (int t = 0; t < A_TURNS; ++t)
#pragma unroll
        for (int i = 0; i < A_LINES; ++i)
          if (A_TERMS <= KT || a_term < KT)
            PUT_A(as + (a_term + t * A_TERMS) * A_PITCH + a_line + i * A_APART,
                  a_next[t * A_LINES + i]);
#pragma unroll
      for (int t = 0; t < B_TURNS; ++t)
#pragma unroll
        for (int i = 0; i < B_LINES; ++i)
          if (B_TERMS <= KT || b_term < KT)
            PUT_B(bs + (b_term + t * B_TERMS) * B_PITCH + b_line + i * B_APART,
                  b_next[t * B_LINES + i]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  // The sums pass through local memory, DOWN rows of every item at a time, as [slice][y][row][TN].
#pragma unroll 1
  for (int first = 0; first < PM; first += DOWN) {
#pragma unroll
    for (int i = 0; i < PM; ++i)
      if (i / DOWN * DOWN == first) {
        const int row = (slice * WY + y0) * DOWN + i % DOWN;
#pragma unroll
        for (int j = 0; j < PN / 4; ++j)
#if RUN
          pool4[row * (TN / 4) + AT(j)] = SUM4(total, i, j);
#else
          pool4[row * (TN / 4) + AT(j)] = SUM4(sum, i, j);
#endif
      }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int across = item % TN; across < TN; across += ITEMS) {
      const int n = n_first + across;
      if (n >= N) break;
#if MODE != MATMUL && !SPLIT
      const int line = n / n_x, x = n - line * n_x, image = line / n_y, y = line - image * n_y;
#endif
      for (int row = item / TN; row < WY * DOWN; row += ITEMS < TN ? 1 : ITEMS / TN) {
        const int i = first + row % DOWN;
        const int m = m_first + i / 4 * (WY * 4) + row / DOWN * 4 + i % 4;
        if (m >= M) continue;
        float value = 0.0f;
#pragma unroll
        for (int s = 0; s < SLICES; ++s) value += pool[(s * WY * DOWN + row) * TN + across];
#if MODE != MATMUL && !SPLIT
        STORE_AT(value, m, image, y, x)
#else
        STORE(value, m, n)
#endif
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
