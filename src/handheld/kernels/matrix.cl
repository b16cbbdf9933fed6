// The matrix units of NVIDIA GPUs (tensor cores), for products of floats. OpenCL has no function for them, so this is
// their instruction.
//
// A unit multiplies numbers of 11 bits (TF32). Each float is split into two of them, x = high + low, and a product is
// the sum of three: low*high + high*low + high*high. What is left out, low*low, is as small as the rounding of a float.
// The units cut off the last bits when they add, so the sums of 8 terms leave them at once and are added up as floats.
//
// 32 items are a warp. With g = item / 4 % 8 and t = item % 4, an item gives to a product of 16 x 8 and 8 x 8 elements
// a[0..3], b[0..1] and gets d[0..3]:
//
//     a: rows g, g + 8, g, g + 8          d: rows g, g, g + 8, g + 8
//        terms t, t, t + 4, t + 4            columns 2t, 2t + 1, 2t, 2t + 1
//     b: terms t, t + 4; column g
//
// Rows, columns and terms may be numbered in any order. The kernels let the terms t and t + 4 be the neighbours 2t and
// 2t + 1 in local memory, so that items read from different banks.

#define HIGH(x) ((as_uint(x) + 0x1000u) & 0xffffe000u)
#define LOW(x, high) as_uint((x) - as_float(high))

// d += a * b
inline __attribute__((always_inline)) void unit(float d[4], const uint a[4], const uint b[2]) {
  __asm__("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%10, %11, %12, %13};"
          : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
            "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));
}
