// Functions of a float that a compiler can turn into vector code: no calls, no branches, no tables.
//
// The functions of PoCL are scalar calls, ten times slower in a loop (in PoCL 3.0 even fabs, copysign and clamp).
// Errors are within 2 ulp, those of tanh and erf within 6 (3e-7 of the result). Most functions reduce their argument to
// a small range and evaluate a polynomial there.

inline float f_max(float a, float b) { return (a >= b || a != a) ? a : b; }
inline float f_min(float a, float b) { return (a <= b || a != a) ? a : b; }
inline float f_abs(float a) { return as_float(as_int(a) & 0x7fffffff); }
inline float f_within(float a, float low, float high) {
  return a < low ? low : a > high ? high : a;
}
inline float f_sign(float a) { return (float)((a > 0.0f) - (a < 0.0f)); }

// The lower and the higher of a bound and a value, each one instruction; a NaN stays.
inline float f_at_most(float high, float a) { return high < a ? high : a; }
inline float f_at_least(float low, float a) { return low > a ? low : a; }

// e^x = 2^n * e^r with |r| <= ln(2) / 2. ln(2) has two parts, so that n times the first part is exact. Adding
// 1.5 * 2^23 + 254 rounds to n; the last bits of the sum are then n + 254, the exponents of two factors of 2^n.
// (2^n itself may be out of range.)
inline float f_exp(float x) {
  const float y = f_at_least(-104.0f, f_at_most(89.0f, x));
  const float shifted = y * 1.44269502f + 12583166.0f;
  const float n = shifted - 12583166.0f;
  float r = y - n * 0.693359375f;
  r += n * 2.12194440e-4f;
  float p = 0.00139504799f;
  p = p * r + 0.00836888887f;
  p = p * r + 0.041666206f;
  p = p * r + 0.166665182f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  const uint bits = as_uint(shifted), half_ = bits >> 1;
  return p * as_float(half_ << 23) * as_float((bits - half_) << 23);
}

// e^x - 1: a polynomial near 0, where the subtraction would lose all digits.
inline float f_expm1(float x) {
  const float r = f_within(x, -0.5f, 0.5f);
  float p = 0.000199904738f;
  p = p * r + 0.0013997542f;
  p = p * r + 0.00833308231f;
  p = p * r + 0.0416653119f;
  p = p * r + 0.166666687f;
  p = p * r + 0.50000006f;
  p = p * (r * r) + r;
  return f_abs(x) < 0.5f ? p : f_exp(x) - 1.0f;
}

// log(2^e * m) = e * ln(2) + log(m), with m in [sqrt(1/2), sqrt(2)).
inline float f_log(float x) {
  const int small = x < 1.17549435e-38f;  // A subnormal number is scaled up first.
  const int bits = as_int(small ? x * 8388608.0f : x);
  const int shifted = bits - 0x3f3504f3;
  const float e = (float)((shifted >> 23) - (small ? 23 : 0));
  const float f = as_float((shifted & 0x007fffff) + 0x3f3504f3) - 1.0f;
  float p = -0.0762303174f;
  p = p * f + 0.129055813f;
  p = p * f + -0.13243033f;
  p = p * f + 0.141816229f;
  p = p * f + -0.166090474f;
  p = p * f + 0.200019851f;
  p = p * f + -0.250015855f;
  p = p * f + 0.333333254f;
  p = p * f + -0.499999881f;
  p = p * (f * f) + e * -2.12194440e-4f;
  p += f;
  p += e * 0.693359375f;
  p = x == 0.0f ? -INFINITY : p;
  p = x < 0.0f ? NAN : p;
  return (x != x || x == INFINITY) ? x : p;
}

// log(1 + x). The second term corrects the rounding error of 1 + x.
inline float f_log1p(float x) {
  const float u = 1.0f + x;
  const float p = f_log(u) + (x - (u - 1.0f)) / u;
  return (u == 1.0f || u == INFINITY || u == 0.0f) ? (u == 1.0f ? x : f_log(u)) : p;
}

inline float f_sigmoid(float x) { return 1.0f / (1.0f + f_exp(-x)); }

// x * P(x^2) / Q(x^2), where all coefficients are positive, so that nothing cancels. Beyond 9.05 the result is 1.
inline float f_tanh(float x) {
  const float t = f_at_most(81.9f, x * x);
  float p = 1.326585e-08f;
  p = p * t + 2.0545107e-05f;
  p = p * t + 0.003491703f;
  p = p * t + 0.13377754f;
  p = p * t + 1.0f;
  float q = 7.7402495e-07f;
  q = q * t + 0.00032792796f;
  q = q * t + 0.025862202f;
  q = q * t + 0.4671107f;
  q = q * t + 1.0f;
  return f_at_least(-1.0f, f_at_most(1.0f, x * p / q));
}

// As f_tanh. Beyond 3.95 the result is 1.
inline float f_erf(float x) {
  const float t = f_at_most(16.0f, x * x);
  float p = 2.0259079e-06f;
  p = p * t + 0.00028468834f;
  p = p * t + 0.0038081808f;
  p = p * t + 0.052875508f;
  p = p * t + 0.19155072f;
  p = p * t + 1.1283791f;
  float q = 3.783183e-05f;
  q = q * t + 0.0011707308f;
  q = q * t + 0.015055127f;
  q = q * t + 0.1145598f;
  q = q * t + 0.5030901f;
  q = q * t + 1.0f;
  return f_at_least(-1.0f, f_at_most(1.0f, x * p / q));
}
