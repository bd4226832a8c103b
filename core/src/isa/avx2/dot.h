// Integer dot products of one panel block of 32 k with R tokens, in AVX2: s[r] = sum over k of w[lane, k] * q[r, k].
// A group is 4 k of 8 lanes: 32 bytes, byte 4 * lane + c.
#ifndef PE_DOT_H
#define PE_DOT_H

#include "vec.h"

PE_INLINE vi dot_bcast4(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

// Unsigned 4-bit lanes. Summed in 16 bits over the 32 k: 8 x 2 x 15 x 127 = 30,480 < 32,767, then widened once.
PE_INLINE void dot_u4(const uint8_t *w, const int8_t *const *q, int64_t k, int R, vi *s) {
    const vi low4 = _mm256_set1_epi8(15);
    vi s16[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const vi b = _mm256_loadu_si256((const vi *)(w + 32 * j));
        const vi lo = _mm256_and_si256(b, low4), hi = _mm256_and_si256(_mm256_srli_epi16(b, 4), low4);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const vi x = _mm256_maddubs_epi16(lo, dot_bcast4(q[r] + k + 8 * j));
            const vi y = _mm256_maddubs_epi16(hi, dot_bcast4(q[r] + k + 8 * j + 4));
            s16[r] = j ? _mm256_add_epi16(s16[r], _mm256_add_epi16(x, y)) : _mm256_add_epi16(x, y);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) s[r] = _mm256_madd_epi16(s16[r], _mm256_set1_epi16(1));
}

// Signed 8-bit lanes, -128 included: |w| as unsigned times q with w's sign; a pair is at most 2 x 128 x 127 = 32,512.
PE_INLINE void dot_i8(const uint8_t *w, const int8_t *const *q, int64_t k, int R, vi *s) {
    const vi ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        const vi b = _mm256_loadu_si256((const vi *)(w + 32 * j)), a = _mm256_abs_epi8(b);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const vi x = _mm256_maddubs_epi16(a, _mm256_sign_epi8(dot_bcast4(q[r] + k + 4 * j), b));
            const vi y = _mm256_madd_epi16(x, ones);
            s[r] = j ? _mm256_add_epi32(s[r], y) : y;
        }
    }
}

// Unsigned 6-bit lanes with an int8 scale per 16 k. sub: [2][8 lanes]; s[r] = sum of scale * (q6 * q - 32 * q).
// Summed in 16 bits over 8 k: 2 x 2 x 63 x 127 = 32,004 < 32,767; the scale goes into the widening multiply.
PE_INLINE void dot_u6(const uint8_t *w, const int8_t *sub, const int8_t *const *q, const int32_t *halves, int64_t k,
                      int R, vi *s) {
    const vi low4 = _mm256_set1_epi8(15), high2 = _mm256_set1_epi8(48);
    const vi sub0 = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)sub));
    const vi sub1 = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(sub + 8)));
    const vi low16 = _mm256_set1_epi32(0xffff);
    const vi pair0 = _mm256_or_si256(_mm256_slli_epi32(sub0, 16), _mm256_and_si256(sub0, low16));
    const vi pair1 = _mm256_or_si256(_mm256_slli_epi32(sub1, 16), _mm256_and_si256(sub1, low16));
    const vi both = _mm256_or_si256(_mm256_slli_epi32(sub1, 16), _mm256_and_si256(sub0, low16));
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
        s[r] = _mm256_sub_epi32(_mm256_setzero_si256(),
                                _mm256_slli_epi32(_mm256_madd_epi16(both, _mm256_set1_epi32(halves[r])), 5));
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {  // halves of 16 k
        const vi hi = _mm256_loadu_si256((const vi *)(w + 128 + 32 * h));
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {  // 8 k: two groups
            const vi lo = _mm256_loadu_si256((const vi *)(w + 64 * h + 32 * j));
            const vi h0 = j ? hi : _mm256_slli_epi16(hi, 4),
                     h1 = j ? _mm256_srli_epi16(hi, 2) : _mm256_slli_epi16(hi, 2);
            const vi w0 = _mm256_or_si256(_mm256_and_si256(lo, low4), _mm256_and_si256(h0, high2));
            const vi w1 =
                _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(lo, 4), low4), _mm256_and_si256(h1, high2));
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                const int8_t *a = q[r] + k + 16 * h + 8 * j;
                const vi x = _mm256_add_epi16(_mm256_maddubs_epi16(w0, dot_bcast4(a)),
                                              _mm256_maddubs_epi16(w1, dot_bcast4(a + 4)));
                s[r] = _mm256_add_epi32(s[r], _mm256_madd_epi16(x, h ? pair1 : pair0));
            }
        }
    }
}

#endif
