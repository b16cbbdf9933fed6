// Halves: 16 bits in memory, a float as soon as they are loaded; stores round to the nearest, ties
// to even, and what is too large becomes an infinity.
//
//     sign 1, exponent 5, fraction 10      largest 65504, smallest 2^-24, spacing 2^-11 of the value
//
// vload_half and vstore_half do this in every OpenCL. CPUs behind PoCL have the same in integer
// arithmetic instead: its own are calls that no loop turns into vector code (PoCL 3.0), up to
// twenty times slower.

#ifndef HALF
#ifndef HALF_BITS  // 1: in integer arithmetic
#if defined(__x86_64__) || defined(__aarch64__) || defined(__arm__) || defined(__riscv)
#define HALF_BITS 1
#else
#define HALF_BITS 0
#endif
#endif

// The exponent counts from 127 instead of 15: 2^112 times what the shifted bits are. That is right
// for the smallest ones too; infinities and NaN get the largest exponent.
inline float half_value(ushort bits) {
  const uint size = ((uint)bits & 0x7fffu) << 13;
  const uint value = as_uint(as_float(size) * 0x1p112f) | (size >= 0x0f800000u ? 0x7f800000u : 0u);
  return as_float(value | ((uint)bits & 0x8000u) << 16);
}

// Below 2^-14 the sum with 0.5 puts the fraction where it belongs and rounds it; above, half of
// what is cut off is added, less one where the bit that stays is even.
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
