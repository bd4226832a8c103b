// What tiles of few and of many tokens share, on every instruction set: the order of terms, and what all must compute alike.
// Does not own tiles.
#ifndef PE_MATMUL_H
#define PE_MATMUL_H

#include "cpu.h"
#include "dot.h"

#define FLATTEN __attribute__((flatten, noinline))

enum {
    SLICE = 16,         // units, whole blocks, whose second terms follow upon their first terms
    MANY_TOKENS = 128,  // at once, where a slice is unpacked once for all tokens
};

// Integer sums start here: the bits of 1.5 * 2^23 as a float, which counts up by one with them. An fma takes it away again,
// exactly (a scale has 19 bits at most, and is finite), and so stands for a conversion and a product.
#define MAGIC_BITS 0x4b400000
#define MAGIC 12582912.0f

PE_INLINE int32_t halves_bits(const pe_act_block *b) {
    int32_t v;
    memcpy(&v, b->half, sizeof v);
    return v;
}

// What the sums of a part of unit u of a panel block are multiplied by, and the sum of the unit's activations, if they are.
PE_INLINE vf scale_of(const pe_scales scales, const uint8_t *block, int u, int part) {
    const vf d = load_d(scales, block);
    const int all = pe_scales_parts(scales), parts = all == 16 ? 2 : 1;
    return all ? vf_mul(d, vi_to_f32(load_part(scales, block, parts * u + part).sub)) : d;
}
PE_INLINE vf minimum_of(const pe_scales scales, const uint8_t *block, int u) {
    const vf m = vf_load_f16((const uint16_t *)(block + m_at(scales)));
    if (!pe_scales_parts(scales)) return m;
    return vf_sub(vf_zero(), vf_mul(m, vi_to_f32(load_part(scales, block, u).min)));
}

// Which of the SLICE units from `slice` on have a second term, as bits.
PE_INLINE unsigned fine_units(const pe_act *a, int64_t t, int64_t slice) {
    return (unsigned)(a->has_fine[t * a->ldm + slice / 64] >> slice % 64) & ((1u << SLICE) - 1);
}

// The second terms of a slice's units, gathered: a unit's go through tiles together, whichever tokens they are of.
typedef struct fine_list {
    int n[SLICE];
    uint8_t token[SLICE][MANY_TOKENS];
    int8_t q[SLICE][MANY_TOKENS][32];
    pe_act_block block[SLICE][MANY_TOKENS];
} fine_list;

PE_INLINE void gather_fine(const pe_act *a, int64_t t, int n, int64_t at, fine_list *list) {
    for (int i = 0; i < SLICE; i++) list->n[i] = 0;
    for (int r = 0; r < n; r++)
        for (unsigned some = fine_units(a, t + r, at); some; some &= some - 1) {
            const int i = __builtin_ctz(some);
            const int k = list->n[i]++;
            list->token[i][k] = (uint8_t)r;
            memcpy(list->q[i][k], a->fine_q + (t + r) * a->ldq + 32 * (at + i), 32);
            list->block[i][k] = a->fine[(t + r) * a->ldb + at + i];
        }
}

// Writes a panel's sums of one token into its row y, with the bias.
PE_INLINE void put(const pe_weight *w, const float *bias, int64_t panel, vf sum, float *y) {
    const int64_t row = panel * VL, n = w->rows - row;
    if (n >= VL) vf_store(y + row, bias ? vf_add(sum, vf_load(bias + row)) : sum);
    else vf_store_n(y + row, bias ? vf_add(sum, vf_load_n(bias + row, (int)n)) : sum, (int)n);
}

// The pairs of class and scales that products of many tokens have. Not: mins per 16 (of the smallest formats), and scales
// up to 2^127, which MAGIC would make infinite.
// clang-format off
#define PE_MANY(X) \
    X(U3, K16) X(U4, D) X(U4, DM) X(U4, K32M) X(U5, D) X(U5, DM) X(U5, K32M) X(U6, K16) X(I8, D) X(IQ4, D) X(IQ4, K32)
// clang-format on
#endif
