// The vector vocabulary in NEON: 8 float32 lanes or 8 int32 lanes, as pairs of registers. Four lanes would do for the
// sources, but with four tokens a tile would have too few sums in flight, and use 8 of the 32 registers.
// Max and min return their second operand when either is NaN, in every instruction set.
#ifndef PE_VEC_H
#define PE_VEC_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define PE_INLINE static inline __attribute__((always_inline))

enum { VL = 8, V_REGISTERS = 16 };  // lanes; registers that hold a vf

typedef struct vf {
    float32x4_t lo, hi;
} vf;
typedef struct vi {
    int32x4_t lo, hi;
} vi;

// ---- float ----
PE_INLINE vf vf_set1(float x) { return (vf){vdupq_n_f32(x), vdupq_n_f32(x)}; }
PE_INLINE vf vf_zero(void) { return vf_set1(0); }
PE_INLINE vf vf_load(const float *p) { return (vf){vld1q_f32(p), vld1q_f32(p + 4)}; }
PE_INLINE void vf_store(float *p, vf x) {
    vst1q_f32(p, x.lo);
    vst1q_f32(p + 4, x.hi);
}
PE_INLINE size_t v_bytes(int n) { return sizeof(float) * (size_t)(n < 0 ? 0 : n < VL ? n : VL); }  // of lanes < n
PE_INLINE vf vf_load_n(const float *p, int n) {                                                    // lanes >= n are 0
    float x[VL] = {0};
    memcpy(x, p, v_bytes(n));
    return vf_load(x);
}
PE_INLINE void vf_store_n(float *p, vf x, int n) {
    float all[VL];
    vf_store(all, x);
    memcpy(p, all, v_bytes(n));
}
PE_INLINE vf v_select_n(int n, vf first, vf rest) {  // lanes < n of the first, the others of the rest
    static const int32_t number[VL] = {0, 1, 2, 3, 4, 5, 6, 7};
    const int32x4_t end = vdupq_n_s32(n);
    return (vf){vbslq_f32(vcltq_s32(vld1q_s32(number), end), first.lo, rest.lo),
                vbslq_f32(vcltq_s32(vld1q_s32(number + 4), end), first.hi, rest.hi)};
}
PE_INLINE vf vf_keep_n(vf x, int n, float fill) { return v_select_n(n, x, vf_set1(fill)); }
PE_INLINE vf vf_drop_n(vf x, int n, float fill) { return v_select_n(n, vf_set1(fill), x); }  // the other lanes
PE_INLINE vf vf_load_f16(const uint16_t *p) {
    const float16x8_t x = vreinterpretq_f16_u16(vld1q_u16(p));
    return (vf){vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x)};
}
PE_INLINE vf vf_load_bf16(const uint16_t *p) {
    const uint16x8_t x = vld1q_u16(p);
    return (vf){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16)),
                vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(x), 16))};
}
PE_INLINE void vf_store_f16(uint16_t *p, vf x) {  // rounds to nearest even, as the processor is set
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.lo), x.hi)));
}
PE_INLINE vf vf_add(vf a, vf b) { return (vf){vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)}; }
PE_INLINE vf vf_sub(vf a, vf b) { return (vf){vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)}; }
PE_INLINE vf vf_mul(vf a, vf b) { return (vf){vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)}; }
PE_INLINE vf vf_div(vf a, vf b) { return (vf){vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)}; }
PE_INLINE vf vf_fma(vf a, vf b, vf c) {  // a * b + c
    return (vf){vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)};
}
// By comparison: the instructions for maximum and minimum have their own mind about NaN.
PE_INLINE vf vf_max(vf a, vf b) {
    return (vf){vbslq_f32(vcgtq_f32(a.lo, b.lo), a.lo, b.lo), vbslq_f32(vcgtq_f32(a.hi, b.hi), a.hi, b.hi)};
}
PE_INLINE vf vf_min(vf a, vf b) {
    return (vf){vbslq_f32(vcltq_f32(a.lo, b.lo), a.lo, b.lo), vbslq_f32(vcltq_f32(a.hi, b.hi), a.hi, b.hi)};
}
PE_INLINE vf vf_select_gt(vf a, vf b, vf x, vf y) {  // a > b ? x : y
    return (vf){vbslq_f32(vcgtq_f32(a.lo, b.lo), x.lo, y.lo), vbslq_f32(vcgtq_f32(a.hi, b.hi), x.hi, y.hi)};
}
PE_INLINE uint32_t vf_bits_ge(vf a, vf b) {  // bit i: a >= b in lane i
    const uint32x4_t low = {1, 2, 4, 8}, high = {16, 32, 64, 128};
    return vaddvq_u32(vorrq_u32(vandq_u32(vcgeq_f32(a.lo, b.lo), low), vandq_u32(vcgeq_f32(a.hi, b.hi), high)));
}
PE_INLINE vf vf_abs(vf x) { return (vf){vabsq_f32(x.lo), vabsq_f32(x.hi)}; }
PE_INLINE vf vf_copysign(vf x, vf sign) {
    const uint32x4_t bit = vdupq_n_u32(0x80000000u);
    return (vf){vbslq_f32(bit, sign.lo, x.lo), vbslq_f32(bit, sign.hi, x.hi)};
}
PE_INLINE float vf_sum(vf x) {  // ((0+4)+(2+6)) + ((1+5)+(3+7))
    const float32x4_t a = vaddq_f32(x.lo, x.hi);
    return vaddv_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a)));
}
PE_INLINE float vf_first(vf x) { return vgetq_lane_f32(x.lo, 0); }
PE_INLINE float vf_hmax(vf x) { return vmaxvq_f32(vmaxq_f32(x.lo, x.hi)); }

// ---- int32 ----
PE_INLINE vi vi_set1(int32_t x) { return (vi){vdupq_n_s32(x), vdupq_n_s32(x)}; }
PE_INLINE vi vi_zero(void) { return vi_set1(0); }
PE_INLINE vi vi_load(const int32_t *p) { return (vi){vld1q_s32(p), vld1q_s32(p + 4)}; }
PE_INLINE void vi_store(int32_t *p, vi x) {
    vst1q_s32(p, x.lo);
    vst1q_s32(p + 4, x.hi);
}
PE_INLINE vi vi_add(vi a, vi b) { return (vi){vaddq_s32(a.lo, b.lo), vaddq_s32(a.hi, b.hi)}; }
PE_INLINE vi vi_sub(vi a, vi b) { return (vi){vsubq_s32(a.lo, b.lo), vsubq_s32(a.hi, b.hi)}; }
PE_INLINE vi vi_max(vi a, vi b) { return (vi){vmaxq_s32(a.lo, b.lo), vmaxq_s32(a.hi, b.hi)}; }
PE_INLINE vi vi_shl(vi x, int bits) {
    const int32x4_t by = vdupq_n_s32(bits);
    return (vi){vshlq_s32(x.lo, by), vshlq_s32(x.hi, by)};
}
PE_INLINE vi vi_shr(vi x, int bits) {  // logical
    const int32x4_t by = vdupq_n_s32(-bits);
    return (vi){vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x.lo), by)),
                vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x.hi), by))};
}
PE_INLINE vi vi_and(vi a, vi b) { return (vi){vandq_s32(a.lo, b.lo), vandq_s32(a.hi, b.hi)}; }
PE_INLINE vi vi_or(vi a, vi b) { return (vi){vorrq_s32(a.lo, b.lo), vorrq_s32(a.hi, b.hi)}; }
PE_INLINE vi vi_load_u8(const uint8_t *p) {
    const uint16x8_t x = vmovl_u8(vld1_u8(p));
    return (vi){vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(x))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(x)))};
}
PE_INLINE vi vi_load_i8(const int8_t *p) {
    const int16x8_t x = vmovl_s8(vld1_s8(p));
    return (vi){vmovl_s16(vget_low_s16(x)), vmovl_s16(vget_high_s16(x))};
}
PE_INLINE vi vi_byte(vi x, int c) {  // byte c of each lane, sign-extended
    const vi top = vi_shl(x, 24 - 8 * c);
    return (vi){vshrq_n_s32(top.lo, 24), vshrq_n_s32(top.hi, 24)};
}
PE_INLINE int32_t vi_hmax(vi x) { return vmaxvq_s32(vmaxq_s32(x.lo, x.hi)); }
PE_INLINE int32_t vi_sum(vi x) { return vaddvq_s32(vaddq_s32(x.lo, x.hi)); }
PE_INLINE vf vi_to_f32(vi x) { return (vf){vcvtq_f32_s32(x.lo), vcvtq_f32_s32(x.hi)}; }
// Nearest even. NaN gives 0 and overflow the end of the range, where other sets give INT32_MIN: no kernel relies on either.
PE_INLINE vi vf_to_i32(vf x) { return (vi){vcvtnq_s32_f32(x.lo), vcvtnq_s32_f32(x.hi)}; }
PE_INLINE vf vi_as_f32(vi x) { return (vf){vreinterpretq_f32_s32(x.lo), vreinterpretq_f32_s32(x.hi)}; }
PE_INLINE vi vf_as_i32(vf x) { return (vi){vreinterpretq_s32_f32(x.lo), vreinterpretq_s32_f32(x.hi)}; }
PE_INLINE void vi_store_i8(int8_t *p, vi x) {  // lanes already within int8
    vst1_s8(p, vmovn_s16(vcombine_s16(vmovn_s32(x.lo), vmovn_s32(x.hi))));
}

PE_INLINE void v_touch(vi *x) { __asm__ volatile("" : "+w"(x->lo), "+w"(x->hi)); }  // the compiler takes *x for changed

PE_INLINE void v_prefetch(const void *p) { __builtin_prefetch(p); }
PE_INLINE void v_prefetch_l2(const void *p) { __builtin_prefetch(p, 0, 2); }

#endif
