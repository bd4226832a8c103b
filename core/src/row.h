// What the sampler's passes over a row of logits share with the sampler: how the row is cut, and the arithmetic of a
// weight. Bits depend on IEEE arithmetic alone: no fused multiply-add, no library, a fixed order of every sum.
#ifndef PE_ROW_H
#define PE_ROW_H

#include <math.h>
#include <stdbool.h>

#include "f16.h"

enum {
    PE_ROW_LANES = 16,   // logits taken at once: whole vectors on any machine
    PE_ROW_BLOCK = 128,  // logits that one maximum stands for
    PE_ROW_BINS =
        2048,  // of 1 / PE_BINS_PER_NAT each, by distance to the largest; the last one holds all that is farther
    PE_BINS_PER_NAT = 32,
};

static inline int32_t pe_row_blocks(int32_t n) { return (n + PE_ROW_BLOCK - 1) / PE_ROW_BLOCK; }

// exp(x) for x <= 0 within 2 units in the last place, exactly 1 at 0, and 0 below -87. x = n ln 2 + r, |r| <= ln(2)/2;
// exp(r) by its Taylor series to r^7 (truncated at 5e-9); 2^n by adding n to the exponent.
static inline float pe_exp_neg(float x) {
    const float to_integer = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(v) in the low bits
    const float c = x > -87.0f ? x : -87.0f;
    const float shifted = c * 1.44269504f + to_integer;
    const float n = shifted - to_integer;
    const float r = c - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts, the first exact times n
    float y = 1.0f / 5040;
    y = y * r + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    const float e = pe_bits_f32(pe_f32_bits(y) + (pe_f32_bits(shifted) << 23));
    return x < -87.0f ? 0.0f : e;
}

// The weight of a logit at 1 / temperature.
static inline float pe_row_weight(float x, float max, float sharpness) { return pe_exp_neg((x - max) * sharpness); }

// A logit and its token. Tokens are ordered by logit descending, token ascending.
typedef struct pe_row_token {
    float logit;
    int32_t token;
} pe_row_token;
#define PE_ROW_ALL ((pe_row_token){-INFINITY, INT32_MAX})  // comes after all tokens

static inline bool pe_row_down_to(float x, int32_t token, pe_row_token lowest) {
    return (x > lowest.logit) | ((x == lowest.logit) & (token <= lowest.token));
}

// Bins never fall as logits fall: subtraction rounds monotonically.
static inline int32_t pe_row_bin(float x, float max) {
    const float d = (max - x) * (float)PE_BINS_PER_NAT;
    return (int32_t)(d < (float)(PE_ROW_BINS - 1) ? d : (float)(PE_ROW_BINS - 1));
}

#endif
