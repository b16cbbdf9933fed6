// Pooling on CPUs, 16 neighbouring results at a time. wide.cl and pool.cl come before this file.
//
// A work-item owns `run` rows of the output, which lie one after the other in memory, and makes them in that order. A
// row is made in blocks of 16 results. The last block of a row may store too many: what is too much lies in the next
// row, which is made later. Only at the end of its rows does a work-item store single results.
//
//      STEP 1   windows q .. q+15 start in 16 neighbouring columns: a tap is one load
//      STEP 2   they start in every other column: a tap is the even places of two loads
//
// Backward, 16 neighbouring pixels (STEP 1), or 16 even and 16 odd ones (STEP 2), get the terms of one tap from 16
// neighbouring windows.
//
// Loads may reach past a row and past the image. They must stay inside the tensor: rows at its two ends, whose loads
// would not, are made one result at a time. `size` and `sizes` are elements of the tensors that the inputs view.

#define STEP SW
#define MANY (16 * STEP)  // pixels of a block

// The row of the output with number `line`, and the row after it.
typedef struct { int n, c, row; } Line;

inline Line line_of(int line, int C, int high) {
    Line at = {line / high / C, line / high % C, line % high};
    return at;
}

inline Line line_after(Line at, int C, int high) {
    if (++at.row == high) {
        at.row = 0;
        if (++at.c == C) at.c = 0, ++at.n;
    }
    return at;
}

// The pixels of one tap in 16 neighbouring windows, from column w.
inline float16 pixels(__global const IN *line, int w) {
#if STEP == 1
    return load16(line, IN_HALF, w);
#else
    float16 value;
    value.lo = load16(line, IN_HALF, w).even;
    value.hi = load16(line, IN_HALF, w + 16).even;
    return value;
#endif
}

// Stores results at `at`, which count as far as `stop`.
inline void store16(float16 value, __global OUT *y, int at, int stop) {
#if !OUT_HALF
    if (at + 16 <= stop) {
        *(__global loose16 *)(y + at) = value;
        return;
    }
#endif
    float values[16];
    *(loose16 *)values = value;
    for (int i = 0; i < min(16, stop - at); i++) PUT(values[i], at + i, y);
}

#define ROWS(high) \
    const int begin_ = id * run, end_ = min(begin_ + run, lines); \
    if (begin_ >= end_) return; \
    Line at = line_of(begin_, C, high);

// ---------------------------------------------------------------------------------- forward

// The taps [first, end) of the windows of row `row` that are inside the image, and where their first row starts.
#define ROW_TAPS \
    const int top = at.row * SH - PH, plane = offset + at.n * xn + at.c * xc; \
    const int first = top >= 0 ? 0 : (-top + DH - 1) / DH; \
    const int end = top >= H ? 0 : min(KH, (H - top + DH - 1) / DH); \
    const int one = plane + (top + first * DH) * xh, other = plane + (top + (end - 1) * DH) * xh; \
    const int lowest = min(one, other), highest = max(one, other) + (KW - 1) * DW + MANY;

// Whether all loads of the block that starts in column `left` stay inside the tensor, and whether some of its taps
// are outside the row.
#define BLOCK_TAPS \
    const int left = q * STEP - PW; \
    const int fits = first < end && lowest + left >= 0 && highest + left <= size; \
    const int edge = left < 0 || left + (min(16, Q - q) - 1) * STEP + (KW - 1) * DW >= W;

#ifdef MAX_WIDE
#define BETTER (value > best | value != value)  // The last NaN wins, as in PyTorch.
#define TAKE(condition) \
    _Pragma("unroll") \
    for (int s = 0; s < KW; s++) { \
        const float16 value = pixels(line, left + s * DW); \
        const int16 columns = left + s * DW + LANES16 * STEP; \
        const int16 better = (condition); \
        best = better ? value : best; \
        where = better ? columns + h * W : where; \
    }

__kernel void max_pool_wide(__global const IN *x, __global OUT *y, __global int *index,
                            int lines, int run, int offset, int xn, int xc, int xh, int xw,
                            int C, int H, int W, int P, int Q, int size) {
    const int id = get_global_id(0);
    ROWS(P)
    const int stop = end_ * Q;
    for (int line_ = begin_, out = begin_ * Q; line_ < end_; line_++, out += Q, at = line_after(at, C, P)) {
        ROW_TAPS
        for (int q = 0; q < Q; q += 16) {
            BLOCK_TAPS
            if (!fits) {
                for (int i = q; i < min(q + 16, Q); i++) {
                    int place;
                    PUT(window_max(x + plane, at.row, i, xh, xw, H, W, P, Q, &place), out + i, y);
                    index[out + i] = place;
                }
                continue;
            }
            float16 best = (float16)(-INFINITY);
            int16 where = left + LANES16 * STEP;  // A window full of -inf needs a position: its first tap.
            if (edge) {
                const int16 start = where;
                where = start < 0 ? start + (DW - 1 - start) / DW * DW : start;
                where = where < W && where < start + (KW - 1) * DW + 1 ? where + (top + first * DH) * W : -1;
            } else {
                where += (top + first * DH) * W;
            }
            for (int r = first; r < end; r++) {
                const int h = top + r * DH;
                __global const IN *line = x + plane + h * xh;
                if (edge) TAKE(BETTER & columns >= 0 & columns < W)
                else TAKE(BETTER)
            }
            store16(best, y, out + q, stop);
            if (out + q + 16 <= stop) {
                *(__global loose_int16 *)(index + out + q) = where;
            } else {
                int places[16];
                *(loose_int16 *)places = where;
                for (int i = 0; i < stop - out - q; i++) index[out + q + i] = places[i];
            }
        }
    }
}
#else
__kernel void avg_pool_wide(__global const IN *x, __global OUT *y, int lines, int run,
                            int offset, int xn, int xc, int xh, int xw,
                            int C, int H, int W, int P, int Q, int size) {
    const int id = get_global_id(0);
    ROWS(P)
    const int stop = end_ * Q;
    for (int line_ = begin_, out = begin_ * Q; line_ < end_; line_++, out += Q, at = line_after(at, C, P)) {
        ROW_TAPS
        for (int q = 0; q < Q; q += 16) {
            BLOCK_TAPS
            if (!fits) {
                for (int i = q; i < min(q + 16, Q); i++)
                    PUT(window_mean(x + plane, at.row, i, xh, xw, H, W), out + i, y);
                continue;
            }
            float16 sum = (float16)(0.0f);
            for (int r = first; r < end; r++) {
                __global const IN *line = x + plane + (top + r) * xh;
#pragma unroll
                for (int s = 0; s < KW; s++) {
                    const float16 value = pixels(line, left + s);
                    const int16 columns = left + s + LANES16 * STEP;
                    if (edge) sum += columns >= 0 & columns < W ? value : (float16)(0.0f);
                    else sum += value;
                }
            }
            store16(sum / (float)DIVISOR, y, out + q, stop);
        }
    }
}
#endif

// ---------------------------------------------------------------------------------- backward

#ifdef MAX_WIDE
#define TERMS __global const IN *dy, __global const int *index
#define VIEWS int y0, int yn, int yc, int yp, int yq, int i0, int in, int ic, int ip, int iq
#define SIZES int size, int sizes
#else
#define TERMS __global const IN *dy
#define VIEWS int y0, int yn, int yc, int yp, int yq
#define SIZES int size
#endif
// The windows of tap s of pixel w + 2*i + odd (STEP 2) start SHIFT after w/2 + i, if the tap meets the pixel at all.
#define SHIFTED(odd, s) ((odd) + PW - (s) * DW)
#define MEETS(odd, s) (STEP == 1 || (SHIFTED(odd, s) & 1) == 0)
#define SHIFT(odd, s) (STEP == 1 ? SHIFTED(0, s) : SHIFTED(odd, s) >> 1)

// What 16 pixels from column w get from the windows of row p: every pixel (STEP 1), or the even or odd ones of 32.
inline float16 terms_of(TERMS, VIEWS, int p, int w, int odd, int place, int edge, int Q) {
    float16 sum = (float16)(0.0f);
#pragma unroll
    for (int s = KW - 1; s >= 0; s--) {
        if (!MEETS(odd, s)) continue;
        const int q = w / STEP + SHIFT(odd, s);
        float16 term = load16(dy, IN_HALF, y0 + p * yp + q);
#ifdef MAX_WIDE
        const int16 from = *(const __global loose_int16 *)(index + i0 + p * ip + q);
        int16 own = from == place + odd + LANES16 * STEP;
        if (edge) own &= q + LANES16 >= 0 & q + LANES16 < Q;
        sum += own ? term : (float16)(0.0f);
#else
        if (edge) term = q + LANES16 >= 0 & q + LANES16 < Q ? term : (float16)(0.0f);
        sum += term;
#endif
    }
    return sum;
}

#ifdef MAX_WIDE
#define SUM(odd) terms_of(dy, index, y0_, yn, yc, yp, yq, i0_, in, ic, ip, iq, p, w, odd, at.row * W + w, edge, Q)
#define SCALE(value) value
#else
#define SUM(odd) terms_of(dy, y0_, yn, yc, yp, yq, p, w, odd, 0, edge, Q)
#define SCALE(value) ((value) / (float)DIVISOR)
#endif

inline void grad_rows(int id, TERMS, __global OUT *dx, int lines, int run, VIEWS,
                      int C, int H, int W, int P, int Q, SIZES) {
    ROWS(H)
    const int stop = end_ * W;
    // The furthest windows that a block in column w reads, relative to w / STEP.
    const int near = SHIFTED(0, KW - 1) >> (STEP - 1), far = (SHIFTED(STEP - 1, 0) >> (STEP - 1)) + 16;
    for (int line_ = begin_, out = begin_ * W; line_ < end_; line_++, out += W, at = line_after(at, C, H)) {
        const int p0 = first_window(at.row, H, P, KH, SH, PH, DH), p1 = end_window(at.row, H, P, SH, PH);
        const int y0_ = y0 + at.n * yn + at.c * yc;
        int lowest = p0 * yp, highest = (p1 - 1) * yp;
        int fits = p0 < p1;
#ifdef MAX_WIDE
        const int i0_ = i0 + at.n * in + at.c * ic;
#endif
        for (int w = 0; w < W; w += MANY) {
            const int from = w / STEP + near, to = w / STEP + far;
            int inside = fits && y0_ + min(lowest, highest) + from >= 0 && y0_ + max(lowest, highest) + to <= size;
#ifdef MAX_WIDE
            inside = inside && i0_ + min(p0 * ip, (p1 - 1) * ip) + from >= 0 &&
                     i0_ + max(p0 * ip, (p1 - 1) * ip) + to <= sizes;
#endif
            if (!inside) {
                for (int i = w; i < min(w + MANY, W); i++) {
#ifdef MAX_WIDE
                    PUT(pixel_max_grad(dy + y0_, index + i0_, at.row, i, p0, p1, yp, yq, ip, iq, W, Q), out + i, dx);
#else
                    PUT(pixel_mean_grad(dy + y0_, at.row, i, p0, p1, yp, yq, H, W, Q), out + i, dx);
#endif
                }
                continue;
            }
            const int edge = from < 0 || to > Q;
            float16 even = (float16)(0.0f), odd = (float16)(0.0f);
            for (int p = p0; p < p1; p++) {
                even += SUM(0);
#if STEP == 2
                odd += SUM(1);
#endif
            }
#if STEP == 1
            store16(SCALE(even), dx, out + w, stop);
#else
            float16 low, high;
            low.even = even.lo, low.odd = odd.lo, high.even = even.hi, high.odd = odd.hi;
            store16(SCALE(low), dx, out + w, stop);
            if (w + 16 < W) store16(SCALE(high), dx, out + w + 16, stop);
#endif
        }
    }
}

#ifdef MAX_WIDE
__kernel void max_pool_grad_wide(TERMS, __global OUT *dx, int lines, int run, VIEWS,
                                 int C, int H, int W, int P, int Q, SIZES) {
    grad_rows(get_global_id(0), dy, index, dx, lines, run, y0, yn, yc, yp, yq, i0, in, ic, ip, iq,
              C, H, W, P, Q, size, sizes);
}
#else
__kernel void avg_pool_grad_wide(TERMS, __global OUT *dx, int lines, int run, VIEWS,
                                 int C, int H, int W, int P, int Q, SIZES) {
    grad_rows(get_global_id(0), dy, dx, lines, run, y0, yn, yc, yp, yq, C, H, W, P, Q, size);
}
#endif
