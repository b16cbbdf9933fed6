// Convolutions with 3x3 taps and their gradients on CPUs, with Winograd's algorithm F(2x2, 3x3): 16 multiplications for
// 2x2 results instead of 36. contract_maps.cl and wide.cl come before this file.
//
//     result = A^T [ (G w G^T) * (B^T x B) ] A       the gradient of w = G^T [ (A dy A^T) * (B^T x B) ] G
//
//          | 1  0 -1  0 |        |  1    0    0  |          | 1  1  1  0 |
//     B^T =| 0  1  1  0 |    G = | 1/2  1/2  1/2 |    A^T = | 0  1 -1 -1 |
//          | 0 -1  1  0 |        | 1/2 -1/2  1/2 |
//          | 0  1  0 -1 |        |  0    0    1  |
//
// A tile is 2x2 results, which need 4x4 pixels. `*` multiplies the 16 elements of tiles and sums over channels (or, in
// the gradient of w, over tiles), so it is 16 matrix products, which contract_register.cl computes between the kernels
// of this file:
//
//     CONV     weights: w -> u[16][M][C]     input: x -> v[16][C][T]       products    output: p[16][M][T] -> result
//     WEIGHT   grads: dy -> y[16][M][T]      input: x -> v[16][C][T]       products    taps: p[16][M][C] -> dw
//
// T counts the tiles of some rows of tiles, of all images one below the other. A work-item of `input`, `grads` and `output` has one row of tiles of
// one channel: first it combines lines of pixels, then VW neighbouring tiles at a time. The last VW tiles of a row may
// overlap with those before.

#ifndef VW    // tiles at a time: 16, 8 or 4; a row has at least as many
#define VW 16
#endif
#define LINE 544  // floats of a line, a multiple of 16

#if VW == 16
typedef float16 vec;
typedef loose16 loose;
#define EVEN(p) (float16)((*(const loose16 *)(p)).even, (*(const loose16 *)((p) + 16)).even)
#define ODD(p) (float16)((*(const loose16 *)(p)).odd, (*(const loose16 *)((p) + 16)).odd)
#define MIX(p, a, b) { \
  float16 low, high; \
  low.even = (a).lo, low.odd = (b).lo, high.even = (a).hi, high.odd = (b).hi; \
  *(loose16 *)(p) = low, *(loose16 *)((p) + 16) = high; }
#elif VW == 8
typedef float8 vec;
typedef float8 __attribute__((aligned(4))) loose;
#define EVEN(p) (*(const loose16 *)(p)).even
#define ODD(p) (*(const loose16 *)(p)).odd
#define MIX(p, a, b) { float16 all; all.even = (a), all.odd = (b); *(loose16 *)(p) = all; }
#else
typedef float4 vec;
typedef float4 __attribute__((aligned(4))) loose;
typedef float8 __attribute__((aligned(4))) loose8;
#define EVEN(p) (*(const loose8 *)(p)).even
#define ODD(p) (*(const loose8 *)(p)).odd
#define MIX(p, a, b) { float8 all; all.even = (a), all.odd = (b); *(loose8 *)(p) = all; }
#endif
#define AT(p) (*(__global loose *)(p))
#define FROM(p) (*(const __global loose *)(p))

#if MODE == CONV
#define CHANNELS map.k_c
#define CHANNEL_STEP map.b_c
#define IMAGE_STEP map.b_n
// The taps of a gradient of the input run backwards.
#define TOP (map.off_h + (map.e_h < 0 ? -2 : 0))
#define LEFT (map.off_w + (map.e_w < 0 ? -2 : 0))
#else
#define CHANNELS (map.N / 9)
#define CHANNEL_STEP map.b_n
#define IMAGE_STEP map.b_c
#define TOP map.off_h
#define LEFT map.off_w
#endif

// Copies the columns [first, first + count) of a line with `wide` columns; zeros outside.
inline void copied(const __global float *from, int step, int wide, int first, int count, float *to) {
  int x = 0;
  for (; x < count && first + x < 0; ++x) to[x] = 0.0f;
  const int stop = min(count, wide - first);
  if (step == 1)
    for (; x + 16 <= stop; x += 16) *(loose16 *)(to + x) = *(const __global loose16 *)(from + first + x);
  for (; x < stop; ++x) to[x] = from[(first + x) * step];
  for (; x < count; ++x) to[x] = 0.0f;
}

// get_global_id: row of tiles, channel. `first` is the first row of tiles of this launch.
__kernel void input(const __global float *b, MAP_PARAMS, int first, int tiles_y, int tiles_x, int tiles,
                    __global float *v) {
  const int row = get_global_id(0), c = get_global_id(1), all = first + row;
  MAP_OF(0)
  const int top = all % tiles_y * 2 + TOP, wide = 2 * tiles_x + 2, channels = CHANNELS;
  const __global float *from = b + map.b_0 + all / tiles_y * IMAGE_STEP + c * CHANNEL_STEP;
  float line[4][LINE];
  for (int r = 0; r < 4; ++r) {
    const int inside = (uint)(top + r) < (uint)H;
    copied(from + (inside ? (top + r) * map.b_h : 0), map.b_w, inside ? W : 0, LEFT, wide, line[r]);
  }
  for (int x = 0; x < wide; x += 16) {
    const float16 a = *(loose16 *)(line[0] + x), b_ = *(loose16 *)(line[1] + x);
    const float16 c_ = *(loose16 *)(line[2] + x), d = *(loose16 *)(line[3] + x);
    *(loose16 *)(line[0] + x) = a - c_, *(loose16 *)(line[1] + x) = b_ + c_;
    *(loose16 *)(line[2] + x) = c_ - b_, *(loose16 *)(line[3] + x) = b_ - d;
  }
  const int plane = channels * tiles;
  __global float *to = v + c * tiles + row * tiles_x;
  for (int at = 0; at < tiles_x; at += VW) {
    const int j = min(at, tiles_x - VW);
    for (int i = 0; i < 4; ++i) {
      const float *some = line[i] + 2 * j;
      const vec d0 = EVEN(some), d1 = ODD(some), d2 = EVEN(some + 2), d3 = ODD(some + 2);
      __global float *here = to + 4 * i * plane + j;
      AT(here) = d0 - d2, AT(here + plane) = d1 + d2, AT(here + 2 * plane) = d2 - d1, AT(here + 3 * plane) = d1 - d3;
    }
  }
}

#if MODE == CONV
// get_global_id: row m of the weights.
__kernel void weights(const __global float *a, MAP_PARAMS, __global float *u) {
  const int m = get_global_id(0);
  MAP_OF(0)
  const int count = map.k_c, plane = map.M * count;
  for (int c = 0; c < count; c += 16) {
    const int live = min(16, count - c);
    float w[9][16];
    for (int lane = 0; lane < 16; ++lane) {
      const int at = map.a_0 + m * map.a_m + (c + min(lane, live - 1)) * map.a_c;
      for (int r = 0; r < 3; ++r)
        for (int s = 0; s < 3; ++s)
          w[3 * r + s][lane] = a[at + (map.e_h < 0 ? 2 - r : r) * map.a_r + (map.e_w < 0 ? 2 - s : s) * map.a_s];
    }
    float16 t[4][3];
    for (int s = 0; s < 3; ++s) {
      const float16 x = *(loose16 *)w[s], y = *(loose16 *)w[3 + s], z = *(loose16 *)w[6 + s];
      t[0][s] = x, t[1][s] = 0.5f * (x + z + y), t[2][s] = 0.5f * (x + z - y), t[3][s] = z;
    }
    for (int i = 0; i < 4; ++i) {
      const float16 x = t[i][0], y = t[i][1], z = t[i][2];
      const float16 of[4] = {x, 0.5f * (x + z + y), 0.5f * (x + z - y), z};
      for (int q = 0; q < 4; ++q) {
        __global float *to = u + (4 * i + q) * plane + m * count + c;
        if (live == 16) {
          *(__global loose16 *)to = of[q];
        } else {
          for (int lane = 0; lane < live; ++lane) to[lane] = ((const float *)&of[q])[lane];
        }
      }
    }
  }
}

// get_global_id: row of tiles, row m of the results.
__kernel void output(const __global float *p, MAP_PARAMS, int first, int tiles_y, int tiles_x,
                     int tiles EPILOGUE_PARAMS) {
  const int row = get_global_id(0), m = get_global_id(1), all = first + row;
  const int image = all / tiles_y, top = all % tiles_y * 2;
  MAP_OF(0)
  const int plane = map.M * tiles;
  const __global float *from = p + m * tiles + row * tiles_x;
  float line[2][LINE];
  for (int at = 0; at < tiles_x; at += VW) {
    const int j = min(at, tiles_x - VW);
    vec left[4], right[4];
    for (int i = 0; i < 4; ++i) {
      const __global float *here = from + 4 * i * plane + j;
      const vec x = FROM(here), y = FROM(here + plane), z = FROM(here + 2 * plane), w = FROM(here + 3 * plane);
      left[i] = x + y + z, right[i] = y - z - w;
    }
    const vec a = left[0] + left[1] + left[2], b = right[0] + right[1] + right[2];
    const vec c = left[1] - left[2] - left[3], d = right[1] - right[2] - right[3];
    MIX(line[0] + 2 * j, a, b)
    MIX(line[1] + 2 * j, c, d)
  }
  for (int r = 0; r < 2 && top + r < n_y; ++r) {
    VECTORIZE
    for (int x = 0; x < n_x; ++x) STORE_AT(line[r][x], m, image, top + r, x)
  }
}
#endif

#if MODE == WEIGHT
// get_global_id: row of tiles, row m of dw.
__kernel void grads(const __global float *a, MAP_PARAMS, int first, int tiles_y, int tiles_x, int tiles,
                    __global float *y) {
  const int row = get_global_id(0), m = get_global_id(1), all = first + row;
  const int top = all % tiles_y * 2, wide = 2 * tiles_x;
  MAP_OF(0)
  const __global float *from = a + map.a_0 + m * map.a_m + all / tiles_y * map.a_c;
  float line[2][LINE];
  for (int r = 0; r < 2; ++r) {
    const int inside = top + r < map.k_r;
    copied(from + (inside ? (top + r) * map.a_r : 0), map.a_s, inside ? map.k_s : 0, 0, wide, line[r]);
  }
  const int plane = map.M * tiles;
  __global float *to = y + m * tiles + row * tiles_x;
  for (int at = 0; at < tiles_x; at += VW) {
    const int j = min(at, tiles_x - VW);
    const vec l0 = EVEN(line[0] + 2 * j), r0 = ODD(line[0] + 2 * j), l1 = EVEN(line[1] + 2 * j), r1 = ODD(line[1] + 2 * j);
    const vec left[4] = {l0, l0 + l1, l0 - l1, -l1}, right[4] = {r0, r0 + r1, r0 - r1, -r1};
    for (int i = 0; i < 4; ++i) {
      __global float *here = to + 4 * i * plane + j;
      AT(here) = left[i], AT(here + plane) = left[i] + right[i], AT(here + 2 * plane) = left[i] - right[i];
      AT(here + 3 * plane) = -right[i];
    }
  }
}

// get_global_id: row m of dw.
__kernel void taps(const __global float *p, MAP_PARAMS, __global OUT_TYPE *out) {
  const int m = get_global_id(0);
  MAP_OF(0)
  const int count = CHANNELS, plane = map.M * count;
  for (int c = 0; c < count; c += 16) {
    const int live = min(16, count - c);
    float16 t[3][4];
    for (int q = 0; q < 4; ++q) {
      float16 x[4];
      for (int i = 0; i < 4; ++i) {
        const __global float *from = p + (4 * i + q) * plane + m * count + c;
        if (live == 16) {
          x[i] = *(const __global loose16 *)from;
        } else {
          for (int lane = 0; lane < 16; ++lane) ((float *)&x[i])[lane] = lane < live ? from[lane] : 0.0f;
        }
      }
      const float16 both = 0.5f * (x[1] + x[2]);
      t[0][q] = x[0] + both, t[1][q] = 0.5f * (x[1] - x[2]), t[2][q] = both + x[3];
    }
    float w[9][16];
    for (int r = 0; r < 3; ++r) {
      const float16 both = 0.5f * (t[r][1] + t[r][2]);
      *(loose16 *)w[3 * r] = t[r][0] + both;
      *(loose16 *)w[3 * r + 1] = 0.5f * (t[r][1] - t[r][2]);
      *(loose16 *)w[3 * r + 2] = both + t[r][3];
    }
    for (int lane = 0; lane < live; ++lane)
      for (int k = 0; k < 9; ++k) PUT(w[k][lane], (m * count + c + lane) * 9 + k, out);
  }
}
#endif
