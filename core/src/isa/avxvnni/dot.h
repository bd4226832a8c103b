// Integer dot products of one unit (32 k of 8 lanes) with R tokens, by AVX-VNNI: unsigned lanes times signed activations,
// four of them summed into 32 bits at once. Everything else of this set is AVX2's.
#ifndef PE_DOT_H
#define PE_DOT_H

#include "group.h"

#define DOT_TOKENS 4  // in a tile, at most

// What is added to the integers of a class, so that they are unsigned: a power of two, or 0. AVX2's sign trick would need
// one more instruction for each product; this needs one more multiply-add for each 32 k.
PE_INLINE int dot_offset(const pe_class cls) { return dot_is_signed(cls) ? 128 : 0; }

// Adds to s[r] the sum over the first or last 16 k of (w + offset)[lane, k] * q[r, k].
#define DOT_HALF
PE_INLINE void dot_half(const pe_class cls, const uint8_t *unit, int half, const int8_t *const *q, int64_t k, int R,
                        vi *s) {
#pragma GCC unroll 4
    for (int g = 4 * half; g < 4 * half + 4; g++) {
        const vi w = dot_group(cls, unit, g, dot_offset(cls));
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) s[r] = _mm256_dpbusd_avx_epi32(s[r], w, dot_bcast4(q[r] + k + 4 * g));
    }
}

// The same over all 32 k. sub: NULL; scales of 16 k are for dot_half.
PE_INLINE void dot(const pe_class cls, const uint8_t *unit, const vi *sub, const int8_t *const *q, int64_t k, int R,
                   vi *s) {
    (void)sub;
    dot_half(cls, unit, 0, q, k, R, s);
    dot_half(cls, unit, 1, q, k, R, s);
}

// The multiply-adds of a dot product and nothing else, for the probe: adds those of w and each x [8] to s [8]. Six sums:
// the probe has two sets of them, and there are sixteen registers.
PE_INLINE void dot_peak(vi w, const vi *x, vi *s) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        s[i % 6] = _mm256_dpbusd_avx_epi32(s[i % 6], w, x[i]);
        v_touch(&s[i % 6]);  // gcc otherwise moves each sum to another register and back
    }
}

#endif
