// What the sampler's passes over a row of logits share with the sampler: how the row is cut, and the arithmetic of a
// weight. A row comes as its blocks, so that a few may be other than the model's; the last one is filled up with -Inf.
// Bits depend on IEEE arithmetic alone: no fused multiply-add, no library, a fixed order of every sum.
#ifndef PE_ROW_H
#define PE_ROW_H

#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "f16.h"

enum {
    PE_ROW_LANES = 16,   // logits taken at once: whole vectors on any machine
    PE_ROW_BLOCK = 128,  // logits that one maximum and one sum stand for
    PE_ROW_BINS = 1024,
};

static inline int32_t pe_row_blocks(int32_t n) { return (n + PE_ROW_BLOCK - 1) / PE_ROW_BLOCK; }

// How logits become weights: exp((x - max) / temperature), as a power of two.
typedef struct pe_row_scale {
    float max;    // of the row: its weight is 1
    float slope;  // log2(e) / temperature
    float least;  // smaller logits weigh nothing: less than 2^-124. Finite, so that masked ones (-Inf) are among them
} pe_row_scale;

static inline pe_row_scale pe_row_scale_at(float max, float temperature) {
    const float slope = 1.44269504f / temperature;
    const float far = fminf(124 / slope, FLT_MAX);
    return (pe_row_scale){max, slope, fmaxf(max - far, -FLT_MAX)};
}

// The weight of a logit from `least` on, of other logits anything. 2^y = 2^n * 2^f, |f| <= 1/2; 2^f is the polynomial of
// degree 5 with p(0) = 1 whose largest relative error is least (9e-8; within 1.6 units in the last place as computed
// here); 2^n by adding n to the exponent. The rounding of y adds |y| * 2^-25 to that.
static inline float pe_row_power(float x, pe_row_scale s) {
    const float to_integer = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(y) in the low bits
    const float y = (x - s.max) * s.slope;
    const float shifted = y + to_integer;
    const float f = y - (shifted - to_integer);
    float p = 1.3264727e-3f;
    p = p * f + 9.671513e-3f;
    p = p * f + 5.5507336e-2f;
    p = p * f + 2.4022242e-1f;
    p = p * f + 6.93147e-1f;
    p = p * f + 1.0f;
    return pe_bits_f32(pe_f32_bits(p) + (pe_f32_bits(shifted) << 23));
}

static inline float pe_row_weight(float x, pe_row_scale s) { return x >= s.least ? pe_row_power(x, s) : 0.0f; }

// Bins of logits by their distance below `top`: bin 0 has those above it, the last one all that are far below.
typedef struct pe_row_bins {
    float top, per_unit;
} pe_row_bins;

// Bins never fall as logits fall: subtraction rounds monotonically.
static inline int32_t pe_row_bin(float x, pe_row_bins bins) {
    const float d = (bins.top - x) * bins.per_unit;
    const float least = d > -1.0f ? d : -1.0f;
    return (int32_t)((least < (float)(PE_ROW_BINS - 2) ? least : (float)(PE_ROW_BINS - 2)) + 1.0f);
}

// A logit and its token. Tokens are ordered by logit descending, token ascending.
typedef struct pe_row_token {
    float logit;
    int32_t token;
} pe_row_token;
#define PE_ROW_ALL ((pe_row_token){-INFINITY, INT32_MAX})  // comes after all tokens

static inline bool pe_row_down_to(float x, int32_t token, pe_row_token lowest) {
    return (x > lowest.logit) | ((x == lowest.logit) & (token <= lowest.token));
}

#endif
