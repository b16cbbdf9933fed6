// One time step of LSTM and GRU, and of their gradients. recurrent.cl and a file with sums come before this file.

DEFINE_DOT(dot4, 4)
DEFINE_DOT(dot3, 3)

// The sums of a gradient: BACK makes them for a tile, and SUM is that of row r and panel v.
#if PANELS > 1
DEFINE_BACK(back4, 4)
DEFINE_BACK(back3, 3)
#define SUMS(G) lanes sum[ROWS][PANELS]
#define BACK(G, a) back##G(sum, a, B, packed, H, own)
#define SUM4 sum[r][v]
#define SUM3 sum[r][v]
#else
#define SUMS(G) lanes sum[ROWS][G]
#define BACK(G, a) dot##G(sum, a, B, G * H, H, packed, H, panel, own POOL_ARG)
#define SUM4 ((sum[r][0] + sum[r][1]) + (sum[r][2] + sum[r][3]))
#define SUM3 (sum[r][0] + sum[r][1] + sum[r][2])
#endif

__kernel void keep(__global const float *from, __global float *to, int total) {
    int id = get_global_id(0);
    if (id < total) to[id] = from[id];
}

// One step. near_h, near_c: the state before this step, from row `near`.
inline void lstm_step(Tile own, __global const float *gx, __global const float *packed,
                      __global const float *near_h, __global const float *near_c, __global float *h,
                      __global float *c, __global float *gates, int at, int near, int B, int H,
                      int panel POOL_PARAM) {
    lanes sum[ROWS][4];
    dot4(sum, near_h + near * H, B, H, 0, packed, H, panel, own POOL_ARG);
    if (own.rows == 0) return;
    for (int r = 0; r < ROWS && r < own.rows; r++) {
        int b = own.row + r, n = own.cols;
        int to = (at + b) * H + own.col, gate = (at + b) * 4 * H + own.col;
        lanes i = sigmoid(sum[r][0] + load_some(gx + gate, n));
        lanes f = sigmoid(sum[r][1] + load_some(gx + gate + H, n));
        lanes g = tanh_(sum[r][2] + load_some(gx + gate + 2 * H, n));
        lanes o = sigmoid(sum[r][3] + load_some(gx + gate + 3 * H, n));
        lanes cell = f * load_some(near_c + (near + b) * H + own.col, n) + i * g;
        store_some(i, gates + gate, n);
        store_some(f, gates + gate + H, n);
        store_some(g, gates + gate + 2 * H, n);
        store_some(o, gates + gate + 3 * H, n);
        store_some(cell, c + to, n);
        store_some(o * tanh_(cell), h + to, n);
    }
}

__kernel void lstm(__global const float *gx, __global const float *packed, __global const float *near_h,
                   __global const float *near_c, __global float *h, __global float *c, __global float *gates,
                   int at, int near, int B, int H, int panel) {
    SHARED
    lstm_step(tile_of(B, H), gx, packed, near_h, near_c, h, c, gates, at, near, B, H, panel POOL_ARG);
}

inline void gru_step(Tile own, __global const float *gx, __global const float *packed,
                     __global const float *bias, __global const float *near_h, __global float *h,
                     __global float *saved, int at, int near, int B, int H, int panel POOL_PARAM) {
    lanes sum[ROWS][3];
    dot3(sum, near_h + near * H, B, H, 0, packed, H, panel, own POOL_ARG);
    if (own.rows == 0) return;
    int n = own.cols;
    lanes bias_r = load_some(bias + own.col, n), bias_z = load_some(bias + H + own.col, n);
    lanes bias_n = load_some(bias + 2 * H + own.col, n);
    for (int r = 0; r < ROWS && r < own.rows; r++) {
        int b = own.row + r, gate = (at + b) * 3 * H + own.col, save = (at + b) * 4 * H + own.col;
        lanes reset = sigmoid(load_some(gx + gate, n) + (sum[r][0] + bias_r));
        lanes z = sigmoid(load_some(gx + gate + H, n) + (sum[r][1] + bias_z));
        lanes hidden = sum[r][2] + bias_n;
        lanes fresh = tanh_(load_some(gx + gate + 2 * H, n) + reset * hidden);
        lanes old = load_some(near_h + (near + b) * H + own.col, n);
        store_some(reset, saved + save, n);
        store_some(z, saved + save + H, n);
        store_some(fresh, saved + save + 2 * H, n);
        store_some(hidden, saved + save + 3 * H, n);
        store_some((1.0f - z) * fresh + z * old, h + (at + b) * H + own.col, n);
    }
}

__kernel void gru(__global const float *gx, __global const float *packed, __global const float *bias,
                  __global const float *near_h, __global float *h, __global float *saved, int at, int near,
                  int B, int H, int panel) {
    SHARED
    gru_step(tile_of(B, H), gx, packed, bias, near_h, h, saved, at, near, B, H, panel POOL_ARG);
}

// The rows r of a tile of a gradient, and the first column of each of its panels v.
#if PANELS > 1
#define EACH_PART                                          \
    for (int r = 0; r < ROWS && r < own.rows; r++)         \
        for (int v = 0, col = own.col; v < PANELS && col < H; v++, col += LANES)
#else
#define EACH_PART for (int r = 0, v = 0, col = own.col; r < ROWS && r < own.rows; r++)
#endif

// The gradient of one step. `later` is the row in dgx of the step after this one; it is -1 for the last step, which
// uses dh_last instead. before_c: c before this step, from row `near`. carry: the gradient of c from the later step
// (dc_last for the last step). This step writes its own into dc0.
inline void lstm_grad_step(Tile own, __global const float *dh, __global const float *dh_last,
                           __global const float *carry, __global const float *packed,
                           __global const float *c, __global const float *gates,
                           __global const float *before_c, __global float *dgx, __global float *dc0, int at,
                           int near, int later, int B, int H, int panel POOL_PARAM) {
    SUMS(4);
    if (later >= 0) BACK(4, dgx + later * 4 * H);
    if (own.rows == 0) return;
    EACH_PART {
        int b = own.row + r, n = min(LANES, H - col), state = b * H + col;
        int here = (at + b) * H + col, gate = (at + b) * 4 * H + col;
        lanes d = load_some(dh + here, n);
        if (later >= 0) d += SUM4;
        else d += load_some(dh_last + state, n);
        lanes i = load_some(gates + gate, n), f = load_some(gates + gate + H, n);
        lanes g = load_some(gates + gate + 2 * H, n), o = load_some(gates + gate + 3 * H, n);
        lanes t = tanh_(load_some(c + here, n));
        lanes dc = load_some(carry + state, n) + d * o * (1.0f - t * t);
        lanes old = load_some(before_c + (near + b) * H + col, n);
        store_some(dc * g * i * (1.0f - i), dgx + gate, n);
        store_some(dc * old * f * (1.0f - f), dgx + gate + H, n);
        store_some(dc * i * (1.0f - g * g), dgx + gate + 2 * H, n);
        store_some(d * t * o * (1.0f - o), dgx + gate + 3 * H, n);
        store_some(dc * f, dc0 + state, n);
    }
}

__kernel void lstm_grad(__global const float *dh, __global const float *dh_last, __global const float *carry,
                        __global const float *packed, __global const float *c, __global const float *gates,
                        __global const float *before_c, __global float *dgx, __global float *dc0, int at,
                        int near, int later, int B, int H, int panel) {
    SHARED
    lstm_grad_step(tile_of(B, H), dh, dh_last, carry, packed, c, gates, before_c, dgx, dc0, at, near, later,
                   B, H, panel POOL_ARG);
}

// Like lstm_grad. carry is the part dh*z that bypasses the gates (dh_last for the last step).
inline void gru_grad_step(Tile own, __global const float *dh, __global const float *carry,
                          __global const float *packed, __global const float *before_h,
                          __global const float *saved, __global float *dgx, __global float *dgh,
                          __global float *dh0, int at, int near, int later, int B, int H,
                          int panel POOL_PARAM) {
    SUMS(3);
    if (later >= 0) BACK(3, dgh + later * 3 * H);
    if (own.rows == 0) return;
    EACH_PART {
        int b = own.row + r, n = min(LANES, H - col), state = b * H + col;
        int gate = (at + b) * 3 * H + col, save = (at + b) * 4 * H + col;
        lanes d = load_some(dh + (at + b) * H + col, n) + load_some(carry + state, n);
        if (later >= 0) d += SUM3;
        lanes reset = load_some(saved + save, n), z = load_some(saved + save + H, n);
        lanes fresh = load_some(saved + save + 2 * H, n);
        lanes hidden = load_some(saved + save + 3 * H, n);
        lanes old = load_some(before_h + (near + b) * H + col, n);
        lanes dn = d * (1.0f - z) * (1.0f - fresh * fresh);
        lanes dr = dn * hidden * reset * (1.0f - reset);
        lanes dz = d * (old - fresh) * z * (1.0f - z);
        store_some(dr, dgx + gate, n);
        store_some(dz, dgx + gate + H, n);
        store_some(dn, dgx + gate + 2 * H, n);
        store_some(dr, dgh + gate, n);
        store_some(dz, dgh + gate + H, n);
        store_some(dn * reset, dgh + gate + 2 * H, n);
        store_some(d * z, dh0 + state, n);
    }
}

__kernel void gru_grad(__global const float *dh, __global const float *carry, __global const float *packed,
                       __global const float *before_h, __global const float *saved, __global float *dgx,
                       __global float *dgh, __global float *dh0, int at, int near, int later, int B, int H,
                       int panel) {
    SHARED
    gru_grad_step(tile_of(B, H), dh, carry, packed, before_h, saved, dgx, dgh, dh0, at, near, later, B, H,
                  panel POOL_ARG);
}

// The gradient of the initial state, from the first step.
inline void lstm_begin_step(Tile own, __global const float *dgx, __global const float *packed,
                            __global float *dh0, int later, int B, int H, int panel POOL_PARAM) {
    SUMS(4);
    BACK(4, dgx + later * 4 * H);
    if (own.rows == 0) return;
    EACH_PART
        store_some(SUM4, dh0 + (own.row + r) * H + col, min(LANES, H - col));
}

__kernel void lstm_begin(__global const float *dgx, __global const float *packed, __global float *dh0,
                         int later, int B, int H, int panel) {
    SHARED
    lstm_begin_step(tile_of(B, H), dgx, packed, dh0, later, B, H, panel POOL_ARG);
}

inline void gru_begin_step(Tile own, __global const float *dgh, __global const float *packed,
                           __global float *dh0, int later, int B, int H, int panel POOL_PARAM) {
    SUMS(3);
    BACK(3, dgh + later * 3 * H);
    if (own.rows == 0) return;
    EACH_PART {
        __global float *to = dh0 + (own.row + r) * H + col;
        const int n = min(LANES, H - col);
        store_some(load_some(to, n) + SUM3, to, n);
    }
}

__kernel void gru_begin(__global const float *dgh, __global const float *packed, __global float *dh0,
                        int later, int B, int H, int panel) {
    SHARED
    gru_begin_step(tile_of(B, H), dgh, packed, dh0, later, B, H, panel POOL_ARG);
}
