// Pooling over the two last dimensions of x[n, c, h, w], with its gradients.
//
//   max_pool        y[n, c, p, q]  = max over r, s of x[n, c, p*st - pad + r*dil, ...]
//                   index          = position of the maximum in its plane, h*W + w
//   max_pool_grad   dx[n, c, h, w] = sum of dy over the windows whose index is h*W + w
//   avg_pool        y[n, c, p, q]  = (sum of the window) / divisor(p, q)
//   avg_pool_grad   dx[n, c, h, w] = sum of dy / divisor over the windows that contain (h, w)
//
// Layout: inputs are views (an offset and four strides), outputs are dense. Both directions gather: a work-item owns
// `run` contiguous output elements, and no other work-item writes them, so that sums always have the same order. On
// a CPU a run is a whole row, so that the position is computed once per row. On a GPU a run is one element; with
// GRID the ids of the work-item are column, row and plane, which needs no division.
//
//      forward: element (p, q)          backward: element (h, w)
//      x +-----------------+            dy +---------------+
//        |   +-----+       |               |  +---+        |    the windows that may cover (h, w)
//        |   | r,s | window|               |  |p,q|        |    form a rectangle too:
//        |   +-----+       |               |  +---+        |    ceil((h+pad-(k-1)*dil)/st) <= p
//        +-----------------+               +---------------+                <= floor((h+pad)/st)
//
// Windows may reach past the padded image (ceil_mode), so everything is clipped.
//
// CPUs have their own kernels. pool_wide.cl makes 16 results at a time, for strides of 1 and 2. For other strides, a
// work-item of max_pool_grad_planes owns a plane of dx and scatters into it. avg_pool_rows and avg_pool_grad_rows first
// add up the rows of the windows into one row of sums, and then the columns of that row.
//
// Parameters:

#ifndef ADAPTIVE   // 1: window i of size -> count is [floor(i*size/count), ceil((i+1)*size/count))
#define ADAPTIVE 0
#endif
#ifndef GRID       // 1: the ids are column, row and plane of an element; 0: the first id is the number of a run
#define GRID 0
#endif
#ifndef KH         // the window: kernel, stride and padding
#define KH 1
#define KW 1
#define SH 1
#define SW 1
#define PH 0
#define PW 0
#endif
#ifndef DH         // max_pool: dilation
#define DH 1
#define DW 1
#endif
#ifndef DIVISOR    // avg_pool: the divisor; 0: the size of the window, with padding if COUNT_PAD is 1
#define DIVISOR 0
#define COUNT_PAD 0
#endif
#ifndef CHUNK      // terms of the first level of a sum; two levels keep the error of long sums small
#define CHUNK 256
#endif

#ifndef IN_HALF    // 1: the first input (x or dy) is stored in halves, and half.cl comes before this file
#define IN_HALF 0
#endif
#ifndef OUT_HALF   // 1: the output (y or dx) is stored in halves
#define OUT_HALF 0
#endif
#if IN_HALF
#define IN HALF
#define GET(p, i) GET_HALF(p, i)
#else
#define IN float
#define GET(p, i) (p)[i]
#endif
#if OUT_HALF
#define OUT HALF
#define PUT(value, i, p) PUT_HALF(value, i, p)
#else
#define OUT float
#define PUT(value, i, p) (p)[i] = (value)
#endif

// The first window that may contain pixel `at`, and below it the end of these windows.
int first_window(int at, int size, int count, int kernel_, int stride, int pad, int dilation) {
#if ADAPTIVE
    return at * count / size;
#else
    int reach = at + pad - (kernel_ - 1) * dilation;
    return reach <= 0 ? 0 : (reach + stride - 1) / stride;
#endif
}

int end_window(int at, int size, int count, int stride, int pad) {
#if ADAPTIVE
    return ((at + 1) * count + size - 1) / size;
#else
    return min((at + pad) / stride + 1, count);
#endif
}

// The run of a work-item in an image of `high` rows of `wide` elements: columns [col, end) of one row.
typedef struct {
    int n, c, row, col, end;
    int at;  // index of the first element in the dense output
} Run;

Run run_of(int id, int run, int C, int high, int wide) {
    int runs = (wide + run - 1) / run, line = id / runs;
    Run own;
    own.col = id % runs * run;
    own.end = min(own.col + run, wide);
    own.row = line % high;
    own.c = line / high % C;
    own.n = line / high / C;
    own.at = line * wide + own.col;
    return own;
}

// OWN declares `own`, the run of this work-item, and returns from the kernel if there is none.
#if GRID
#define OWN(high, wide) \
    const int col_ = get_global_id(0), row_ = get_global_id(1), plane_ = get_global_id(2); \
    if (col_ >= wide || row_ >= high) return; \
    Run own = {plane_ / C, plane_ % C, row_, col_, col_ + 1, (plane_ * high + row_) * wide + col_};
#else
#define OWN(high, wide) \
    const int id_ = get_global_id(0); \
    if (id_ >= total) return; \
    Run own = run_of(id_, run, C, high, wide);
#endif

// The maximum of window (p, q) of a plane, and its position.
inline float window_max(__global const IN *plane, int p, int q, int xh, int xw,
                        int H, int W, int P, int Q, int *place) {
#if ADAPTIVE
    int h0 = p * H / P, h1 = ((p + 1) * H + P - 1) / P;
    int w0 = q * W / Q, w1 = ((q + 1) * W + Q - 1) / Q;
#else
    int h0 = p * SH - PH, h1 = min(h0 + (KH - 1) * DH + 1, H);
    int w0 = q * SW - PW, w1 = min(w0 + (KW - 1) * DW + 1, W);
    if (h0 < 0) h0 += (-h0 + DH - 1) / DH * DH;  // Start at the first tap inside the image.
    if (w0 < 0) w0 += (-w0 + DW - 1) / DW * DW;
#endif
    float best = -INFINITY;
    int where = h0 < h1 && w0 < w1 ? h0 * W + w0 : -1;  // A window full of -inf still needs a position.
    for (int h = h0; h < h1; h += DH)
        for (int w = w0; w < w1; w += DW) {
            float value = GET(plane, h * xh + w * xw);
            // The last NaN wins, as in PyTorch. These are selects, because a branch could not be predicted.
            int better = (value > best) | (value != value);
            best = better ? value : best;
            where = better ? h * W + w : where;
        }
    *place = where;
    return best;
}

__kernel void max_pool(__global const IN *x, __global OUT *y, __global int *index, int total,
                       int run, int offset, int xn, int xc, int xh, int xw,
                       int C, int H, int W, int P, int Q) {
    OWN(P, Q)
    __global const IN *plane = x + offset + own.n * xn + own.c * xc;
    for (int q = own.col; q < own.end; q++, own.at++) {
        int place;
        PUT(window_max(plane, own.row, q, xh, xw, H, W, P, Q, &place), own.at, y);
        index[own.at] = place;
    }
}

#if !OUT_HALF  // The sums are accumulated in dx itself, which must hold floats.
__kernel void max_pool_grad_planes(__global const IN *dy, __global const int *index,
                                   __global float *dx, int total, int run,
                                   int y0, int yn, int yc, int yp, int yq,
                                   int i0, int in, int ic, int ip, int iq,
                                   int C, int H, int W, int P, int Q) {
    int id = get_global_id(0);
    if (id >= total) return;
    __global float *plane = dx + id * H * W;
    y0 += id / C * yn + id % C * yc;
    i0 += id / C * in + id % C * ic;
    for (int i = 0; i < H * W; i++) plane[i] = 0.0f;
    for (int p = 0; p < P; p++)
        for (int q = 0; q < Q; q++) {
            int at = index[i0 + p * ip + q * iq];  // This is data and may have any value, so it is checked.
            if (at >= 0 && at < H * W) plane[at] += GET(dy, y0 + p * yp + q * yq);
        }
}
#endif

// What pixel (h, w) gets from the windows of the rows [p0, p1).
inline float pixel_max_grad(__global const IN *dy, __global const int *index, int h, int w, int p0, int p1,
                            int yp, int yq, int ip, int iq, int W, int Q) {
    int q0 = first_window(w, W, Q, KW, SW, PW, DW), q1 = end_window(w, W, Q, SW, PW);
    float sum = 0;
    for (int p = p0; p < p1; p++)
        for (int start = q0; start < q1; start += CHUNK) {
            float part = 0;
            for (int q = start; q < min(start + CHUNK, q1); q++) {
                // Reading the term always makes this a select instead of a branch.
                float term = GET(dy, p * yp + q * yq);
                part += index[p * ip + q * iq] == h * W + w ? term : 0;
            }
            sum += part;
        }
    return sum;
}

__kernel void max_pool_grad(__global const IN *dy, __global const int *index, __global OUT *dx,
                            int total, int run, int y0, int yn, int yc, int yp, int yq,
                            int i0, int in, int ic, int ip, int iq,
                            int C, int H, int W, int P, int Q) {
    OWN(H, W)
    int h = own.row;
    int p0 = first_window(h, H, P, KH, SH, PH, DH), p1 = end_window(h, H, P, SH, PH);
    y0 += own.n * yn + own.c * yc;
    i0 += own.n * in + own.c * ic;
    for (int w = own.col; w < own.end; w++, own.at++)
        PUT(pixel_max_grad(dy + y0, index + i0, h, w, p0, p1, yp, yq, ip, iq, W, Q), own.at, dx);
}

// One side of window i: its start and end in the image. Returns the length that counts for the divisor.
int side(int i, int size, int kernel_, int stride, int pad, int count_pad, int *start, int *end) {
    int low = i * stride - pad, high = min(low + kernel_, size + pad);
    *start = max(low, 0);
    *end = min(high, size);
    return count_pad ? high - low : *end - *start;
}

// The mean of window (p, q) of a plane.
inline float window_mean(__global const IN *plane, int p, int q, int xh, int xw, int H, int W) {
    int h0, h1, w0, w1, high = side(p, H, KH, SH, PH, COUNT_PAD, &h0, &h1);
    int wide = side(q, W, KW, SW, PW, COUNT_PAD, &w0, &w1);
    float sum = 0;
    for (int h = h0; h < h1; h++)
        for (int start = w0; start < w1; start += CHUNK) {
            float part = 0;
            for (int w = start; w < min(start + CHUNK, w1); w++)
                part += GET(plane, h * xh + w * xw);
            sum += part;
        }
    // A window entirely outside the image gives 0, whatever its divisor is.
    return h0 < h1 && w0 < w1 ? sum / (DIVISOR ? DIVISOR : high * wide) : 0;
}

__kernel void avg_pool(__global const IN *x, __global OUT *y, int total, int run,
                       int offset, int xn, int xc, int xh, int xw,
                       int C, int H, int W, int P, int Q) {
    OWN(P, Q)
    __global const IN *plane = x + offset + own.n * xn + own.c * xc;
    for (int q = own.col; q < own.end; q++, own.at++)
        PUT(window_mean(plane, own.row, q, xh, xw, H, W), own.at, y);
}

// What pixel (h, w) gets from the windows of the rows [p0, p1).
inline float pixel_mean_grad(__global const IN *dy, int h, int w, int p0, int p1, int yp, int yq,
                             int H, int W, int Q) {
    int q0 = first_window(w, W, Q, KW, SW, PW, 1), q1 = end_window(w, W, Q, SW, PW);
    int start, end;
    float sum = 0;
    for (int p = p0; p < p1; p++) {
        int high = side(p, H, KH, SH, PH, COUNT_PAD, &start, &end);
        for (int begin = q0; begin < q1; begin += CHUNK) {
            float part = 0;
            for (int q = begin; q < min(begin + CHUNK, q1); q++) {
                float term = GET(dy, p * yp + q * yq);
                if (!DIVISOR) term /= high * side(q, W, KW, SW, PW, COUNT_PAD, &start, &end);
                part += term;
            }
            sum += part;
        }
    }
    return DIVISOR ? sum / DIVISOR : sum;
}

__kernel void avg_pool_grad(__global const IN *dy, __global OUT *dx, int total, int run,
                            int offset, int yn, int yc, int yp, int yq,
                            int C, int H, int W, int P, int Q) {
    OWN(H, W)
    __global const IN *plane = dy + offset + own.n * yn + own.c * yc;
    int p0 = first_window(own.row, H, P, KH, SH, PH, 1), p1 = end_window(own.row, H, P, SH, PH);
    for (int w = own.col; w < own.end; w++, own.at++)
        PUT(pixel_mean_grad(plane, own.row, w, p0, p1, yp, yq, H, W, Q), own.at, dx);
}

#ifdef WIDE  // the longest row of x and of dy
__kernel void avg_pool_rows(__global const IN *x, __global OUT *y, int total, int run,
                            int offset, int xn, int xc, int xh, int xw,
                            int C, int H, int W, int P, int Q) {
    OWN(P, Q)
    float sums[WIDE];
    __global const IN *plane = x + offset + own.n * xn + own.c * xc;
    __global OUT *out = y + own.at;
    int h0, h1, w0, w1, high = side(own.row, H, KH, SH, PH, COUNT_PAD, &h0, &h1);
    for (int w = 0; w < W; w++) sums[w] = 0.0f;
    for (int h = h0; h < h1; h++)
        for (int w = 0; w < W; w++) sums[w] += GET(plane, h * xh + w);
    // The windows [first, last) lie inside the row, so that they all have KW columns.
    int first = min((PW + SW - 1) / SW, Q), last = W + PW < KW ? 0 : (W + PW - KW) / SW + 1;
    last = max(min(last, Q), first);
    float whole = DIVISOR ? DIVISOR : high * KW;
    for (int q = first; q < last; q++) {
        float sum = 0.0f;
        for (int s = 0; s < KW; s++) sum += sums[q * SW - PW + s];
        PUT(h0 < h1 ? sum / whole : 0.0f, q, out);
    }
    for (int i = 0; i < Q - (last - first); i++) {
        int q = i < first ? i : i - first + last;
        int wide = side(q, W, KW, SW, PW, COUNT_PAD, &w0, &w1);
        float sum = 0.0f;
        for (int w = w0; w < w1; w++) sum += sums[w];
        PUT(h0 < h1 && w0 < w1 ? sum / (DIVISOR ? DIVISOR : high * wide) : 0.0f, q, out);
    }
}

__kernel void avg_pool_grad_rows(__global const IN *dy, __global OUT *dx, int total, int run,
                                 int offset, int yn, int yc, int yp, int yq,
                                 int C, int H, int W, int P, int Q) {
    OWN(H, W)
    float sums[WIDE], line[WIDE];
    __global const IN *plane = dy + offset + own.n * yn + own.c * yc;
    int p0 = first_window(own.row, H, P, KH, SH, PH, 1), p1 = end_window(own.row, H, P, SH, PH);
    int start, end;
    for (int q = 0; q < Q; q++) sums[q] = 0.0f;
    for (int p = p0; p < p1; p++) {
        int high = side(p, H, KH, SH, PH, COUNT_PAD, &start, &end);
        __global const IN *row = plane + p * yp;
#if DIVISOR
        for (int q = 0; q < Q; q++) sums[q] += GET(row, q);
#else
        for (int q = 0; q < Q; q++)
            sums[q] += GET(row, q) / (high * side(q, W, KW, SW, PW, COUNT_PAD, &start, &end));
#endif
    }
    for (int w = 0; w < W; w++) line[w] = 0.0f;
    int first = min((PW + SW - 1) / SW, Q), last = W + PW < KW ? 0 : (W + PW - KW) / SW + 1;
    last = max(min(last, Q), first);
#if SW == 1
    for (int s = 0; s < KW; s++)  // The inner loop goes along the row, so that it becomes vector code.
        for (int q = first; q < last; q++) line[q - PW + s] += sums[q];
#else
    for (int q = first; q < last; q++)
        for (int s = 0; s < KW; s++) line[q * SW - PW + s] += sums[q];
#endif
    for (int i = 0; i < Q - (last - first); i++) {
        int q = i < first ? i : i - first + last;
        side(q, W, KW, SW, PW, COUNT_PAD, &start, &end);
        for (int w = start; w < end; w++) line[w] += sums[q];
    }
    for (int w = 0; w < W; w++) PUT(DIVISOR ? line[w] / DIVISOR : line[w], own.at + w, dx);
}
#endif
