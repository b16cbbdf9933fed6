// Contractions on matrix units: what contract_local.cl does with MATRIX 1 instead of its own multiplication. matrix.cl
// comes before this file and contract_local.cl after it.
//
// The warps lie WX/4 across and WY/8 down. Item 4*g + t of a warp has the rows 4*g and the columns 8*t of each block of
// 32 x 32 results, and holds the terms 2*t and 2*t + 1 of As and Bs:
//
//      one warp, 32 x 32 results (PM 4, PN 8)             8 terms of As, Bs
//         +--8--+--8--+--8--+--8--+
//       4 | t 0 | t 1 | t 2 | t 3 |  g 0                  0, 1:  t 0
//         +-----+-----+-----+-----+                       2, 3:  t 1
//       4 | t 0 | t 1 | t 2 | t 3 |  g 1                  4, 5:  t 2
//         +-----+-----+-----+-----+                       6, 7:  t 3
//         :     :     :     :     :  g 7
//
// Halves in memory have 11 bits and no low part, so they need fewer products.

// 8 or 16 terms are added up in the units before their sum is added to the others (UNROLL).
#define PARTS (UNROLL / 8)

// sum += as * bs for UNROLL terms. `as` and `bs` begin at the first term of the item. Pitches count float4s.
inline __attribute__((always_inline))
void multiply(__local const float4 *as, const int a_pitch, __local const float4 *bs, const int b_pitch,
              float sum[PM][PN]) {
  uint b_high[PARTS][PN / 2][2], b_low[PARTS][PN / 2][2];
#pragma unroll
  for (int u = 0; u < PARTS; ++u)
#pragma unroll
    for (int j = 0; j < PN / 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float4 right = bs[(8 * u + h) * b_pitch + j * 2 * WX];
        const float of[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          b_high[u][4 * j + c][h] = HIGH(of[c]);
          b_low[u][4 * j + c][h] = LOW(of[c], b_high[u][4 * j + c][h]);
        }
      }
#pragma unroll
  for (int i = 0; i < PM / 4; ++i)
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      uint a_high[PARTS][4], a_low[PARTS][4];
#pragma unroll
      for (int u = 0; u < PARTS; ++u) {
        const float4 x = as[8 * u * a_pitch + i * WY], y = as[(8 * u + 1) * a_pitch + i * WY];
        const float of[4] = {pair ? x.z : x.x, pair ? x.w : x.y, pair ? y.z : y.x, pair ? y.w : y.y};
#pragma unroll
        for (int c = 0; c < 4; ++c) a_high[u][c] = HIGH(of[c]), a_low[u][c] = LOW(of[c], a_high[u][c]);
      }
#pragma unroll
      for (int j = 0; j < PN / 8; ++j) {
        float few[4][4] = {{0.0f}};
#pragma unroll
        for (int u = 0; u < PARTS; ++u) {
#if !A_HALF
#pragma unroll
          for (int c = 0; c < 4; ++c) unit(few[c], a_low[u], b_high[u][4 * j + c]);
#endif
#if !B_HALF
#pragma unroll
          for (int c = 0; c < 4; ++c) unit(few[c], a_high[u], b_low[u][4 * j + c]);
#endif
        }
#pragma unroll
        for (int u = 0; u < PARTS; ++u)
#pragma unroll
          for (int c = 0; c < 4; ++c) unit(few[c], a_high[u], b_high[u][4 * j + c]);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sum[4 * i + 2 * pair][8 * j + c] += few[c][0], sum[4 * i + 2 * pair][8 * j + 4 + c] += few[c][1];
          sum[4 * i + 2 * pair + 1][8 * j + c] += few[c][2], sum[4 * i + 2 * pair + 1][8 * j + 4 + c] += few[c][3];
        }
      }
    }
}
