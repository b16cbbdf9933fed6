// A matrix product without any tuning, as a baseline for comparisons. One work-item computes one element:
//
//     work-item (n, m, g):   acc = sum over k of a[g, m, k] * b[g, k, n],   then EPILOGUE
//
// Work-items share nothing: no tile, no local memory, no vectors. Every work-item reads its row of A and its column
// of B from global memory. A and B are views with any strides; g is a number with the digits (z, y, x).

#ifndef BATCH  // leading dimensions, 0 to 3
#define BATCH 0
#endif
#ifndef EPILOGUE  // statements that use acc and the coordinates d0, d1, ..; EPILOGUE_PARAMS begins with a comma
#define EPILOGUE_PARAMS , __global float *out
#define EPILOGUE out[(get_global_id(2) * M + m) * N + n] = acc;
#endif

#if BATCH == 0
#define POINT const int d0 = m, d1 = n;
#elif BATCH == 1
#define POINT const int d0 = gx, d1 = m, d2 = n;
#elif BATCH == 2
#define POINT const int d0 = gy, d1 = gx, d2 = m, d3 = n;
#else
#define POINT const int d0 = gz, d1 = gy, d2 = gx, d3 = m, d4 = n;
#endif

__kernel void naive(const __global float *a, const __global float *b, int M, int N, int K,
                    int a_0, int a_m, int a_k, int b_0, int b_k, int b_n, int g_y, int g_x,
                    int a_gz, int a_gy, int a_gx, int b_gz, int b_gy, int b_gx EPILOGUE_PARAMS) {
  const int n = get_global_id(0), m = get_global_id(1), g = get_global_id(2);
  if (m >= M || n >= N) return;
  const int gx = g % g_x, gy = g / g_x % g_y, gz = g / g_x / g_y;
  const __global float *row = a + a_0 + m * a_m + gz * a_gz + gy * a_gy + gx * a_gx;
  const __global float *col = b + b_0 + n * b_n + gz * b_gz + gy * b_gy + gx * b_gx;
  float acc = 0.0f;
  for (int k = 0; k < K; ++k) acc += row[k * a_k] * col[k * b_k];
  { POINT EPILOGUE }
}
