// Adds up the parts of a sum in order: out[i] = part[0][i] + part[1][i] + .. One work-item computes one element. The file
// before this one may define OUT_TYPE and PUT(value, index, pointer), for outputs that are not floats.

#ifndef OUT_TYPE
#define OUT_TYPE float
#define PUT(value, i, p) (p)[i] = (value)
#endif

__kernel void combine(const __global float *part, int parts, int all, __global OUT_TYPE *out) {
  const int at = get_global_id(0);
  if (at >= all) return;
  float sum = 0.0f;
  for (int s = 0; s < parts; ++s) sum += part[s * all + at];
  PUT(sum, at, out);
}
