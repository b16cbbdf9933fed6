// Writing by index: scatter and assign.
//
// SCATTER  index[o, k, i], src[o, k, i], base[o, v, i] -> out[o, v, i]
//   out = base or 0; for each k in order: out[o, index[o, k, i], i] += src (ADD) or = src
//
//   No atomics: a work-item owns what it writes, looks for the k that come to it, in order, and
//   writes once. An index that is no row of out finds no owner.
//
//   scatter_scan     item (o, v, i) reads all k indices: for small k.
//   scatter_starts   item (r, v): where the k of v start in the sorted indices of row r.
//   scatter_sorted   item (o, v, i) reads the k of v only: places[starts[v]] ...
//                    places[starts[v + 1] - 1]. Rows of sorted indices: one for each o if one index
//                    serves all i (the gradient of an embedding), else for each (o, i).
//   scatter_owned    for CPUs, where one index serves all i: an item owns every OWNERS-th row v (a
//                    power of two) and some columns i, starts them, then reads all k and adds in
//                    place, whole vectors at a time.
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
#ifndef CHUNK   // terms that are added up before they join the total
#define CHUNK 256
#endif
#ifndef RANK    // assign: dimensions of the region, 2, 4 or 8
#define RANK 4
#endif

// An element while it is being made.
typedef struct {
    ELEM sum;   // what is final
    ELEM part;  // ADD: the terms since the last CHUNK
    int terms;
} Element;

void element_take(Element *own, ELEM value) {
#if ADD
    own->part += value;
    if (++own->terms == CHUNK) {
        own->terms = 0;
        own->sum += own->part;
        own->part = 0;
    }
#else
    own->sum = value;
#endif
}

__kernel void scatter_scan(__global const int *index, __global const ELEM *src,
                           __global const ELEM *base, __global ELEM *out, int total, int has_base,
                           int V, int K, int I, int x0, int xo, int xk, int xi,
                           int s0, int so, int sk, int si, int b0, int bo, int bv, int bi) {
    int id = get_global_id(0);
    if (id >= total) return;
    int i = id % I, v = id / I % V, o = id / I / V;
    Element own = {has_base ? base[b0 + o * bo + v * bv + i * bi] : 0, 0, 0};
    for (int k = 0; k < K; k++)
        if (index[x0 + o * xo + k * xk + i * xi] == v)
            element_take(&own, src[s0 + o * so + k * sk + i * si]);
    out[id] = own.sum + own.part;
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
                             int rows_per_o, int s0, int so, int sk, int si,
                             int b0, int bo, int bv, int bi) {
    int id = get_global_id(0);
    if (id >= total) return;
    int i = id % I, v = id / I % V, o = id / I / V;
    int row = rows_per_o == 1 ? o : o * I + i;
    int begin = starts[row * (V + 1) + v], end = starts[row * (V + 1) + v + 1];
    Element own = {has_base ? base[b0 + o * bo + v * bv + i * bi] : 0, 0, 0};
#if !ADD
    begin = max(begin, end - 1);  // only the last one counts
#endif
    for (int at = begin; at < end; at++)
        element_take(&own, src[s0 + o * so + places[row * K + at] * sk + i * si]);
    out[id] = own.sum + own.part;
}

__kernel void scatter_owned(__global const int *index, __global const ELEM *src,
                            __global const ELEM *base, __global ELEM *out, int total, int has_base,
                            int V, int K, int I, int owners, int columns, int runs, int x0, int xo,
                            int xk, int xi, int s0, int so, int sk, int si,
                            int b0, int bo, int bv, int bi) {
    int id = get_global_id(0);
    if (id >= total) return;
    int first = id % runs * columns, count = min(columns, I - first);
    int owner = id / runs % owners, o = id / runs / owners;
    out += o * V * I + first;
    for (int v = owner; v < V; v += owners) {
        __global ELEM *row = out + v * I;
        __global const ELEM *from = base + b0 + o * bo + v * bv + first * bi;
        for (int j = 0; j < count; j++) row[j] = has_base ? from[j * bi] : 0;
    }
    for (int k = 0; k < K; k++) {
        int v = index[x0 + o * xo + k * xk];
        if ((v & (owners - 1)) != owner || v < 0 || v >= V) continue;
        __global ELEM *row = out + v * I;
        __global const ELEM *from = src + s0 + o * so + k * sk + first * si;
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#endif
        for (int j = 0; j < count; j++) row[j] = (ADD ? row[j] : 0) + from[j * si];
    }
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
