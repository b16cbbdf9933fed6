// Attention: what the variants for CPUs (attention_register.cl) and GPUs (attention_local.cl) share.
//
//   t[l, s]  = scale * sum over d of q[l, d] * k[s, d], plus the mask; -inf where s > l (CAUSAL)
//   p[l, s]  = exp(t - lse[l]), lse the logarithm of the row's sum
//   out      = (p * r) v              r: 1, or dropout's 0 and 1 / (1 - drop)
//   dv       = (p * r)^T dout
//   dt       = p * ((dout v^T) * r - delta) * scale,   delta[l] = sum over e of dout * out
//   dq, dk   = dt k, dt^T q
//
// p is never in memory: a block of it is made from blocks of q and k, used and dropped. Forward,
// the rows' largest value so far and their sum go along, and what was summed is scaled down when a
// larger value turns up; backward lse is known, and p comes from q and k again.

#ifndef MASK     // 0: none; 1: floats that are added; 2: bytes, 0 where a key may not be seen
#define MASK 0
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif

#define UNSEEN 3.4028235e38f  // lse of a row that may see nothing: its p come out as 0

// a tensor [batch, head, row, column]: where it begins and its strides
#define VIEW(x) int x##_0, int x##_b, int x##_h, int x##_r, int x##_c
#define HEAD(x, b, h) ((x) + x##_0 + (b) * x##_b + (h) * x##_h)

#if MASK == 2
#define MASK_TYPE uchar
#else
#define MASK_TYPE float
#endif
#if MASK
#define MASK_PARAMS , const __global MASK_TYPE *m, VIEW(m)
#else
#define MASK_PARAMS
#endif
#if DROPOUT
#define DROP_PARAMS , const __global int *seed, const __global int *step, int stream, float drop, \
                      float rest
#else
#define DROP_PARAMS
#endif

// heads of q, how many of them share one of k and v; rows of q and k; columns of q and v
#define INPUTS const __global float *q, VIEW(q), const __global float *k, VIEW(k), \
               const __global float *v, VIEW(v), int heads, int shared, int rows, int keys, \
               int depth, int width, float scale MASK_PARAMS DROP_PARAMS
#define GRADIENTS const __global float *g, VIEW(g), const __global float *y, VIEW(y), \
                  const __global float *lse

// dropout's factor of the probability at `place` of [b, h, l, s]
#define FACTOR(place) \
  (philox((uint)(place), (uint)seed[0], (uint)step[0], (uint)stream) >= drop ? rest : 0.0f)

// keys that a row may see: those before the end, and for CAUSAL those up to its own place
#define SEEN(row) (CAUSAL ? min(keys, (row) + 1) : keys)
