// Integer dot products of one panel block of 32 k with R tokens, in plain C: s[r] = sum over k of w[lane, k] * q[r, k].
// A group is 4 k of 8 lanes: 32 bytes, byte 4 * lane + c.
#ifndef PE_DOT_H
#define PE_DOT_H

#include "vec.h"

PE_INLINE void dot_group(const int8_t *w, const int8_t *q, vi *s) {  // w: [8 lanes, 4]
    for (int lane = 0; lane < VL; lane++)
        for (int c = 0; c < 4; c++) s->x[lane] += w[4 * lane + c] * q[c];
}

PE_INLINE void dot_u4(const uint8_t *w, const int8_t *const *q, int64_t k, int R, vi *s) {
    for (int r = 0; r < R; r++) s[r] = vi_zero();
    for (int j = 0; j < 4; j++) {
        int8_t lo[32], hi[32];
        for (int i = 0; i < 32; i++) lo[i] = (int8_t)(w[32 * j + i] & 15), hi[i] = (int8_t)(w[32 * j + i] >> 4);
        for (int r = 0; r < R; r++) {
            dot_group(lo, q[r] + k + 8 * j, &s[r]);
            dot_group(hi, q[r] + k + 8 * j + 4, &s[r]);
        }
    }
}

PE_INLINE void dot_i8(const uint8_t *w, const int8_t *const *q, int64_t k, int R, vi *s) {
    for (int r = 0; r < R; r++) {
        s[r] = vi_zero();
        for (int j = 0; j < 8; j++) dot_group((const int8_t *)w + 32 * j, q[r] + k + 4 * j, &s[r]);
    }
}

PE_INLINE void dot_u6(const uint8_t *w, const int8_t *sub, const int8_t *const *q, const int32_t *halves, int64_t k,
                      int R, vi *s) {
    (void)halves;
    for (int r = 0; r < R; r++) s[r] = vi_zero();
    for (int g = 0; g < 8; g++) {
        int8_t lanes[32];
        for (int i = 0; i < 32; i++) {
            const int low = w[32 * (g / 2) + i] >> 4 * (g & 1) & 15,
                      high = w[128 + 32 * (g / 4) + i] >> 2 * (g & 3) & 3;
            lanes[i] = (int8_t)((low | high << 4) - 32);
        }
        for (int r = 0; r < R; r++) {
            vi part = vi_zero();
            dot_group(lanes, q[r] + k + 4 * g, &part);
            PE_EACH s[r].x[i_] += part.x[i_] * sub[VL * (g / 4) + i_];
        }
    }
}

#endif
