// Halves: 16 bits in memory, converted to a float by every load. Stores round to the nearest value, ties to even;
// values that are too large become infinities.
//
//     bit  15     14 .. 10   9 .. 0
//          sign   exponent   fraction      largest 65504, smallest 2^-24, relative spacing 2^-11
//
// vload_half and vstore_half do this in every OpenCL. On CPUs integer arithmetic is used instead: the functions of
// PoCL 3.0 are calls that prevent vector code, and up to twenty times slower.

#ifndef HALF
#ifndef HALF_BITS  // 1: use integer arithmetic
#if defined(__x86_64__) || defined(__aarch64__) || defined(__arm__) || defined(__riscv)
#define HALF_BITS 1
#else
#define HALF_BITS 0
#endif
#endif

// A float's exponent has the bias 127 instead of 15, so the shifted bits are multiplied by 2^112. This is right for
// subnormal halves too. Infinities and NaN get the largest exponent.
inline float half_value(ushort bits) {
  const uint size = ((uint)bits & 0x7fffu) << 13;
  const uint value = as_uint(as_float(size) * 0x1p112f) | (size >= 0x0f800000u ? 0x7f800000u : 0u);
  return as_float(value | ((uint)bits & 0x8000u) << 16);
}

// Below 2^-14, adding 0.5 moves the fraction to its place and rounds it. Above, half of the last kept bit is added
// before the shift, less one if the last kept bit is even.
inline ushort half_bits(float value) {
  const uint all = as_uint(value), size = all & 0x7fffffffu;
  const uint small = as_uint(as_float(size) + 0.5f) - 0x3f000000u;
  const uint large = (size - 0x38000000u + 0x0fffu + ((size >> 13) & 1u)) >> 13;
  uint bits = size < 0x38800000u ? small : large;
  bits = size >= 0x477ff000u ? (size > 0x7f800000u ? 0x7e00u : 0x7c00u) : bits;
  return (ushort)(bits | ((all >> 16) & 0x8000u));
}

#if HALF_BITS
#define HALF ushort
#define GET_HALF(p, i) half_value((p)[i])
#define PUT_HALF(value, i, p) (p)[i] = half_bits(value)
#else
#define HALF half
#define GET_HALF(p, i) vload_half(i, p)
#define PUT_HALF(value, i, p) vstore_half(value, i, p)
#endif
#endif
