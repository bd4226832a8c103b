// Integer dot products of one unit (32 k of 16 lanes) with R tokens, by VNNI: unsigned lanes times signed activations, four
// of them summed into 32 bits at once. A group is 4 k: 64 bytes, byte 4 * lane + c.
#ifndef PE_DOT_H
#define PE_DOT_H

#include "cpu/cpu.h"

// A full tile: 12 sums of integers and 12 of floats in 32 registers, and what is read of an activation serves both panels.
// With one panel the loads are the limit, two in a cycle: 8 tokens of it take 1.2 (u4) to 1.3 (i8) times as long.
#define DOT_TOKENS 6
#define DOT_PANELS 2
#define DOT_HALF  // 16 k can be summed by themselves

PE_INLINE vi dot_bcast4(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

PE_INLINE vi dot_load(const uint8_t *p) { return _mm512_loadu_si512(p); }

// Bits of bytes moved to where `mask` wants them: left for shift > 0, right for shift < 0.
PE_INLINE vi dot_bits(vi x, int shift, int mask) {
    const vi moved = shift > 0   ? _mm512_slli_epi16(x, (unsigned)shift)
                     : shift < 0 ? _mm512_srli_epi16(x, (unsigned)-shift)
                                 : x;
    return _mm512_and_si512(moved, _mm512_set1_epi8((char)mask));
}

// What is added to the integers of a class, so that they are unsigned: a power of two, or 0.
PE_INLINE int dot_offset(const pe_class cls) {
    return cls == PE_CLASS_I8 || cls == PE_CLASS_IQ4 || cls == PE_CLASS_FP4 ? 128 : 0;
}

// The integers of group g of a unit (the layout is cpu.h's) and their offset.
PE_INLINE vi dot_group(const pe_class cls, const uint8_t *unit, int g) {
    const vi offset = _mm512_set1_epi8((char)128);  // to add it is to turn the highest bit over
    if (cls == PE_CLASS_I8) return _mm512_xor_si512(dot_load(unit + 64 * g), offset);
    if (cls == PE_CLASS_U2 || cls == PE_CLASS_U3) {
        const vi low = dot_bits(dot_load(unit + 64 * (g / 4)), -2 * (g & 3), 3);
        return cls == PE_CLASS_U2 ? low : _mm512_or_si512(low, dot_bits(dot_load(unit + PAIRS), 2 - g, 4));
    }
    const vi low = dot_bits(dot_load(unit + 64 * (g / 2)), -4 * (g & 1), 15);
    if (cls == PE_CLASS_U5) return _mm512_or_si512(low, dot_bits(dot_load(unit + NIBBLES), 4 - g, 16));
    if (cls == PE_CLASS_U6)
        return _mm512_or_si512(low, dot_bits(dot_load(unit + NIBBLES + 64 * (g / 4)), 4 - 2 * (g & 3), 48));
    if (cls == PE_CLASS_U4) return low;
    static const int8_t iq4[16] = PE_IQ4_VALUES, fp4[16] = PE_MXFP4_VALUES;
    const __m128i table = _mm_loadu_si128((const __m128i *)(cls == PE_CLASS_IQ4 ? iq4 : fp4));
    return _mm512_shuffle_epi8(_mm512_xor_si512(_mm512_broadcast_i32x4(table), offset), low);
}

// s + the dot product of a group's integers with four activations.
PE_INLINE vi dot_add(vi s, vi w, vi x) { return _mm512_dpbusd_epi32(s, w, x); }

// Adds to s[p][r] the sum over groups [first, end) of (w + offset)[lane, k] * q[r, k], for P panels whose units lie `stride`
// bytes apart. Scales of 16 k are for the caller: vpmulld is slow.
PE_INLINE void dot_groups(const pe_class cls, const uint8_t *unit, size_t stride, const int P, const int first,
                          const int end, const int8_t *const *q, int64_t k, const int R, vi (*s)[DOT_TOKENS]) {
#pragma GCC unroll 8
    for (int g = first; g < end; g++) {
        vi w[DOT_PANELS];
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) w[p] = dot_group(cls, unit + (size_t)p * stride, g);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const vi x = dot_bcast4(q[r] + k + 4 * g);
#pragma GCC unroll 2
            for (int p = 0; p < P; p++) s[p][r] = dot_add(s[p][r], w[p], x);
        }
    }
}

// The multiply-adds of a dot product and nothing else, for the probe: adds those of w and each x [8] to s [8].
PE_INLINE void dot_peak(vi w, const vi *x, vi *s) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        s[i] = _mm512_dpbusd_epi32(s[i], w, x[i]);
        v_touch(&s[i]);  // gcc otherwise moves each sum to another register and back
    }
}

// x0 * the sum of the unit's first 16 q + x1 * the sum of its last 16; halves: both sums, as in pe_act_block.
PE_INLINE vi dot_halves(vi x0, vi x1, int32_t halves) {
    const vi both = _mm512_or_si512(_mm512_slli_epi32(x1, 16), _mm512_and_si512(x0, _mm512_set1_epi32(0xffff)));
    return _mm512_madd_epi16(both, _mm512_set1_epi32(halves));
}

// s + x's low 16 bits * the sum of the unit's first 16 q + its high ones * the sum of its last 16.
PE_INLINE vi dot_add_halves(vi s, vi x, int32_t halves) { return _mm512_dpwssd_epi32(s, x, _mm512_set1_epi32(halves)); }

#endif
