// Half and bfloat16 conversions by bits, for code that is not on a hot path. IEEE 754-2008 binary16, round to nearest even.
#ifndef PE_F16_H
#define PE_F16_H

#include <stdint.h>
#include <string.h>

static inline float pe_bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t pe_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float pe_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
    if (exponent == 31) return pe_bits_f32(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0) return pe_bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
    float f = (float)mantissa * 0x1p-24f;  // subnormal: exact in float32
    return sign ? -f : f;
}

static inline uint16_t pe_f32_to_f16(float f) {
    uint32_t u = pe_f32_bits(f), sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (u >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);  // rounds past 65504
    if (u < 0x38800000u) {                                    // subnormal: let the float adder round
        float g = pe_bits_f32(u) + 0.5f;                      // 0.5 has an ulp of 2^-24, the half subnormal's own
        return (uint16_t)(sign | (pe_f32_bits(g) - 0x3f000000u));
    }
    uint32_t odd = (u >> 13) & 1;
    return (uint16_t)(sign | ((u + 0xfffu + odd - (112u << 23)) >> 13));
}

static inline float pe_bf16_to_f32(uint16_t h) { return pe_bits_f32((uint32_t)h << 16); }

#endif
