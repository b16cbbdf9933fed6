// Contractions, second launch: adds up the parts of k. One work-item computes one element of the output.
//
//     part[s, g, m, n]   s = 0, 1, .. splits - 1, always added in this order
//     out = part[0] + part[1] + ..,  then the epilogue. WEIGHT has none, and uses combine.cl
//
// contract_maps.cl comes before this file.

__kernel void combine(MAP_PARAMS, const __global float *part, int splits EPILOGUE_PARAMS) {
  const int at = get_global_id(0), all = sets * M * N;
  if (at >= all) return;
  const int n = at % N, row = at / N, m = row % M;
  MAP_OF(row / M)
  float sum = 0.0f;
  for (int s = 0; s < splits; ++s) sum += part[s * all + at];
  STORE(sum, m, n)
}
