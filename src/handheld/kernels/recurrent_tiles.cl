// Sums over k for recurrent.cl on a GPU, which needs many work-items with little work each. So a work-group takes a
// tile, and its work-items ("items") share the sum over k:
//
//            j: |UNITS of each gate| ...       item = (COLUMNS columns, slice of k);
//      b  TILE  |      group       |              slice s takes the quads s, s + SLICES, .. (four k each).
//         TILE  |                  |           Rows of h (or d) are in local memory; at the end the slices
//                                              are added up there, in order.
//
//   packed[tile of units][quad of k][gate][unit][k % 4]       backward: one column per unit, and k runs over
//                                                             all gates; `panel` is the number of quads
//
//   Neighbouring items read neighbouring float4s of the weights. At the end one item computes one element of h (or
//   dh), so that LANES and ROWS are 1.
//
// These are defined: UNITS (hidden units of a tile), and with it:
//      TILE      rows of the batch of a tile; TILE * UNITS is at most the items of a work-group
//      GATES     columns per unit: 4 or 3 forward, 1 backward
//      COLUMNS   columns per item, a divisor of GATES * UNITS
//      SLICES    parts of k, each with its own items; a divisor of the quads of the packed weights
//      QUADS     quads that an item takes between two barriers
//      WHOLE     1 if all rows of h (or d) start at multiples of four floats
#define WIDTH (GATES * UNITS)
#define ITEMS (SLICES * WIDTH / COLUMNS)
#define BLOCK (SLICES * QUADS)  // quads of a row in local memory
#define POOL max_(TILE * BLOCK, (SLICES * TILE * WIDTH + 3) / 4)
#define max_(a, b) ((a) > (b) ? (a) : (b))
#define SHARED __local float4 pool[POOL];
#define POOL_ARG , pool
#define POOL_PARAM , __local float4 *pool

float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
float tanh_(float x) { return tanh(x); }

Tile tile_of(int B, int H) {
    int id = get_local_id(1);
    Tile own;
    own.row = get_group_id(0) * TILE + id / UNITS;
    own.col = get_group_id(1) * UNITS + id % UNITS;
    own.rows = id < TILE * UNITS && own.row < B && own.col < H;
    own.cols = 1;
    return own;
}

// Four terms of row `row` from term k, with zeros past the end.
float4 quad_of(__global const float *a, int row, int B, int stride, int k, int K) {
    if (row >= B || k >= K) return 0;
    a += row * stride + k;
#if WHOLE
    return *(__global const float4 *)a;
#else
    return (float4)(a[0], k + 1 < K ? a[1] : 0, k + 2 < K ? a[2] : 0, k + 3 < K ? a[3] : 0);
#endif
}

// All items of the work-group must call this. sum[g] is the sum for the item's own row and unit, per gate (backward:
// all gates are in sum[0]). The rows are a[row][K]; a column of the packed weights has `quads` quads.
void tile_dot(float sum[GATES], __global const float *a, int B, int stride, int K,
              __global const float *packed, int quads, __local float4 *pool) {
    const int id = get_local_id(1), first = id % (WIDTH / COLUMNS) * COLUMNS;
    const int slice = id / (WIDTH / COLUMNS);
    __global const float4 *weights =
        (__global const float4 *)packed + (get_group_id(1) * quads + slice) * WIDTH + first;
    float total[TILE][COLUMNS];
    UNROLL
    for (int r = 0; r < TILE; r++)
        UNROLL
        for (int c = 0; c < COLUMNS; c++) total[r][c] = 0;
    for (int start = 0; start < quads; start += BLOCK) {
        float4 w[QUADS][COLUMNS];  // These loads overlap with those of the rows.
        UNROLL
        for (int q = 0; q < QUADS; q++)
            UNROLL
            for (int c = 0; c < COLUMNS; c++)
                w[q][c] = start + q * SLICES < quads ? weights[q * SLICES * WIDTH + c] : 0;
        weights += BLOCK * WIDTH;
        if (start) barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = id; i < TILE * BLOCK; i += ITEMS)
            pool[i] = quad_of(a, get_group_id(0) * TILE + i / BLOCK, B, stride,
                              (start + i % BLOCK) * 4, K);
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLL
        for (int r = 0; r < TILE; r++) {
            float part[COLUMNS];
            UNROLL
            for (int c = 0; c < COLUMNS; c++) part[c] = 0;
            UNROLL
            for (int q = 0; q < QUADS; q++) {
                float4 x = pool[r * BLOCK + q * SLICES + slice];
                UNROLL
                for (int c = 0; c < COLUMNS; c++) {
                    part[c] += x.x * w[q][c].x;
                    part[c] += x.y * w[q][c].y;
                    part[c] += x.z * w[q][c].z;
                    part[c] += x.w * w[q][c].w;
                }
            }
            UNROLL
            for (int c = 0; c < COLUMNS; c++) total[r][c] += part[c];
        }
    }
    // part[slice][row][column]: one item per element adds up the slices.
    __local float *part = (__local float *)pool;
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL
    for (int r = 0; r < TILE; r++)
        UNROLL
        for (int c = 0; c < COLUMNS; c++)
            part[(slice * TILE + r) * WIDTH + first + c] = total[r][c];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = id; i < TILE * WIDTH; i += ITEMS) {
        float all = 0;
        UNROLL
        for (int s = 0; s < SLICES; s++) all += part[s * TILE * WIDTH + i];
        part[i] = all;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id < TILE * UNITS)
        for (int g = 0; g < GATES; g++)
            sum[g] = part[id / UNITS * WIDTH + g * UNITS + id % UNITS];
}

// sum[0][g], like DEFINE_DOT for CPUs below. Backward, one sum holds all gates and the other sums are 0.
#define DEFINE_DOT(NAME, G)                                                                        \
    void NAME(lanes sum[ROWS][G], __global const float *a, int B, int stride, int spread,          \
              __global const float *packed, int H, int panel, Tile own, __local float4 *pool) {    \
        float found[GATES];                                                                        \
        tile_dot(found, a, B, stride, spread ? G * H : H, packed, panel, pool);                    \
        for (int g = 0; g < G; g++) sum[0][g] = g < GATES ? found[min(g, GATES - 1)] : 0;          \
    }

// Makes packed[tile][quad][gate][unit][k % 4] from w, whose element (gate, unit, k) is at gate*H*H + unit*su + k*sk.
__kernel void pack_tiles(__global const float *w, __global float *packed, int total, int H, int K,
                         int quads, int su, int sk) {
    int id = get_global_id(0);
    if (id >= total) return;
    int unit = id / 4 % UNITS, g = id / 4 / UNITS % GATES;
    int k = id / 4 / WIDTH % quads * 4 + id % 4;
    unit += id / 4 / WIDTH / quads * UNITS;
    packed[id] = unit < H && k < K ? w[g * H * H + unit * su + k * sk] : 0;
}
