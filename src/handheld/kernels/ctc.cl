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
// Layout, dense, with W = 2*S + 3 places for the states of the longest target and two guards of -inf, which stand for
// the states outside: before the row in alpha, after it in beta.
//
//   logp[t, n, c], targets[n, k], label and skip[n, W], alpha and ab[n, t, W], beta[n, 2, W], link[n, k], norm[t, n]
//
//   ctc_states   work-item (n, s): the class of the state; 0 where a step of two may end in it, else -inf.
//   ctc_alpha    a work-group per sample walks over t; its items share the states. `rows` is 2 for the loss alone, and
//                T for the gradient, which needs every row.
//   ctc_beta     the same from the end; adds beta to alpha.
//   ctc_norm     work-item (t, n): log of the sum over s of exp(ab).
//   ctc_link     work-item (n, k): the next place of the same label, so that equal labels form a chain.
//   ctc_spread   work-item (t, n, c): d * exp(logp), and 0 after the end.
//   ctc_collect  work-item (t, n, k): subtracts d * (shares of one label). The first of equal labels takes all of them;
//                item k = S takes the blanks. So no two items write one element.
//
// Parameters:

#ifndef LANES  // items of a work-group of ctc_alpha and ctc_beta, a power of two. 1: a CPU, with math.cl before this file
#define LANES 1
#endif

#if LANES > 1
#define EXP exp
#define LOG log
#define VECTORIZE
#define SHARED __local float part[LANES];
#define SAMPLE get_group_id(0)
#define LANE get_local_id(0)
#define HIGHEST(own) highest(own, part)
// The largest value of all items. Afterwards all items see each other's writes.
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
#define EXP f_exp
#define LOG f_log
#ifdef __clang__
#define VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define VECTORIZE
#endif
#define SHARED
#define SAMPLE get_global_id(0)
#define LANE 0
#define HIGHEST(own) (own == -INFINITY ? 0 : own)
#endif

inline float log_sum(float a, float b, float c) {
    float top = a > b ? a : b;
    top = c > top ? c : top;
    float sum = EXP(a - top) + EXP(b - top) + EXP(c - top);
    return top == -INFINITY ? top : top + LOG(sum);
}

__kernel void ctc_states(__global const int *targets, __global int *label, __global float *skip,
                         int total, int C, int S, int blank) {
    int id = get_global_id(0);
    if (id >= total) return;
    int width = 2 * S + 3, n = id / width, s = id % width;
    __global const int *labels = targets + n * S;
    int own = s & 1 && s / 2 < S ? labels[s / 2] : blank;
    int other = s & 1 && s > 1 && s / 2 < S ? labels[s / 2 - 1] : own;
    label[id] = clamp(own, 0, C - 1);
    skip[id] = own != other ? 0 : -INFINITY;
}

__kernel void ctc_alpha(__global const float *logp, __global const int *targets,
                        __global const int *input_lengths, __global const int *target_lengths,
                        __global const int *label, __global const float *skip, __global float *loss,
                        __global float *alpha, int T, int N, int C, int S, int rows) {
    SHARED
    int n = SAMPLE, lane = LANE, width = 2 * S + 3;
    int steps = clamp(input_lengths[n], 0, T), count = clamp(target_lengths[n], 0, S);
    int states = 2 * count + 1;
    __global float *mine = alpha + n * rows * width + 2;
    label += n * width;
    skip += n * width;
    float scale = 0, top = 0;
    for (int t = 0; t < steps; t++) {
        __global float *row = mine + t % rows * width;
        __global const float *before = mine + (t + rows - 1) % rows * width;
        __global const float *frame = logp + (t * N + n) * C;
        if (t == 0) {
            for (int s = lane; s < states; s += LANES) row[s] = s < 2 ? frame[label[s]] : -INFINITY;
        } else {
            VECTORIZE
            for (int s = lane; s < states; s += LANES)
                row[s] = log_sum(before[s], before[s - 1], before[s - 2] + skip[s]) - top + frame[label[s]];
        }
        float best = -INFINITY;
        for (int s = lane; s < states; s += LANES) best = row[s] > best ? row[s] : best;
        if (lane == 0) row[-2] = row[-1] = -INFINITY;
        scale += top;
        top = HIGHEST(best);
    }
    if (lane > 0) return;
    float total = count == 0 ? 0 : -INFINITY;
    if (steps > 0) {
        __global const float *end = mine + (steps - 1) % rows * width + states - 1;
        total = log_sum(end[0], end[-1], -INFINITY) + scale;
    }
    for (int k = 0; k < count; k++)
        if (targets[n * S + k] < 0 || targets[n * S + k] >= C) total = NAN;
    loss[n] = -total;
}

__kernel void ctc_beta(__global const float *logp, __global const int *input_lengths,
                       __global const int *target_lengths, __global const int *label,
                       __global const float *skip, __global float *alpha, __global float *beta,
                       int T, int N, int C, int S) {
    SHARED
    int n = SAMPLE, lane = LANE, width = 2 * S + 3;
    int steps = clamp(input_lengths[n], 0, T), states = 2 * clamp(target_lengths[n], 0, S) + 1;
    label += n * width;
    skip += n * width;
    float top = 0;
    for (int t = steps - 1; t >= 0; t--) {
        __global float *row = beta + (n * 2 + t % 2) * width;
        __global const float *after = beta + (n * 2 + (t + 1) % 2) * width;
        __global const float *frame = logp + (t * N + n) * C;
        __global float *both = alpha + (n * T + t) * width + 2;
        if (t == steps - 1) {
            for (int s = lane; s < states; s += LANES) row[s] = s < states - 2 ? -INFINITY : 0;
        } else {
            VECTORIZE
            for (int s = lane; s < states; s += LANES)
                row[s] = log_sum(after[s], after[s + 1], after[s + 2] + skip[s + 2]) - top;
        }
        float best = -INFINITY;
        for (int s = lane; s < states; s += LANES) {
            both[s] += row[s];
            row[s] += frame[label[s]];
            best = row[s] > best ? row[s] : best;
        }
        if (lane == 0) row[states] = row[states + 1] = -INFINITY;
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
    __global const float *row = ab + (n * T + t) * (2 * S + 3) + 2;
    float top = -INFINITY, sum = 0;
    for (int s = 0; s < states; s++) top = row[s] > top ? row[s] : top;
    for (int s = 0; s < states; s++) sum += EXP(row[s] - top);
    norm[id] = top + LOG(sum);
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
    float x = d[n] * EXP(logp[id]);
    if (!isfinite(loss[n])) x = zero_infinity && !isnan(loss[n]) ? 0 : NAN;
    dlogp[id] = id / C / N < input_lengths[n] ? x : 0;
}

__kernel void ctc_collect(__global const float *d, __global const int *input_lengths,
                          __global const int *target_lengths, __global const int *label,
                          __global const float *loss, __global const float *ab,
                          __global const float *norm, __global const int *link,
                          __global float *dlogp, int total, int T, int N, int C, int S, int blank) {
    int id = get_global_id(0);
    if (id >= total) return;
    int k = id % (S + 1), n = id / (S + 1) % N, t = id / (S + 1) / N, width = 2 * S + 3;
    int count = clamp(target_lengths[n], 0, S);
    if (t >= input_lengths[n] || !isfinite(loss[n])) return;
    __global const float *row = ab + (n * T + t) * width + 2;
    float whole = norm[t * N + n], sum = 0;
    int own = blank;
    label += n * width;
    if (k == S) {
        for (int s = 0; s < 2 * count + 1; s++)
            if (label[s] == blank) sum += EXP(row[s] - whole);
    } else {
        own = label[2 * k + 1];
        if (k >= count || own == blank || !(link[n * S + k] & 1)) return;
        for (int j = k; j < S; j = link[n * S + j] / 2) sum += EXP(row[2 * j + 1] - whole);
    }
    dlogp[(t * N + n) * C + own] -= d[n] * sum;
}
