// The vector vocabulary in plain C: 8 lanes in an array. It is the reference for the other sets and what runs where no
// other set does; the compiler turns its loops into whatever the baseline offers.
#ifndef PE_VEC_H
#define PE_VEC_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "f16.h"

#define PE_INLINE static inline __attribute__((always_inline))
#define PE_EACH for (int i_ = 0; i_ < VL; i_++)

enum { VL = 8, V_REGISTERS = 16 };  // lanes; registers that hold a vf

typedef struct vf {
    float x[VL];
} vf;
typedef struct vi {
    int32_t x[VL];
} vi;

#define PE_MAP(type, expression)       \
    type out_;                         \
    PE_EACH out_.x[i_] = (expression); \
    return out_

PE_INLINE vf vf_set1(float x) { PE_MAP(vf, x); }
PE_INLINE vf vf_zero(void) { return vf_set1(0); }
PE_INLINE vf vf_load(const float *p) { PE_MAP(vf, p[i_]); }
PE_INLINE void vf_store(float *p, vf x) { PE_EACH p[i_] = x.x[i_]; }
PE_INLINE vf vf_load_n(const float *p, int n) { PE_MAP(vf, i_ < n ? p[i_] : 0); }
PE_INLINE void vf_store_n(float *p, vf x, int n) {
    for (int i = 0; i < n && i < VL; i++) p[i] = x.x[i];
}
PE_INLINE vf vf_keep_n(vf x, int n, float fill) { PE_MAP(vf, i_ < n ? x.x[i_] : fill); }
PE_INLINE vf vf_drop_n(vf x, int n, float fill) { PE_MAP(vf, i_ < n ? fill : x.x[i_]); }  // the other lanes
PE_INLINE vf vf_load_f16(const uint16_t *p) { PE_MAP(vf, pe_f16_to_f32(p[i_])); }
PE_INLINE vf vf_load_bf16(const uint16_t *p) { PE_MAP(vf, pe_bf16_to_f32(p[i_])); }
PE_INLINE void vf_store_f16(uint16_t *p, vf x) { PE_EACH p[i_] = pe_f32_to_f16(x.x[i_]); }
PE_INLINE vf vf_add(vf a, vf b) { PE_MAP(vf, a.x[i_] + b.x[i_]); }
PE_INLINE vf vf_sub(vf a, vf b) { PE_MAP(vf, a.x[i_] - b.x[i_]); }
PE_INLINE vf vf_mul(vf a, vf b) { PE_MAP(vf, a.x[i_] * b.x[i_]); }
PE_INLINE vf vf_div(vf a, vf b) { PE_MAP(vf, a.x[i_] / b.x[i_]); }
// Two roundings: fmaf without hardware is a library call, thirty times slower, and bits are per instruction set anyway.
PE_INLINE vf vf_fma(vf a, vf b, vf c) { PE_MAP(vf, a.x[i_] * b.x[i_] + c.x[i_]); }
PE_INLINE vf vf_max(vf a, vf b) { PE_MAP(vf, a.x[i_] > b.x[i_] ? a.x[i_] : b.x[i_]); }
PE_INLINE vf vf_min(vf a, vf b) { PE_MAP(vf, a.x[i_] < b.x[i_] ? a.x[i_] : b.x[i_]); }
// a > b ? x : y
PE_INLINE vf vf_select_gt(vf a, vf b, vf x, vf y) { PE_MAP(vf, a.x[i_] > b.x[i_] ? x.x[i_] : y.x[i_]); }
PE_INLINE uint32_t vf_bits_ge(vf a, vf b) {  // bit i: a >= b in lane i
    uint8_t bytes[VL];                       // 0 or 1 each; the product moves byte i's to bit 56 + i
    PE_EACH bytes[i_] = a.x[i_] >= b.x[i_];
    uint64_t all;
    memcpy(&all, bytes, sizeof all);
    return (uint32_t)(all * 0x0102040810204080u >> 56);
}
PE_INLINE vf vf_abs(vf x) { PE_MAP(vf, fabsf(x.x[i_])); }
PE_INLINE vf vf_copysign(vf x, vf sign) { PE_MAP(vf, copysignf(x.x[i_], sign.x[i_])); }
PE_INLINE float vf_sum(vf v) {
    const float *x = v.x;
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}
PE_INLINE float vf_first(vf x) { return x.x[0]; }
PE_INLINE float vf_hmax(vf v) {
    float m = v.x[0];
    for (int i = 1; i < VL; i++) m = v.x[i] > m ? v.x[i] : m;
    return m;
}

PE_INLINE vi vi_set1(int32_t x) { PE_MAP(vi, x); }
PE_INLINE vi vi_zero(void) { return vi_set1(0); }
PE_INLINE vi vi_load(const int32_t *p) { PE_MAP(vi, p[i_]); }
PE_INLINE void vi_store(int32_t *p, vi x) { PE_EACH p[i_] = x.x[i_]; }
// Through unsigned, so that a wrapping sum is defined as it is in hardware.
PE_INLINE vi vi_add(vi a, vi b) { PE_MAP(vi, (int32_t)((uint32_t)a.x[i_] + (uint32_t)b.x[i_])); }
PE_INLINE vi vi_sub(vi a, vi b) { PE_MAP(vi, (int32_t)((uint32_t)a.x[i_] - (uint32_t)b.x[i_])); }
PE_INLINE vi vi_max(vi a, vi b) { PE_MAP(vi, a.x[i_] > b.x[i_] ? a.x[i_] : b.x[i_]); }
PE_INLINE vi vi_shl(vi a, int bits) { PE_MAP(vi, (int32_t)((uint32_t)a.x[i_] << bits)); }
PE_INLINE vi vi_shr(vi a, int bits) { PE_MAP(vi, (int32_t)((uint32_t)a.x[i_] >> bits)); }  // logical
PE_INLINE vi vi_and(vi a, vi b) { PE_MAP(vi, a.x[i_] & b.x[i_]); }
PE_INLINE vi vi_or(vi a, vi b) { PE_MAP(vi, a.x[i_] | b.x[i_]); }
PE_INLINE vi vi_load_u8(const uint8_t *p) { PE_MAP(vi, p[i_]); }
PE_INLINE vi vi_load_i8(const int8_t *p) { PE_MAP(vi, p[i_]); }
PE_INLINE vi vi_byte(vi a, int c) { PE_MAP(vi, (int8_t)((uint32_t)a.x[i_] >> 8 * c)); }  // byte c, sign-extended
PE_INLINE int32_t vi_hmax(vi v) {
    int32_t m = v.x[0];
    for (int i = 1; i < VL; i++) m = v.x[i] > m ? v.x[i] : m;
    return m;
}
PE_INLINE int32_t vi_sum(vi v) {
    int32_t s = 0;
    PE_EACH s += v.x[i_];
    return s;
}
PE_INLINE vf vi_to_f32(vi x) { PE_MAP(vf, (float)x.x[i_]); }
PE_INLINE int32_t pe_round_i32(float x) { return fabsf(x) < 0x1p31f ? (int32_t)lrintf(x) : INT32_MIN; }
PE_INLINE vi vf_to_i32(vf x) { PE_MAP(vi, pe_round_i32(x.x[i_])); }
PE_INLINE vf vi_as_f32(vi x) { PE_MAP(vf, pe_bits_f32((uint32_t)x.x[i_])); }
PE_INLINE vi vf_as_i32(vf x) { PE_MAP(vi, (int32_t)pe_f32_bits(x.x[i_])); }
PE_INLINE void vi_store_i8(int8_t *p, vi x) { PE_EACH p[i_] = (int8_t)x.x[i_]; }

PE_INLINE void v_touch(vi *x) { __asm__ volatile("" : "+m"(*x)); }  // the compiler takes *x for changed

PE_INLINE void v_prefetch(const void *p) { (void)p; }
PE_INLINE void v_prefetch_l2(const void *p) { (void)p; }

#endif
