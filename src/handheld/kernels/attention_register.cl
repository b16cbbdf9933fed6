// Attention on CPUs, without local memory. In the forward pass a work-item takes one block of queries of one head. In
// the backward pass it takes one head of k and v: all its queries against all or a part of its keys. attention.cl,
// math.cl and wide.cl come before this file.
//
//                    BK keys                          forward, for each block of keys
//                 +-----------+                         transpose K, copy V
//           depth |    K^T    |                         P = Q K^T, then exp, row by row
//                 +-----------+                         O = O * shrink + P V
//          +---+  +-----------+  +---+ width          backward, for each block of keys and of queries
//       BQ | Q |  |     P     |  | O |                  P = Q K^T, T = G V^T, then exp and dT row by row
//          +---+  +-----------+  +---+                  dV += P^T G, dK += T^T Q, dQ += T K
//
// All matrix products use `product`, which keeps MR rows of NV float16 in registers.

#ifndef MR     // rows of the register tile; 6 rows of 1 float16 fit 16 registers of 256 bits
#define MR 6
#endif
#ifndef NV
#define NV 1
#endif
#define NT (16 * NV)
#ifndef BQ     // queries (BQ) and keys (BK) of a block, multiples of MR and of NT
#define BQ 48
#endif
#ifndef BK
#define BK 48
#endif
#ifndef DP     // columns of q and k (DP) and of v (EP), rounded up to multiples of NT
#define DP 64
#endif
#ifndef EP
#define EP 64
#endif

// e^x for x <= 88, computed as 2^n * e^r like f_exp of math.cl. n is read from the bits of n + 1.5 * 2^23.
inline float16 exp16(float16 x) {
  const float16 y = x < -104.0f ? (float16)(-104.0f) : x;
  const float16 shifted = y * 1.44269502f + 12582912.0f;
  const float16 n = shifted - 12582912.0f;
  float16 r = y - n * 0.693359375f;
  r += n * 2.12194440e-4f;
  float16 p = 0.00139504799f;
  p = p * r + 0.00836888887f;
  p = p * r + 0.041666206f;
  p = p * r + 0.166665182f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  const int16 whole = as_int16(shifted) - 0x4B400000, half_ = whole >> 1;
  return p * as_float16((half_ + 127) << 23) * as_float16((whole - half_ + 127) << 23);
}

inline float largest(float16 x) {
  const float8 a = x.lo > x.hi ? x.lo : x.hi;
  const float4 b = a.lo > a.hi ? a.lo : a.hi;
  const float2 c = b.lo > b.hi ? b.lo : b.hi;
  return c.x > c.y ? c.x : c.y;
}

inline float total_of(float16 x) {
  const float8 a = x.lo + x.hi;
  const float4 b = a.lo + a.hi;
  return (b.x + b.z) + (b.y + b.w);
}

// c[m][n] += sum over k < terms of a[m * a_m + k * a_k] * b[k][n], in whole tiles; with `fresh` = instead of +=.
inline __attribute__((always_inline)) void product(
    const float *a, const int a_m, const int a_k, const float *b, const int b_pitch, float *c,
    const int c_pitch, int m_count, int n_count, int terms, const int fresh) {
  for (int n = 0; n < n_count; n += NT)
    for (int m = 0; m < m_count; m += MR) {
      float16 sum[MR][NV];
#pragma unroll
      for (int i = 0; i < MR; ++i)
#pragma unroll
        for (int j = 0; j < NV; ++j) sum[i][j] = (float16)(0.0f);
      const float *left = a + m * a_m, *right = b + n;
      for (int t = 0; t < terms; ++t) {
        float16 row[NV];
#pragma unroll
        for (int j = 0; j < NV; ++j) row[j] = PLOAD(j, right + t * b_pitch);
#pragma unroll
        for (int i = 0; i < MR; ++i)
#pragma unroll
          for (int j = 0; j < NV; ++j) sum[i][j] += left[i * a_m + t * a_k] * row[j];
      }
#pragma unroll
      for (int i = 0; i < MR; ++i) {
        float *to = c + (m + i) * c_pitch + n;
#pragma unroll
        for (int j = 0; j < NV; ++j)
          PSTORE(fresh ? sum[i][j] : PLOAD(j, to) + sum[i][j], j, to);
      }
    }
}

// Copies into to[row][column], `all` rows of `pitch` elements, with zeros outside the tensor.
inline void copied(const __global ELEMENT *from, int row_step, int step, int count, int columns,
                   float *to, int all, int pitch) {
  for (int i = 0; i < all; ++i) {
    const __global ELEMENT *line = from + i * row_step;
    float *row = to + i * pitch;
    const int live = i < count ? columns : 0;
    int j = 0;
    if (step == 1)
      for (; j + 16 <= live; j += 16) PSTORE(GET16(line + j), 0, row + j);
    for (; j < live; ++j) row[j] = GET(line, j * step);
    for (; j < pitch; ++j) row[j] = 0.0f;
  }
}

// Transposes rows of keys into to[column][BK], with zeros outside the tensor.
inline void turned_rows(const __global ELEMENT *from, int row_step, int step, int count,
                        int columns, float *to, int all) {
  for (int i = 0; i < all; i += 16)
    for (int j = 0; j < columns; j += 16) {
      float square[256];
      float16 row[16];
      copied(from + i * row_step + j * step, row_step, step, count - i, min(columns - j, 16),
             square, 16, 16);
      turned(square, row);
#pragma unroll
      for (int r = 0; r < 16; ++r) PSTORE(row[r], 0, to + (j + r) * BK + i);
    }
}

// Stores a row, times `factor`.
inline void stored(const float *row, __global ELEMENT *to, int columns, float factor) {
  int j = 0;
#if !HALVES
  for (; j + 16 <= columns; j += 16) *(__global loose16 *)(to + j) = PLOAD(0, row + j) * factor;
#endif
  for (; j < columns; ++j) PUT(row[j] * factor, j, to);
}

// Stores a row; with `more`, adds it to the stored values.
inline void added(const float *row, __global float *to, int columns, int more) {
  int j = 0;
  for (; j + 16 <= columns; j += 16) {
    const float16 x = PLOAD(0, row + j);
    *(__global loose16 *)(to + j) = more ? GLOAD(0, to + j) + x : x;
  }
  for (; j < columns; ++j) to[j] = row[j] + (more ? to[j] : 0.0f);
}

// x[j] += mask, or x[j] = -inf if the mask hides the key.
#if MASK
inline void masked(float *x, const __global MASK_TYPE *from, int step, int count) {
  int j = 0;
#if MASK == 1
  if (step == 1)
    for (; j + 16 <= count; j += 16) PSTORE(PLOAD(0, x + j) + GLOAD(0, from + j), 0, x + j);
  for (; j < count; ++j) x[j] += from[j * step];
#else
  for (; j < count; ++j) x[j] = from[j * step] ? x[j] : -INFINITY;
#endif
}
#define MASKED(x, row, first, count) \
  masked(x, HEAD(m, b, h) + (row) * m_r + (first) * m_c, m_c, count);
#define SCALED(x) (x)  // `scored` has scaled it.
#else
#define MASKED(x, row, first, count)
#define SCALED(x) ((x) * scale)
#endif

#if DROPOUT
#define FACTORS(row, first, count) \
  float factor[BK]; \
  { \
    const uint place = ((uint)((b * heads + h) * rows + (row))) * (uint)keys + (uint)(first); \
    for (int j = 0; j < (count); ++j) factor[j] = FACTOR(place + (uint)j); \
  }
#define DROPPED(x, j) ((x) * PLOAD(0, factor + (j)))
#else
#define FACTORS(row, first, count)
#define DROPPED(x, j) (x)
#endif

#define WHOLE(n, unit) (((n) + (unit) - 1) / (unit) * (unit))

// With a mask, scales the scores of a row before the mask is added. Without one, SCALED does it later.
inline void scored(float *x, float scale, int count) {
#if MASK
  for (int j = 0; j < count; j += 16) PSTORE(PLOAD(0, x + j) * scale, 0, x + j);
#endif
}

// Forward pass. get_global_id: block of queries, head of all batches.
__kernel void attention(INPUTS, __global ELEMENT *out, __global float *lse) {
  float qs[BQ * DP], kt[DP * BK], vs[BK * EP], p[BQ * BK], o[BQ * EP], most[BQ];
  float16 total[BQ];
  const int z = get_global_id(1), b = z / heads, h = z % heads;
  const int first = get_global_id(0) * BQ, count = min(BQ, rows - first);
  const int tall = WHOLE(count, MR);
  const int stop = SEEN(first + count - 1);
  copied(HEAD(q, b, h) + first * q_r, q_r, q_c, count, depth, qs, tall, DP);
  for (int i = 0; i < tall; ++i) {
    most[i] = -INFINITY, total[i] = (float16)(0.0f);
    for (int j = 0; j < EP; j += 16) PSTORE((float16)(0.0f), 0, o + i * EP + j);
  }
  for (int key0 = 0; key0 < stop; key0 += BK) {
    const int here = min(BK, stop - key0), wide = WHOLE(here, NT);
    turned_rows(HEAD(k, b, h / shared) + key0 * k_r, k_r, k_c, here, depth, kt, wide);
    copied(HEAD(v, b, h / shared) + key0 * v_r, v_r, v_c, here, width, vs, here, EP);
    product(qs, DP, 1, kt, BK, p, BK, tall, wide, depth, 1);
    for (int i = 0; i < count; ++i) {
      float *x = p + i * BK;
      const int seen = min(SEEN(first + i) - key0, here);  // This may be negative.
      scored(x, scale, wide);
      MASKED(x, first + i, key0, here)
      float16 top = (float16)(-INFINITY);
      for (int j = 0; j < wide; j += 16) {
        const float16 t = LANES16 + j < seen ? SCALED(PLOAD(0, x + j)) : (float16)(-INFINITY);
        top = t > top ? t : top;
        PSTORE(t, 0, x + j);
      }
      const float peak = largest(top), new_most = peak > most[i] ? peak : most[i];
      const float base = new_most == -INFINITY ? 0.0f : new_most;
      FACTORS(first + i, key0, wide)
      float16 sum = (float16)(0.0f);
      for (int j = 0; j < wide; j += 16) {
        const float16 e = exp16(PLOAD(0, x + j) - base);
        sum += e;
        PSTORE(DROPPED(e, j), 0, x + j);
      }
      if (new_most > most[i]) {
        const float16 shrink = exp16((float16)(most[i] - base));
        total[i] *= shrink;
        for (int j = 0; j < EP; j += 16) PSTORE(PLOAD(0, o + i * EP + j) * shrink, 0, o + i * EP + j);
        most[i] = new_most;
      }
      total[i] += sum;
    }
    product(p, BK, 1, vs, EP, o, EP, tall, WHOLE(width, NT), here, 0);
  }
  for (int i = 0; i < count; ++i) {
    const float sum = total_of(total[i]), inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    stored(o + i * EP, out + ((b * rows + first + i) * heads + h) * width, width, inverse);
    lse[z * rows + first + i] = sum == 0.0f ? UNSEEN : most[i] + f_log(sum);
  }
}

// Backward pass. get_global_id: part of the keys (`part` keys each), head of k and v of all batches. Each part adds to
// its own copy of dq, which holds floats.
__kernel void attention_grad(INPUTS, GRADIENTS, __global float *dq, __global ELEMENT *dk,
                             __global ELEMENT *dv, int part) {
  float qs[BQ * DP], gs[BQ * EP], p[BQ * BK], t[BQ * BK];
  float kt[DP * BK], vt[EP * BK], ks[BK * DP], dks[BK * DP], dvs[BK * EP];
  float line[EP];
  const int groups = heads / shared, z = get_global_id(1), b = z / groups, kh = z % groups;
  const int from = get_global_id(0) * part, until = min(keys, from + part);
  dq += get_global_id(0) * (get_global_size(1) * shared * rows * depth);
  for (int key0 = from; key0 < until; key0 += BK) {
    const int here = min(BK, until - key0), wide = WHOLE(here, NT), deep = WHOLE(here, MR);
    turned_rows(HEAD(k, b, kh) + key0 * k_r, k_r, k_c, here, depth, kt, wide);
    turned_rows(HEAD(v, b, kh) + key0 * v_r, v_r, v_c, here, width, vt, wide);
    copied(HEAD(k, b, kh) + key0 * k_r, k_r, k_c, here, depth, ks, here, DP);
    for (int i = 0; i < deep * DP; i += 16) PSTORE((float16)(0.0f), 0, dks + i);
    for (int i = 0; i < deep * EP; i += 16) PSTORE((float16)(0.0f), 0, dvs + i);
    for (int h = kh * shared; h < (kh + 1) * shared; ++h) {
      for (int first = 0; first < rows; first += BQ) {
        const int count = min(BQ, rows - first), tall = WHOLE(count, MR);
        __global float *to = dq + (b * rows + first) * heads * depth + h * depth;
        if (CAUSAL && first + count <= key0) {  // None of these queries may see any of the keys.
          if (key0 == from)
            for (int i = 0; i < count; ++i)
              for (int j = 0; j < depth; ++j) to[i * heads * depth + j] = 0.0f;
          continue;
        }
        copied(HEAD(q, b, h) + first * q_r, q_r, q_c, count, depth, qs, tall, DP);
        copied(HEAD(g, b, h) + first * g_r, g_r, g_c, count, width, gs, tall, EP);
        product(qs, DP, 1, kt, BK, p, BK, tall, wide, depth, 1);
        product(gs, EP, 1, vt, BK, t, BK, tall, wide, width, 1);
        for (int i = 0; i < count; ++i) {
          float *x = p + i * BK, *dx = t + i * BK;
          copied(HEAD(y, b, h) + (first + i) * y_r, y_r, y_c, 1, width, line, 1, EP);
          float16 delta = (float16)(0.0f);
          for (int j = 0; j < EP; j += 16) delta += PLOAD(0, gs + i * EP + j) * PLOAD(0, line + j);
          const float both = total_of(delta);
          const int seen = min(SEEN(first + i) - key0, here);
          const float low = lse[(b * heads + h) * rows + first + i];
          scored(x, scale, wide);
          MASKED(x, first + i, key0, here)
          FACTORS(first + i, key0, wide)
          for (int j = 0; j < wide; j += 16) {
            const float16 s = LANES16 + j < seen ? SCALED(PLOAD(0, x + j)) - low
                                                 : (float16)(-INFINITY);
            const float16 e = exp16(s);
            PSTORE(e * (DROPPED(PLOAD(0, dx + j), j) - both) * scale, 0, dx + j);
            PSTORE(DROPPED(e, j), 0, x + j);
          }
        }
        product(p, 1, BK, gs, EP, dvs, EP, deep, WHOLE(width, NT), count, 0);
        product(t, 1, BK, qs, DP, dks, DP, deep, WHOLE(depth, NT), count, 0);
        product(t, BK, 1, ks, DP, qs, DP, tall, WHOLE(depth, NT), here, 1);
        for (int i = 0; i < count; ++i)
          added(qs + i * DP, to + i * heads * depth, depth, key0 != from);
      }
    }
    for (int i = 0; i < here; ++i) {
      const int at = (b * keys + key0 + i) * groups + kh;
      stored(dks + i * DP, dk + at * depth, depth, 1.0f);
      stored(dvs + i * EP, dv + at * width, width, 1.0f);
    }
  }
}

// dq = the sum of its copies, in order. One work-item per element.
__kernel void attention_sum(const __global float *parts, __global ELEMENT *dq, int size,
                            int count) {
  const int i = get_global_id(0);
  if (i >= size) return;
  float sum = 0.0f;
  for (int n = 0; n < count; ++n) sum += parts[n * size + i];
  PUT(sum, i, dq);
}
