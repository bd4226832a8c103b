// Integer dot products of one unit (32 k of 8 lanes) with R tokens, by NEON's sdot: signed lanes times signed activations,
// four of them summed into 32 bits at once; unsigned lanes go up to 63. A group is 4 k: 32 bytes, byte 4 * lane + c.
#ifndef PE_DOT_H
#define PE_DOT_H

#include "cpu/cpu.h"

#define DOT_TOKENS 4  // in a tile, at most

// Bits of bytes moved to where `mask` wants them: left for shift > 0, right for shift < 0.
PE_INLINE uint8x16_t dot_bits(uint8x16_t x, int shift, int mask) {
    const uint8x16_t moved = shift > 0   ? x << vdupq_n_u8((uint8_t)shift)
                             : shift < 0 ? x >> vdupq_n_u8((uint8_t)-shift)
                                         : x;
    return vandq_u8(moved, vdupq_n_u8((uint8_t)mask));
}

// The integers of 4 lanes of group g (the layout is cpu.h's). unit: moved by 16 bytes for the last 4 lanes.
PE_INLINE int8x16_t dot_group(const pe_class cls, const uint8_t *unit, int g) {
    if (cls == PE_CLASS_I8) return vreinterpretq_s8_u8(vld1q_u8(unit + 32 * g));
    if (cls == PE_CLASS_U2 || cls == PE_CLASS_U3) {
        const uint8x16_t low = dot_bits(vld1q_u8(unit + 32 * (g / 4)), -2 * (g & 3), 3);
        if (cls == PE_CLASS_U2) return vreinterpretq_s8_u8(low);
        return vreinterpretq_s8_u8(vorrq_u8(low, dot_bits(vld1q_u8(unit + PAIRS), 2 - g, 4)));
    }
    const uint8x16_t low = dot_bits(vld1q_u8(unit + 32 * (g / 2)), -4 * (g & 1), 15);
    if (cls == PE_CLASS_U5) return vreinterpretq_s8_u8(vorrq_u8(low, dot_bits(vld1q_u8(unit + NIBBLES), 4 - g, 16)));
    if (cls == PE_CLASS_U6) {
        const uint8x16_t pairs = vld1q_u8(unit + NIBBLES + 32 * (g / 4));
        return vreinterpretq_s8_u8(vorrq_u8(low, dot_bits(pairs, 4 - 2 * (g & 3), 48)));
    }
    if (cls == PE_CLASS_U4) return vreinterpretq_s8_u8(low);
    static const int8_t iq4[16] = PE_IQ4_VALUES, fp4[16] = PE_MXFP4_VALUES;
    return vqtbl1q_s8(vld1q_s8(cls == PE_CLASS_IQ4 ? iq4 : fp4), low);
}

// What dot() adds to the integers of a class: nothing here.
PE_INLINE int dot_offset(const pe_class cls) {
    (void)cls;
    return 0;
}

// Adds to s[r] the products of half h of a unit: 16 k, one register of activations. The instruction takes the group's
// four of them by a number that must be a literal.
PE_INLINE void dot_half(const pe_class cls, const uint8_t *unit, int h, const int8_t *const *q, int64_t k, int R,
                        vi *s) {
    int8x16_t x[DOT_TOKENS];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) x[r] = vld1q_s8(q[r] + k + 16 * h);
#define PE_DOT_GROUP(j)                                                                                      \
    {                                                                                                        \
        const int8x16_t lo = dot_group(cls, unit, 4 * h + (j)), hi = dot_group(cls, unit + 16, 4 * h + (j)); \
        _Pragma("GCC unroll 4") for (int r = 0; r < R; r++) {                                                \
            s[r] = (vi){vdotq_laneq_s32(s[r].lo, lo, x[r], (j)), vdotq_laneq_s32(s[r].hi, hi, x[r], (j))};   \
        }                                                                                                    \
    }
    PE_DOT_GROUP(0)
    PE_DOT_GROUP(1)
    PE_DOT_GROUP(2)
    PE_DOT_GROUP(3)
#undef PE_DOT_GROUP
}

// Adds to s[r] the sum over the 32 k of w[lane, k] * q[r, k], or with `sub` [2] of sub[lane, k / 16] * w[lane, k] * q[r, k].
PE_INLINE void dot(const pe_class cls, const uint8_t *unit, const vi *sub, const int8_t *const *q, int64_t k, int R,
                   vi *s) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        vi half[DOT_TOKENS];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) half[r] = vi_zero();
        dot_half(cls, unit, h, q, k, R, sub ? half : s);
#pragma GCC unroll 4
        for (int r = 0; r < R && sub; r++)
            s[r] = (vi){vmlaq_s32(s[r].lo, half[r].lo, sub[h].lo), vmlaq_s32(s[r].hi, half[r].hi, sub[h].hi)};
    }
}

// The multiply-adds of a dot product and nothing else, for the probe: adds those of w and each x [8] to s [8]. Four sums,
// each a pair of registers: the probe has two sets of them, and there are 32.
PE_INLINE void dot_peak(vi w, const vi *x, vi *s) {
    const int8x16_t lo = vreinterpretq_s8_s32(w.lo), hi = vreinterpretq_s8_s32(w.hi);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        vi *to = &s[i % 4];
        to->lo = vdotq_s32(to->lo, lo, vreinterpretq_s8_s32(x[i].lo));
        to->hi = vdotq_s32(to->hi, hi, vreinterpretq_s8_s32(x[i].hi));
        v_touch(to);
    }
}

// x0 * the sum of the unit's first 16 q + x1 * the sum of its last 16; halves: both sums, as in pe_act_block.
PE_INLINE vi dot_halves(vi x0, vi x1, int32_t halves) {
    int16_t sums[2];
    memcpy(sums, &halves, sizeof sums);
    return (vi){vmlaq_n_s32(vmulq_n_s32(x0.lo, sums[0]), x1.lo, sums[1]),
                vmlaq_n_s32(vmulq_n_s32(x0.hi, sums[0]), x1.hi, sums[1])};
}

#endif
