// Connectionist temporal classification: the loss of each sample, and the gradient of the log-probabilities.
//
// A target of K labels has L = 2*K + 1 states. An alignment goes through them from left to right:
//
//      s:   0      1      2      3      4            even: blank, odd: label s / 2
//         blank    a    blank    b    blank
//          └─►──────┘─►────┘─►──────┘─►────┘         stay, go on by one, or by two from label to another label
//
//   alpha_t(s)  log of the sum over all alignments of steps 0..t that end in s
//   beta_t(s)   log of the sum over all alignments of steps t+1.. that start in s
//   ab_t(s)     alpha_t(s) + beta_t(s); the share of s in all alignments at step t is exp(ab_t(s)) / sum over s
//
// These logs grow with t, and a float near -700 has lost four digits. So each row is stored relative to the largest
// values of the rows before it: stored(t) = true(t) - (top(0) + .. + top(t-1)). Shares do not depend on the scale.
//
// Layout, dense: logp[t, n, c], targets[n, k], alpha and ab[n, t, s], beta[n, 2, s], link[n, k], norm[t, n].
//
//   ctc_alpha    a work-group per sample walks over t; its items share the states. `rows` is 2 for the loss alone, and
//                T for the gradient, which needs every row.
//   ctc_beta     the same from the end; adds beta to alpha.
//   ctc_norm     work-item (t, n): log of the sum over s of exp(ab).
//   ctc_link     work-item (n, k): the next place of the same label, so that equal labels form a chain.
//   ctc_spread   work-item (t, n, c): d * exp(logp), and 0 after the end.
//   ctc_collect  work-item (t, n, k): subtracts d * (shares of one label). The first of equal labels takes all of them;
//                item k = K takes the blanks. So no two items write one element.
//
// Parameters:

#ifndef LANES  // items of a work-group of ctc_alpha and ctc_beta, a power of two; 1 on a CPU
#define LANES 1
#endif

#define LABEL(labels, s) ((s) & 1 ? clamp(labels[(s) / 2], 0, C - 1) : blank)

float log_sum(float a, float b, float c) {
    float top = fmax(fmax(a, b), c);
    if (top == -INFINITY) return top;
    return top + log(exp(a - top) + exp(b - top) + exp(c - top));
}

// The largest value of all items. Afterwards all items see each other's writes.
#if LANES > 1
#define SHARED __local float part[LANES];
#define SAMPLE get_group_id(0)
#define LANE get_local_id(0)
#define HIGHEST(own) highest(own, part)
float highest(float own, __local float *part) {
    int lane = get_local_id(0);
    part[lane] = own;
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    for (int half_ = LANES / 2; half_ > 0; half_ /= 2) {
        if (lane < half_) part[lane] = fmax(part[lane], part[lane + half_]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    float top = part[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return top == -INFINITY ? 0 : top;
}
#else
#define SHARED
#define SAMPLE get_global_id(0)
#define LANE 0
#define HIGHEST(own) (own == -INFINITY ? 0 : own)
#endif

__kernel void ctc_alpha(__global const float *logp, __global const int *targets,
                        __global const int *input_lengths, __global const int *target_lengths,
                        __global float *loss, __global float *alpha, int T, int N, int C, int S,
                        int blank, int rows) {
    SHARED
    int n = SAMPLE, lane = LANE, width = 2 * S + 1;
    int steps = clamp(input_lengths[n], 0, T), count = clamp(target_lengths[n], 0, S);
    int states = 2 * count + 1;
    __global const int *labels = targets + n * S;
    __global float *mine = alpha + n * rows * width;
    float scale = 0, top = 0;
    for (int t = 0; t < steps; t++) {
        __global float *row = mine + t % rows * width;
        __global const float *before = mine + (t + rows - 1) % rows * width;
        float best = -INFINITY;
        for (int s = lane; s < states; s += LANES) {
            int label = LABEL(labels, s);
            float x = s < 2 ? 0 : -INFINITY;
            if (t > 0) {
                float one = s > 0 ? before[s - 1] : -INFINITY;
                float two = s > 1 && label != LABEL(labels, s - 2) ? before[s - 2] : -INFINITY;
                x = log_sum(before[s], one, two) - top;
            }
            x += logp[(t * N + n) * C + label];
            row[s] = x;
            best = fmax(best, x);
        }
        scale += top;
        top = HIGHEST(best);
    }
    if (lane > 0) return;
    float total = count == 0 ? 0 : -INFINITY;
    if (steps > 0) {
        __global const float *last = mine + (steps - 1) % rows * width;
        total = log_sum(last[states - 1], states > 1 ? last[states - 2] : -INFINITY, -INFINITY) + scale;
    }
    for (int k = 0; k < count; k++)
        if (labels[k] < 0 || labels[k] >= C) total = NAN;
    loss[n] = -total;
}

__kernel void ctc_beta(__global const float *logp, __global const int *targets,
                       __global const int *input_lengths, __global const int *target_lengths,
                       __global float *alpha, __global float *beta, int T, int N, int C, int S,
                       int blank) {
    SHARED
    int n = SAMPLE, lane = LANE, width = 2 * S + 1;
    int steps = clamp(input_lengths[n], 0, T), states = 2 * clamp(target_lengths[n], 0, S) + 1;
    __global const int *labels = targets + n * S;
    float top = 0;
    for (int t = steps - 1; t >= 0; t--) {
        __global float *row = beta + (n * 2 + t % 2) * width;
        __global const float *after = beta + (n * 2 + (t + 1) % 2) * width;
        float best = -INFINITY;
        for (int s = lane; s < states; s += LANES) {
            int label = LABEL(labels, s);
            float x = s >= states - 2 ? 0 : -INFINITY;
            if (t < steps - 1) {
                float one = s + 1 < states ? after[s + 1] : -INFINITY;
                float two = s + 2 < states && label != LABEL(labels, s + 2) ? after[s + 2] : -INFINITY;
                x = log_sum(after[s], one, two) - top;
            }
            alpha[(n * T + t) * width + s] += x;
            x += logp[(t * N + n) * C + label];
            row[s] = x;
            best = fmax(best, x);
        }
        top = HIGHEST(best);
    }
}

__kernel void ctc_norm(__global const float *ab, __global const int *input_lengths,
                       __global const int *target_lengths, __global float *norm, int total, int T,
                       int N, int S) {
    int id = get_global_id(0);
    if (id >= total) return;
    int t = id / N, n = id % N;
    if (t >= input_lengths[n]) return;
    int states = 2 * clamp(target_lengths[n], 0, S) + 1;
    __global const float *row = ab + (n * T + t) * (2 * S + 1);
    float top = -INFINITY, sum = 0;
    for (int s = 0; s < states; s++) top = fmax(top, row[s]);
    for (int s = 0; s < states; s++) sum += exp(row[s] - top);
    norm[id] = top + log(sum);
}

// link[n, k] = 2 * (the next place of the same label, or S) + (1 if it is the first of them).
__kernel void ctc_link(__global const int *targets, __global const int *target_lengths,
                       __global int *link, int total, int S) {
    int id = get_global_id(0);
    if (id >= total) return;
    int k = id % S, count = clamp(target_lengths[id / S], 0, S);
    __global const int *labels = targets + id / S * S;
    int next = k + 1, first = 1;
    while (next < count && labels[next] != labels[k]) next++;
    for (int j = 0; j < k; j++) first = first && labels[j] != labels[k];
    link[id] = 2 * (next < count ? next : S) + first;
}

__kernel void ctc_spread(__global const float *d, __global const float *logp,
                         __global const int *input_lengths, __global const float *loss,
                         __global float *dlogp, int total, int N, int C, int zero_infinity) {
    int id = get_global_id(0);
    if (id >= total) return;
    int n = id / C % N;
    float x = d[n] * exp(logp[id]);
    if (!isfinite(loss[n])) x = zero_infinity && !isnan(loss[n]) ? 0 : NAN;
    dlogp[id] = id / C / N < input_lengths[n] ? x : 0;
}

__kernel void ctc_collect(__global const float *d, __global const int *targets,
                          __global const int *input_lengths, __global const int *target_lengths,
                          __global const float *loss, __global const float *ab,
                          __global const float *norm, __global const int *link,
                          __global float *dlogp, int total, int T, int N, int C, int S, int blank) {
    int id = get_global_id(0);
    if (id >= total) return;
    int k = id % (S + 1), n = id / (S + 1) % N, t = id / (S + 1) / N;
    int count = clamp(target_lengths[n], 0, S);
    if (t >= input_lengths[n] || !isfinite(loss[n])) return;
    __global const int *labels = targets + n * S;
    __global const float *row = ab + (n * T + t) * (2 * S + 1);
    float whole = norm[t * N + n], sum = 0;
    int label = blank;
    if (k == S) {
        for (int s = 0; s < 2 * count + 1; s++)
            if (LABEL(labels, s) == blank) sum += exp(row[s] - whole);
    } else {
        label = labels[k];
        if (k >= count || label == blank || !(link[n * S + k] & 1)) return;
        for (int j = k; j < S; j = link[n * S + j] / 2) sum += exp(row[2 * j + 1] - whole);
    }
    dlogp[(t * N + n) * C + label] -= d[n] * sum;
}
