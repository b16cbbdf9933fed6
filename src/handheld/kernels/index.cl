// Writing by index: scatter and assign.
//
// SCATTER  index[o, k, i], src[o, k, i], base[o, v, i] -> out[o, v, i]
//   out = base or 0; for each k in order: out[o, index[o, k, i], i] += src (ADD) or = src
//
//   There are no atomics. A work-item owns the elements that it writes. It takes the k whose index names them, in
//   order. An index that is not a row of out has no owner and is ignored.
//
//   scatter_scan     Work-item (o, v, i) reads all K indices. For small K.
//   scatter_starts   Work-item (r, v) finds where the k of row v start in the sorted indices of row r.
//   scatter_sorted   Work-item (o, v, i) reads only the k of v: places[starts[v]] .. places[starts[v + 1] - 1]. The
//                    indices are sorted per o if one index serves all i (the gradient of an embedding), else
//                    per (o, i).
//   scatter_owned    CPUs, if one index serves all i. A work-item owns every `owners`-th row v (a power of two) and
//                    some columns i. It initialises them, then reads all K indices and adds in place, in vectors.
//
//        rows v of out:   0   1   2   3   4   5   6   7        owners = 4
//        owner:           0   1   2   3   0   1   2   3
//
// ASSIGN  out = base, but out[region] = value
//   assign_copy      A work-item copies four elements of base. This is harmless if out is base.
//   assign_region    A work-item writes a run of elements along dimension 0 of the region. The region has RANK
//                    dimensions, the innermost first, each with a size n, a stride r in out and a stride v in value.
//
// Parameters:

#ifndef ELEM    // type of the elements: float, int or uchar
#define ELEM float
#endif
#ifndef ADD     // scatter: 1 adds, 0 replaces
#define ADD 1
#endif
#ifndef CHUNK   // terms of the first level of a sum
#define CHUNK 256
#endif
#ifndef RANK    // assign: dimensions of the region, 2, 4 or 8
#define RANK 4
#endif

// An element of the output while its terms are collected.
typedef struct {
    ELEM sum;   // the total of all complete chunks
    ELEM part;  // ADD: the sum of the current chunk
    int terms;  // ADD: the number of terms in `part`
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

// keys[r, k], ascending -> starts[r, v] for v = 0 .. V: the number of keys below v.
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
    begin = max(begin, end - 1);  // Only the last value counts.
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

// Splits the coordinate of one dimension off id and adds it to the two offsets.
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
    if (r0 == 1 && v0 == 1) {  // Both sides are contiguous: use vector loads and stores.
        int j = 0;
        for (; j + 8 <= count; j += 8) vstore8(vload8(0, value + j), 0, out + j);
        for (; j < count; j++) out[j] = value[j];
    } else {
        for (int j = 0; j < count; j++) out[j * r0] = value[j * v0];
    }
}
