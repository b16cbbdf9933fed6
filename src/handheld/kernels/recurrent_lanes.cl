// Sums over k for recurrent.cl on a CPU, in vectors. math.cl comes before this file: the functions of OpenCL may be one
// call per lane.
//
//            j: |LANES|LANES|LANES|
//      b  ROWS  |item |     |     |      A work-item computes ROWS x LANES of h (or dh), all gates. Each packed
//         ROWS  |     |     |     |      weight that it loads serves ROWS rows of the batch.
//
//   get_global_id: block of rows, block of lanes. A work-group of several row blocks shares a panel in the cache.

#define SHARED
#define POOL_ARG
#define POOL_PARAM

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
