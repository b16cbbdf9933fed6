// What direct.cl and few.cl share: a small copy of the image that contains the padding as zeros, and which taps count.
//
// wide.cl and contract_maps.cl come before this file.

// Pixel P and tap T need the image row P*STEP_H + T*TAP_H + off_h, and the column likewise. CONV and WEIGHT differ
// only in which digits are pixels and which are taps.
#if MODE == CONV
#define PIXEL_ROWS map.n_y
#define PIXEL_COLS map.n_x
#define IMAGES (map.N / (map.n_y * map.n_x))
#define TAP_ROWS map.k_r
#define TAP_COLS map.k_s
#define CHANNELS map.k_c
#define STEP_H map.u_h
#define STEP_W map.u_w
#define TAP_H map.e_h
#define TAP_W map.e_w
#define IMAGE_STRIDE map.b_n
#define CHANNEL_STRIDE map.b_c
#else
#define PIXEL_ROWS map.k_r
#define PIXEL_COLS map.k_s
#define IMAGES map.k_c
#define TAP_ROWS map.n_y
#define TAP_COLS map.n_x
#define CHANNELS (map.N / (map.n_y * map.n_x))
#define STEP_H map.e_h
#define STEP_W map.e_w
#define TAP_H map.u_h
#define TAP_W map.u_w
#define IMAGE_STRIDE map.b_c
#define CHANNEL_STRIDE map.b_n
#endif

// The part of the image that a region holds, and its layout: a row has `wide` elements, an image `high` rows, and
// channels are `pitch` elements apart.
typedef struct { int image, images, row, rows, channel, channels; int top, left, high, wide, pitch; }
    Region;

inline Region region_of(const Map *p, int image, int images, int row, int rows, int channel,
                        int channels) {
  const Map map = *p;
  Region own;
  own.image = image, own.images = images, own.row = row, own.rows = rows;
  own.channel = channel, own.channels = channels;
  const int down = (TAP_ROWS - 1) * TAP_H, right = (TAP_COLS - 1) * TAP_W;
  own.top = row * STEP_H + map.off_h + min(down, 0), own.left = map.off_w + min(right, 0);
  own.high = (rows - 1) * STEP_H + abs(down) + 1;
  own.wide = (PIXEL_COLS - 1) * STEP_W + abs(right) + 1;
  own.pitch = images * own.high * own.wide;
  own.pitch += own.pitch % 64 ? 0 : 16;  // Channels must not map to the same cache set.
  return own;
}

// The offset of a pixel in the region.
inline int pixel_at(const Map *p, const Region *own, int image, int row, int col) {
  const Map map = *p;
  return ((image - own->image) * own->high + (row - own->row) * STEP_H) * own->wide + col * STEP_W;
}

// The offset that a tap adds to that of its pixel.
inline int tap_at(const Map *p, const Region *own, int row, int col) {
  const Map map = *p;
  const int down = TAP_H < 0 ? row - (TAP_ROWS - 1) : row;
  const int right = TAP_W < 0 ? col - (TAP_COLS - 1) : col;
  return down * TAP_H * own->wide + right * TAP_W;
}

// Fills the region from the image, with zeros outside the image.
inline void copy_region(const Map *p, const Region *own, const __global B_TYPE *b, float *to) {
  const Map map = *p;
  const int first = clamp(-own->left, 0, own->wide), stop = clamp(map.W - own->left, first, own->wide);
  for (int c = 0; c < own->channels; ++c)
    for (int i = 0; i < own->images; ++i)
      for (int h = 0; h < own->high; ++h) {
        float *line = to + c * own->pitch + (i * own->high + h) * own->wide;
        const int y = own->top + h, inside = y >= 0 && y < map.H;
        const int begin = inside ? first : own->wide, end = inside ? stop : own->wide;
        const __global B_TYPE *from = b + map.b_0 + (own->channel + c) * CHANNEL_STRIDE
            + (own->image + i) * IMAGE_STRIDE + y * map.b_h + own->left * map.b_w;
        int w = 0;
        for (; w < begin; ++w) line[w] = 0.0f;
        if (map.b_w == 1) {
          for (; w + 16 <= end; w += 16) PSTORE(B_GET16(from + w), 0, line + w);
          for (; w < end; ++w) line[w] = B_GET(from, w);
        } else {
          for (; w < end; ++w) line[w] = B_GET(from, w * map.b_w);
        }
        for (; w < own->wide; ++w) line[w] = 0.0f;
      }
}

// Taps that meet only padding, as most over an image of one pixel: pixel P and tap T are at P*step + T*tap_step + off.
// Returns the number of taps from the first one that meets a pixel to the last one, and makes `first` the first one.
// Of taps that all meet padding, one is left.
inline int live(int taps, int tap_step, int pixels, int step, int off, int size, int *first) {
  int low = taps, high = -1;
  for (int t = 0; t < taps; ++t)
    for (int p = 0; p < pixels; ++p) {
      const int at = p * step + t * tap_step + off;
      if (at < 0 || at >= size) continue;
      low = min(low, t), high = t;
      break;
    }
  *first = high < 0 ? 0 : low;
  return high < 0 ? min(taps, 1) : high + 1 - low;
}

#if MODE == CONV
// Leaves out taps that meet only padding: their weights are not read.
inline void crop(Map *p) {
  int down, right;
  p->k_r = live(p->k_r, p->e_h, p->n_y, p->u_h, p->off_h, p->H, &down);
  p->k_s = live(p->k_s, p->e_w, p->n_x, p->u_w, p->off_w, p->W, &right);
  p->a_0 += down * p->a_r + right * p->a_s;
  p->off_h += down * p->e_h, p->off_w += right * p->e_w;
  p->K = p->k_c * p->k_r * p->k_s;
}
#else
// Leaves out taps that meet only padding, if these are most. Their gradients are zeros. Returns the first tap that is
// left.
inline int crop(Map *p) {
  int down, right;
  const int across = p->n_x, all = p->n_y * across, channels = p->N / all;
  const int high = live(p->n_y, p->u_h, p->k_r, p->e_h, p->off_h, p->H, &down);
  const int wide = live(p->n_x, p->u_w, p->k_s, p->e_w, p->off_w, p->W, &right);
  if (4 * high * wide > all) return 0;  // Results with gaps are stored one by one.
  p->n_y = high, p->n_x = wide, p->N = channels * high * wide;
  p->off_h += down * p->u_h, p->off_w += right * p->u_w;
  return down * across + right;
}
#endif
