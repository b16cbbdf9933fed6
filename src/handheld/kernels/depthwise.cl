// Depthwise convolutions: every channel has its own kernel, or `multiplier` kernels.
//
//     CONV     acc[i, o, y, x] = sum over j, r, s of w[o*count + j, r, s]
//                                * x[i, o/share*count + j, y*u + r*e + off, ..]
//     WEIGHT   dw[k, r, s]     = sum over i, p, q of dy[i, k, p, q]
//                                * x[i, k/share, p*u + r*e + off, ..];  x is 0 outside the image
//
// conv has count = 1 and share = multiplier. conv_input has count = multiplier and share = 1. As in contract_maps.cl,
// conv_input has one phase per residue of the pixel modulo the stride, and a phase uses every `skip`-th tap.
//
// PLANES (LOCAL 0, CPUs). CONV: a work-item takes a block of `rows` x `cols` pixels of one plane.
//
//       padded tile of x, zeros outside             block of outputs, float16 along x
//     +---------+---------+                       +-----------------+
//     | 0 0 0 0 | 0 0 0 0 |  a row is stored as   | 16 | 16 | ..    |  one load and one
//     | 0 a c e | 0 b d f |  `u` separate rows    | 16 | 16 | ..    |  multiply-add per tap,
//     +---------+---------+                       +-----------------+  without a test
//      columns 0   columns 1 (modulo u = 2): the columns that one tap needs are contiguous
//
// WEIGHT: a work-item takes a channel, walks over its blocks in all images, and keeps 16 partial sums per tap.
//
// FLAT, for a step of one pixel: the rows of a block, with the columns that the tile has in addition, are one long
// row. So 16 outputs may lie in several rows, which short rows need. The outputs in additional columns are not used.
//
// In planes of a few pixels, finding the block would take most of the time. There (conv_small, weight_small) a
// work-item takes one channel of all images. It lists the terms of a pixel (of a tap) once for all images.
//
// STRIPS (LOCAL 1, GPUs). CONV: a work-item takes STRIP pixels of a column, so that its address is computed once for
// all of them; neighbouring work-items load neighbouring pixels. WEIGHT: a work-group takes one channel, or a part
// of its pixels in all images. Each work-item keeps one sum per tap over every ITEMS-th pixel; then a tree in local
// memory adds up the work-items. A kernel with many taps has one work-group per HELD taps.

#define CONV 1
#define WEIGHT 2
#ifndef MODE
#define MODE CONV
#endif
#ifndef LOCAL  // 0: PLANES, for CPUs; 1: STRIPS, for GPUs
#define LOCAL 0
#endif
#ifndef TILE   // PLANES: floats of the padded tile
#define TILE 8192
#endif
#ifndef BLOCK  // PLANES: floats of a block of outputs, or of dy
#define BLOCK 4096
#endif
#ifndef TAPS   // PLANES: the most taps of a kernel
#define TAPS 128
#endif
#ifndef FLAT   // PLANES, 1: a block is one long row
#define FLAT 0
#endif
#ifndef SMALL  // PLANES: the most pixels of a small plane
#define SMALL 64
#endif
#ifndef WIDENED  // PLANES: floats for small planes that are stored in halves
#define WIDENED 4096
#endif
#ifndef ITEMS  // STRIPS, WEIGHT: work-items per work-group, a power of 2
#define ITEMS 64
#endif
#ifndef STRIP  // STRIPS, CONV: pixels per work-item
#define STRIP 4
#endif
#ifndef HELD   // STRIPS, WEIGHT: taps whose sums a work-group keeps
#define HELD 9
#endif
#define CHUNK 64   // terms of the first level of a sum; two levels keep the error of long sums small
#ifndef EPILOGUE   // statements that use acc and d0 to d3; EPILOGUE_PARAMS begins with a comma
#define EPILOGUE_PARAMS , __global float *out, int e0, int e1, int e2
#define EPILOGUE out[d0 * e0 + d1 * e1 + d2 * e2 + d3] = acc;
#endif

#ifndef X_HALF     // 1: x is stored in halves, and half.cl comes before this file; dy and w likewise
#define X_HALF 0
#endif
#ifndef Y_HALF
#define Y_HALF 0
#endif
#ifndef W_HALF
#define W_HALF 0
#endif
#if X_HALF
#define X_TYPE HALF
#define X_GET(p, i) GET_HALF(p, i)
#else
#define X_TYPE float
#define X_GET(p, i) (p)[i]
#endif
#if Y_HALF
#define Y_TYPE HALF
#define Y_GET(p, i) GET_HALF(p, i)
#else
#define Y_TYPE float
#define Y_GET(p, i) (p)[i]
#endif
#if W_HALF
#define W_TYPE HALF
#define W_GET(p, i) GET_HALF(p, i)
#else
#define W_TYPE float
#define W_GET(p, i) (p)[i]
#endif
#ifndef OUT_HALF   // WEIGHT, 1: the output is stored in halves
#define OUT_HALF 0
#endif
#if OUT_HALF
#define OUT_TYPE HALF
#define PUT(value, i, p) PUT_HALF(value, i, p)
#else
#define OUT_TYPE float
#define PUT(value, i, p) (p)[i] = (value)
#endif
#ifndef PARTS      // STRIPS, WEIGHT, 1: `weight` writes partial sums, always floats, and `combine` adds them up
#define PARTS 0
#endif
#if PARTS
#define SUM_TYPE float
#define PUT_SUM(value, i, p) (p)[i] = (value)
#else
#define SUM_TYPE OUT_TYPE
#define PUT_SUM(value, i, p) PUT(value, i, p)
#endif

// x_0, x_i, x_c, x_h, x_w: offset of x and its strides (image, channel, row, column). Its planes have H x W pixels.
// The output plane of one phase has n_y x n_x pixels. Output y and tap r need pixel y*u + off + r*e.
#define PLANE_PARAMS const __global X_TYPE *x, \
    int x_0, int x_i, int x_c, int x_h, int x_w, int H, int W, \
    int n_y, int n_x, int k_r, int k_s, int u_h, int u_w, int e_h, int e_w, int off_h, int off_w, \
    int share, int count

// ---------------------------------------------------------------------------------- PLANES

#if !LOCAL

// The part of x that a block of outputs needs, and its layout in the tile.
typedef struct { int top, left, height, width, pitch, low_h, low_w; } Window;

inline Window window_of(int y, int x, int rows, int cols, int k_r, int k_s,
                        int u_h, int u_w, int e_h, int e_w, int off_h, int off_w) {
  Window t;
  t.low_h = min(0, (k_r - 1) * e_h), t.low_w = min(0, (k_s - 1) * e_w);
  t.top = y * u_h + off_h + t.low_h, t.left = x * u_w + off_w + t.low_w;
  t.height = (rows - 1) * u_h + (k_r - 1) * abs(e_h) + 1;
  t.width = cols + (k_s - 1) * (int)abs(e_w) / u_w;
  t.pitch = t.width * u_w;
  return t;
}

// Where tap (r, s) of output (y, 0) begins in the tile, less y rows.
inline int place_of(int r, int s, int u_w, int e_h, int e_w, const Window *t) {
  const int right = s * e_w - t->low_w;
  return (r * e_h - t->low_h) * t->pitch + right % u_w * t->width + right / u_w;
}

#if X_HALF || Y_HALF
// Copies a small plane of halves into a dense plane of floats, so that each is converted once for all taps.
inline void widen(const __global HALF *from, int x_h, int x_w, int H, int W, float *to) {
  for (int h = 0; h < H; ++h)
    for (int c = 0; c < W; ++c) to[h * W + c] = GET_HALF(from, h * x_h + c * x_w);
}
#endif

#define ZEROS(to, count) for (int j_ = 0; j_ < (count); j_ += 16) PSTORE((float16)(0.0f), 0, (to) + j_);

// Fills the tile from one plane, with zeros outside the plane.
//
// If neighbouring columns are neighbours in memory, a row is written 16 floats at a time. It may be written too far,
// into the next row, which is written after it, or up to 15 floats past the tile. Reads stay inside the plane.
inline void pack(const __global void *from, int halves, int start, int x_h, int x_w, int H, int W,
                 int u_w, const Window *t, float *tile) {
  for (int lane = 0; lane < u_w; ++lane) {
    const int w = t->left + lane;  // Column w + j*u_w is inside for j in [first, stop).
    const int first = min((max(-w, 0) + u_w - 1) / u_w, t->width);
    const int stop = max(min((max(W - w, 0) + u_w - 1) / u_w, t->width), first);
    const int step = u_w * x_w, last = start + (H - 1) * x_h + W;
    for (int r = 0; r < t->height; ++r) {
      float *to = tile + r * t->pitch + lane * t->width;
      const int h = t->top + r, outside = h < 0 || h >= H;
      const int at = start + h * x_h + w * x_w;
      if (step == 1) {
        if (outside) {
          ZEROS(to, t->width)
          continue;
        }
        for (int j = 0; j < first; ++j) to[j] = 0.0f;
        if (at + first + (stop - first + 15) / 16 * 16 <= last) {
          for (int j = first; j < stop; j += 16) PSTORE(load16(from, halves, at + j), 0, to + j);
        } else {
          for (int j = first; j < stop; ++j) to[j] = load1(from, halves, at + j);
        }
        ZEROS(to + stop, t->width - stop)
      } else if (outside) {
        for (int j = 0; j < t->width; ++j) to[j] = 0.0f;
      } else {
        for (int j = 0; j < first; ++j) to[j] = 0.0f;
        for (int j = first; j < stop; ++j) to[j] = load1(from, halves, at + j * step);
        for (int j = stop; j < t->width; ++j) to[j] = 0.0f;
      }
    }
  }
}
#endif

#if MODE == CONV

// Finds the taps of one phase along one axis; see contract_maps.cl.
inline int taps(int phase, int phases, int skip, int count,
                int *off, int *step, int *w_tap, int *w_0) {
  int first = 0;
  while (first < skip && (phase + *off + first * *step) % phases) ++first;
  if (first >= min(skip, count)) return 0;
  *w_0 += first * *w_tap;
  *off = (phase + *off + first * *step) / phases;
  *step = skip * *step / phases;
  *w_tap *= skip;
  return (count - 1 - first) / skip + 1;
}

#define CONV_PARAMS PLANE_PARAMS, const __global W_TYPE *w, int w_0, int w_k, int w_r, int w_s, \
    int out_h, int out_w, int phase_h, int phase_w, int skip_h, int skip_w
#define PHASE(p) \
  const int py = (p) / phase_w, px = (p) % phase_w; \
  k_r = taps(py, phase_h, skip_h, k_r, &off_h, &e_h, &w_r, &w_0); \
  k_s = taps(px, phase_w, skip_w, k_s, &off_w, &e_w, &w_s, &w_0); \
  n_y = min(n_y, (out_h - py + phase_h - 1) / phase_h); \
  n_x = min(n_x, (out_w - px + phase_w - 1) / phase_w);
#define STORE(value, i, o, y, x) { const float acc = (value); \
  const int d0 = (i), d1 = (o), d2 = (y) * phase_h + py, d3 = (x) * phase_w + px; EPILOGUE }

#if !LOCAL

// get_global_id: block of a plane, image, channel and phase.
__kernel void conv(CONV_PARAMS, int channels, int across, int rows, int cols EPILOGUE_PARAMS) {
  float tile[TILE + 16], total[BLOCK], factor[TAPS];
  int place[TAPS];
  const int block = get_global_id(0), i = get_global_id(1), o = get_global_id(2) % channels;
  PHASE(get_global_id(2) / channels)
  const int y_first = block / across * rows, x_first = block % across * cols;
  const int height = min(rows, n_y - y_first), width = min(cols, n_x - x_first);
  if (height <= 0 || width <= 0) return;
  const int some = k_r > 0 && k_s > 0;
  const int wide = FLAT ? width : (width + 15) / 16 * 16;
  const Window t = window_of(y_first, x_first, height, wide, max(k_r, 1), max(k_s, 1), u_h, u_w, e_h, e_w,
                             off_h, off_w);
  const int pitch = FLAT ? t.pitch : cols;  // of a row in `total`
  const int lines = FLAT ? 1 : height, length = FLAT ? (height - 1) * pitch + width : width;
  for (int at = 0; at < height * pitch; ++at) total[at] = 0.0f;
  for (int j = 0; j < count * some; ++j) {
    pack(x, X_HALF, x_0 + i * x_i + (o / share * count + j) * x_c, x_h, x_w, H, W, u_w, &t, tile);
    const __global W_TYPE *kernel_ = w + w_0 + (o * count + j) * w_k;
    int terms = 0;
    for (int r = 0; r < k_r; ++r)
      for (int s = 0; s < k_s; ++s, ++terms)
        factor[terms] = W_GET(kernel_, r * w_r + s * w_s), place[terms] = place_of(r, s, u_w, e_h, e_w, &t);
    for (int line = 0; line < lines; ++line) {
      for (int c = 0; c < length; c += 16) {
        const float *from = tile + line * u_h * t.pitch + c;
        float16 sum = PLOAD(0, total + line * pitch + c);
        for (int n = 0; n < terms; ++n) sum += factor[n] * PLOAD(0, from + place[n]);
        PSTORE(sum, 0, total + line * pitch + c);
      }
    }
  }
  for (int y = 0; y < height; ++y) {
#ifdef __clang__
#pragma clang loop vectorize(assume_safety) vectorize_width(16) vectorize_predicate(enable)
#endif
    for (int c = 0; c < width; ++c) STORE(total[y * pitch + c], i, o, y_first + y, x_first + c)
  }
}

// Small planes. get_global_id: channel and phase. `count` must be 1.
__kernel void conv_small(CONV_PARAMS, int channels, int images EPILOGUE_PARAMS) {
  float factor[TAPS];
  int from[TAPS];
  const int o = get_global_id(0) % channels;
  PHASE(get_global_id(0) / channels)
  const __global X_TYPE *whole = x + x_0 + o / share * x_c;
#if X_HALF
  float plane[WIDENED];
  const int some = WIDENED / (H * W), down = W, right = 1, apart = H * W;
#else
  const int some = max(images, 1), down = x_h, right = x_w, apart = x_i;
#endif
  for (int first = 0; first < images; first += some) {
    const int stop = min(images, first + some);
#if X_HALF
    for (int i = first; i < stop; ++i)
      widen(whole + i * x_i, x_h, x_w, H, W, plane + (i - first) * apart);
#else
    const __global float *plane = whole + first * x_i;
#endif
    for (int y = 0; y < n_y; ++y) {
      for (int c = 0; c < n_x; ++c) {
        int terms = 0;
        for (int r = 0; r < k_r; ++r) {
          const int h = y * u_h + off_h + r * e_h;
          for (int s = 0; s < k_s && h >= 0 && h < H; ++s) {
            const int at = c * u_w + off_w + s * e_w;
            if (at < 0 || at >= W) continue;
            factor[terms] = W_GET(w, w_0 + o * w_k + r * w_r + s * w_s);
            from[terms++] = h * down + at * right;
          }
        }
        for (int i = first; i < stop; ++i) {
          float sum = 0.0f;
          for (int t = 0; t < terms; ++t) sum += factor[t] * plane[(i - first) * apart + from[t]];
          STORE(sum, i, o, y, c)
        }
      }
    }
  }
}

#else

// get_global_id: strip of a plane, image, channel and phase.
__kernel void conv(CONV_PARAMS, int channels EPILOGUE_PARAMS) {
  const int i = get_global_id(1), o = get_global_id(2) % channels;
  PHASE(get_global_id(2) / channels)
  if (n_x <= 0) return;
  const int strip = get_global_id(0) / n_x, c = get_global_id(0) - strip * n_x;
  const int y = strip * STRIP, w_first = c * u_w + off_w;
  if (y >= n_y) return;
  float total[STRIP];
#pragma unroll
  for (int n = 0; n < STRIP; ++n) total[n] = 0.0f;
  for (int j = 0; j < count; ++j) {
    const __global X_TYPE *from = x + x_0 + i * x_i + (o / share * count + j) * x_c;
    const __global W_TYPE *kernel_ = w + w_0 + (o * count + j) * w_k;
    for (int r = 0; r < k_r; ++r) {
      const int h_first = y * u_h + off_h + r * e_h;
      for (int s = 0; s < k_s; ++s) {
        const int at = w_first + s * e_w;
        if ((uint)at >= (uint)W) continue;
        const float factor = W_GET(kernel_, r * w_r + s * w_s);
#pragma unroll
        for (int n = 0; n < STRIP; ++n) {
          const int h = h_first + n * u_h;
          if ((uint)h < (uint)H) total[n] += factor * X_GET(from, h * x_h + at * x_w);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < STRIP; ++n)
    if (y + n < n_y) STORE(total[n], i, o, y + n, c)
}
#endif

#else

// ---------------------------------------------------------------------------------- WEIGHT

#define WEIGHT_PARAMS PLANE_PARAMS, const __global Y_TYPE *dy, \
    int dy_0, int dy_i, int dy_c, int dy_h, int dy_w, int images

#if !LOCAL

// get_global_id: channel of dy.
__kernel void weight(WEIGHT_PARAMS, int rows, int cols, __global OUT_TYPE *out) {
  float tile[TILE + 16], block[BLOCK + 16], total[TAPS * 16];
  const int k = get_global_id(0);
  for (int at = 0; at < k_r * k_s; ++at) PSTORE((float16)(0.0f), at, total);
  for (int i = 0; i < images; ++i) {
    for (int y = 0; y < n_y; y += rows) {
      for (int c = 0; c < n_x; c += cols) {
        const int height = min(rows, n_y - y), width = min(cols, n_x - c);
        const int wide = FLAT ? width : (width + 15) / 16 * 16;
        const Window t = window_of(y, c, height, wide, k_r, k_s, u_h, u_w, e_h, e_w, off_h, off_w);
        pack(x, X_HALF, x_0 + i * x_i + k / share * x_c, x_h, x_w, H, W, u_w, &t, tile);
        const int pitch = FLAT ? t.pitch : wide;  // of a row in `block`
        Window whole;
        whole.top = y, whole.left = c, whole.height = height, whole.width = whole.pitch = pitch;
        pack(dy, Y_HALF, dy_0 + i * dy_i + k * dy_c, dy_h, dy_w, n_y, n_x, 1, &whole, block);
        const int lines = FLAT ? 1 : height, length = FLAT ? height * pitch : wide;
#if FLAT  // What the last 16 terms read past the rows must be zeros, because a NaN would spread.
        for (int at = 0; at < 16; ++at) block[length + at] = 0.0f;
        for (int at = t.height * pitch; at < t.height * pitch + t.width - width + 16; ++at) tile[at] = 0.0f;
#endif
        for (int r = 0; r < k_r; ++r) {
          for (int s = 0; s < k_s; ++s) {
            const float *from = tile + place_of(r, s, u_w, e_h, e_w, &t);
            float16 sum = (float16)(0.0f);
            for (int row = 0; row < lines; ++row)
              for (int at = 0; at < length; at += 16)
                sum += PLOAD(0, block + row * pitch + at)
                       * PLOAD(0, from + row * u_h * t.pitch + at);
            const int tap = r * k_s + s;
            PSTORE(PLOAD(tap, total) + sum, tap, total);
          }
        }
      }
    }
  }
  for (int tap = 0; tap < k_r * k_s; ++tap) {
    float sum = 0.0f;
    for (int j = 0; j < 16; ++j) sum += total[tap * 16 + j];
    PUT(sum, k * k_r * k_s + tap, out);
  }
}

// Small planes. get_global_id: channel of dy.
__kernel void weight_small(WEIGHT_PARAMS, __global OUT_TYPE *out) {
  int left[SMALL], right[SMALL];
  float total[TAPS];
  const int k = get_global_id(0);
  const __global Y_TYPE *whole_y = dy + dy_0 + k * dy_c;
  const __global X_TYPE *whole_x = x + x_0 + k / share * x_c;
  int some = max(images, 1);
#if X_HALF
  float plane[WIDENED];
  const int x_down = W, x_right = 1, x_apart = H * W;
  some = min(some, WIDENED / x_apart);
#else
  const int x_down = x_h, x_right = x_w, x_apart = x_i;
#endif
#if Y_HALF
  float grad[WIDENED];
  const int y_down = n_x, y_right = 1, y_apart = n_y * n_x;
  some = min(some, WIDENED / y_apart);
#else
  const int y_down = dy_h, y_right = dy_w, y_apart = dy_i;
#endif
  for (int tap = 0; tap < k_r * k_s; ++tap) total[tap] = 0.0f;
  for (int first = 0; first < images; first += some) {
    const int stop = min(images, first + some);
#if X_HALF
    for (int i = first; i < stop; ++i)
      widen(whole_x + i * x_i, x_h, x_w, H, W, plane + (i - first) * x_apart);
#else
    const __global float *plane = whole_x + first * x_i;
#endif
#if Y_HALF
    for (int i = first; i < stop; ++i)
      widen(whole_y + i * dy_i, dy_h, dy_w, n_y, n_x, grad + (i - first) * y_apart);
#else
    const __global float *grad = whole_y + first * dy_i;
#endif
    for (int tap = 0; tap < k_r * k_s; ++tap) {
      int terms = 0;
      for (int p = 0; p < n_y; ++p) {
        const int h = p * u_h + off_h + tap / k_s * e_h;
        for (int q = 0; q < n_x && h >= 0 && h < H; ++q) {
          const int at = q * u_w + off_w + tap % k_s * e_w;
          if (at < 0 || at >= W) continue;
          left[terms] = p * y_down + q * y_right;
          right[terms++] = h * x_down + at * x_right;
        }
      }
      for (int i = 0; i < stop - first; ++i) {
        float sum = 0.0f;
        for (int t = 0; t < terms; ++t)
          sum += grad[i * y_apart + left[t]] * plane[i * x_apart + right[t]];
        total[tap] += sum;
      }
    }
  }
  for (int tap = 0; tap < k_r * k_s; ++tap) PUT(total[tap], k * k_r * k_s + tap, out);
}

#else

// get_group_id: block of HELD taps, part of the pixels, channel of dy.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void weight(WEIGHT_PARAMS, int parts, __global SUM_TYPE *out) {
  __local float sums[ITEMS];
  const int item = get_local_id(0), part = get_group_id(1), k = get_group_id(2);
  const int taps_ = k_r * k_s, first = get_group_id(0) * HELD, plane = n_y * n_x;
  const int all = images * plane, size = (all + parts - 1) / parts;
  const int stop = min(all, (part + 1) * size);
  const __global X_TYPE *from = x + x_0 + k / share * x_c;
  const __global Y_TYPE *grad = dy + dy_0 + k * dy_c;
  float total[HELD];
  int down[HELD], right[HELD];
#pragma unroll
  for (int t = 0; t < HELD; ++t) {
    const int tap = min(first + t, taps_ - 1);
    total[t] = 0.0f, down[t] = off_h + tap / k_s * e_h, right[t] = off_w + tap % k_s * e_w;
  }
  for (int start = part * size + item; start < stop; start += ITEMS * CHUNK) {
    float sum[HELD];
#pragma unroll
    for (int t = 0; t < HELD; ++t) sum[t] = 0.0f;
    for (int at = start; at < min(stop, start + ITEMS * CHUNK); at += ITEMS) {
      const int i = at / plane, pixel = at - i * plane, p = pixel / n_x, q = pixel - p * n_x;
      const float g = Y_GET(grad, i * dy_i + p * dy_h + q * dy_w);
      const __global X_TYPE *image = from + i * x_i;
#pragma unroll
      for (int t = 0; t < HELD; ++t) {
        const int h = p * u_h + down[t], c = q * u_w + right[t];
        if ((uint)h < (uint)H && (uint)c < (uint)W) sum[t] += g * X_GET(image, h * x_h + c * x_w);
      }
    }
#pragma unroll
    for (int t = 0; t < HELD; ++t) total[t] += sum[t];
  }
#pragma unroll
  for (int t = 0; t < HELD; ++t) {
    sums[item] = total[t];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_ = ITEMS / 2; half_ > 0; half_ /= 2) {
      if (item < half_) sums[item] += sums[item + half_];
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (item == 0 && first + t < taps_)
      PUT_SUM(sums[0], (part * get_num_groups(2) + k) * taps_ + first + t, out);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
#endif
#endif
