// In place of the compiler's <immintrin.h>, for kernel_check alone: the intrinsics of AVX2, AVX-VNNI and AVX-512 as plain
// C, by SIMDe, so that any processor can run kernels written in them. Owns those that Debian's SIMDe 0.7.4 lacks.
#ifndef PE_EMULATED_IMMINTRIN_H
#define PE_EMULATED_IMMINTRIN_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#define SIMDE_NO_INLINE  // or compiling a tile takes longer than a check of all
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

typedef simde__mmask16 __mmask16;

// A later SIMDe has some of them; that of 0.7.4 takes a wrong number of arguments for _mm512_madd_epi16.
#undef _mm512_madd_epi16
#undef _mm256_dpbusd_avx_epi32
#undef _mm512_cvtepi32_epi8
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_epi32
#undef _mm512_cvtps_ph
#undef _mm512_cvtss_f32
#undef _mm512_extractf32x8_ps
#undef _mm512_fmadd_ps
#undef _mm512_mask_i32gather_ps
#undef _mm512_mask_storeu_ps
#undef _mm512_maskz_loadu_ps
#undef _mm512_reduce_add_epi32
#undef _mm512_reduce_max_epi32
#undef _mm512_srai_epi32

#define V_REGISTER "+m"

#define PE_EMULATED __attribute__((noinline, unused)) static

// The lanes of a vector, and back.
#define PE_LANES(type, n, name, x) \
    type name[n];                  \
    memcpy(name, &(x), sizeof name)
#define PE_RETURN(vector, lanes)   \
    vector v_;                     \
    memcpy(&v_, lanes, sizeof v_); \
    return v_
// A function of each lane i, from vectors of n lanes to vectors of n lanes.
#define PE_MAP_LANES(name, from_vector, from, to_vector, to, n, expression) \
    PE_EMULATED to_vector name(from_vector a_) {                            \
        PE_LANES(from, n, a, a_);                                           \
        to r[n];                                                            \
        for (int i = 0; i < n; i++) r[i] = (to)(expression);                \
        PE_RETURN(to_vector, r);                                            \
    }

PE_MAP_LANES(_mm512_cvtepi32_epi8, __m512i, int32_t, __m128i, int8_t, 16, a[i] & 0xff)
PE_MAP_LANES(_mm512_cvtepi32_ps, __m512i, int32_t, __m512, float, 16, a[i])
PE_MAP_LANES(_mm512_cvtepi8_epi32, __m128i, int8_t, __m512i, int32_t, 16, a[i])
PE_MAP_LANES(_mm512_cvtepu8_epi32, __m128i, uint8_t, __m512i, int32_t, 16, a[i])
PE_MAP_LANES(_mm512_cvtepu16_epi32, __m256i, uint16_t, __m512i, int32_t, 16, a[i])

// Of SIMDe two roundings, where the compiler may use no fma: kernels count on one.
PE_EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    PE_LANES(float, 16, x, a);
    PE_LANES(float, 16, y, b);
    PE_LANES(float, 16, z, c);
    for (int i = 0; i < 16; i++) z[i] = fmaf(x[i], y[i], z[i]);
    PE_RETURN(__m512, z);
}

PE_EMULATED __m512i _mm512_cvtps_epi32(__m512 a) {
    PE_LANES(__m128, 4, part, a);
    __m128i r[4];
    for (int i = 0; i < 4; i++) r[i] = _mm_cvtps_epi32(part[i]);
    PE_RETURN(__m512i, r);
}

PE_EMULATED __m512 _mm512_cvtph_ps(__m256i a) {
    PE_LANES(__m128i, 2, half, a);
    const __m256 r[2] = {_mm256_cvtph_ps(half[0]), _mm256_cvtph_ps(half[1])};
    PE_RETURN(__m512, r);
}

PE_EMULATED __m256i _mm512_cvtps_ph(__m512 a, int rounding) {
    PE_LANES(__m256, 2, half, a);
    (void)rounding;
    const __m128i r[2] = {_mm256_cvtps_ph(half[0], 0), _mm256_cvtps_ph(half[1], 0)};
    PE_RETURN(__m256i, r);
}

PE_EMULATED float _mm512_cvtss_f32(__m512 a) {
    float r;
    memcpy(&r, &a, sizeof r);
    return r;
}

PE_EMULATED __m256 _mm512_extractf32x8_ps(__m512 a, int half) {
    PE_LANES(__m256, 2, halves, a);
    return halves[half];
}

PE_EMULATED __m512 _mm512_mask_i32gather_ps(__m512 src, __mmask16 mask, __m512i at, const void *p, int scale) {
    PE_LANES(float, 16, r, src);
    PE_LANES(int32_t, 16, lane, at);
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) memcpy(&r[i], (const char *)p + (int64_t)lane[i] * scale, sizeof r[i]);
    PE_RETURN(__m512, r);
}

PE_EMULATED __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float *p) {  // reads the lanes of the mask alone
    float r[16] = {0};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) r[i] = p[i];
    PE_RETURN(__m512, r);
}

PE_EMULATED void _mm512_mask_storeu_ps(float *p, __mmask16 mask, __m512 x) {
    PE_LANES(float, 16, lane, x);
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) p[i] = lane[i];
}

PE_EMULATED __m512i _mm512_madd_epi16(__m512i a, __m512i b) {
    PE_LANES(int16_t, 32, x, a);
    PE_LANES(int16_t, 32, y, b);
    int32_t r[16];
    for (int i = 0; i < 16; i++) r[i] = x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1];
    PE_RETURN(__m512i, r);
}

PE_EMULATED __m512i _mm512_srai_epi32(__m512i x, unsigned bits) {
    PE_LANES(int32_t, 16, r, x);
    for (int i = 0; i < 16; i++) r[i] >>= bits;
    PE_RETURN(__m512i, r);
}

PE_EMULATED int32_t _mm512_reduce_add_epi32(__m512i x) {
    PE_LANES(uint32_t, 16, lane, x);
    uint32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += lane[i];
    return (int32_t)sum;
}

PE_EMULATED int32_t _mm512_reduce_max_epi32(__m512i x) {
    PE_LANES(int32_t, 16, lane, x);
    int32_t max = lane[0];
    for (int i = 1; i < 16; i++) max = lane[i] > max ? lane[i] : max;
    return max;
}

PE_EMULATED __m256i _mm256_dpbusd_avx_epi32(__m256i sums, __m256i a, __m256i b) {
    PE_LANES(int32_t, 8, r, sums);
    PE_LANES(uint8_t, 32, x, a);
    PE_LANES(int8_t, 32, y, b);
    for (int i = 0; i < 32; i++) r[i / 4] += x[i] * y[i];
    PE_RETURN(__m256i, r);
}

#endif
