// LSTM and GRU over a sequence, and their gradients: what all of their kernels share. A program is this file, one that
// makes sums over k, and the steps:
//
//   recurrent_lanes.cl    sums on a CPU, in vectors       recurrent_steps.cl   one launch per time step
//   recurrent_tiles.cl    sums on a GPU, in tiles         recurrent_rows.cl    CPU: all steps in one launch, if a batch
//                                                                              has enough rows for all cores
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

// The rows and columns that a work-item computes.
typedef struct {
    int row, rows;      // the first row of the batch and their number; 0 for a work-item past the end
    int col, cols;      // the first column, and how many of the LANES columns exist
} Tile;
