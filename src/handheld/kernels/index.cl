// Writing by index: scatter and assign.
//
// SCATTER  index[o, k, i], src[o, k, i], base[o, v, i] -> out[o, v, i]
//   out = base or 0; for each k in order: out[o, index[o, k, i], i] += src (ADD) or = src
//
//   No atomics: a work-item owns one destination (o, v) and a run of WIDTH columns, looks for the k
//   that come to it, in order, and writes once. An index that is no row of out finds no owner.
//
//              i: |<- WIDTH ->|<- WIDTH ->|        WIDTH > 1 needs one index for the whole run
//      v      +---+-----------+-----------+        (a view of stride 0 along i, as in the gradient
//      |  ... |   |  item     |  item + 1 |        of an embedding)
//             +---+-----------+-----------+
//
//   scatter_scan     reads all k indices: for small k.
//   scatter_starts   item (r, v): where the k of v start in the sorted indices of row r.
//   scatter_sorted   reads the k of v only: places[starts[v]] ... places[starts[v + 1] - 1].
//                    Rows of sorted indices: one for each o, or, without WIDTH, for each (o, i).
//
// ASSIGN  out = base, but out[region] = value
//   assign_copy      item: four elements of base; harmless if out is base.
//   assign_region    item: a run of elements along dimension 0 of the region, which has RANK
//                    dimensions (size n, stride r in out, stride v in value), the innermost first.
//
// Parameters:

#ifndef ELEM    // type of the elements: float, int or uchar
#define ELEM float
#endif
#ifndef ADD     // scatter: 1 adds, 0 replaces
#define ADD 1
#endif
#ifndef WIDTH   // scatter: columns of a work-item
#define WIDTH 1
#endif
#ifndef CHUNK   // terms that are added up before they join the total
#define CHUNK 256
#endif
#ifndef RANK    // assign: dimensions of the region, 2, 4 or 8
#define RANK 4
#endif

// The columns of a work-item while they are being made.
typedef struct {
    ELEM sum[WIDTH];   // what is final
    ELEM part[WIDTH];  // ADD: the terms since the last CHUNK
    int terms;
} Columns;

void columns_open(Columns *own, __global const ELEM *base, int has_base, int stride, int count) {
    own->terms = 0;
    for (int j = 0; j < WIDTH; j++) {
        own->part[j] = 0;
        own->sum[j] = has_base && j < count ? base[j * stride] : 0;
    }
}

void columns_take(Columns *own, __global const ELEM *src, int stride, int count) {
#if ADD
    if (count == WIDTH && stride == 1) {  // a loop without conditions becomes vector loads
        for (int j = 0; j < WIDTH; j++) own->part[j] += src[j];
    } else {
        for (int j = 0; j < WIDTH; j++)
            if (j < count) own->part[j] += src[j * stride];
    }
    if (++own->terms == CHUNK) {
        own->terms = 0;
        for (int j = 0; j < WIDTH; j++) {
            own->sum[j] += own->part[j];
            own->part[j] = 0;
        }
    }
#else
    for (int j = 0; j < WIDTH; j++)
        if (j < count) own->sum[j] = src[j * stride];
#endif
}

void columns_close(Columns *own, __global ELEM *out, int count) {
    for (int j = 0; j < WIDTH; j++)
        if (j < count) out[j] = own->sum[j] + own->part[j];
}

__kernel void scatter_scan(__global const int *index, __global const ELEM *src,
                           __global const ELEM *base, __global ELEM *out, int total, int has_base,
                           int V, int K, int I, int runs, int x0, int xo, int xk, int xi,
                           int s0, int so, int sk, int si, int b0, int bo, int bv, int bi) {
    int id = get_global_id(0);
    if (id >= total) return;
    int i = id % runs * WIDTH, v = id / runs % V, o = id / runs / V;
    int count = min(WIDTH, I - i);
    Columns own;
    columns_open(&own, base + b0 + o * bo + v * bv + i * bi, has_base, bi, count);
    for (int k = 0; k < K; k++)
        if (index[x0 + o * xo + k * xk + i * xi] == v)
            columns_take(&own, src + s0 + o * so + k * sk + i * si, si, count);
    columns_close(&own, out + (o * V + v) * I + i, count);
}

// keys[r, k] ascending -> starts[r, v] for v = 0 ... V: how many keys are below v
__kernel void scatter_starts(__global const int *keys, __global int *starts, int total, int V,
                             int K) {
    int id = get_global_id(0);
    if (id >= total) return;
    int v = id % (V + 1);
    __global const int *row = keys + id / (V + 1) * K;
    int low = 0, high = K;
    while (low < high) {
        int at = low + (high - low) / 2;
        if (row[at] < v) low = at + 1;
        else high = at;
    }
    starts[id] = low;
}

__kernel void scatter_sorted(__global const int *starts, __global const int *places,
                             __global const ELEM *src, __global const ELEM *base,
                             __global ELEM *out, int total, int has_base, int V, int K, int I,
                             int runs, int rows_per_o, int s0, int so, int sk, int si,
                             int b0, int bo, int bv, int bi) {
    int id = get_global_id(0);
    if (id >= total) return;
    int i = id % runs * WIDTH, v = id / runs % V, o = id / runs / V;
    int count = min(WIDTH, I - i);
    int row = rows_per_o == 1 ? o : o * I + i;
    int begin = starts[row * (V + 1) + v], end = starts[row * (V + 1) + v + 1];
    Columns own;
    columns_open(&own, base + b0 + o * bo + v * bv + i * bi, has_base, bi, count);
#if !ADD
    begin = max(begin, end - 1);  // only the last one counts
#endif
    for (int at = begin; at < end; at++)
        columns_take(&own, src + s0 + o * so + places[row * K + at] * sk + i * si, si, count);
    columns_close(&own, out + (o * V + v) * I + i, count);
}

__kernel void assign_copy(__global const ELEM *base, __global ELEM *out, int total) {
    int at = get_global_id(0) * 4;
    if (at >= total) return;
    if (total - at >= 4) {
        vstore4(vload4(0, base + at), 0, out + at);
    } else {
        for (; at < total; at++) out[at] = base[at];
    }
}

// takes the coordinate of a dimension out of id
#define PLACE(n, r, v)           \
    left = id / n;               \
    to += (id - left * n) * r;   \
    from += (id - left * n) * v; \
    id = left;

__kernel void assign_region(__global const ELEM *value, __global ELEM *out, int total, int run,
                            int from, int to, int n0, int r0, int v0, int n1, int r1, int v1
#if RANK > 2
                            , int n2, int r2, int v2, int n3, int r3, int v3
#endif
#if RANK > 4
                            , int n4, int r4, int v4, int n5, int r5, int v5
                            , int n6, int r6, int v6, int n7, int r7, int v7
#endif
) {
    int id = get_global_id(0), left;
    if (id >= total) return;
    int runs = (n0 + run - 1) / run, start = id % runs * run, count = min(run, n0 - start);
    id /= runs;
    PLACE(n1, r1, v1)
#if RANK > 2
    PLACE(n2, r2, v2) PLACE(n3, r3, v3)
#endif
#if RANK > 4
    PLACE(n4, r4, v4) PLACE(n5, r5, v5) PLACE(n6, r6, v6) PLACE(n7, r7, v7)
#endif
    out += to + start * r0;
    value += from + start * v0;
    if (r0 == 1 && v0 == 1) {  // neighbours on both sides: vector loads and stores
        int j = 0;
        for (; j + 8 <= count; j += 8) vstore8(vload8(0, value + j), 0, out + j);
        for (; j < count; j++) out[j] = value[j];
    } else {
        for (int j = 0; j < count; j++) out[j * r0] = value[j * v0];
    }
}
