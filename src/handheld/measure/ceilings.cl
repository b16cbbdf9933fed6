// Kernels that measure what a device can do at most.
//
// flops   Each work-item updates WIDE independent sums s = s * a + b of type T, in `rounds` rounds of 16
//         steps. Enough sums are in flight to hide the latency of one. Their values stay near 1.
// read    Each work-item adds up 4 elements of x per round.
// copy    Each work-item copies 4 elements of x to y per round.
//         In read and copy, element i of item g is g * own + ((g * shift + i * step) & mask):
//             CPU   own = mask + 1, shift = 0, step = 1           each item walks through its own part
//             GPU   own = 0, shift = 1, step = number of items    neighbours read neighbours
//         The mask keeps the walk inside a working set, whose size is a power of two elements.
// nothing Does nothing: its time is the cost of a launch.

#ifndef T
#define T float    // float, float4, float16, or the same with half
#endif
#ifndef WIDE
#define WIDE 8     // sums per work-item
#endif
#ifdef FUSED       // one fma instruction, which some devices have only in software
#define STEP(s, a, b) fma(s, a, b)
#else
#define STEP(s, a, b) ((s) * (a) + (b))
#endif

#ifdef HALF
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif

#ifdef FLOPS
__kernel void flops(__global T *y, float fa, float fb, int rounds)
{
    const T a = (T)((SCALAR)fa), b = (T)((SCALAR)fb);
    T s[WIDE];
    #pragma unroll
    for (int i = 0; i < WIDE; i++)
        s[i] = (T)((SCALAR)(0.25f + 0.0625f * i + 1e-6f * get_global_id(0)));
    for (int r = 0; r < rounds; r++) {
        #pragma unroll
        for (int k = 0; k < 16; k++) {
            #pragma unroll
            for (int i = 0; i < WIDE; i++)
                s[i] = STEP(s[i], a, b);
        }
    }
    #pragma unroll
    for (int i = 1; i < WIDE; i++)
        s[0] += s[i];
    y[get_global_id(0)] = s[0];
}
#else
__kernel void read(__global const T *x, __global T *y, uint own, uint shift, uint step, uint mask,
                   uint rounds)
{
    uint at = (uint)get_global_id(0) * shift;
    x += (uint)get_global_id(0) * own;
    T s0 = (T)(0.0f), s1 = s0, s2 = s0, s3 = s0;
    for (uint r = 0; r < rounds; r++, at += 4 * step) {
        s0 += x[at & mask];
        s1 += x[(at + step) & mask];
        s2 += x[(at + 2 * step) & mask];
        s3 += x[(at + 3 * step) & mask];
    }
    y[get_global_id(0)] = s0 + s1 + s2 + s3;
}

__kernel void copy(__global const T *x, __global T *y, uint own, uint shift, uint step, uint mask,
                   uint rounds)
{
    uint at = (uint)get_global_id(0) * shift;
    x += (uint)get_global_id(0) * own;
    y += (uint)get_global_id(0) * own;
    for (uint r = 0; r < rounds; r++, at += 4 * step) {
        y[at & mask] = x[at & mask];
        y[(at + step) & mask] = x[(at + step) & mask];
        y[(at + 2 * step) & mask] = x[(at + 2 * step) & mask];
        y[(at + 3 * step) & mask] = x[(at + 3 * step) & mask];
    }
}

__kernel void nothing(__global T *y)
{
}
#endif
