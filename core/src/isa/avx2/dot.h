// Integer dot products of one unit (32 k of 8 lanes) with R tokens, in AVX2. A group is 4 k: 32 bytes, byte 4 * lane + c.
#ifndef PE_DOT_H
#define PE_DOT_H

#include "cpu/cpu.h"

PE_INLINE vi dot_bcast4(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

PE_INLINE vi dot_load(const uint8_t *p) { return _mm256_loadu_si256((const vi *)p); }

// Bits of bytes moved to where `mask` wants them: left for shift > 0, right for shift < 0.
PE_INLINE vi dot_bits(vi x, int shift, int mask) {
    const vi moved = shift > 0 ? _mm256_slli_epi16(x, shift) : shift < 0 ? _mm256_srli_epi16(x, -shift) : x;
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)mask));
}

// The integers of group g of a unit (the layout is cpu.h's): unsigned, or signed for i8 and the tables.
PE_INLINE vi dot_group(const pe_class cls, const uint8_t *unit, int g) {
    if (cls == PE_CLASS_I8) return dot_load(unit + 32 * g);
    if (cls == PE_CLASS_U2 || cls == PE_CLASS_U3) {
        const vi low = dot_bits(dot_load(unit + 32 * (g / 4)), -2 * (g & 3), 3);
        return cls == PE_CLASS_U2 ? low : _mm256_or_si256(low, dot_bits(dot_load(unit + PAIRS), 2 - g, 4));
    }
    const vi low = dot_bits(dot_load(unit + 32 * (g / 2)), -4 * (g & 1), 15);
    if (cls == PE_CLASS_U5) return _mm256_or_si256(low, dot_bits(dot_load(unit + NIBBLES), 4 - g, 16));
    if (cls == PE_CLASS_U6)
        return _mm256_or_si256(low, dot_bits(dot_load(unit + NIBBLES + 32 * (g / 4)), 4 - 2 * (g & 3), 48));
    if (cls == PE_CLASS_U4) return low;
    static const int8_t iq4[16] = PE_IQ4_VALUES, fp4[16] = PE_MXFP4_VALUES;
    const __m128i table = _mm_loadu_si128((const __m128i *)(cls == PE_CLASS_IQ4 ? iq4 : fp4));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), low);
}

PE_INLINE bool dot_is_signed(const pe_class cls) {
    return cls == PE_CLASS_I8 || cls == PE_CLASS_IQ4 || cls == PE_CLASS_FP4;
}

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

// s[r] = sum over the 32 k of w[lane, k] * q[r, k], or with `sub` [2] of sub[lane, k / 16] * w[lane, k] * q[r, k]; the
// scale goes into the widening multiply. Signed lanes: |w| as unsigned times q with w's sign.
PE_INLINE void dot(const pe_class cls, const uint8_t *unit, const vi *sub, const int8_t *const *q, int64_t k, int R,
                   vi *s) {
    const vi ones = _mm256_set1_epi16(1), low16 = _mm256_set1_epi32(0xffff);
    const int fits = dot_groups_in_16_bits(cls), n = sub && fits > 4 ? 4 : fits;
    vi pairs[2] = {ones, ones};
    if (sub)
        for (int h = 0; h < 2; h++)
            pairs[h] = _mm256_or_si256(_mm256_slli_epi32(sub[h], 16), _mm256_and_si256(sub[h], low16));
    vi s16[4];
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        const vi w = dot_group(cls, unit, g), a = dot_is_signed(cls) ? _mm256_abs_epi8(w) : w;
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const vi x = dot_bcast4(q[r] + k + 4 * g);
            const vi y = _mm256_maddubs_epi16(a, dot_is_signed(cls) ? _mm256_sign_epi8(x, w) : x);
            s16[r] = g % n ? _mm256_add_epi16(s16[r], y) : y;
            if (g % n != n - 1) continue;
            const vi wide = _mm256_madd_epi16(s16[r], pairs[g / 4]);
            s[r] = g < n ? wide : _mm256_add_epi32(s[r], wide);
        }
    }
}

// The multiply-adds of a dot product and nothing else, for the probe: adds those of w and each x [8] to s [8].
PE_INLINE void dot_peak(vi w, const vi *x, vi *s) {
    __asm__ volatile("" : "+x"(w));  // or the products would be computed once for all rounds
    vi s16 = _mm256_maddubs_epi16(w, x[0]);
#pragma GCC unroll 8
    for (int i = 1; i < 8; i++) s16 = _mm256_add_epi16(s16, _mm256_maddubs_epi16(w, x[i]));
    s[0] = _mm256_add_epi32(s[0], _mm256_madd_epi16(s16, _mm256_set1_epi16(1)));
}

// x0 * the sum of the unit's first 16 q + x1 * the sum of its last 16; halves: both sums, as in pe_act_block.
PE_INLINE vi dot_halves(vi x0, vi x1, int32_t halves) {
    const vi both = _mm256_or_si256(_mm256_slli_epi32(x1, 16), _mm256_and_si256(x0, _mm256_set1_epi32(0xffff)));
    return _mm256_madd_epi16(both, _mm256_set1_epi32(halves));
}

#endif
