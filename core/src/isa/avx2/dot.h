// Integer dot products of one unit (32 k of 8 lanes) with R tokens, in AVX2.
#ifndef PE_DOT_H
#define PE_DOT_H

#include "group.h"

#define DOT_TOKENS 4  // in a tile, at most

// Groups whose products fit 16 bits when summed: 2 x 127 x the largest lane for each.
PE_INLINE int dot_groups_in_16_bits(const pe_class cls) {
    switch (cls) {
    case PE_CLASS_U5: return 4;   // 31,496
    case PE_CLASS_U6: return 2;   // 32,004
    case PE_CLASS_I8:             // 32,512: |-128| is unsigned here
    case PE_CLASS_IQ4: return 1;  // 32,258
    default: return 8;            // u4: 30,480
    }
}

// What dot() adds to the integers of a class: nothing here.
PE_INLINE int dot_offset(const pe_class cls) {
    (void)cls;
    return 0;
}

// Adds to s[r] the sum over the 32 k of w[lane, k] * q[r, k], or with `sub` [2] of sub[lane, k / 16] * w[lane, k] * q[r, k]; the
// scale goes into the widening multiply. Signed lanes: |w| as unsigned times q with w's sign.
PE_INLINE void dot(const pe_class cls, const uint8_t *unit, const vi *sub, const int8_t *const *q, int64_t k, int R,
                   vi *s) {
    const vi ones = _mm256_set1_epi16(1), low16 = _mm256_set1_epi32(0xffff);
    const int fits = dot_groups_in_16_bits(cls), n = sub && fits > 4 ? 4 : fits;
    vi pairs[2] = {ones, ones};
    if (sub)
        for (int h = 0; h < 2; h++)
            pairs[h] = _mm256_or_si256(_mm256_slli_epi32(sub[h], 16), _mm256_and_si256(sub[h], low16));
    vi s16[DOT_TOKENS];
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        const vi w = dot_group(cls, unit, g, 0), a = dot_is_signed(cls) ? _mm256_abs_epi8(w) : w;
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const vi x = dot_bcast4(q[r] + k + 4 * g);
            const vi y = _mm256_maddubs_epi16(a, dot_is_signed(cls) ? _mm256_sign_epi8(x, w) : x);
            s16[r] = g % n ? _mm256_add_epi16(s16[r], y) : y;
            if (g % n != n - 1) continue;
            const vi wide = _mm256_madd_epi16(s16[r], pairs[g / 4]);
            s[r] = _mm256_add_epi32(s[r], wide);
        }
    }
}

// The multiply-adds of a dot product and nothing else, for the probe: adds those of w and each x [8] to s [8].
PE_INLINE void dot_peak(vi w, const vi *x, vi *s) {
    v_touch(&w);  // or the products would be computed once for all rounds
    vi s16 = _mm256_maddubs_epi16(w, x[0]);
#pragma GCC unroll 8
    for (int i = 1; i < 8; i++) s16 = _mm256_add_epi16(s16, _mm256_maddubs_epi16(w, x[i]));
    s[0] = _mm256_add_epi32(s[0], _mm256_madd_epi16(s16, _mm256_set1_epi16(1)));
}

#endif
