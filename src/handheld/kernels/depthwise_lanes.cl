// Depthwise convolutions of small planes and their gradients, on a CPU: lanes are channels.
//
// In a plane of a few pixels, rows are too short for vectors, and steps of two pixels break them up. So a work-item
// takes 16 channels. Their planes are transposed into a tile with 16 floats per pixel, one of each channel:
//
//       planes of 16 channels          tile: padding of zeros        all taps of a pixel are vectors
//     c0  a b | c1  e f | ..             0   0   0   0
//         c d |     g h | ..             0  aei bfj  0      sum += factor[tap] * tile[pixel + place[tap]]
//                                        0  c.. d..  0
//                                        0   0   0   0      then the sums are transposed back
//
//     CONV     sum[o, y, x]  = sum over r, s of w[o, r, s] * x[o, y*u + off + r*e, ..]
//     WEIGHT   dw[o, r, s]   = sum over i, p, q of dy[i, o, p, q] * x[i, o, p*u + off + r*e, ..]
//
// As in depthwise.cl, conv_input has one phase per residue of the pixel modulo the stride. What depends only on the
// geometry is listed once for all images of a work-item: the place of each pixel in the tile, and that of each tap.
//
// wide.cl (vectors) comes before this file.

#define CONV 1
#define WEIGHT 2
#ifndef MODE
#define MODE CONV
#endif
#ifndef TILE       // pixels of the tile, with padding
#define TILE 1280
#endif
#ifndef PIXELS     // the most pixels of a plane
#define PIXELS 1024
#endif
#ifndef TAPS       // the most taps of a kernel
#define TAPS 32
#endif
#ifndef PHASES     // the most phases; each list of pixels is filled up to a multiple of 4
#define PHASES 16
#endif
#define LANES 16
#define PITCH (PIXELS + 16)
#define HELD 9     // WEIGHT: taps whose sums are in registers at a time
#ifndef EPILOGUE   // statements that use acc and d0 to d3; EPILOGUE_PARAMS begins with a comma
#define EPILOGUE_PARAMS , __global float *out, int e0, int e1, int e2
#define EPILOGUE out[d0 * e0 + d1 * e1 + d2 * e2 + d3] = acc;
#endif

// Transposes `live` planes of H x W pixels, whose first pixels are `apart` elements apart, into 16 floats per pixel.
// Pixel p goes to place[p]. Lanes past `live` repeat the last plane.
inline void to_lanes(const __global float *from, int apart, int live, int H, int W, int down, int right,
                     const int *place, float *to) {
  const int pixels = H * W;
  if (right == 1 && down == W && pixels >= 16) {
    for (int p = 0; p < pixels; p += 16) {
      const int first = min(p, pixels - 16);
      float square[256];
      float16 row[16];
      for (int j = 0; j < 16; ++j) PSTORE(GLOAD(0, from + min(j, live - 1) * apart + first), j, square);
      turned(square, row);
#pragma unroll
      for (int j = 0; j < 16; ++j) PSTORE(row[j], place[first + j], to);
    }
    return;
  }
  int at[16];
  for (int j = 0; j < 16; ++j) at[j] = min(j, live - 1) * apart;
  for (int h = 0, p = 0; h < H; ++h)
    for (int c = 0; c < W; ++c, ++p) {
      const __global float *pixel = from + h * down + c * right;
      float *lanes = to + place[p] * 16;
#pragma unroll
      for (int j = 0; j < 16; ++j) lanes[j] = pixel[at[j]];
    }
}

inline void clear(float *to, int vectors) {
  for (int n = 0; n < vectors; ++n) PSTORE((float16)(0.0f), n, to);
}

#if MODE == CONV

// The planes of x have H x W pixels, those of the output out_h x out_w. Pixel (0, 0) of x is at (top, left) of the
// tile, whose rows have `wide` pixels. The epilogue sees planes of `rows` x `cols` pixels.
// get_global_id: block of 16 channels, part of the images.
__kernel void conv_lanes(const __global float *x, int x_0, int x_i, int x_c, int x_h, int x_w, int H, int W,
                         const __global float *w, int w_0, int w_k, int w_r, int w_s, int out_h, int out_w,
                         int k_r, int k_s, int u_h, int u_w, int e_h, int e_w, int off_h, int off_w,
                         int phase_h, int phase_w, int top, int left, int high, int wide,
                         int channels, int images, int part, int rows, int cols EPILOGUE_PARAMS) {
  float tile[TILE * LANES], total[(PIXELS + 16) * LANES], turn[PITCH * LANES], factor[TAPS * LANES];
  int place[PIXELS], from[PIXELS + 4 * PHASES], to[PIXELS + 4 * PHASES], tap[TAPS];
  int taps[PHASES + 1], pixels[PHASES + 1];
  const int o = get_global_id(0) * LANES, live = min(LANES, channels - o);
  const int first = get_global_id(1) * part, stop = min(images, first + part);
  const int phases = phase_h * phase_w, all = out_h * out_w;
  for (int h = 0; h < H; ++h)
    for (int c = 0; c < W; ++c) place[h * W + c] = (top + h) * wide + left + c;
  taps[0] = pixels[0] = 0;
  for (int f = 0, t = 0, n = 0; f < phases; ++f) {
    const int py = f / phase_w, px = f % phase_w;
    for (int r = 0; r < k_r; ++r) {
      const int down = py + off_h + r * e_h;
      for (int s = 0; s < k_s; ++s) {
        const int right = px + off_w + s * e_w;
        if (down % phase_h || right % phase_w) continue;
        tap[t] = (down / phase_h * wide + right / phase_w) * LANES;
        for (int j = 0; j < LANES; ++j)
          factor[t * LANES + j] = w[w_0 + (o + min(j, live - 1)) * w_k + r * w_r + s * w_s];
        ++t;
      }
    }
    taps[f + 1] = t;
    for (int y = py, v = 0; y < out_h; y += phase_h, ++v)
      for (int c = px, q = 0; c < out_w; c += phase_w, ++q, ++n)
        from[n] = ((top + v * u_h) * wide + left + q * u_w) * LANES, to[n] = (y * out_w + c) * LANES;
    for (; n > pixels[f] && n % 4; ++n) from[n] = from[n - 1], to[n] = to[n - 1];
    pixels[f + 1] = n;
  }
  clear(tile, high * wide);
  for (int i = first; i < stop; ++i) {
    to_lanes(x + x_0 + i * x_i + o * x_c, x_c, live, H, W, x_h, x_w, place, tile);
    for (int f = 0; f < phases; ++f)
      for (int n = pixels[f]; n < pixels[f + 1]; n += 4) {
        const float *a = tile + from[n], *b = tile + from[n + 1], *c = tile + from[n + 2], *d = tile + from[n + 3];
        float16 sum_a = (float16)(0.0f), sum_b = sum_a, sum_c = sum_a, sum_d = sum_a;
        for (int t = taps[f]; t < taps[f + 1]; ++t) {
          const float16 by = PLOAD(t, factor);
          sum_a += by * PLOAD(0, a + tap[t]);
          sum_b += by * PLOAD(0, b + tap[t]);
          sum_c += by * PLOAD(0, c + tap[t]);
          sum_d += by * PLOAD(0, d + tap[t]);
        }
        PSTORE(sum_a, 0, total + to[n]);
        PSTORE(sum_b, 0, total + to[n + 1]);
        PSTORE(sum_c, 0, total + to[n + 2]);
        PSTORE(sum_d, 0, total + to[n + 3]);
      }
    const int d0 = i;
    if (all < 8) {  // Few pixels: vectors are channels in the epilogue, too.
      for (int d2 = 0, p = 0; d2 < rows; ++d2)
        for (int d3 = 0; d3 < cols; ++d3, ++p) {
#ifdef __clang__
#pragma clang loop vectorize(assume_safety) vectorize_width(16) vectorize_predicate(enable)
#endif
          for (int j = 0; j < live; ++j) {
            const int d1 = o + j;
            const float acc = total[p * LANES + j];
            EPILOGUE
          }
        }
      continue;
    }
    for (int p = 0; p < all; p += 16) {
      float16 row[16];
      turned(total + p * LANES, row);
#pragma unroll
      for (int j = 0; j < 16; ++j) PSTORE(row[j], 0, turn + j * PITCH + p);
    }
    for (int j = 0; j < live; ++j) {
      const int d1 = o + j;
      for (int d2 = 0; d2 < rows; ++d2) {
        const float *line = turn + j * PITCH + d2 * cols;
#ifdef __clang__
#pragma clang loop vectorize(assume_safety) vectorize_width(16) vectorize_predicate(enable)
#endif
        for (int d3 = 0; d3 < cols; ++d3) {
          const float acc = line[d3];
          EPILOGUE
        }
      }
    }
  }
}

#else

// The planes of dy have n_y x n_x pixels. get_global_id: block of 16 channels, part of the images.
__kernel void weight_lanes(const __global float *x, int x_0, int x_i, int x_c, int x_h, int x_w, int H, int W,
                           const __global float *dy, int dy_0, int dy_i, int dy_c, int dy_h, int dy_w, int n_y, int n_x,
                           int k_r, int k_s, int u_h, int u_w, int e_h, int e_w, int off_h, int off_w,
                           int top, int left, int high, int wide, int channels, int images, int part,
                           __global float *out) {
  float tile[TILE * LANES], grad[PIXELS * LANES], total[(TAPS + HELD) * LANES];
  int place[PIXELS], own[PIXELS], from[PIXELS], tap[TAPS + HELD];
  const int o = get_global_id(0) * LANES, live = min(LANES, channels - o);
  const int first = get_global_id(1) * part, stop = min(images, first + part);
  const int taps = k_r * k_s, all = n_y * n_x;
  for (int h = 0; h < H; ++h)
    for (int c = 0; c < W; ++c) place[h * W + c] = (top + h) * wide + left + c;
  for (int p = 0, n = 0; p < n_y; ++p)
    for (int q = 0; q < n_x; ++q, ++n)
      own[n] = n, from[n] = ((top + p * u_h + off_h) * wide + left + q * u_w + off_w) * LANES;
  for (int t = 0; t < taps + HELD; ++t) {
    const int n = min(t, taps - 1);
    tap[t] = (n / k_s * e_h * wide + n % k_s * e_w) * LANES;
  }
  clear(total, taps + HELD);
  clear(tile, high * wide);
  for (int i = first; i < stop; ++i) {
    to_lanes(x + x_0 + i * x_i + o * x_c, x_c, live, H, W, x_h, x_w, place, tile);
    to_lanes(dy + dy_0 + i * dy_i + o * dy_c, dy_c, live, n_y, n_x, dy_h, dy_w, own, grad);
    for (int t = 0; t < taps; t += HELD) {
      float16 sum[HELD];
      int at[HELD];
#pragma unroll
      for (int n = 0; n < HELD; ++n) sum[n] = (float16)(0.0f), at[n] = tap[t + n];
      for (int p = 0; p < all; ++p) {
        const float16 by = PLOAD(p, grad);
        const float *pixel = tile + from[p];
#pragma unroll
        for (int n = 0; n < HELD; ++n) sum[n] += by * PLOAD(0, pixel + at[n]);
      }
#pragma unroll
      for (int n = 0; n < HELD; ++n) PSTORE(PLOAD(t + n, total) + sum[n], t + n, total);
    }
  }
  out += get_global_id(1) * channels * taps;
  for (int j = 0; j < live; ++j)
    for (int t = 0; t < taps; ++t) out[(o + j) * taps + t] = total[t * LANES + j];
}
#endif
