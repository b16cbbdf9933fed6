// Functions of a float that a compiler can turn into vector code: no calls, no branches, no tables.
//
// The functions of PoCL are scalar calls, ten times slower in a loop (in PoCL 3.0 even fabs, copysign and clamp).
// Errors are within 2 ulp. Most functions reduce their argument to a small range and evaluate a polynomial there.

inline float f_max(float a, float b) { return (a >= b || a != a) ? a : b; }
inline float f_min(float a, float b) { return (a <= b || a != a) ? a : b; }
inline float f_abs(float a) { return as_float(as_int(a) & 0x7fffffff); }
inline float f_with_sign(float a, float sign) {
  return as_float((as_int(a) & 0x7fffffff) | (as_int(sign) & (int)0x80000000));
}
inline float f_within(float a, float low, float high) {
  return a < low ? low : a > high ? high : a;
}
inline float f_sign(float a) { return (float)((a > 0.0f) - (a < 0.0f)); }

// 2^n for n in [-126, 127].
inline float f_two_to(int n) { return as_float((n + 127) << 23); }

// e^x = 2^n * e^r with |r| <= ln(2) / 2. ln(2) has two parts, so that n times the first part is exact.
inline float f_exp(float x) {
  const float y = f_within(x, -104.0f, 89.0f);
  const float n = (y * 1.44269502f + 12582912.0f) - 12582912.0f;
  float r = y - n * 0.693359375f;
  r += n * 2.12194440e-4f;
  float p = 0.00139504799f;
  p = p * r + 0.00836888887f;
  p = p * r + 0.041666206f;
  p = p * r + 0.166665182f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  // 2^n is multiplied in two factors, because 2^n itself may be out of range.
  const int whole = (int)n, half_ = whole >> 1;
  p = p * f_two_to(half_) * f_two_to(whole - half_);
  return x != x ? x : p;
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

// A polynomial near 0; otherwise 1 - 2 / (e^(2|x|) + 1).
inline float f_tanh(float x) {
  const float a = f_abs(x), t = f_min(a * a, 0.36f);
  float p = 0.00223105261f;
  p = p * t + -0.00826707855f;
  p = p * t + 0.0217344351f;
  p = p * t + -0.0539524741f;
  p = p * t + 0.133332476f;
  p = p * t + -0.333333313f;
  p = p * (t * a) + a;
  const float far = 1.0f - 2.0f / (f_exp(2.0f * a) + 1.0f);
  return f_with_sign(a < 0.6f ? p : far, x);
}

// A polynomial for |x| < 1; otherwise 1 - e^Q(|x|) with a polynomial Q.
inline float f_erf(float x) {
  const float a = f_abs(x), t = f_min(a * a, 1.0f), b = a > 4.0f ? 4.0f : a;
  float p = -9.68012591e-06f;
  p = p * t + 0.000112705406f;
  p = p * t + -0.000848471071f;
  p = p * t + 0.00522107491f;
  p = p * t + -0.0268654451f;
  p = p * t + 0.112837829f;
  p = p * t + -0.376126379f;
  p = p * t + 0.128379166f;
  p = p * a + a;
  float q = 8.13812619e-07f;
  q = q * b + -1.2948165e-05f;
  q = q * b + 6.79939185e-05f;
  q = q * b + 8.63482783e-05f;
  q = q * b + -0.00331924413f;
  q = q * b + 0.0237650424f;
  q = q * b + -0.106879994f;
  q = q * b + -0.634254813f;
  q = q * b + -1.1291796f;
  q = q * b + 0.000120920544f;
  const float far = 1.0f - f_exp(q);
  return f_with_sign(a < 1.0f ? p : far, x);
}
