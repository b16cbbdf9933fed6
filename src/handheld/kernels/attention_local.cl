// Attention on GPUs. One work-group of WX*WY work-items ("items") takes BR rows of one head: queries in the forward
// pass and for dq, keys for dk and dv. It walks over the other side in blocks of BC. attention.cl comes before this
// file.
//
//                   BC keys                        scores: S in registers, 4x4 per item, from chunks
//                +-----------+                       of KT columns of q and k in local memory;
//         KT     |    K^T    | KT                    then exp, and P goes to local memory, transposed
//        +---+   +-----------+      width          apply: O += P V in registers, 4 rows and
//     BR | Q |   |   S, P    |    +-------+          EN * CV columns per item, from V in local memory,
//        +---+   +-----------+    |   O   |          DEEP rows at a time
//                                 +-------+
//
// attention_queries: S, T = G V^T, dT from P and T, then dQ += dT K.
// attention_keys: the same transposed, with keys as rows: dV += P^T G, then dK += dT^T Q.
// Both compute S again, so that no two work-groups write the same memory.
//
// All loops with barriers run at least once, and are do-while loops to show it. Otherwise compilers that turn
// work-items into loops would duplicate the code that follows, for the case without iterations.

#ifndef WX     // items across
#define WX 16
#endif
#ifndef WY     // items down
#define WY 8
#endif
#ifndef CV     // neighbouring columns per item: 1, 2 or 4
#define CV 4
#endif
#ifndef DN     // vectors of CV columns per item, for the columns of q and k
#define DN 1
#endif
#ifndef EN     // the same for the columns of v
#define EN 1
#endif
#ifndef DEEP   // rows of v (or k, q, g) in local memory at a time, a divisor of BC
#define DEEP 16
#endif
#ifndef ROOM   // floats of the chunks: at least KT * (A_PITCH + B_PITCH), and DEEP rows of all columns
#define ROOM 1664
#endif
#ifndef VEC    // elements per load: 4 if all strides and offsets are multiples of four, else 1
#define VEC 1
#endif
// ONLY: which kernel the program contains: 1 attention, 2 attention_queries, 3 attention_keys, 0 all of them. Some
// drivers add up the local memory of all kernels in a program.
#ifndef ONLY
#define ONLY 0
#endif
#ifndef MATRIX // 1: matrix units multiply, and matrix.cl comes before this file; CV is 4, WX a multiple of 4, WY and DEEP of 8
#define MATRIX 0
#endif
#define UNROLL 8
#define KT 16
#define ITEMS (WX * WY)
#define BR (4 * WY)
#define BC (4 * WX)
#define A_PITCH (BR + 4)  // The extra 4 put stores of neighbouring items into different banks.
#define B_PITCH (BC + 4)
#define TILE (BC * A_PITCH)
#define COLUMNS(n) ((n) * WX * CV)
// The length of a row of v (or k, q, g) in local memory, and the place of column c of row r, which is the i-th vector.
#if MATRIX
#define M_PITCH(n) (COLUMNS(n) + 4)
#define M_PLACE(n, i, r, c) ((r) * M_PITCH(n) + (c))
#else
#define M_PLACE(n, i, r, c) (VEC * (i))
#endif

#if CV == 4
typedef float4 vec;
#define SPREAD(v, x) vstore4(v, 0, x);
#elif CV == 2
typedef float2 vec;
#define SPREAD(v, x) vstore2(v, 0, x);
#else
typedef float vec;
#define SPREAD(v, x) x[0] = v;
#endif

// 32 neighbouring items form a block of 8 x 4 items instead of a row. So they read fewer different float4s. With matrix
// units they are a warp, and form the block of 4 x 8 items whose results the units give them (matrix.cl).
#define LX (MATRIX ? 4 : WX < 8 ? WX : 8)
#define LY (WY < 32 / LX ? WY : 32 / LX)
#define TX (item / (LX * LY) % (WX / LX) * LX + item % LX)
#define TY (item / (LX * LY) / (WX / LX) * LY + item / LX % LY)

#define LOCALS \
  __local float4 room4[ROOM / 4], tile4[TILE / 4]; \
  __local float *room = (__local float *)room4, *tile = (__local float *)tile4; \
  const int item = get_local_id(0), tx = TX, ty = TY;

inline void taken_apart(float4 v, float *x) { x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w; }

// Loads KT columns, from column `k`, of `all` rows into to[column][pitch], with zeros outside the tensor.
inline void chunk(const __global ELEMENT *from, int row_step, int step, int count, int k,
                  int columns, __local float *to, int all, int pitch, int item) {
  for (int i = item; i < all * KT / VEC; i += ITEMS) {
    const int row = i / (KT / VEC), c = i % (KT / VEC) * VEC;
    const int inside = row < count && k + c < columns;
    __local float *at = to + c * pitch + row;
#if VEC == 4
    const float4 x = inside ? GET4(from + row * row_step + k + c) : (float4)(0.0f);
    at[0] = x.x, at[pitch] = x.y, at[2 * pitch] = x.z, at[3 * pitch] = x.w;
#else
    at[0] = inside ? GET(from, row * row_step + (k + c) * step) : 0.0f;
#endif
  }
}

#if MATRIX
// sum[i][j] += the products of 8 terms. `a` has 4 rows of the item and `b` 2 columns, from its first term on; the items
// of a warp have 32 x 16 results.
inline __attribute__((always_inline))
void multiply(__local const float *a, const int a_pitch, __local const float *b, const int b_pitch, float sum[4][4]) {
  const float4 x = *(__local const float4 *)a, y = *(__local const float4 *)(a + a_pitch);
  const float2 v = *(__local const float2 *)b, w = *(__local const float2 *)(b + b_pitch);
  const float left[2][4] = {{x.x, x.y, y.x, y.y}, {x.z, x.w, y.z, y.w}}, right[2][2] = {{v.x, w.x}, {v.y, w.y}};
  uint a_high[2][4], a_low[2][4], b_high[2][2], b_low[2][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int c = 0; c < 4; ++c) a_high[i][c] = HIGH(left[i][c]), a_low[i][c] = LOW(left[i][c], a_high[i][c]);
#pragma unroll
    for (int c = 0; c < 2; ++c) b_high[i][c] = HIGH(right[i][c]), b_low[i][c] = LOW(right[i][c], b_high[i][c]);
  }
  float few[4][4] = {{0.0f}};
#pragma unroll
  for (int i = 0; i < 4; ++i) unit(few[i], a_low[i / 2], b_high[i % 2]);
#pragma unroll
  for (int i = 0; i < 4; ++i) unit(few[i], a_high[i / 2], b_low[i % 2]);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    unit(few[i], a_high[i / 2], b_high[i % 2]);
#pragma unroll
    for (int d = 0; d < 4; ++d) sum[i / 2 * 2 + d / 2][i % 2 + d % 2 * 2] += few[i][d];
  }
}
#define TERM (2 * (item % 4))            // the first term of an item
#define PAIR (tx / 4 * 16 + item % 32 / 4 * 2)  // its first column of b
#endif

// sum[i][j] = dot product of row 4*ty + i of a and row 4*tx + j of b.
inline void scores(const __global ELEMENT *a, int a_r, int a_c, int a_count,
                   const __global ELEMENT *b, int b_r, int b_c, int b_count, int columns,
                   __local float *room, int item, int tx, int ty, float sum[4][4]) {
  __local float *as = room, *bs = room + KT * A_PITCH;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[i][j] = 0.0f;
  int k = 0;
  do {
    barrier(CLK_LOCAL_MEM_FENCE);
    chunk(a, a_r, a_c, a_count, k, columns, as, BR, A_PITCH, item);
    chunk(b, b_r, b_c, b_count, k, columns, bs, BC, B_PITCH, item);
    barrier(CLK_LOCAL_MEM_FENCE);
#if MATRIX
#pragma unroll
    for (int c = 0; c < KT; c += 8)
      multiply(as + (c + TERM) * A_PITCH + 4 * ty, A_PITCH, bs + (c + TERM) * B_PITCH + PAIR, B_PITCH, sum);
#else
#pragma unroll UNROLL
    for (int c = 0; c < KT; ++c) {
      float x[4], y[4];
      taken_apart(*(const __local float4 *)(as + c * A_PITCH + 4 * ty), x);
      taken_apart(*(const __local float4 *)(bs + c * B_PITCH + 4 * tx), y);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] += x[i] * y[j];
    }
#endif
    k += KT;
  } while (k < columns);
}

// out[i][n] += row 4*ty + i of the tile times the `count` rows of m. An item has `n_count` vectors of columns.
inline void apply(const __local float *tile, const __global ELEMENT *m, int m_r, int m_c,
                  int count, int columns, __local float *room, int item, int tx, int ty, const int n_count,
                  vec *out) {
  int k = 0;
  do {
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = item; i < DEEP * COLUMNS(n_count) / VEC; i += ITEMS) {
      const int row = k + i / (COLUMNS(n_count) / VEC), c = i % (COLUMNS(n_count) / VEC) * VEC;
      const int inside = row < count && c < columns;
#if VEC == 4
      *(__local float4 *)(room + M_PLACE(n_count, i, row - k, c)) =
          inside ? GET4(m + row * m_r + c) : (float4)(0.0f);
#else
      room[M_PLACE(n_count, i, row - k, c)] = inside ? GET(m, row * m_r + c * m_c) : 0.0f;
#endif
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#if MATRIX
#pragma unroll
    for (int r = 0; r < DEEP; r += 8)
#pragma unroll
      for (int n = 0; n < n_count; ++n) {
        float sum[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) taken_apart(out[i * n_count + n], sum[i]);
        multiply(tile + (k + r + TERM) * A_PITCH + 4 * ty, A_PITCH,
                 room + (r + TERM) * M_PITCH(n_count) + n * WX * 4 + PAIR, M_PITCH(n_count), sum);
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i * n_count + n] = (float4)(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
      }
#else
#pragma unroll UNROLL
    for (int r = 0; r < DEEP; ++r) {
      float x[4];
      taken_apart(*(const __local float4 *)(tile + (k + r) * A_PITCH + 4 * ty), x);
#pragma unroll
      for (int n = 0; n < n_count; ++n) {
        const vec y = *(const __local vec *)(room + r * COLUMNS(n_count) + (n * WX + tx) * CV);
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i * n_count + n] += x[i] * y;
      }
    }
#endif
    k += DEEP;
  } while (k < count);
}

// Stores an item's columns of one row, times `factor`.
inline void stored(const vec *row, const int n_count, float factor, __global ELEMENT *to,
                   int columns, int tx) {
#pragma unroll
  for (int n = 0; n < n_count; ++n) {
    float x[CV];
    SPREAD(row[n] * factor, x)
#pragma unroll
    for (int c = 0; c < CV; ++c)
      if ((n * WX + tx) * CV + c < columns) PUT(x[c], (n * WX + tx) * CV + c, to);
  }
}

// Stores an item's 4 x 4 block into the tile, as [column][row].
inline void laid_down(float x[4][4], __local float *tile, int tx, int ty) {
#pragma unroll
  for (int j = 0; j < 4; ++j)
    *(__local float4 *)(tile + (4 * tx + j) * A_PITCH + 4 * ty) =
        (float4)(x[0][j], x[1][j], x[2][j], x[3][j]);
}

#define CLEARED(out, n) for (int i_ = 0; i_ < 4 * (n); ++i_) out[i_] = (vec)(0.0f);

// The score of a row and a key after the mask: -inf if the mask hides the key.
#if MASK == 1
#define SCORE(x, row, key) ((x) * scale + HEAD(m, b, h)[(row) * m_r + (key) * m_c])
#elif MASK == 2
#define SCORE(x, row, key) (HEAD(m, b, h)[(row) * m_r + (key) * m_c] ? (x) * scale : -INFINITY)
#else
#define SCORE(x, row, key) ((x) * scale)
#endif
#define VISIBLE(row, key) ((row) < rows && (key) < SEEN(row))
#if DROPOUT
#define DROPPED(x, row, key) \
  ((x) * FACTOR(((uint)((b * heads + h) * rows + (row))) * (uint)keys + (uint)(key)))
#else
#define DROPPED(x, row, key) (x)
#endif

// The sum (or the largest) of x over all items of a row. Uses `tile`, which must be free, as scratch memory.
inline void folded(float *x, const int sum, __local float *tile, int tx, int ty) {
#pragma unroll
  for (int i = 0; i < 4; ++i) tile[(4 * ty + i) * (WX + 1) + tx] = x[i];
  barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[i] = sum ? 0.0f : -INFINITY;
    for (int n = 0; n < WX; ++n) {
      const float y = tile[(4 * ty + i) * (WX + 1) + n];
      x[i] = sum ? x[i] + y : y > x[i] ? y : x[i];
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
}

#if ONLY == 0 || ONLY == 1
// Forward pass. get_group_id: block of queries, head of all batches.
__kernel void attention(INPUTS, __global ELEMENT *out, __global float *lse) {
  LOCALS
  const int z = get_group_id(1), b = z / heads, h = z % heads, kh = h / shared;
  const int first = get_group_id(0) * BR, count = min(BR, rows - first);
  const int stop = SEEN(first + count - 1);
  float most[4], total[4];
  vec o[4 * EN];
  CLEARED(o, EN)
  for (int i = 0; i < 4; ++i) most[i] = -INFINITY, total[i] = 0.0f;
  int key0 = 0;
  do {
    const int here = min(BC, stop - key0);
    float s[4][4], peak[4];
    scores(HEAD(q, b, h) + first * q_r, q_r, q_c, count, HEAD(k, b, kh) + key0 * k_r, k_r, k_c, here,
           depth, room, item, tx, ty, s);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      peak[i] = -INFINITY;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = first + 4 * ty + i, key = key0 + 4 * tx + j;
        s[i][j] = VISIBLE(row, key) ? SCORE(s[i][j], row, key) : -INFINITY;
        peak[i] = s[i][j] > peak[i] ? s[i][j] : peak[i];
      }
    }
    folded(peak, 0, tile, tx, ty);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float top = peak[i] > most[i] ? peak[i] : most[i], base = top == -INFINITY ? 0.0f : top;
      const float shrink = exp(most[i] - base);
      most[i] = top, total[i] *= shrink;
#pragma unroll
      for (int n = 0; n < EN; ++n) o[i * EN + n] *= shrink;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[i][j] = exp(s[i][j] - base);
        total[i] += s[i][j];
        s[i][j] = DROPPED(s[i][j], first + 4 * ty + i, key0 + 4 * tx + j);
      }
    }
    laid_down(s, tile, tx, ty);
    apply(tile, HEAD(v, b, kh) + key0 * v_r, v_r, v_c, here, width, room, item, tx, ty, EN, o);
    key0 += BC;
  } while (key0 < stop);
  barrier(CLK_LOCAL_MEM_FENCE);
  folded(total, 1, tile, tx, ty);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first + 4 * ty + i;
    if (row < rows) {
      const float inverse = total[i] == 0.0f ? 0.0f : 1.0f / total[i];
      stored(o + i * EN, EN, inverse, out + ((b * rows + row) * heads + h) * width, width, tx);
      if (tx == 0) lse[z * rows + row] = total[i] == 0.0f ? UNSEEN : most[i] + log(total[i]);
    }
  }
}
#endif

#if ONLY == 0 || ONLY == 2
// Makes dq, and delta of its rows for attention_keys. get_group_id: block of queries, head of all batches.
__kernel void attention_queries(INPUTS, GRADIENTS, __global ELEMENT *dq, __global float *delta) {
  LOCALS
  const int z = get_group_id(1), b = z / heads, h = z % heads, kh = h / shared;
  const int first = get_group_id(0) * BR, count = min(BR, rows - first);
  const int stop = SEEN(first + count - 1);
  float both[4], low[4];
  vec o[4 * DN];
  CLEARED(o, DN)
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first + 4 * ty + i;
    both[i] = 0.0f, low[i] = UNSEEN;
    if (row < rows) {
      low[i] = lse[z * rows + row];
      for (int c = tx; c < width; c += WX)
        both[i] += GET(HEAD(g, b, h), row * g_r + c * g_c) * GET(HEAD(y, b, h), row * y_r + c * y_c);
    }
  }
  folded(both, 1, tile, tx, ty);
  for (int i = 0; i < 4; ++i)
    if (tx == 0 && first + 4 * ty + i < rows) delta[z * rows + first + 4 * ty + i] = both[i];
  int key0 = 0;
  do {
    const int here = min(BC, stop - key0);
    float s[4][4], t[4][4];
    scores(HEAD(q, b, h) + first * q_r, q_r, q_c, count, HEAD(k, b, kh) + key0 * k_r, k_r, k_c, here,
           depth, room, item, tx, ty, s);
    scores(HEAD(g, b, h) + first * g_r, g_r, g_c, count, HEAD(v, b, kh) + key0 * v_r, v_r, v_c, here,
           width, room, item, tx, ty, t);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = first + 4 * ty + i, key = key0 + 4 * tx + j;
        const float p = VISIBLE(row, key) ? exp(SCORE(s[i][j], row, key) - low[i]) : 0.0f;
        t[i][j] = p * (DROPPED(t[i][j], row, key) - both[i]) * scale;
      }
    laid_down(t, tile, tx, ty);
    apply(tile, HEAD(k, b, kh) + key0 * k_r, k_r, k_c, here, depth, room, item, tx, ty, DN, o);
    key0 += BC;
  } while (key0 < stop);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first + 4 * ty + i;
    if (row < rows)
      stored(o + i * DN, DN, 1.0f, dq + ((b * rows + row) * heads + h) * depth, depth, tx);
  }
}
#endif

#if ONLY == 0 || ONLY == 3
// Makes dk and dv. get_group_id: block of keys, head of k and v of all batches.
__kernel void attention_keys(INPUTS, GRADIENTS, const __global float *delta, __global ELEMENT *dk,
                             __global ELEMENT *dv) {
  LOCALS
  const int groups = heads / shared, z = get_group_id(1), b = z / groups, kh = z % groups;
  const int first = get_group_id(0) * BR, count = min(BR, keys - first);
  vec ok[4 * DN], ov[4 * EN];
  CLEARED(ok, DN)
  CLEARED(ov, EN)
  int h = kh * shared;
  do {
    int row0 = CAUSAL ? min(first, rows - 1) / BC * BC : 0;
    do {
      const int here = min(BC, rows - row0);
      float s[4][4], t[4][4];
      scores(HEAD(k, b, kh) + first * k_r, k_r, k_c, count, HEAD(q, b, h) + row0 * q_r, q_r, q_c,
             here, depth, room, item, tx, ty, s);
      scores(HEAD(v, b, kh) + first * v_r, v_r, v_c, count, HEAD(g, b, h) + row0 * g_r, g_r, g_c,
             here, width, room, item, tx, ty, t);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = row0 + 4 * tx + j, at = (b * heads + h) * rows + min(row, rows - 1);
        const float low = lse[at], both = delta[at];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first + 4 * ty + i;
          const float p = VISIBLE(row, key) ? exp(SCORE(s[i][j], row, key) - low) : 0.0f;
          t[i][j] = p * (DROPPED(t[i][j], row, key) - both) * scale;
          s[i][j] = DROPPED(p, row, key);
        }
      }
      laid_down(s, tile, tx, ty);
      apply(tile, HEAD(g, b, h) + row0 * g_r, g_r, g_c, here, width, room, item, tx, ty, EN, ov);
      barrier(CLK_LOCAL_MEM_FENCE);
      laid_down(t, tile, tx, ty);
      apply(tile, HEAD(q, b, h) + row0 * q_r, q_r, q_c, here, depth, room, item, tx, ty, DN, ok);
      row0 += BC;
    } while (row0 < rows);
  } while (++h < (kh + 1) * shared);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int key = first + 4 * ty + i, at = (b * keys + key) * groups + kh;
    if (key < keys) {
      stored(ok + i * DN, DN, 1.0f, dk + at * depth, depth, tx);
      stored(ov + i * EN, EN, 1.0f, dv + at * width, width, tx);
    }
  }
}
#endif
