// The integers of one unit (32 k of 8 lanes) in 256-bit registers, for every set whose vocabulary is AVX2's. A group is
// 4 k: 32 bytes, byte 4 * lane + c.
#ifndef PE_GROUP_H
#define PE_GROUP_H

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

// The integers of group g of a unit (the layout is cpu.h's): unsigned, or signed for i8 and the tables. `offset`, 0 or
// 128, is added to those that are signed.
PE_INLINE vi dot_group(const pe_class cls, const uint8_t *unit, int g, const int offset) {
    const vi turned = _mm256_set1_epi8((char)offset);  // to add 128 is to turn the highest bit over
    if (cls == PE_CLASS_I8) return _mm256_xor_si256(dot_load(unit + 32 * g), turned);
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
    return _mm256_shuffle_epi8(_mm256_xor_si256(_mm256_broadcastsi128_si256(table), turned), low);
}

PE_INLINE bool dot_is_signed(const pe_class cls) {
    return cls == PE_CLASS_I8 || cls == PE_CLASS_IQ4 || cls == PE_CLASS_FP4;
}

// x0 * the sum of the unit's first 16 q + x1 * the sum of its last 16; halves: both sums, as in pe_act_block.
PE_INLINE vi dot_halves(vi x0, vi x1, int32_t halves) {
    const vi both = _mm256_or_si256(_mm256_slli_epi32(x1, 16), _mm256_and_si256(x0, _mm256_set1_epi32(0xffff)));
    return _mm256_madd_epi16(both, _mm256_set1_epi32(halves));
}

#endif
