// The vector vocabulary in AVX-512 (F, BW, DQ, VL) with VNNI: 16 float32 lanes, or 16 int32 lanes.
// Max and min return their second operand when either is NaN, in every instruction set.
#ifndef PE_VEC_H
#define PE_VEC_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define PE_INLINE static inline __attribute__((always_inline))

enum { VL = 16, V_REGISTERS = 32 };  // lanes; registers that hold a vf

typedef __m512 vf;
typedef __m512i vi;

// ---- float ----
PE_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
PE_INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
PE_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
PE_INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
PE_INLINE __mmask16 v_mask(int n) { return n >= VL ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }  // lanes < n
PE_INLINE vf vf_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(v_mask(n), p); }  // lanes >= n are 0
PE_INLINE void vf_store_n(float *p, vf x, int n) { _mm512_mask_storeu_ps(p, v_mask(n), x); }
PE_INLINE vf vf_keep_n(vf x, int n, float fill) { return _mm512_mask_blend_ps(v_mask(n), _mm512_set1_ps(fill), x); }
PE_INLINE vf vf_drop_n(vf x, int n, float fill) {  // the other lanes
    return _mm512_mask_blend_ps(v_mask(n), x, _mm512_set1_ps(fill));
}
PE_INLINE vf vf_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
PE_INLINE vf vf_load_bf16(const uint16_t *p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
PE_INLINE void vf_store_f16(uint16_t *p, vf x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
PE_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
PE_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
PE_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
PE_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
PE_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
PE_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
PE_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
PE_INLINE vf vf_select_gt(vf a, vf b, vf x, vf y) {  // a > b ? x : y
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
}
PE_INLINE uint32_t vf_bits_ge(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }  // bit i: a >= b in lane i
PE_INLINE vf vf_abs(vf x) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x); }
PE_INLINE vf vf_copysign(vf x, vf sign) {  // of a number that is not negative
    return _mm512_or_ps(x, _mm512_and_ps(_mm512_set1_ps(-0.0f), sign));
}
PE_INLINE __m256 v_upper(vf x) { return _mm512_extractf32x8_ps(x, 1); }
PE_INLINE float vf_sum(vf x) {  // halves onto each other, four times
    const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(x), v_upper(x));
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}
PE_INLINE float vf_first(vf x) { return _mm512_cvtss_f32(x); }
PE_INLINE float vf_hmax(vf x) {
    const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(x), v_upper(x));
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}

// ---- int32 ----
PE_INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
PE_INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
PE_INLINE vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
PE_INLINE void vi_store(int32_t *p, vi x) { _mm512_storeu_si512(p, x); }
PE_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
PE_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
PE_INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
#define vi_shl(x, bits) _mm512_slli_epi32(x, bits)
PE_INLINE vi vi_shr(vi x, int bits) { return _mm512_srl_epi32(x, _mm_cvtsi32_si128(bits)); }  // logical
PE_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
PE_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
PE_INLINE vi vi_load_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
PE_INLINE vi vi_load_i8(const int8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
PE_INLINE vi vi_byte(vi x, int c) {  // byte c of each lane, sign-extended
    return _mm512_srai_epi32(_mm512_sll_epi32(x, _mm_cvtsi32_si128(24 - 8 * c)), 24);
}
PE_INLINE int32_t vi_hmax(vi x) { return _mm512_reduce_max_epi32(x); }
PE_INLINE int32_t vi_sum(vi x) { return _mm512_reduce_add_epi32(x); }
PE_INLINE vf vi_to_f32(vi x) { return _mm512_cvtepi32_ps(x); }
PE_INLINE vi vf_to_i32(vf x) { return _mm512_cvtps_epi32(x); }  // nearest even; NaN and overflow: INT32_MIN
PE_INLINE vf vi_as_f32(vi x) { return _mm512_castsi512_ps(x); }
PE_INLINE vi vf_as_i32(vf x) { return _mm512_castps_si512(x); }
PE_INLINE void vi_store_i8(int8_t *p, vi x) {  // lanes already within int8
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x));
}

#ifndef V_REGISTER
#define V_REGISTER "+v"  // of an operand that stays in a vector register; tests/core/emulated has no such registers
#endif
PE_INLINE void v_touch(vi *x) { __asm__ volatile("" : V_REGISTER(*x)); }  // the compiler takes *x for changed

PE_INLINE void v_prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
PE_INLINE void v_prefetch_l2(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

#endif
