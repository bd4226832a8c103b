// Norms, rotations and activations: one row at a time, reductions in an order fixed by the row's length.
#include <math.h>

#include "cpu.h"

void PE_FN(rms_norm)(const float *x, const float *weight, float eps, int64_t n, float *y) {
    vf squares[2] = {vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL)
        for (int j = 0; j < 2; j++) {
            const vf v = vf_load(x + i + j * VL);
            squares[j] = vf_fma(v, v, squares[j]);
        }
    for (; i < n; i += VL) {
        const vf v = vf_load_n(x + i, n - i < VL ? (int)(n - i) : VL);
        squares[0] = vf_fma(v, v, squares[0]);
    }
    const vf scale = vf_set1(1.0f / sqrtf(vf_sum(vf_add(squares[0], squares[1])) / (float)n + eps));
    for (i = 0; i + VL <= n; i += VL) vf_store(y + i, vf_mul(vf_mul(vf_load(x + i), scale), vf_load(weight + i)));
    if (i < n) {
        const int rest = (int)(n - i);
        vf_store_n(y + i, vf_mul(vf_mul(vf_load_n(x + i, rest), scale), vf_load_n(weight + i, rest)), rest);
    }
}

void PE_FN(layer_norm)(const float *x, const float *weight, const float *bias, float eps, int64_t n, float *y) {
    vf sum = vf_zero(), squares = vf_zero();
    for (int64_t i = 0; i < n; i += VL) sum = vf_add(sum, vf_load_n(x + i, n - i < VL ? (int)(n - i) : VL));
    const vf mean = vf_set1(vf_sum(sum) / (float)n);
    for (int64_t i = 0; i < n; i += VL) {
        const int m = n - i < VL ? (int)(n - i) : VL;
        const vf v = vf_keep_n(vf_sub(vf_load_n(x + i, m), mean), m, 0);
        squares = vf_fma(v, v, squares);
    }
    const vf scale = vf_set1(1.0f / sqrtf(vf_sum(squares) / (float)n + eps));
    for (int64_t i = 0; i < n; i += VL) {
        const int m = n - i < VL ? (int)(n - i) : VL;
        const vf v = vf_mul(vf_sub(vf_load_n(x + i, m), mean), scale), w = vf_load_n(weight + i, m);
        vf_store_n(y + i, bias ? vf_fma(v, w, vf_load_n(bias + i, m)) : vf_mul(v, w), m);
    }
}

void PE_FN(rope)(const float *x, const float *table, int32_t n_heads, int32_t head_dim, int32_t n_rot, int32_t pairing,
                 float *y) {
    const float *cosines = table, *sines = table + n_rot / 2;
    const bool interleaved = pairing == PE_PAIRING_INTERLEAVED;
    const int step = interleaved ? 2 : 1, other = interleaved ? 1 : n_rot / 2;
    for (int32_t h = 0; h < n_heads; h++, x += head_dim, y += head_dim) {
        for (int32_t i = 0; i < n_rot / 2; i++) {
            const float a = x[i * step], b = x[i * step + other];
            y[i * step] = a * cosines[i] - b * sines[i];
            y[i * step + other] = a * sines[i] + b * cosines[i];
        }
        if (y != x) memcpy(y + n_rot, x + n_rot, (size_t)(head_dim - n_rot) * sizeof *y);
    }
}

// 1 - erfc: Abramowitz and Stegun 1964, 7.1.26, to 1.5e-7.
PE_INLINE vf vf_erf(vf x) {
    const vf a = vf_abs(x), t = vf_div(vf_set1(1), vf_fma(vf_set1(0.3275911f), a, vf_set1(1)));
    vf p = vf_fma(vf_set1(1.061405429f), t, vf_set1(-1.453152027f));
    p = vf_fma(p, t, vf_set1(1.421413741f));
    p = vf_fma(p, t, vf_set1(-0.284496736f));
    p = vf_fma(p, t, vf_set1(0.254829592f));
    const vf tail = vf_mul(vf_mul(p, t), vf_exp(vf_mul(a, vf_sub(vf_zero(), a))));
    return vf_copysign(vf_max(vf_zero(), vf_sub(vf_set1(1), tail)), x);
}

PE_INLINE vf apply(const pe_function function, vf x) {
    switch (function) {
    case PE_FUNCTION_SILU: return vf_mul(x, vf_sigmoid(x));
    case PE_FUNCTION_GELU_TANH: {  // (1 + tanh(u)) / 2 is the sigmoid of 2 u
        const vf cubed = vf_mul(vf_mul(x, x), vf_mul(x, vf_set1(0.044715f)));
        return vf_mul(x, vf_sigmoid(vf_mul(vf_add(x, cubed), vf_set1(1.5957691216057308f))));
    }
    case PE_FUNCTION_GELU:
        return vf_mul(vf_mul(x, vf_set1(0.5f)), vf_add(vf_set1(1), vf_erf(vf_mul(x, vf_set1(0.70710678118654752f)))));
    default: return vf_max(vf_zero(), x);  // PE_FUNCTION_RELU; x second: NaN passes through
    }
}

PE_INLINE vf apply_to_two(const pe_function function, vf x, vf up) {
    if (function != PE_FUNCTION_SWIGLU_CLAMPED) return vf_mul(apply(function, x), up);
    const vf limit = vf_set1(7), gate = vf_min(limit, x);
    const vf swish = vf_mul(gate, vf_sigmoid(vf_mul(gate, vf_set1(1.702f))));
    return vf_mul(swish, vf_add(vf_max(vf_set1(-7), vf_min(limit, up)), vf_set1(1)));
}

PE_INLINE void activation(const pe_function function, const bool gated, const float *x, const float *up, int64_t n,
                          float *y) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        const vf v = vf_load(x + i);
        vf_store(y + i, gated ? apply_to_two(function, v, vf_load(up + i)) : apply(function, v));
    }
    if (i < n) {
        const int rest = (int)(n - i);
        const vf v = vf_load_n(x + i, rest);
        vf_store_n(y + i, gated ? apply_to_two(function, v, vf_load_n(up + i, rest)) : apply(function, v), rest);
    }
}

void PE_FN(activation)(pe_function function, const float *x, const float *up, int64_t n, float *y) {
#define PE_CASE(f)                                              \
    case PE_FUNCTION_##f:                                       \
        if (up) activation(PE_FUNCTION_##f, true, x, up, n, y); \
        else activation(PE_FUNCTION_##f, false, x, up, n, y);   \
        break;
    switch (function) {
        PE_CASE(SILU)
        PE_CASE(GELU_TANH)
        PE_CASE(GELU)
        PE_CASE(RELU)
        PE_CASE(SWIGLU_CLAMPED)
    default: break;
    }
}

void PE_FN(add)(const float *a, const float *b, float factor, int64_t n, float *y) {
    const vf f = vf_set1(factor);
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vf_store(y + i, vf_fma(vf_load(b + i), f, vf_load(a + i)));
    if (i < n) {
        const int rest = (int)(n - i);
        vf_store_n(y + i, vf_fma(vf_load_n(b + i, rest), f, vf_load_n(a + i, rest)), rest);
    }
}

void PE_FN(scale)(const float *x, float factor, int64_t n, float *y) {
    const vf f = vf_set1(factor);
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vf_store(y + i, vf_mul(vf_load(x + i), f));
    if (i < n) vf_store_n(y + i, vf_mul(vf_load_n(x + i, (int)(n - i)), f), (int)(n - i));
}

void PE_FN(softcap)(const float *x, float cap, int64_t n, float *y) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vf_store(y + i, vf_softcap(vf_load(x + i), cap));
    if (i < n) vf_store_n(y + i, vf_softcap(vf_load_n(x + i, (int)(n - i)), cap), (int)(n - i));
}
