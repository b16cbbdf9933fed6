// Convolutions with more than one tap, and their two gradients, on a CPU. Nothing is unfolded, and all three
// directions share one multiplication loop.
//
// Lanes are output channels m. Rows are MR pixels at a time; for the weight gradient, MR of its columns
// n = (channel, tap, tap). The address of an element is the sum of two offsets:
//
//     sum[row][lane] += region[row's offset + term's offset] * panel[term][lane]
//
//     MODE    rows                terms k                      panel[k][m]
//     CONV    pixels              channel, tap, tap            the weights, transposed
//     WEIGHT  channel, tap, tap   image, row, column           dy, transposed
//
// `region` is a small copy of the image that contains the padding as zeros: a few rows of a few channels. It is
// copied once for all taps and all output channels; unfolding would copy it for every tap.
//
//        image             region (3x3 taps, padding 1)
//     +---------+          +-------------+
//     | a b c d |          | 0 0 0 0 0 0 |      tap (r, s) of pixel (y, x) is at
//     | e f g h |  ----->  | 0 a b c d 0 |      offset of (y, x) + offset of (r, s)
//     | i j k l |          | 0 e f g h 0 |
//     +---------+          +-------------+
//
// `panel` holds the other operand as [set][panel][k][NT], with zeros past M. The launch before, `panels`, makes it. If
// few work-items read a panel, each makes the terms of its chunk itself (CONV with `own`): they stay in its cache.
//
// A work-item (CONV; WEIGHT in brackets):
//
//     for a block of pixels [of columns]          total[rows of the block][lanes of the block]
//       for a chunk of channels [of pixels]       copy the region, list the offsets of its terms, make own panels
//         for MR rows, for a panel                NV float16 per row in registers, then total +=
//       transpose 16 x 16, then the epilogue
//
// wide.cl (vectors), contract_maps.cl (index maps and stores) and region.cl (the copy) come before this file.

#ifndef MR      // rows of the register tile; each row has NV float16
#define MR 8
#endif
#ifndef NV
#define NV 2
#endif
#define NT (16 * NV)
#ifndef REGION  // the most elements of the region
#define REGION 32768
#endif
#ifndef TERMS   // the most terms of a chunk
#define TERMS 256
#endif
#ifndef RUN     // terms of a sum in registers: several short sums have a smaller error than a long one
#define RUN 64
#endif
#ifndef TOTAL   // the most elements of a block
#define TOTAL 65536
#endif
#define MOST_ROWS 512  // the most rows of a block

// ------------------------------------------------------------------------------------- panels

#define SLAB 64  // terms per work-item

// Writes terms [first, stop) of the panel of NT lanes from lane `lane_first` on, as to[term][lane]. The first one is
// to[0].
inline void make_panel(const Map *p, const __global A_TYPE *a, int lane_first, int first, int stop,
                       __global float *to) {
  const Map map = *p;
  // The terms of one lane are a row of taps each; they may go on to the next row and to the next channel.
  const int rows_go_on = map.k_r == 1 || map.a_r == map.k_s * map.a_s;
  const int one = map.k_r * map.k_s == 1, step = one ? map.a_c : map.a_s;
  const int channels_go_on = one || (rows_go_on && map.a_c == map.k_r * map.k_s * map.a_s);
  for (int k = first; k < stop;) {
    // A run of terms with one distance. In most tensors they are contiguous.
    const int line = k / map.k_s, s = k - line * map.k_s, c = line / map.k_r, r = line - c * map.k_r;
    int len = rows_go_on ? (map.k_r - r) * map.k_s - s : map.k_s - s;
    len = channels_go_on ? stop - k : min(len, stop - k);
    const int from = map.a_0 + c * map.a_c + r * map.a_r + s * map.a_s;
    for (int lane = 0; lane < NT; lane += 16) {
      const int live = map.M - lane_first - lane, at = from + (lane_first + lane) * map.a_m;
      int i = 0;
      if (step == 1 && live >= 16 && len > 2) {
        // A square of 16 lanes x 16 terms. It may read past the last term, but not past the tensor.
        for (; i < len && at + 15 * map.a_m + i + 16 <= map.a_size; i += 16) {
          float square[256];
          float16 row[16];
          for (int j = 0; j < 16; ++j) PSTORE(A_GET16(a + at + j * map.a_m + i), j, square);
          turned(square, row);
          __global float *lines = to + (k - first + i) * NT + lane;
          if (len - i >= 16) {
            for (int j = 0; j < 16; ++j) *(__global loose16 *)(lines + j * NT) = row[j];
          } else {
            for (int j = 0; j < len - i; ++j) *(__global loose16 *)(lines + j * NT) = row[j];
          }
        }
      }
      for (; i < len; ++i)
        for (int j = 0; j < 16; ++j)
          to[(k - first + i) * NT + lane + j] =
              j < live ? A_GET(a, at + j * map.a_m + i * step) : 0.0f;
    }
    k += len;
  }
}

// get_global_id: slab of terms, panel, set.
__kernel void panels(const __global A_TYPE *a, MAP_PARAMS, int k_most, __global float *panel) {
  const int z = get_global_id(2), first = get_global_id(0) * SLAB;
  MAP_OF(z)
#if MODE == CONV
  crop(&map);
#endif
  __global float *to = panel + ((z * get_global_size(1) + get_global_id(1)) * k_most + first) * NT;
  make_panel(&map, a, get_global_id(1) * NT, first, min(first + SLAB, map.K), to);
}

// ------------------------------------------------------------------------------------- direct

// total[MR][NT] += x[row offset + term offset] * panel[term]; rows of `total` are `pitch` elements apart.
inline void multiply(const float *x, const int *rows, const int *terms, int count,
                     const __global float *panel, float *total, int pitch) {
  float16 sum[MR][NV];
  int at[MR];
#pragma unroll
  for (int i = 0; i < MR; ++i) {
    at[i] = rows[i];
#pragma unroll
    for (int v = 0; v < NV; ++v) sum[i][v] = (float16)(0.0f);
  }
  for (int k = 0; k < count; ++k) {
    const float *from = x + terms[k];
    float16 lanes[NV];
#pragma unroll
    for (int v = 0; v < NV; ++v) lanes[v] = GLOAD(k * NV + v, panel);
#pragma unroll
    for (int i = 0; i < MR; ++i)
#pragma unroll
      for (int v = 0; v < NV; ++v) sum[i][v] += from[at[i]] * lanes[v];
  }
#pragma unroll
  for (int i = 0; i < MR; ++i)
#pragma unroll
    for (int v = 0; v < NV; ++v)
      PSTORE(PLOAD(v, total + i * pitch) + sum[i][v], v, total + i * pitch);
}

// A block is `images` x `rows` rows of pixels (in WEIGHT: `channels` channels) and `lanes` output channels, a multiple
// of NT. With SPLIT 1 the images are cut into parts of `part_images`. With `own` > 0 a work-item makes its own panels,
// of at most `own` terms, in its part of `panel`.
// get_global_id: CONV: set, block of lanes, block of pixels. WEIGHT: block of channels, block of lanes, part and set.
__kernel void direct(const __global A_TYPE *a, const __global B_TYPE *b, __global float *panel, MAP_PARAMS,
                     int k_most, int images, int rows, int channels, int lanes, int part_images, int own OUT_PARAMS) {
  float x[REGION], total[TOTAL], turn[16 * MOST_ROWS];
  int row_at[MOST_ROWS + MR], term_at[TERMS];
#if MODE == WEIGHT
  int spot[MOST_ROWS];  // of a row in the output
#endif
// In CONV the set is in dimension 0: phases have different numbers of taps, and neighbouring work-items run on one
// thread, so that each thread gets all phases.
#if MODE == CONV
  const int z = get_global_id(0), block = get_global_id(2);
#else
  const int z = get_global_id(2), block = get_global_id(0), split = z / sets;
#endif
  const int m_first = get_global_id(1) * lanes;
  MAP_OF(z % sets)
#if MODE == CONV
  crop(&map);
#else
  const int all_taps = n_y * n_x, first_tap = crop(&map);
#endif
  const int m_count = min(lanes, M - m_first), taps = TAP_ROWS * TAP_COLS;
  const int all = (M + NT - 1) / NT;
#if MODE == CONV
  const int place = (block * get_global_size(1) + get_global_id(1)) * get_global_size(0) + z;
  panel += own ? place * lanes * own : (z * all + m_first / NT) * k_most * NT;
  const int strips = (PIXEL_ROWS + rows - 1) / rows;
  const int image = block / strips * images, row = block % strips * rows;
  const int image_count = min(images, IMAGES - image), row_count = min(rows, PIXEL_ROWS - row);
  const int count = image_count * row_count * PIXEL_COLS;
#else
  panel += (z % sets * all + m_first / NT) * k_most * NT;
  const int channel = block * channels;
  const int channel_count = min(channels, CHANNELS - channel), count = channel_count * taps;
#endif
  const int tiles = (count + MR - 1) / MR;
  for (int i = 0; i < tiles * MR * lanes; i += 16) PSTORE((float16)(0.0f), 0, total + i);
#if MODE == CONV
  for (int c = 0; c < CHANNELS && taps; c += channels) {
    const Region held = region_of(&map, image, image_count, row, row_count, c, min(channels, CHANNELS - c));
    const int terms = held.channels * taps, k_first = own ? 0 : c * taps, depth = own ? own : k_most;
    copy_region(&map, &held, b, x);
    for (int m = 0; own && m < m_count; m += NT)
      make_panel(&map, a, m_first + m, c * taps, c * taps + terms, panel + m * own);
    for (int i = 0, n = 0; i < image_count; ++i)
      for (int y = 0; y < row_count; ++y)
        for (int w = 0; w < PIXEL_COLS; ++w) row_at[n++] = pixel_at(&map, &held, image + i, row + y, w);
    for (int d = 0, k = 0; d < held.channels; ++d)
      for (int r = 0; r < TAP_ROWS; ++r)
        for (int s = 0; s < TAP_COLS; ++s) term_at[k++] = d * held.pitch + tap_at(&map, &held, r, s);
#else
  const int i_stop = min(IMAGES, (split + 1) * part_images);
  for (int i = split * part_images; i < i_stop; i += images)
  for (int y = 0; y < PIXEL_ROWS; y += rows) {
    const Region held = region_of(&map, i, min(images, i_stop - i), y, min(rows, PIXEL_ROWS - y),
                                  channel, channel_count);
    const int terms = held.images * held.rows * PIXEL_COLS, k_first = (i * PIXEL_ROWS + y) * PIXEL_COLS;
    const int depth = k_most;
    copy_region(&map, &held, b, x);
    for (int d = 0, n = 0; d < channel_count; ++d)
      for (int r = 0; r < TAP_ROWS; ++r)
        for (int s = 0; s < TAP_COLS; ++s) {
          spot[n] = d * all_taps + first_tap + r * n_x + s;
          row_at[n++] = d * held.pitch + tap_at(&map, &held, r, s);
        }
    for (int d = 0, k = 0; d < held.images; ++d)
      for (int h = 0; h < held.rows; ++h)
        for (int w = 0; w < PIXEL_COLS; ++w) term_at[k++] = pixel_at(&map, &held, i + d, y + h, w);
#endif
    for (int n = count; n < tiles * MR; ++n) row_at[n] = row_at[count - 1];
    for (int n = 0; n < tiles; ++n)
      for (int m = 0; m < m_count; m += NT)
        for (int k = 0; k < terms; k += RUN)
          multiply(x, row_at + n * MR, term_at + k, min(RUN, terms - k),
                   panel + (m / NT * depth + k_first + k) * NT, total + n * MR * lanes + m, lanes);
  }
#if MODE == WEIGHT
  if (taps < all_taps)
    for (int n = 0; n < 16 * MOST_ROWS; n += 16) PSTORE((float16)(0.0f), 0, turn + n);
#endif
  for (int m = 0; m < m_count; m += 16) {
    for (int n = 0; n < count; n += 16) {
      float square[256];
      float16 line[16];
      for (int j = 0; j < 16; ++j)
        PSTORE(PLOAD(0, total + min(n + j, count - 1) * lanes + m), j, square);
      turned(square, line);
#if MODE == WEIGHT
      if (taps < all_taps) {
        for (int j = 0; j < 16; ++j) PSTORE(line[j], j, square);
        for (int i = 0; i < min(16, count - n); ++i)
          for (int j = 0; j < 16; ++j) turn[j * MOST_ROWS + spot[n + i]] = square[16 * j + i];
        continue;
      }
#endif
      for (int j = 0; j < 16; ++j) PSTORE(line[j], 0, turn + j * MOST_ROWS + n);
    }
    for (int j = 0; j < min(16, m_count - m); ++j) {
      const float *from = turn + j * MOST_ROWS;
#if MODE == CONV
      for (int i = 0; i < image_count; ++i)
        for (int y = 0; y < row_count; ++y, from += PIXEL_COLS) {
          VECTORIZE
          for (int w = 0; w < PIXEL_COLS; ++w)
            STORE_AT(from[w], m_first + m + j, image + i, row + y, w)
        }
#else
      VECTORIZE
      for (int n = 0; n < channel_count * all_taps; ++n) STORE(from[n], m_first + m + j, channel * all_taps + n)
#endif
    }
  }
}
