// LSTM and GRU over a sequence in one launch, and their gradients, for CPUs. recurrent.cl comes before this file.
//
// The rows of a batch do not depend on each other. So a work-item takes `blocks` blocks of ROWS rows through all steps,
// and no work-item waits for another. In a step it takes the lanes one after the other, and all its rows for each of
// them, so that the packed weights of these lanes are read from the cache.
//
//   step n of the forward pass is row ROW(n) of gx and h; the gradients begin with the last one

#define OWN_ROWS \
    const int first = get_global_id(0) * blocks, stop = min(first + blocks, (B + ROWS - 1) / ROWS);
#define EACH_TILE \
    for (int lane = 0; lane * LANES < H; lane++) \
        for (int block = first; block < stop; block++)
#define TILE_HERE tile_at(block, lane, B, H)
#define EACH_GROUP \
    for (int lane = 0; lane * LANES < H; lane += PANELS) \
        for (int block = first; block < stop; block++)
#define ROW(n) ((reverse ? steps - 1 - (n) : (n)) * B)

__kernel void lstm_all(__global const float *gx, __global const float *packed, __global const float *h0,
                       __global const float *c0, __global float *h, __global float *c, __global float *gates,
                       int steps, int reverse, int blocks, int B, int H, int panel) {
    OWN_ROWS
    for (int n = 0; n < steps; n++) {
        __global const float *near_h = n ? h : h0, *near_c = n ? c : c0;
        const int at = ROW(n), near = n ? ROW(n - 1) : 0;
        EACH_TILE lstm_step(TILE_HERE, gx, packed, near_h, near_c, h, c, gates, at, near, B, H, panel);
    }
}

__kernel void gru_all(__global const float *gx, __global const float *packed, __global const float *bias,
                      __global const float *h0, __global float *h, __global float *saved,
                      int steps, int reverse, int blocks, int B, int H, int panel) {
    OWN_ROWS
    for (int n = 0; n < steps; n++) {
        __global const float *near_h = n ? h : h0;
        const int at = ROW(n), near = n ? ROW(n - 1) : 0;
        EACH_TILE gru_step(TILE_HERE, gx, packed, bias, near_h, h, saved, at, near, B, H, panel);
    }
}

__kernel void lstm_grad_all(__global const float *dh, __global const float *dh_last, __global const float *dc_last,
                            __global const float *packed, __global const float *c, __global const float *gates,
                            __global const float *c0, __global float *dgx, __global float *dh0, __global float *dc0,
                            int steps, int reverse, int blocks, int B, int H, int panel) {
    OWN_ROWS
    for (int n = steps - 1; n >= 0; n--) {
        const int at = ROW(n), near = n ? ROW(n - 1) : 0, later = n < steps - 1 ? ROW(n + 1) : -1;
        __global const float *carry = later < 0 ? dc_last : dc0, *before_c = n ? c : c0;
        EACH_GROUP lstm_grad_step(TILE_HERE, dh, dh_last, carry, packed, c, gates, before_c, dgx, dc0, at, near, later,
                                 B, H, panel);
    }
    EACH_GROUP lstm_begin_step(TILE_HERE, dgx, packed, dh0, ROW(0), B, H, panel);
}

__kernel void gru_grad_all(__global const float *dh, __global const float *dh_last, __global const float *packed,
                           __global const float *h, __global const float *saved, __global const float *h0,
                           __global float *dgx, __global float *dgh, __global float *dh0,
                           int steps, int reverse, int blocks, int B, int H, int panel) {
    OWN_ROWS
    for (int n = steps - 1; n >= 0; n--) {
        const int at = ROW(n), near = n ? ROW(n - 1) : 0, later = n < steps - 1 ? ROW(n + 1) : -1;
        __global const float *carry = later < 0 ? dh_last : dh0, *before_h = n ? h : h0;
        EACH_GROUP gru_grad_step(TILE_HERE, dh, carry, packed, before_h, saved, dgx, dgh, dh0, at, near, later,
                                B, H, panel);
    }
    EACH_GROUP gru_begin_step(TILE_HERE, dgh, packed, dh0, ROW(0), B, H, panel);
}
