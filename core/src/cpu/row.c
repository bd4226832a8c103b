// The sampler's passes over a row of logits. Written in plain C in whole blocks of lanes, so that every instruction set
// computes the same bits: a seed draws the same tokens everywhere.
//
// Loops over a block have constant bounds, and compilers keep them in vectors. Weights are summed as floats within a lane of a block (8 of them), and as doubles from there on.
#include "row.h"

#include <math.h>
#include <string.h>

#include "cpu.h"

enum { LANES = PE_ROW_LANES, BLOCK = PE_ROW_BLOCK };

// The largest, and the sum, of a block's lanes: halves upon halves. Each loop by itself, for compilers make one of them
// into scalars that wait for memory.
PE_INLINE float fold_max(float *m) {
    for (int j = 0; j < 8; j++) m[j] = m[j + 8] > m[j] ? m[j + 8] : m[j];
    for (int j = 0; j < 4; j++) m[j] = m[j + 4] > m[j] ? m[j + 4] : m[j];
    for (int j = 0; j < 2; j++) m[j] = m[j + 2] > m[j] ? m[j + 2] : m[j];
    return m[1] > m[0] ? m[1] : m[0];
}
PE_INLINE float fold_sum(float *s) {
    for (int j = 0; j < 8; j++) s[j] += s[j + 8];
    for (int j = 0; j < 4; j++) s[j] += s[j + 4];
    for (int j = 0; j < 2; j++) s[j] += s[j + 2];
    return s[0] + s[1];
}

bool PE_FN(row_max)(const float *const *blocks, int32_t n_blocks, float *block_max, float *max) {
    float most = -INFINITY;
    int32_t nan[LANES] = {0}, any_nan = 0;
    for (int32_t i = 0; i < n_blocks; i++) {
        const float *x = blocks[i];
        float m[LANES];
        for (int j = 0; j < LANES; j++) m[j] = -INFINITY;
        for (int k = 0; k < BLOCK; k += 2 * LANES)
            for (int j = 0; j < LANES; j++) {
                const float v = x[k + j], u = x[k + LANES + j];
                nan[j] |= __builtin_isunordered(v, u);
                const float greater = v > u ? v : u;
                m[j] = greater > m[j] ? greater : m[j];
            }
        block_max[i] = fold_max(m);
        most = block_max[i] > most ? block_max[i] : most;
    }
    for (int j = 0; j < LANES; j++) any_nan |= nan[j];
    *max = most;
    return !any_nan && most < INFINITY;
}

void PE_FN(row_weigh)(const float *restrict x, int32_t n, pe_row_scale scale, pe_row_bins bins, float *restrict weights,
                      int32_t *restrict in_bin) {
    for (int32_t i = 0; i < n; i += LANES) {
        for (int j = 0; j < LANES; j++) weights[i + j] = pe_row_weight(x[i + j], scale);
        for (int j = 0; j < LANES; j++) in_bin[i + j] = pe_row_bin(x[i + j], bins);
    }
}

// Blocks that were changed lie apart from the others: the processor does not foresee them.
PE_INLINE void prefetch_block(const float *x) {
    for (int i = 0; i < BLOCK; i += 16) v_prefetch(x + i);
}

double PE_FN(row_sums)(const float *const *blocks, int32_t n_blocks, const float *block_max, pe_row_scale scale,
                       pe_row_token lowest, float *block_sums) {
    // From where on logits count: of those equal to the lowest, the ones before its token do.
    const float up_to_token = lowest.logit > scale.least ? lowest.logit : scale.least;
    const float after_token = lowest.logit >= scale.least ? nextafterf(lowest.logit, INFINITY) : scale.least;
    double total = 0;
    for (int32_t i = 0; i < n_blocks; i++) {
        const int32_t first = i * BLOCK;
        const float from = first <= lowest.token ? up_to_token : after_token;
        block_sums[i] = 0;
        if (!(block_max[i] >= from)) continue;
        const float *x = blocks[i];
        if (i + 1 < n_blocks) prefetch_block(blocks[i + 1]);
        float kept[BLOCK];
        if (first <= lowest.token && lowest.token - first < BLOCK - 1) {  // both
            for (int32_t j = 0; j < BLOCK; j++) kept[j] = pe_row_down_to(x[j], first + j, lowest) ? x[j] : -INFINITY;
            x = kept;
        }
        float sum[LANES] = {0};
        for (int k = 0; k < BLOCK; k += LANES)
            for (int j = 0; j < LANES; j++) {
                const float w = pe_row_power(x[k + j], scale);
                sum[j] += x[k + j] >= from ? w : 0.0f;
            }
        block_sums[i] = fold_sum(sum);
        total += (double)block_sums[i];
    }
    return total;
}

double PE_FN(row_split)(const float *const *blocks, int32_t n_blocks, pe_row_scale scale, float low, float high,
                        uint64_t *within, double *above) {
    // Zeroed one by one: gcc 12 clears whole arrays by aligned stores, and the address sanitizer's frames are not aligned.
    double all[LANES], top[LANES];
    for (int j = 0; j < LANES; j++) all[j] = top[j] = 0;
    for (int32_t i = 0; i < n_blocks; i++) {
        const float *x = blocks[i];
        if (i + 1 < n_blocks) prefetch_block(blocks[i + 1]);
        float sum[LANES], sum_above[LANES];
        for (int j = 0; j < LANES; j++) sum[j] = sum_above[j] = 0;
        for (int k = 0; k < BLOCK; k += LANES)
            for (int j = 0; j < LANES; j++) {
                const float w = pe_row_weight(x[k + j], scale);
                sum[j] += w;
                sum_above[j] += x[k + j] > high ? w : 0.0f;
            }
        for (int j = 0; j < LANES; j++) all[j] += (double)sum[j];
        for (int j = 0; j < LANES; j++) top[j] += (double)sum_above[j];
        for (int k = 0; k < BLOCK; k += 64) {
            uint64_t bits = 0;
            for (int j = 0; j < 64; j += VL) {
                const vf v = vf_load(x + k + j);
                bits |= (uint64_t)(vf_bits_ge(v, vf_set1(low)) & vf_bits_ge(vf_set1(high), v)) << j;
            }
            *within++ = bits;
        }
    }
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) all[j] += all[j + half], top[j] += top[j + half];
    *above = top[0];
    return all[0];
}
