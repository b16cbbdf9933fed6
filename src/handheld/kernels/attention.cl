// Attention: the formulas, and what the variants for CPUs (attention_register.cl) and GPUs (attention_local.cl)
// share. l is a query, s a key, d a column of q and k, e a column of v.
//
//   t[l, s]  = scale * sum over d of q[l, d] * k[s, d], plus the mask; -inf where s > l (CAUSAL)
//   p[l, s]  = exp(t - lse[l]),       lse[l] = log of the sum of exp(t) over the row
//   out      = (p * r) v              r = 1, or with dropout: 0 or 1 / (1 - drop)
//   dv       = (p * r)^T dout
//   dt       = p * ((dout v^T) * r - delta) * scale,   delta[l] = sum over e of dout * out
//   dq, dk   = dt k, dt^T q
//
// p is never stored. A block of it is computed from a block of q and a block of k, used, and dropped. The forward
// pass keeps the largest score so far and the sum so far of each row; when a larger score appears, it scales down
// the sums. The backward pass computes p again from q, k and lse.

#ifndef MASK     // 0: none; 1: floats that are added to the scores; 2: bytes, 0 hides a key
#define MASK 0
#endif
#ifndef HALVES   // 1: q, k, v, out and their gradients are stored in halves, and half.cl comes before this file
#define HALVES 0
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif

#if HALVES
#define ELEMENT HALF
#define GET(p, i) GET_HALF(p, i)
#define GET4(p) vload_half4(0, (const __global half *)(p))
#define GET16(p) HLOAD(0, p)
#define PUT(value, i, p) PUT_HALF(value, i, p)
#else
#define ELEMENT float
#define GET(p, i) (p)[i]
#define GET4(p) (*(const __global float4 *)(p))
#define GET16(p) GLOAD(0, p)
#define PUT(value, i, p) (p)[i] = (value)
#endif

#define UNSEEN 3.4028235e38f  // lse of a row that may see no key; with it, p is 0.

// Parameters of a tensor [batch, head, row, column]: its offset and its strides.
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

// heads: heads of q. shared: how many of them share one head of k and v. rows, keys: rows of q and of k.
// depth, width: columns of q and of v.
#define INPUTS const __global ELEMENT *q, VIEW(q), const __global ELEMENT *k, VIEW(k), \
               const __global ELEMENT *v, VIEW(v), int heads, int shared, int rows, int keys, \
               int depth, int width, float scale MASK_PARAMS DROP_PARAMS
#define GRADIENTS const __global ELEMENT *g, VIEW(g), const __global ELEMENT *y, VIEW(y), \
                  const __global float *lse

// The dropout factor of the probability at index `place` of [b, h, l, s].
#define FACTOR(place) \
  (philox((uint)(place), (uint)seed[0], (uint)step[0], (uint)stream) >= drop ? rest : 0.0f)

// The number of keys that a row may see: all, or with CAUSAL those up to its own position.
#define SEEN(row) (CAUSAL ? min(keys, (row) + 1) : keys)
