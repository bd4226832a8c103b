// Integer dot products of one unit (32 k of 8 lanes) with R tokens, in plain C. A group is 4 k: 32 bytes, byte 4 * lane + c.
#ifndef PE_DOT_H
#define PE_DOT_H

#include "cpu/cpu.h"

#define DOT_TOKENS 4  // in a tile, at most

// The integers of group g of a unit (the layout is cpu.h's).
PE_INLINE void dot_group(const pe_class cls, const uint8_t *unit, int g, int8_t *w) {
    for (int i = 0; i < 4 * VL; i++) {
        const int pairs = unit[4 * VL * (g / 4) + i] >> 2 * (g & 3) & 3;
        const int low = unit[4 * VL * (g / 2) % NIBBLES + i] >> 4 * (g & 1) & 15;
        switch (cls) {
        case PE_CLASS_I8: w[i] = (int8_t)unit[4 * VL * g + i]; break;
        case PE_CLASS_U2: w[i] = (int8_t)pairs; break;
        case PE_CLASS_U3: w[i] = (int8_t)(pairs | (unit[PAIRS + i] >> g & 1) << 2); break;
        case PE_CLASS_U5: w[i] = (int8_t)(low | (unit[NIBBLES + i] >> g & 1) << 4); break;
        case PE_CLASS_U6: w[i] = (int8_t)(low | (unit[NIBBLES + 4 * VL * (g / 4) + i] >> 2 * (g & 3) & 3) << 4); break;
        default: w[i] = (int8_t)pe_class_value(cls, low); break;
        }
    }
}

// What dot() adds to the integers of a class: nothing here.
PE_INLINE int dot_offset(const pe_class cls) {
    (void)cls;
    return 0;
}

// Adds to s[r] the sum over the 32 k of w[lane, k] * q[r, k], or with `sub` [2] of sub[lane, k / 16] * w[lane, k] * q[r, k].
PE_INLINE void dot(const pe_class cls, const uint8_t *unit, const vi *sub, const int8_t *const *q, int64_t k, int R,
                   vi *s) {
    for (int g = 0; g < 8; g++) {
        int8_t w[4 * VL];
        dot_group(cls, unit, g, w);
        for (int r = 0; r < R; r++)
            for (int lane = 0; lane < VL; lane++) {
                int32_t part = 0;
                for (int c = 0; c < 4; c++) part += w[4 * lane + c] * q[r][k + 4 * g + c];
                s[r].x[lane] += sub ? part * sub[g / 4].x[lane] : part;
            }
    }
}

// The multiply-adds of a dot product and nothing else, for the probe: adds those of w and each x [8] to s [8].
PE_INLINE void dot_peak(vi w, const vi *x, vi *s) {
    v_touch(&w);  // or the products would be computed once for all rounds
    uint8_t unsigned_lanes[4 * VL];
    memcpy(unsigned_lanes, &w, sizeof unsigned_lanes);
    for (int i = 0; i < 8; i++) {
        int8_t signed_lanes[4 * VL];
        memcpy(signed_lanes, &x[i], sizeof signed_lanes);
        for (int lane = 0; lane < VL; lane++)
            for (int c = 0; c < 4; c++) {  // sums may wrap
                const int product = unsigned_lanes[4 * lane + c] * signed_lanes[4 * lane + c];
                s[0].x[lane] = (int32_t)((uint32_t)s[0].x[lane] + (uint32_t)product);
            }
    }
}

// x0 * the sum of the unit's first 16 q + x1 * the sum of its last 16; halves: both sums, as in pe_act_block.
PE_INLINE vi dot_halves(vi x0, vi x1, int32_t halves) {
    int16_t sums[2];
    memcpy(sums, &halves, sizeof sums);
    PE_MAP(vi, x0.x[i_] * sums[0] + x1.x[i_] * sums[1]);
}

#endif
