// Checks the passes over a row of logits (row.h): what they find by plain loops and the C library's exp, and that every
// instruction set finds it to the bit.
#ifndef ROW_CHECK_H
#define ROW_CHECK_H

#include <math.h>

#include "check.h"
#include "kernels.h"

enum { ROW_CHECK_BLOCKS = 37, ROW_CHECK_LOGITS = ROW_CHECK_BLOCKS * PE_ROW_BLOCK };

// Blocks that lie apart, as changed ones do. Sums of uniform numbers, of which one in `ties` is rounded, one in 50 masked.
static void fill_row(float **blocks, float spread, uint32_t ties) {
    for (int b = 0; b < ROW_CHECK_BLOCKS; b++) {
        blocks[b] = take(PE_ROW_BLOCK * sizeof(float));
        for (int i = 0; i < PE_ROW_BLOCK; i++) {
            float sum = -6;
            for (int k = 0; k < 12; k++) sum += (float)random_below(1u << 20) * 0x1p-20f;
            const float x = sum * spread;
            blocks[b][i] = random_below(50) == 0 ? -INFINITY : random_below(ties) == 0 ? roundf(x) : x;
        }
    }
}

// Of sums of weights: the error of a weight grows with its logarithm.
static bool close_to(double got, double want) {
    return fabs(got - want) <= want * (5e-7 + (want > 0 ? 1.2e-7 * fabs(log(want)) : 0)) + 1e-35;
}

static void check_max(const pe_kernels *k, float *const *x, float *block_max, float *max) {
    const float *const *blocks = (const float *const *)x;
    CHECK(k->row_max(blocks, ROW_CHECK_BLOCKS, block_max, max), "a sound row is refused");
    float most = -INFINITY;
    for (int b = 0; b < ROW_CHECK_BLOCKS; b++) {
        float m = -INFINITY;
        for (int i = 0; i < PE_ROW_BLOCK; i++) m = fmaxf(m, x[b][i]);
        CHECK(block_max[b] == m, "block %d has a maximum of %g, not %g", b, (double)block_max[b], (double)m);
        most = fmaxf(most, m);
    }
    CHECK(*max == most, "the maximum is %g, not %g", (double)*max, (double)most);
    float other, ignored[ROW_CHECK_BLOCKS];
    for (int i = 0; i < PE_ROW_BLOCK; i++) {  // in every lane
        float *at = &x[i % ROW_CHECK_BLOCKS][i];
        const float was = *at;
        const float wrong[] = {NAN, -NAN, INFINITY};
        for (int w = 0; w < 3; w++) {
            *at = wrong[w];
            CHECK(!k->row_max(blocks, ROW_CHECK_BLOCKS, ignored, &other), "%g in lane %d is not seen", (double)wrong[w],
                  i);
        }
        *at = was;
    }
}

static void check_weigh(const pe_kernels *k, const pe_kernels *scalar, const float *x, pe_row_scale scale, double t) {
    const pe_row_bins bins = {scale.max - 1, 40};
    float *weights = take(PE_ROW_BLOCK * sizeof(float)), *same = take(PE_ROW_BLOCK * sizeof(float));
    int32_t *in_bin = take(PE_ROW_BLOCK * sizeof(int32_t)), *same_bin = take(PE_ROW_BLOCK * sizeof(int32_t));
    k->row_weigh(x, PE_ROW_BLOCK, scale, bins, weights, in_bin);
    scalar->row_weigh(x, PE_ROW_BLOCK, scale, bins, same, same_bin);
    CHECK(memcmp(weights, same, PE_ROW_BLOCK * sizeof(float)) == 0, "weights are not the scalar set's");
    CHECK(memcmp(in_bin, same_bin, PE_ROW_BLOCK * sizeof(int32_t)) == 0, "bins are not the scalar set's");
    for (int i = 0; i < PE_ROW_BLOCK; i++) {
        const double y = ((double)x[i] - (double)scale.max) / t, d = ((double)bins.top - (double)x[i]) * 40;
        const double error = fabs((double)weights[i] - exp(y));
        CHECK(y < -100 ? weights[i] == 0 : error <= exp(y) * (2e-7 - y * 1.2e-7) + 1e-37, "exp(%g) is %g", y,
              (double)weights[i]);
        const double bin = d < 0 ? 0 : d > PE_ROW_BINS - 2 ? PE_ROW_BINS - 1 : d + 1;
        CHECK(fabs(in_bin[i] - floor(bin)) <= (fabs(bin - round(bin)) < 1e-3), "bin of %g is %d", d, in_bin[i]);
    }
}

static void check_sums(const pe_kernels *k, const pe_kernels *scalar, float *const *x, const float *block_max,
                       pe_row_scale scale, double t, pe_row_token lowest) {
    const float *const *blocks = (const float *const *)x;
    float *sums = take(ROW_CHECK_BLOCKS * sizeof(float)), *same = take(ROW_CHECK_BLOCKS * sizeof(float));
    const double total = k->row_sums(blocks, ROW_CHECK_BLOCKS, block_max, scale, lowest, sums);
    CHECK(total == scalar->row_sums(blocks, ROW_CHECK_BLOCKS, block_max, scale, lowest, same) &&
              memcmp(sums, same, ROW_CHECK_BLOCKS * sizeof(float)) == 0,
          "sums are not the scalar set's");
    double all = 0;
    for (int b = 0; b < ROW_CHECK_BLOCKS; b++) {
        double want = 0;
        for (int i = 0; i < PE_ROW_BLOCK; i++) {
            const bool kept =
                x[b][i] > lowest.logit || (x[b][i] == lowest.logit && b * PE_ROW_BLOCK + i <= lowest.token);
            if (kept) want += exp(((double)x[b][i] - (double)scale.max) / t);
        }
        CHECK(close_to((double)sums[b], want), "down to (%g, %d) block %d has %g, not %g", (double)lowest.logit,
              lowest.token, b, (double)sums[b], want);
        all += want;
    }
    CHECK(close_to(total, all), "down to (%g, %d) all have %g, not %g", (double)lowest.logit, lowest.token, total, all);
}

static void check_split(const pe_kernels *k, const pe_kernels *scalar, float *const *x, pe_row_scale scale, double t,
                        float low, float high) {
    const float *const *blocks = (const float *const *)x;
    const size_t bytes = ROW_CHECK_LOGITS / 8;
    uint64_t *within = take(bytes), *same = take(bytes), *plain = take(bytes);
    double above, same_above, want = 0, want_above = 0;
    const double total = k->row_split(blocks, ROW_CHECK_BLOCKS, scale, low, high, within, &above);
    CHECK(total == scalar->row_split(blocks, ROW_CHECK_BLOCKS, scale, low, high, same, &same_above) &&
              above == same_above,
          "sums of a split are not the scalar set's");
    memset(plain, 0, bytes);
    for (int i = 0; i < ROW_CHECK_LOGITS; i++) {
        const float v = x[i / PE_ROW_BLOCK][i % PE_ROW_BLOCK];
        const double w = exp(((double)v - (double)scale.max) / t);
        want += w;
        if (v > high) want_above += w;
        plain[i / 64] |= (uint64_t)(v >= low && v <= high) << i % 64;
    }
    CHECK(memcmp(within, plain, bytes) == 0 && memcmp(same, plain, bytes) == 0, "from %g to %g others are marked",
          (double)low, (double)high);
    CHECK(close_to(total, want) && close_to(above, want_above), "above %g there are %g of %g, not %g of %g",
          (double)high, above, total, want_above, want);
}

static void check_rows(const pe_kernels *k, const pe_kernels *scalar) {
    const float spreads[] = {0.01f, 1, 3, 40};
    const float temperatures[] = {0.2f, 1, 1.5f};
    for (int s = 0; s < 4; s++)
        for (int h = 0; h < 3; h++) {
            const double t = (double)temperatures[h];
            float *x[ROW_CHECK_BLOCKS], *block_max = take(ROW_CHECK_BLOCKS * sizeof(float)), max;
            fill_row(x, spreads[s], 1 + (uint32_t)h);
            check_max(k, x, block_max, &max);
            const pe_row_scale scale = pe_row_scale_at(max, temperatures[h]);
            check_weigh(k, scalar, x[h], scale, t);
            check_sums(k, scalar, x, block_max, scale, t, PE_ROW_ALL);
            for (int i = 0; i < 8; i++) {
                const int32_t token = (int32_t)random_below(ROW_CHECK_LOGITS);
                const float logit = x[token / PE_ROW_BLOCK][token % PE_ROW_BLOCK];
                check_sums(k, scalar, x, block_max, scale, t, (pe_row_token){logit, token});
                const float low = logit > -INFINITY ? logit : -FLT_MAX;
                check_split(k, scalar, x, scale, t, low, max - (max - low) / 3);
                check_split(k, scalar, x, scale, t, low, low);
            }
            give_all_back();
        }
}

#endif
