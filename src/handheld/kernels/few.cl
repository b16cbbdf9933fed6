// Convolutions with few channels on one side, on a CPU: lanes are pixels.
//
// With few output channels, other kernels leave lanes or rows of registers idle, or spend their time on unfolding the
// image. Here the rows of a block of pixels are one long row, with the columns that the region has in addition:
//
//     region of a channel, 6 wide    results of 4 columns, 2 not used
//     +-------------+
//     | 0 0 0 0 0 0 |  0 a b c d 0 | 0 e f g h 0 | ..   sum[m][pixel] += factor[m] * region[pixel + place of the term]
//     | 0 a b c d 0 |  `--- 16 pixels ---' `--- ..
//
//     CONV     a work-item: some rows of an image; MT output channels x PV vectors of pixels in registers
//     WEIGHT   a work-item: MT channels of dy, some images; MT x NB sums of 16 lanes, over all pixels
//
// The steps of pixels are 1. wide.cl, contract_maps.cl and region.cl come before this file.

#ifndef MT       // output channels of the register tile
#define MT 8
#endif
#ifndef NB       // WEIGHT: columns of the register tile
#define NB 3
#endif
#ifndef REGION   // the most elements of the region
#define REGION 16384
#endif
#ifndef LINE     // the most pixels of a block, as one long row
#define LINE 1024
#endif
#ifndef TERMS    // CONV: the most terms of a sum in registers
#define TERMS 128
#endif
#ifndef COLUMNS  // WEIGHT: the most columns
#define COLUMNS 160
#endif
#ifndef PV       // CONV: vectors of pixels of the register tile
#define PV 2
#endif
#define PITCH (LINE + 16 * PV)

#if MODE == CONV

// get_global_id: block of rows, image.
__kernel void few(const __global A_TYPE *a, const __global B_TYPE *b, MAP_PARAMS, int rows, int channels OUT_PARAMS) {
  float x[REGION + 16 * PV + 32], total[MT * PITCH], factor[TERMS * MT];
  int place[TERMS];
  MAP_OF(0)
  crop(&map);
  const int image = get_global_id(1), row = get_global_id(0) * rows, row_count = min(rows, PIXEL_ROWS - row);
  for (int p = 0; p < MT * PITCH; p += 16) PSTORE((float16)(0.0f), 0, total + p);
  int wide = 0;
  for (int c = 0; c < CHANNELS; c += channels) {
    const Region held = region_of(&map, image, 1, row, row_count, c, min(channels, CHANNELS - c));
    copy_region(&map, &held, b, x);
    int terms = 0;
    for (int d = 0; d < held.channels; ++d)
      for (int r = 0; r < TAP_ROWS; ++r)
        for (int s = 0; s < TAP_COLS; ++s, ++terms) {
          const int from = map.a_0 + (c + d) * map.a_c + r * map.a_r + s * map.a_s;
          place[terms] = d * held.pitch + tap_at(&map, &held, r, s);
          for (int m = 0; m < MT; ++m) factor[terms * MT + m] = m < M ? A_GET(a, from + m * map.a_m) : 0.0f;
        }
    wide = held.wide;
    for (int p = 0; p < (row_count - 1) * wide + PIXEL_COLS; p += 16 * PV) {
      float16 sum[MT][PV], pixels[PV];
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int v = 0; v < PV; ++v) sum[m][v] = (float16)(0.0f);
      for (int t = 0; t < terms; ++t) {
#pragma unroll
        for (int v = 0; v < PV; ++v) pixels[v] = PLOAD(v, x + p + place[t]);
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
          for (int v = 0; v < PV; ++v) sum[m][v] += factor[t * MT + m] * pixels[v];
      }
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int v = 0; v < PV; ++v)
          PSTORE(PLOAD(v, total + m * PITCH + p) + sum[m][v], v, total + m * PITCH + p);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int y = 0; y < row_count; ++y) {
      const float *from = total + m * PITCH + y * wide;
      VECTORIZE
      for (int w = 0; w < PIXEL_COLS; ++w) STORE_AT(from[w], m, image, row + y, w)
    }
}

#else

// get_global_id: nothing, block of MT channels of dy, part of the images.
__kernel void few(const __global A_TYPE *a, const __global B_TYPE *b, MAP_PARAMS, int rows,
                  int part_images OUT_PARAMS) {
  float x[REGION + 64], grad[MT * PITCH], total[MT * COLUMNS * 16];
  int place[COLUMNS + NB];
  MAP_OF(0)
  const int m_first = get_global_id(1) * MT, m_count = min(MT, M - m_first);
  const int image = get_global_id(2) * part_images, stop = min(IMAGES, image + part_images);
  for (int p = 0; p < MT * N * 16; p += 16) PSTORE((float16)(0.0f), 0, total + p);
  // What is read past the rows is multiplied by zeros, but must not be NaN.
  for (int p = 0; p < REGION + 64; p += 16) PSTORE((float16)(0.0f), 0, x + p);
  for (int p = 0; p < MT * PITCH; p += 16) PSTORE((float16)(0.0f), 0, grad + p);
  for (int i = image; i < stop; ++i)
    for (int y = 0; y < PIXEL_ROWS; y += rows) {
      const Region held = region_of(&map, i, 1, y, min(rows, PIXEL_ROWS - y), 0, CHANNELS);
      const int length = held.rows * held.wide;
      copy_region(&map, &held, b, x);
      for (int d = 0, n = 0; d < CHANNELS; ++d)
        for (int r = 0; r < TAP_ROWS; ++r)
          for (int s = 0; s < TAP_COLS; ++s) place[n++] = d * held.pitch + tap_at(&map, &held, r, s);
      for (int n = N; n < N + NB; ++n) place[n] = place[N - 1];
      for (int m = 0; m < m_count; ++m) {
        for (int h = 0; h < held.rows; ++h) {
          const __global A_TYPE *from = a + map.a_0 + (m_first + m) * map.a_m + i * map.a_c + (y + h) * map.a_r;
          float *to = grad + m * PITCH + h * held.wide;
          for (int w = 0; w < PIXEL_COLS; ++w) to[w] = A_GET(from, w * map.a_s);
        }
        PSTORE((float16)(0.0f), 0, grad + m * PITCH + length);
      }
      for (int n = 0; n < N; n += NB) {
        float16 sum[MT][NB];
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
          for (int q = 0; q < NB; ++q) sum[m][q] = (float16)(0.0f);
        for (int p = 0; p < length; p += 16) {
          float16 pixels[NB];
#pragma unroll
          for (int q = 0; q < NB; ++q) pixels[q] = PLOAD(0, x + p + place[n + q]);
#pragma unroll
          for (int m = 0; m < MT; ++m) {
            const float16 by = PLOAD(0, grad + m * PITCH + p);
#pragma unroll
            for (int q = 0; q < NB; ++q) sum[m][q] += by * pixels[q];
          }
        }
        for (int m = 0; m < MT; ++m)
          for (int q = 0; q < min(NB, N - n); ++q)
            PSTORE(PLOAD(m * N + n + q, total) + sum[m][q], m * N + n + q, total);
      }
    }
  for (int m = 0; m < m_count; ++m)
    for (int n = 0; n < N; ++n) {
      float sum = 0.0f;
      for (int j = 0; j < 16; ++j) sum += total[(m * N + n) * 16 + j];
      STORE(sum, m_first + m, n)
    }
}
#endif
