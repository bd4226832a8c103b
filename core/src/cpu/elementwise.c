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

void PE_FN(rope)(const float *x, const float *table, int32_t n_heads, int32_t head_dim, int32_t n_rot, int32_t pairing,
                 float *y) {
    const float *cosines = table, *sines = table + n_rot / 2;
    const int step = pairing == 0 ? 2 : 1, other = pairing == 0 ? 1 : n_rot / 2;
    for (int32_t h = 0; h < n_heads; h++, x += head_dim, y += head_dim) {
        for (int32_t i = 0; i < n_rot / 2; i++) {
            const float a = x[i * step], b = x[i * step + other];
            y[i * step] = a * cosines[i] - b * sines[i];
            y[i * step + other] = a * sines[i] + b * cosines[i];
        }
        if (y != x) memcpy(y + n_rot, x + n_rot, (size_t)(head_dim - n_rot) * sizeof *y);
    }
}

PE_INLINE vf silu_mul(vf gate, vf up) {
    const vf one = vf_set1(1);
    return vf_mul(vf_div(gate, vf_add(one, vf_exp(vf_sub(vf_zero(), gate)))), up);
}

void PE_FN(silu_mul)(const float *gate, const float *up, int64_t n, float *y) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vf_store(y + i, silu_mul(vf_load(gate + i), vf_load(up + i)));
    if (i < n) {
        const int rest = (int)(n - i);
        vf_store_n(y + i, silu_mul(vf_load_n(gate + i, rest), vf_load_n(up + i, rest)), rest);
    }
}

void PE_FN(add)(const float *a, const float *b, int64_t n, float *y) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) vf_store(y + i, vf_add(vf_load(a + i), vf_load(b + i)));
    if (i < n) {
        const int rest = (int)(n - i);
        vf_store_n(y + i, vf_add(vf_load_n(a + i, rest), vf_load_n(b + i, rest)), rest);
    }
}
