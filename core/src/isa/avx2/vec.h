// The vector vocabulary in AVX2 + FMA + F16C: 8 float32 lanes, or 8 int32 lanes.
// Max and min return their second operand when either is NaN, in every instruction set.
#ifndef PE_VEC_H
#define PE_VEC_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define PE_INLINE static inline __attribute__((always_inline))

enum { VL = 8, V_REGISTERS = 16 };  // lanes; registers that hold a vf

typedef __m256 vf;
typedef __m256i vi;

// ---- float ----
PE_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
PE_INLINE vf vf_set1(float x) { return _mm256_set1_ps(x); }
PE_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
PE_INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
PE_INLINE __m256i v_mask(int n) {  // lanes < n
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
PE_INLINE vf vf_load_n(const float *p, int n) { return _mm256_maskload_ps(p, v_mask(n)); }  // lanes >= n are 0
PE_INLINE void vf_store_n(float *p, vf x, int n) { _mm256_maskstore_ps(p, v_mask(n), x); }
PE_INLINE vf vf_keep_n(vf x, int n, float fill) {
    return _mm256_blendv_ps(_mm256_set1_ps(fill), x, _mm256_castsi256_ps(v_mask(n)));
}
PE_INLINE vf vf_drop_n(vf x, int n, float fill) {  // the other lanes
    return _mm256_blendv_ps(x, _mm256_set1_ps(fill), _mm256_castsi256_ps(v_mask(n)));
}
PE_INLINE vf vf_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
PE_INLINE vf vf_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
PE_INLINE void vf_store_f16(uint16_t *p, vf x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
PE_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
PE_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
PE_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
PE_INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
PE_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }  // a * b + c
PE_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
PE_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
PE_INLINE vf vf_select_gt(vf a, vf b, vf x, vf y) {  // a > b ? x : y
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
PE_INLINE uint32_t vf_bits_ge(vf a, vf b) {  // bit i: a >= b in lane i
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}
PE_INLINE vf vf_abs(vf x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
PE_INLINE vf vf_copysign(vf x, vf sign) {  // of a number that is not negative
    return _mm256_or_ps(x, _mm256_and_ps(_mm256_set1_ps(-0.0f), sign));
}
PE_INLINE float vf_sum(vf x) {  // ((0+4)+(2+6)) + ((1+5)+(3+7))
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}
PE_INLINE float vf_first(vf x) { return _mm256_cvtss_f32(x); }
PE_INLINE float vf_hmax(vf x) {
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}

// ---- int32 ----
PE_INLINE vi vi_zero(void) { return _mm256_setzero_si256(); }
PE_INLINE vi vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
PE_INLINE vi vi_load(const int32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
PE_INLINE void vi_store(int32_t *p, vi x) { _mm256_storeu_si256((__m256i *)p, x); }
PE_INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
PE_INLINE vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
PE_INLINE vi vi_max(vi a, vi b) { return _mm256_max_epi32(a, b); }
#define vi_shl(x, bits) _mm256_slli_epi32(x, bits)
PE_INLINE vi vi_shr(vi x, int bits) { return _mm256_srl_epi32(x, _mm_cvtsi32_si128(bits)); }  // logical
PE_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
PE_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
PE_INLINE vi vi_load_u8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
PE_INLINE vi vi_load_i8(const int8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
PE_INLINE vi vi_byte(vi x, int c) {  // byte c of each lane, sign-extended
    return _mm256_srai_epi32(_mm256_sll_epi32(x, _mm_cvtsi32_si128(24 - 8 * c)), 24);
}
PE_INLINE int32_t vi_hmax(vi x) {
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}
PE_INLINE int32_t vi_sum(vi x) {
    __m128i a = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}
PE_INLINE vf vi_to_f32(vi x) { return _mm256_cvtepi32_ps(x); }
PE_INLINE vi vf_to_i32(vf x) { return _mm256_cvtps_epi32(x); }  // nearest even; NaN and overflow: INT32_MIN
PE_INLINE vf vi_as_f32(vi x) { return _mm256_castsi256_ps(x); }
PE_INLINE vi vf_as_i32(vf x) { return _mm256_castps_si256(x); }
PE_INLINE void vi_store_i8(int8_t *p, vi x) {  // lanes already within int8
    __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(w, w));
}

#ifndef V_REGISTER
#define V_REGISTER "+v"  // of an operand that stays in a vector register; tests/core/emulated has no such registers
#endif
PE_INLINE void v_touch(vi *x) { __asm__ volatile("" : V_REGISTER(*x)); }  // the compiler takes *x for changed

PE_INLINE void v_prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
PE_INLINE void v_prefetch_l2(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

#endif
