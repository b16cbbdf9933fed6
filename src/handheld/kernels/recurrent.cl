// LSTM and GRU over a sequence, and their gradients. There is one launch per time step. If a batch has enough rows for
// all cores of a CPU, recurrent_rows.cl makes all steps in one launch.
//
//   lstm   i, f, g, o = sigmoid, sigmoid, tanh, sigmoid of gx[t] + w h         (gx has the biases)
//          c' = f*c + i*g            h' = o*tanh(c')
//   gru    r, z = sigmoid of gx[t] + w h + bias       hn = w_n h + bias_n
//          n = tanh(gx_n + r*hn)     h' = (1 - z)*n + z*h
//
//   The gradients go from the last step to the first. d is the gradient before the activations:
//          dh = dh[t] + (from the later step: d w, and for gru also dh*z)
//
// Layout, dense: gx[t, b, G, H], h[t, b, H], w[G, H, H], with G = 4 gates (lstm) or 3 (gru). A launch gets its step as
// the row `at` = t*B of these tensors, and the neighbouring step as the row `near`.
//
// The weights are packed once per sequence, so that a step reads them in order:
//
//   packed[panel j / P][k][gate][j % P]           P = `panel` columns, on a CPU LANES; H is rounded up with zeros
//   forward   sum over k    of h[b, k]        * w[gate, j, k]      one sum per gate
//   backward  sum over g, k of d[b, g*H + k]  * w[g, k, j]         one sum per gate, then added up
//
// CPU:
//            j: |LANES|LANES|LANES|
//      b  ROWS  |item |     |     |      A work-item computes ROWS x LANES of h (or dh), all gates. Each packed
//         ROWS  |     |     |     |      weight that it loads serves ROWS rows of the batch.
//
//   get_global_id: block of rows, block of lanes. A work-group of several row blocks shares a panel in the cache.
//
// GPU (UNITS is defined): it needs many work-items with little work each. So a work-group takes a tile, and its
// work-items ("items") share the sum over k:
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
// Parameters:

#ifndef LANES  // columns per work-item: 1, 4, 8 or 16
#define LANES 16
#endif
#ifndef ROWS   // rows of the batch per work-item
#define ROWS 2
#endif
#ifndef PANELS // gradients: panels of LANES columns that a work-item computes at once
#define PANELS 1
#endif
#ifndef CHUNK  // terms of the first level of a sum
#define CHUNK 256
#endif
#ifdef UNITS   // hidden units of a tile. These are defined with it:
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
#else
#define SHARED
#define POOL_ARG
#define POOL_PARAM
#endif

#define UNROLL _Pragma("unroll")  // Arrays stay in registers only if all their indices are constants.

#define GLUE_(a, b) a##b
#define GLUE(a, b) GLUE_(a, b)
#if LANES == 1
typedef float lanes;
#else
typedef GLUE(float, LANES) lanes;
#endif
// Loads and stores go through pointers. With vload, PoCL 3.0 keeps the loaded values in memory.
typedef lanes __attribute__((aligned(4))) loose;
#define LOAD(p) (*(__global const loose *)(p))
#define STORE(v, p) (*(__global loose *)(p) = (v))
#define OWN_LOAD(p) (*(const loose *)(p))
#define OWN_STORE(v, p) (*(loose *)(p) = (v))

// The first `count` lanes at p, and zeros. A row of H elements may end inside a vector.
lanes load_some(__global const float *p, int count) {
    if (count >= LANES) return LOAD(p);
    float part[LANES];
    for (int l = 0; l < LANES; l++) part[l] = l < count ? p[l] : 0;
    return OWN_LOAD(part);
}

void store_some(lanes v, __global float *p, int count) {
    if (count >= LANES) {
        STORE(v, p);
    } else {
        float part[LANES];
        OWN_STORE(v, part);
        for (int l = 0; l < LANES; l++)
            if (l < count) p[l] = part[l];
    }
}

#ifdef UNITS
float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
float tanh_(float x) { return tanh(x); }
#else  // math.cl comes before this file. The functions of OpenCL may be one call per lane.
#ifdef __clang__
#define VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define VECTORIZE
#endif
#define DEFINE_LANES(NAME, FUNCTION)                                 \
    lanes NAME(lanes x) {                                            \
        float each[LANES];                                           \
        OWN_STORE(x, each);                                          \
        VECTORIZE                                                    \
        for (int l = 0; l < LANES; l++) each[l] = FUNCTION(each[l]); \
        return OWN_LOAD(each);                                       \
    }
DEFINE_LANES(sigmoid, f_sigmoid)
DEFINE_LANES(tanh_, f_tanh)
#endif

// The rows and columns that a work-item computes.
typedef struct {
    int row, rows;      // the first row of the batch and their number; 0 for a work-item past the end
    int col, cols;      // the first column, and how many of the LANES columns exist
} Tile;

#ifdef UNITS
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

#else
Tile tile_at(int row, int col, int B, int H) {
    Tile own;
    own.row = row * ROWS;
    own.col = col * LANES;
    own.rows = own.col < H ? clamp(B - own.row, 0, ROWS) : 0;
    own.cols = min(LANES, H - own.col);
    return own;
}
#define tile_of(B, H) tile_at(get_global_id(0), get_global_id(1), B, H)

// sum[r][g] = sum over k of a[row r][g*spread + k] * packed[k][g]; rows of a are `stride` elements apart. Rows past the
// end of the batch repeat the last row, so that the loop needs no test.
#define DEFINE_DOT(NAME, G)                                                                        \
    void NAME(lanes sum[ROWS][G], __global const float *a, int B, int stride, int spread,          \
              __global const float *packed, int H, int panel, Tile own) {                          \
        if (own.rows == 0) return;                                                                 \
        packed += own.col * H * G;                                                                   \
        __global const float *row[ROWS];                                                           \
        UNROLL                                                                                     \
        for (int r = 0; r < ROWS; r++) {                                                           \
            row[r] = a + (own.row + min(r, own.rows - 1)) * stride;                                \
            UNROLL                                                                                 \
            for (int g = 0; g < G; g++) sum[r][g] = 0;                                             \
        }                                                                                          \
        for (int start = 0; start < H; start += CHUNK) {                                           \
            lanes part[ROWS][G];                                                                   \
            UNROLL                                                                                 \
            for (int r = 0; r < ROWS; r++)                                                         \
                UNROLL                                                                             \
                for (int g = 0; g < G; g++) part[r][g] = 0;                                        \
            int end = min(start + CHUNK, H);                                                       \
            for (int k = start; k < end; k++)                                                      \
                UNROLL                                                                             \
                for (int g = 0; g < G; g++) {                                                      \
                    lanes weight = LOAD(packed + (k * G + g) * LANES);                             \
                    UNROLL                                                                         \
                    for (int r = 0; r < ROWS; r++)                                                 \
                        part[r][g] += row[r][g * spread + k] * weight;                             \
                }                                                                                  \
            UNROLL                                                                                 \
            for (int r = 0; r < ROWS; r++)                                                         \
                UNROLL                                                                             \
                for (int g = 0; g < G; g++) sum[r][g] += part[r][g];                               \
        }                                                                                          \
    }

// sum[r][v] = sum over g, k of a[row r][g*H + k] * packed[panel v of the tile][k][g], for PANELS panels from own.col.
// Each element of a that is loaded serves all of them. Panels past the end repeat the last one.
#if PANELS > 1
#define DEFINE_BACK(NAME, G)                                                                       \
    void NAME(lanes sum[ROWS][PANELS], __global const float *a, int B, __global const float *packed, \
              int H, Tile own) {                                                                   \
        if (own.rows == 0) return;                                                                 \
        __global const float *row[ROWS], *column[PANELS];                                          \
        UNROLL                                                                                     \
        for (int v = 0; v < PANELS; v++)                                                           \
            column[v] = packed + min(own.col / LANES + v, (H - 1) / LANES) * LANES * H * G;        \
        UNROLL                                                                                     \
        for (int r = 0; r < ROWS; r++) {                                                           \
            row[r] = a + (own.row + min(r, own.rows - 1)) * G * H;                                 \
            UNROLL                                                                                 \
            for (int v = 0; v < PANELS; v++) sum[r][v] = 0;                                        \
        }                                                                                          \
        for (int start = 0; start < H; start += CHUNK / G) {                                       \
            lanes part[ROWS][PANELS];                                                              \
            UNROLL                                                                                 \
            for (int r = 0; r < ROWS; r++)                                                         \
                UNROLL                                                                             \
                for (int v = 0; v < PANELS; v++) part[r][v] = 0;                                   \
            int end = min(start + CHUNK / G, H);                                                   \
            for (int k = start; k < end; k++)                                                      \
                UNROLL                                                                             \
                for (int g = 0; g < G; g++) {                                                      \
                    lanes weight[PANELS];                                                          \
                    UNROLL                                                                         \
                    for (int v = 0; v < PANELS; v++) weight[v] = LOAD(column[v] + (k * G + g) * LANES); \
                    UNROLL                                                                         \
                    for (int r = 0; r < ROWS; r++)                                                 \
                        UNROLL                                                                     \
                        for (int v = 0; v < PANELS; v++) part[r][v] += row[r][g * H + k] * weight[v]; \
                }                                                                                  \
            UNROLL                                                                                 \
            for (int r = 0; r < ROWS; r++)                                                         \
                UNROLL                                                                             \
                for (int v = 0; v < PANELS; v++) sum[r][v] += part[r][v];                          \
        }                                                                                          \
    }
#endif
#endif

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

#ifndef UNITS
// Makes packed[panel][k][g][lane] from w, whose element (g, j, k) is at g*H*H + j*sj + k*sk, where sj or sk is 1.
// get_global_id: block of PACKED terms, gate, panel.
#define PACKED 16
__kernel void pack(__global const float *w, __global float *packed, int H, int panel, int sj, int sk) {
    const int first = get_global_id(0) * PACKED, g = get_global_id(1), G = get_global_size(1);
    const int col = get_global_id(2) * LANES, cols = min(LANES, H - col), terms = min(PACKED, H - first);
    __global const float *from = w + g * H * H + col * sj + first * sk;
    __global float *to = packed + ((get_global_id(2) * H + first) * G + g) * LANES;
    if (sj == 1) {
        for (int k = 0; k < terms; k++) STORE(load_some(from + k * sk, cols), to + k * G * LANES);
        return;
    }
    float square[PACKED][LANES];
    for (int l = 0; l < LANES; l++)
        for (int k = 0; k < terms; k++) square[k][l] = l < cols ? from[l * sj + k] : 0;
    for (int k = 0; k < terms; k++) STORE(OWN_LOAD(square[k]), to + k * G * LANES);
}
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
