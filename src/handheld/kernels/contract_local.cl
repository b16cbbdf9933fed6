// Contractions on GPUs: one work-group of WX x WY, one tile of (WY*PM) x (WX*PN).
//
//                 KT          x -> WX items, item x has columns x, x+WX, x+2*WX ...
//               +----+     +-----------------+
//            TM | As |  y  |  x  x  x  x     |   As, Bs in local memory, sums in registers; loads
//               +----+  |  |  WX apart, PN   |   run along k or along m (n), whichever is contiguous
//                       WY +-----------------+

#ifndef RUN    // terms added up before they join a larger sum: a dot product of n terms errs
#define RUN 32 // like one of 32 + n/32, which is less than PyTorch's own float32 does
#endif
#ifndef WX     // work-items across
#define WX 16
#endif
#ifndef WY     // work-items down
#define WY 8
#endif
#ifndef PM     // rows of a work-item
#define PM 8
#endif
#ifndef PN     // columns of a work-item
#define PN 4
#endif
#ifndef KT     // terms of a tile, a divisor of RUN
#define KT 16
#endif

#define TM (WY * PM)
#define TN (WX * PN)
#define ITEMS (WX * WY)

__kernel __attribute__((reqd_work_group_size(WX, WY, 1)))
void contract(const __global float *a, const __global float *b, MAP_PARAMS,
              int a_along_k, int b_along_k, int k_part OUT_PARAMS) {
  __local float as[KT][TM + 1], bs[KT][TN + 1];
#if MODE != MATMUL
  __local Column columns[TN];
  __local int4 terms[2][KT];  // offset in A, offset in B, h, w
#endif
  const int z = get_group_id(2), split = z / sets;
  MAP_OF(z % sets)
  const int x0 = get_local_id(0), y0 = get_local_id(1), item = y0 * WX + x0;
  const int n_first = get_group_id(0) * TN, m_first = get_group_id(1) * TM;
  const int k_first = split * k_part, k_stop = min(map.K, (split + 1) * k_part);
  float sum[PM][PN], total[PM][PN];
#pragma unroll
  for (int i = 0; i < PM; ++i)
#pragma unroll
    for (int j = 0; j < PN; ++j) sum[i][j] = total[i][j] = 0.0f;
#if MODE != MATMUL
  for (int j = item; j < TN; j += ITEMS) columns[j] = column(&map, min(n_first + j, N - 1));
  // a phase may have no taps, and then no digits to count with
  for (int k = item; k < KT && k_first < k_stop; k += ITEMS) {
    const Run t = run_from(&map, min(k_first + k, k_stop - 1), k_stop);
    terms[0][k] = (int4)(t.a, t.b, t.h, t.w);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
  for (int k = k_first, turn = 0; k < k_stop; k += KT, turn ^= 1) {
    for (int e = item; e < KT * TM; e += ITEMS) {
      const int kk = a_along_k ? e % KT : e / TM, mm = a_along_k ? e / KT : e % TM;
      const int m = m_first + mm;
      float value = 0.0f;
      if (k + kk < k_stop && m < M) {
#if MODE == MATMUL
        value = a[map.a_0 + m * map.a_m + (k + kk) * map.a_c];
#else
        value = a[map.a_0 + m * map.a_m + terms[turn][kk].x];
#endif
      }
      as[kk][mm] = value;
    }
    for (int e = item; e < KT * TN; e += ITEMS) {
      const int kk = b_along_k ? e % KT : e / TN, nn = b_along_k ? e / KT : e % TN;
      float value = 0.0f;
      if (k + kk < k_stop && n_first + nn < N) {
#if MODE == MATMUL
        value = b[map.b_0 + (n_first + nn) * map.b_n + (k + kk) * map.b_c];
#else
        const int4 t = terms[turn][kk];
        const Column c = columns[nn];
        if ((uint)(c.h + t.z) < (uint)H && (uint)(c.w + t.w) < (uint)W) value = b[c.at + t.y];
#endif
      }
      bs[kk][nn] = value;
    }
#if MODE != MATMUL
    // the terms of the next tile, into the half that this one does not read
    for (int i = item; i < KT; i += ITEMS) {
      const Run t = run_from(&map, min(k + KT + i, k_stop - 1), k_stop);
      terms[turn ^ 1][i] = (int4)(t.a, t.b, t.h, t.w);
    }
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 4
    for (int kk = 0; kk < KT; ++kk) {
      float row[PN];
#pragma unroll
      for (int j = 0; j < PN; ++j) row[j] = bs[kk][x0 + j * WX];
#pragma unroll
      for (int i = 0; i < PM; ++i) {
        const float left = as[kk][y0 + i * WY];
#pragma unroll
        for (int j = 0; j < PN; ++j) sum[i][j] += left * row[j];
      }
    }
    if ((k + KT - k_first) % RUN == 0 || k + KT >= k_stop) {
#pragma unroll
      for (int i = 0; i < PM; ++i)
#pragma unroll
        for (int j = 0; j < PN; ++j) total[i][j] += sum[i][j], sum[i][j] = 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#pragma unroll
  for (int j = 0; j < PN; ++j) {
    const int n = n_first + x0 + j * WX;
    if (n >= N) continue;
#if MODE != MATMUL && !SPLIT
    const int across = n / n_x, x = n - across * n_x, i_n = across / n_y, y = across - i_n * n_y;
#endif
#pragma unroll
    for (int i = 0; i < PM; ++i) {
      const int m = m_first + y0 + i * WY;
      if (m >= M) continue;
#if MODE != MATMUL && !SPLIT
      STORE_AT(total[i][j], m, i_n, y, x)
#else
      STORE(total[i][j], m, n)
#endif
    }
  }
}
