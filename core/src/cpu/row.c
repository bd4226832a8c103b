// The sampler's passes over a row of logits. Written in plain C in whole blocks of lanes, so that every instruction set
// computes the same bits: a seed draws the same tokens everywhere.
#include "row.h"

#include <math.h>

#include "cpu.h"

enum { LANES = PE_ROW_LANES };

bool PE_FN(row_max)(const float *x, int32_t n, float *block_max, float *max) {
    float most = -INFINITY;
    int32_t bad[LANES] = {0}, any_bad = 0;
    for (int32_t begin = 0; begin < n; begin += PE_ROW_BLOCK) {
        const int32_t end = n - begin < PE_ROW_BLOCK ? n : begin + PE_ROW_BLOCK;
        float m[LANES];
        for (int j = 0; j < LANES; j++) m[j] = -INFINITY;
        int32_t i = begin;
        for (; i + LANES <= end; i += LANES)
            for (int j = 0; j < LANES; j++) {
                const float v = x[i + j];
                bad[j] |= !(v < INFINITY);
                m[j] = v > m[j] ? v : m[j];
            }
        for (; i < end; i++) {
            bad[0] |= !(x[i] < INFINITY);
            m[0] = x[i] > m[0] ? x[i] : m[0];
        }
        for (int half = LANES / 2; half > 0; half /= 2)
            for (int j = 0; j < half; j++) m[j] = m[j + half] > m[j] ? m[j + half] : m[j];
        block_max[begin / PE_ROW_BLOCK] = m[0];
        most = m[0] > most ? m[0] : most;
    }
    for (int j = 0; j < LANES; j++) any_bad |= bad[j];
    *max = most;
    return !any_bad;
}

double PE_FN(row_sums)(const float *x, int32_t n, float max, float sharpness, pe_row_token lowest, double *block_sums) {
    double total = 0;
    for (int32_t begin = 0; begin < n; begin += PE_ROW_BLOCK) {
        const int32_t end = n - begin < PE_ROW_BLOCK ? n : begin + PE_ROW_BLOCK;
        double sum[LANES] = {0};
        int32_t i = begin;
        for (; i + LANES <= end; i += LANES) {
            float w[LANES];
            for (int j = 0; j < LANES; j++) {
                const float v = pe_row_weight(x[i + j], max, sharpness);
                w[j] = pe_row_down_to(x[i + j], i + j, lowest) ? v : 0.0f;
            }
            for (int j = 0; j < LANES; j++) sum[j] += (double)w[j];
        }
        for (; i < end; i++)
            if (pe_row_down_to(x[i], i, lowest)) sum[0] += (double)pe_row_weight(x[i], max, sharpness);
        for (int half = LANES / 2; half > 0; half /= 2)
            for (int j = 0; j < half; j++) sum[j] += sum[j + half];
        block_sums[begin / PE_ROW_BLOCK] = sum[0];
        total += sum[0];
    }
    return total;
}

// Neighbours often fall into one bin, and an addition to memory must wait for the one before: so four sums per bin.
// No vectors add to memory: the weights and bins of a block come before the additions.
void PE_FN(row_bin_sums)(const float *x, int32_t n, float max, double *sums) {
    enum { WAYS = 4 };
    double ways[PE_ROW_BINS][WAYS];
    memset(ways, 0, sizeof ways);
    int32_t i = 0;
    for (; i + PE_ROW_BLOCK <= n; i += PE_ROW_BLOCK) {
        int32_t bin[PE_ROW_BLOCK];
        float w[PE_ROW_BLOCK];
        for (int j = 0; j < PE_ROW_BLOCK; j++) bin[j] = pe_row_bin(x[i + j], max);
        for (int j = 0; j < PE_ROW_BLOCK; j++) w[j] = pe_row_weight(x[i + j], max, 1);
        for (int j = 0; j < PE_ROW_BLOCK; j += WAYS)
            for (int k = 0; k < WAYS; k++) ways[bin[j + k]][k] += (double)w[j + k];
    }
    for (; i < n; i++) ways[pe_row_bin(x[i], max)][0] += (double)pe_row_weight(x[i], max, 1);
    for (int b = 0; b < PE_ROW_BINS; b++) sums[b] = (ways[b][0] + ways[b][1]) + (ways[b][2] + ways[b][3]);
}
