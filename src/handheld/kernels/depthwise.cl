// Depthwise convolutions: every channel has its own kernel (or `multiplier` of them).
//
//     CONV     acc[i, o, y, x] = sum over j, r, s of w[o*count + j, r, s]
//                                * x[i, o/share*count + j, y*u + r*e + off, ..]
//     WEIGHT   dw[k, r, s]     = sum over i, p, q of dy[i, k, p, q]
//                                * x[i, k/share, p*u + r*e + off, ..];  outside x is 0
//
// conv has count 1 and share = multiplier; conv_input has count = multiplier and share 1, and, as
// in contract_maps.cl, one phase for each residue of the pixel modulo the stride, with every `skip`-th
// tap.
//
// PLANES (LOCAL 0, for CPUs): a work-item takes a block of `rows` x `cols` pixels of one plane.
//
//       padded tile of x, zeros outside             block of outputs, float16 along x
//     +---------+---------+                       +-----------------+
//     | 0 0 0 0 | 0 0 0 0 |  a row is kept as     | 16 | 16 | ..    |  one load and one
//     | 0 a c e | 0 b d f |  `u` interleaved ones | 16 | 16 | ..    |  multiply-add a tap,
//     +---------+---------+                       +-----------------+  without a test
//      columns 0   columns 1 modulo u = 2: those that one tap needs lie side by side
//
// In WEIGHT a work-item takes a channel, walks its blocks in all images and keeps 16 partial sums
// a tap.
//
// Planes of a few pixels would spend their time on the way to the block: there (conv_small,
// weight_small) a work-item takes a channel of all images, and lists the terms of a pixel (of a
// tap) once for all of them.
//
// STRIPS (LOCAL 1, for GPUs): CONV: a work-item takes STRIP pixels above each other, so that finding
// its place is paid once for all of them; neighbours load neighbours. WEIGHT: a work-group takes a
// channel, or a share of its images' pixels; each item keeps a sum a tap over every ITEMS-th pixel;
// then a tree in local memory. Kernels of many taps have a group for each HELD of them.

#define CONV 1
#define WEIGHT 2
#ifndef MODE
#define MODE CONV
#endif
#ifndef LOCAL  // 1: for GPUs
#define LOCAL 0
#endif
#ifndef TILE   // PLANES: floats of the padded tile
#define TILE 8192
#endif
#ifndef BLOCK  // PLANES: floats of a block of outputs, or of dy
#define BLOCK 4096
#endif
#ifndef TAPS   // PLANES, WEIGHT: most taps of a kernel
#define TAPS 128
#endif
#ifndef SMALL  // PLANES: most pixels of a small plane
#define SMALL 64
#endif
#ifndef ITEMS  // STRIPS, WEIGHT: work-items of a group, a power of 2
#define ITEMS 64
#endif
#ifndef STRIP  // STRIPS, CONV: pixels of a work-item
#define STRIP 4
#endif
#ifndef HELD   // STRIPS, WEIGHT: taps that a group keeps sums of
#define HELD 9
#endif
#define CHUNK 64   // terms of one chunk sum, which keeps the error of long sums small
#ifndef EPILOGUE   // statements that use acc and d0 to d3; its parameters begin with a comma
#define EPILOGUE_PARAMS , __global float *out, int e0, int e1, int e2
#define EPILOGUE out[d0 * e0 + d1 * e1 + d2 * e2 + d3] = acc;
#endif

// x: offset and strides of image, channel, row, column, and its size H x W; the output plane of
// one phase is n_y x n_x; y is at pixel y*u + off, and tap r is r*e further.
#define PLANE_PARAMS const __global float *x, \
    int x_0, int x_i, int x_c, int x_h, int x_w, int H, int W, \
    int n_y, int n_x, int k_r, int k_s, int u_h, int u_w, int e_h, int e_w, int off_h, int off_w, \
    int share, int count

// ---------------------------------------------------------------------------------- PLANES

#if !LOCAL

// Which part of x a block of outputs needs, and how the tile holds it.
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

inline void pack(const __global float *from, int x_h, int x_w, int H, int W, int u_w,
                 const Window *t, float *tile) {
  for (int r = 0; r < t->height; ++r) {
    const int h = t->top + r;
    for (int lane = 0; lane < u_w; ++lane) {
      float *to = tile + r * t->pitch + lane * t->width;
      const int w = t->left + lane;  // column w + j*u_w is inside for j in [first, stop)
      int first = min((max(-w, 0) + u_w - 1) / u_w, t->width);
      int stop = min((max(W - w, 0) + u_w - 1) / u_w, t->width);
      if (h < 0 || h >= H) first = stop = t->width;
      const int step = u_w * x_w;
      const __global float *row = from + h * x_h + w * x_w;
      for (int j = 0; j < first; ++j) to[j] = 0.0f;
      if (step == 1) {
        for (int j = first; j < stop; ++j) to[j] = row[j];
      } else {
        for (int j = first; j < stop; ++j) to[j] = row[j * step];
      }
      for (int j = max(first, stop); j < t->width; ++j) to[j] = 0.0f;
    }
  }
}
#endif

#if MODE == CONV

// Taps of one phase along one axis; see contract_maps.cl.
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

#define CONV_PARAMS PLANE_PARAMS, const __global float *w, int w_0, int w_k, int w_r, int w_s, \
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

// get_global_id: block of a plane, image, channel and phase
__kernel void conv(CONV_PARAMS, int channels, int across, int rows, int cols EPILOGUE_PARAMS) {
  float tile[TILE], total[BLOCK];
  const int block = get_global_id(0), i = get_global_id(1), o = get_global_id(2) % channels;
  PHASE(get_global_id(2) / channels)
  const int y_first = block / across * rows, x_first = block % across * cols;
  const int height = min(rows, n_y - y_first), width = min(cols, n_x - x_first);
  const int wide = (width + 15) / 16 * 16;
  if (height <= 0 || width <= 0) return;
  for (int at = 0; at < height * cols; ++at) total[at] = 0.0f;
  for (int j = 0; j < count * (k_r > 0 && k_s > 0); ++j) {
    const Window t = window_of(y_first, x_first, height, wide, k_r, k_s, u_h, u_w, e_h, e_w,
                               off_h, off_w);
    pack(x + x_0 + i * x_i + (o / share * count + j) * x_c, x_h, x_w, H, W, u_w, &t, tile);
    const __global float *kernel_ = w + w_0 + (o * count + j) * w_k;
    for (int y = 0; y < height; ++y) {
      for (int c = 0; c < width; c += 16) {
        float16 sum = PLOAD(0, total + y * cols + c);
        for (int r = 0; r < k_r; ++r) {
          const float *row = tile + (y * u_h + r * e_h - t.low_h) * t.pitch + c;
          for (int s = 0; s < k_s; ++s) {
            const int right = s * e_w - t.low_w;
            const float *from = row + right % u_w * t.width + right / u_w;
            sum += kernel_[r * w_r + s * w_s] * PLOAD(0, from);
          }
        }
        PSTORE(sum, 0, total + y * cols + c);
      }
    }
  }
  for (int y = 0; y < height; ++y)
    for (int c = 0; c < width; ++c) STORE(total[y * cols + c], i, o, y_first + y, x_first + c)
}

// get_global_id: channel and phase; count is 1
__kernel void conv_small(CONV_PARAMS, int channels, int images EPILOGUE_PARAMS) {
  float factor[TAPS];
  int from[TAPS];
  const int o = get_global_id(0) % channels;
  PHASE(get_global_id(0) / channels)
  const __global float *plane = x + x_0 + o / share * x_c;
  for (int y = 0; y < n_y; ++y) {
    for (int c = 0; c < n_x; ++c) {
      int terms = 0;
      for (int r = 0; r < k_r; ++r) {
        const int h = y * u_h + off_h + r * e_h;
        for (int s = 0; s < k_s && h >= 0 && h < H; ++s) {
          const int at = c * u_w + off_w + s * e_w;
          if (at < 0 || at >= W) continue;
          factor[terms] = w[w_0 + o * w_k + r * w_r + s * w_s];
          from[terms++] = h * x_h + at * x_w;
        }
      }
      for (int i = 0; i < images; ++i) {
        float sum = 0.0f;
        for (int t = 0; t < terms; ++t) sum += factor[t] * plane[i * x_i + from[t]];
        STORE(sum, i, o, y, c)
      }
    }
  }
}

#else

// get_global_id: strip of a plane, image, channel and phase
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
    const __global float *from = x + x_0 + i * x_i + (o / share * count + j) * x_c;
    const __global float *kernel_ = w + w_0 + (o * count + j) * w_k;
    for (int r = 0; r < k_r; ++r) {
      const int h_first = y * u_h + off_h + r * e_h;
      for (int s = 0; s < k_s; ++s) {
        const int at = w_first + s * e_w;
        if ((uint)at >= (uint)W) continue;
        const float factor = kernel_[r * w_r + s * w_s];
#pragma unroll
        for (int n = 0; n < STRIP; ++n) {
          const int h = h_first + n * u_h;
          if ((uint)h < (uint)H) total[n] += factor * from[h * x_h + at * x_w];
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

#define WEIGHT_PARAMS PLANE_PARAMS, const __global float *dy, \
    int dy_0, int dy_i, int dy_c, int dy_h, int dy_w, int images

#if !LOCAL

// get_global_id: channel of dy
__kernel void weight(WEIGHT_PARAMS, int rows, int cols, __global float *out) {
  float tile[TILE], block[BLOCK], total[TAPS * 16];
  const int k = get_global_id(0);
  for (int at = 0; at < k_r * k_s; ++at) PSTORE((float16)(0.0f), at, total);
  for (int i = 0; i < images; ++i) {
    for (int y = 0; y < n_y; y += rows) {
      for (int c = 0; c < n_x; c += cols) {
        const int height = min(rows, n_y - y), wide = (min(cols, n_x - c) + 15) / 16 * 16;
        const Window t = window_of(y, c, height, wide, k_r, k_s, u_h, u_w, e_h, e_w, off_h, off_w);
        pack(x + x_0 + i * x_i + k / share * x_c, x_h, x_w, H, W, u_w, &t, tile);
        Window whole;
        whole.top = y, whole.left = c, whole.height = height, whole.width = whole.pitch = wide;
        pack(dy + dy_0 + i * dy_i + k * dy_c, dy_h, dy_w, n_y, n_x, 1, &whole, block);
        for (int r = 0; r < k_r; ++r) {
          for (int s = 0; s < k_s; ++s) {
            const int right = s * e_w - t.low_w;
            const float *from = tile + (r * e_h - t.low_h) * t.pitch + right % u_w * t.width
                                + right / u_w;
            float16 sum = (float16)(0.0f);
            for (int row = 0; row < height; ++row)
              for (int at = 0; at < wide; at += 16)
                sum += PLOAD(0, block + row * wide + at)
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
    out[k * k_r * k_s + tap] = sum;
  }
}

// get_global_id: channel of dy
__kernel void weight_small(WEIGHT_PARAMS, __global float *out) {
  int left[SMALL], right[SMALL];
  const int k = get_global_id(0);
  const __global float *grad = dy + dy_0 + k * dy_c, *plane = x + x_0 + k / share * x_c;
  for (int tap = 0; tap < k_r * k_s; ++tap) {
    int terms = 0;
    for (int p = 0; p < n_y; ++p) {
      const int h = p * u_h + off_h + tap / k_s * e_h;
      for (int q = 0; q < n_x && h >= 0 && h < H; ++q) {
        const int at = q * u_w + off_w + tap % k_s * e_w;
        if (at < 0 || at >= W) continue;
        left[terms] = p * dy_h + q * dy_w;
        right[terms++] = h * x_h + at * x_w;
      }
    }
    float total = 0.0f;
    for (int i = 0; i < images; ++i) {
      float sum = 0.0f;
      for (int t = 0; t < terms; ++t) sum += grad[i * dy_i + left[t]] * plane[i * x_i + right[t]];
      total += sum;
    }
    out[k * k_r * k_s + tap] = total;
  }
}

#else

// get_group_id: turn of taps, part of the pixels, channel of dy
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void weight(WEIGHT_PARAMS, int parts, __global float *out) {
  __local float sums[ITEMS];
  const int item = get_local_id(0), part = get_group_id(1), k = get_group_id(2);
  const int taps_ = k_r * k_s, first = get_group_id(0) * HELD, plane = n_y * n_x;
  const int all = images * plane, size = (all + parts - 1) / parts;
  const int stop = min(all, (part + 1) * size);
  const __global float *from = x + x_0 + k / share * x_c;
  const __global float *grad = dy + dy_0 + k * dy_c;
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
      const float g = grad[i * dy_i + p * dy_h + q * dy_w];
      const __global float *image = from + i * x_i;
#pragma unroll
      for (int t = 0; t < HELD; ++t) {
        const int h = p * u_h + down[t], c = q * u_w + right[t];
        if ((uint)h < (uint)H && (uint)c < (uint)W) sum[t] += g * image[h * x_h + c * x_w];
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
      out[(part * get_num_groups(2) + k) * taps_ + first + t] = sums[0];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}

__kernel void combine(const __global float *part, int parts, int all, __global float *out) {
  const int at = get_global_id(0);
  if (at >= all) return;
  float sum = 0.0f;
  for (int s = 0; s < parts; ++s) sum += part[s * all + at];
  out[at] = sum;
}
#endif
#endif
