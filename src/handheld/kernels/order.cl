// Sorting along a dimension, and scans: running sums, products, maxima and minima.
//
// SORT  rows of n elements -> positions in ascending order of their keys; equal elements keep their order.
//   The key is an integer with the same order as the element. For floats it is the bits, negated for negative
//   numbers; both zeros have the same key, and NaN has the largest. `flip` = -1 complements the key, which makes the
//   order descending and still keeps the order of equal elements.
//
//   sort_blocks   A row is cut into blocks. The place of an element in its sorted block is the number of elements
//                 before it: smaller keys, and equal keys to its left. One work-item per element.
//   sort_merge    Merges pairs of sorted runs of `width` into runs of 2*width. The new place of an element is its
//                 place in its own run, plus the number of elements of the other run that come before it (found
//                 by bisection). One work-item per element. Launched with width, 2*width, 4*width, ..
//
//        |3 1|0 2|  --blocks-->  |1 3|0 2|  --merge-->  |0 1 2 3|
//                                   ^ place 1, plus 2 smaller in the other run -> place 3
//
//   sort_take     values[row, j] = x[row, position[row, j]]
//
// SCAN  x[o, n, i] -> out[o, n, i], dense; out[j] = x[0] (+) .. (+) x[j], or from the end.
//   scan_lines    Work-item (o, i) walks along all of n. For many lines, or short ones.
//
//   Few long lines would leave a GPU idle. They are cut into pieces of CHUNK elements:
//   scan_totals   Work-item (o, c, i) computes the total of piece c.
//   scan_carry    Work-item (o, i) replaces the total of each piece by the sum of the totals before it.
//   scan_pieces   Work-item (o, c, i) walks along its piece, starting from that sum.
//
//        n:       [....CHUNK....][....CHUNK....][..rest..]
//        totals:        a              b            c
//        carry:         0              a           a+b
//
// Parameters:

#ifndef FLOAT   // 1: elements are float, 0: int
#define FLOAT 1
#endif
#ifndef MODE    // scan: 0 add, 1 mul, 2 max, 3 min
#define MODE 0
#endif
#ifndef CHUNK   // terms of the first level of a sum, and the length of a piece
#define CHUNK 256
#endif

#if FLOAT
#define ELEM float
#define LOWEST (-INFINITY)
#define HIGHEST INFINITY
#define IS_NAN(x) isnan(x)
#else
#define ELEM int
#define LOWEST INT_MIN
#define HIGHEST INT_MAX
#define IS_NAN(x) 0
#endif

int key_of(int bits) {
#if FLOAT
    int magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return INT_MAX;  // NaN
    return bits < 0 ? -magnitude : magnitude;    // Both zeros become 0.
#else
    return bits;
#endif
}

// x is read as bits through a view [outer, n, inner]; the row number is outer*inner_size + inner.
__kernel void sort_blocks(__global const int *x, __global int *keys, __global int *places,
                          int total, int n, int block, int flip, int inner_size,
                          int offset, int s_outer, int s_n, int s_inner) {
    int id = get_global_id(0);
    if (id >= total) return;
    int row = id / n, j = id % n;
    __global const int *line = x + offset + row / inner_size * s_outer + row % inner_size * s_inner;
    int begin = j / block * block, end = min(begin + block, n), rank = 0;
    int key = key_of(line[j * s_n]) ^ flip;
    for (int k = begin; k < j; k++) rank += (key_of(line[k * s_n]) ^ flip) <= key;
    for (int k = j + 1; k < end; k++) rank += (key_of(line[k * s_n]) ^ flip) < key;
    keys[row * n + begin + rank] = key;
    places[row * n + begin + rank] = j;
}

__kernel void sort_merge(__global const int *keys, __global const int *places,
                         __global int *out_keys, __global int *out_places, int total, int n,
                         int width) {
    int id = get_global_id(0);
    if (id >= total) return;
    int row = id / n, j = id % n;
    __global const int *line = keys + row * n;
    int begin = j / width / 2 * width * 2;
    int middle = n - begin > width ? begin + width : n;   // Written so that no sum overflows.
    int end = n - middle > width ? middle + width : n;
    int left = j < middle, key = line[j];
    // Bisect the other run. Elements of the left run come before equal ones of the right run.
    int low = left ? middle : begin, high = left ? end : middle, first = low;
    while (low < high) {
        int at = low + (high - low) / 2, other = line[at];
        if (left ? other < key : other <= key) low = at + 1;
        else high = at;
    }
    int to = row * n + (left ? j : j - (middle - begin)) + (low - first);
    out_keys[to] = key;
    out_places[to] = places[id];
}

__kernel void sort_take(__global const int *x, __global const int *places, __global int *values,
                        int total, int n) {
    int id = get_global_id(0);
    if (id >= total) return;
    values[id] = x[id / n * n + places[id]];
}

#if MODE == 0
#define NEUTRAL 0
ELEM join(ELEM a, ELEM b) { return a + b; }
#elif MODE == 1
#define NEUTRAL 1
ELEM join(ELEM a, ELEM b) { return a * b; }
#elif MODE == 2
#define NEUTRAL LOWEST
ELEM join(ELEM a, ELEM b) { return b > a || IS_NAN(b) ? b : a; }  // A NaN stays.
#else
#define NEUTRAL HIGHEST
ELEM join(ELEM a, ELEM b) { return b < a || IS_NAN(b) ? b : a; }
#endif

__kernel void scan_lines(__global const ELEM *x, __global ELEM *out, int total, int n, int inner,
                         int reverse) {
    int id = get_global_id(0);
    if (id >= total) return;
    int at = id / inner * n * inner + id % inner + (reverse ? (n - 1) * inner : 0);
    int step = reverse ? -inner : inner;
    ELEM sum = NEUTRAL, part = NEUTRAL;
    for (int j = 0; j < n; j++, at += step) {
#if MODE != 1  // The product of a piece could overflow even if the whole product does not.
        if (j % CHUNK == 0) {
            sum = join(sum, part);
            part = NEUTRAL;
        }
#endif
        part = join(part, x[at]);
        out[at] = join(sum, part);
    }
}

__kernel void scan_totals(__global const ELEM *x, __global ELEM *totals, int total, int n,
                          int inner, int pieces, int reverse) {
    int id = get_global_id(0);
    if (id >= total) return;
    int i = id % inner, piece = id / inner % pieces, o = id / inner / pieces;
    ELEM part = NEUTRAL;
    for (int j = piece * CHUNK; j < n && j - piece * CHUNK < CHUNK; j++)
        part = join(part, x[(o * n + (reverse ? n - 1 - j : j)) * inner + i]);
    totals[id] = part;
}

__kernel void scan_carry(__global ELEM *totals, int total, int inner, int pieces) {
    int id = get_global_id(0);
    if (id >= total) return;
    int at = id / inner * pieces * inner + id % inner;
    ELEM sum = NEUTRAL, part = NEUTRAL;
    for (int piece = 0; piece < pieces; piece++, at += inner) {
        if (piece % CHUNK == 0) {
            sum = join(sum, part);
            part = NEUTRAL;
        }
        ELEM own = totals[at];
        totals[at] = join(sum, part);
        part = join(part, own);
    }
}

__kernel void scan_pieces(__global const ELEM *x, __global const ELEM *totals, __global ELEM *out,
                          int total, int n, int inner, int pieces, int reverse) {
    int id = get_global_id(0);
    if (id >= total) return;
    int i = id % inner, piece = id / inner % pieces, o = id / inner / pieces;
    ELEM before = totals[id], part = NEUTRAL;
    for (int j = piece * CHUNK; j < n && j - piece * CHUNK < CHUNK; j++) {
        int at = (o * n + (reverse ? n - 1 - j : j)) * inner + i;
        part = join(part, x[at]);
        out[at] = join(before, part);
    }
}
