// Matrix products of many tokens: a slice of two panels is unpacked once, for all tokens, and a second term costs only the
// tokens that have it. Part of matmul.c, for sets whose tiles have two panels; the same bits as its other tiles.
#ifndef PE_SLICES_H
#define PE_SLICES_H

#include "matmul.h"

enum {
    MANY_FROM = 8,     // tokens: their tiles then have at least 4
    MANY_PAIRS = 4,    // of panels, at once
    GATHER_FROM = 32,  // tokens: fewer have too few second terms in common for gathering them to pay
};

// SLICE units of two panels, as tiles read them: [unit][panel].
typedef struct slice {
    int parts;                    // of a unit
    vi w[SLICE][2][8];            // the integers of the groups, unsigned
    vf d[SLICE][2][2];            // of the parts: the scale
    vf minus_magic[SLICE][2][2];  // -MAGIC times it
    vf m[SLICE][2];
} slice;

// Unpacks `n` units from unit `at` on.
PE_INLINE void load_slice(const pe_class cls, const pe_scales scales, const pe_weight *w, int64_t panel, int64_t at,
                          int n, slice *to) {
    const int units = units_of(scales), parts = pe_scales_parts(scales) == 16 ? 2 : 1;
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < n; i++) {
            const int u = (int)((at + i) % units);
            const uint8_t *block = w->data + (size_t)(panel + p) * w->panel_bytes;
            block += (size_t)((at + i) / units) * w->block_bytes;
            const uint8_t *unit = block + units_at(scales) + (size_t)u * unit_bytes(cls);
#pragma GCC unroll 8
            for (int g = 0; g < 8; g++) to->w[i][p][g] = dot_group(cls, unit, g);
            for (int part = 0; part < parts; part++) {
                const vf d = scale_of(scales, block, u, part);
                to->d[i][p][part] = d;
                to->minus_magic[i][p][part] = vf_mul(d, vf_set1(-MAGIC));
            }
            if (pe_scales_have_m(scales)) to->m[i][p] = minimum_of(scales, block, u);
        }
}

// What each part's sum has too much of, as factors of the sums of both halves: -zero, where the half belongs to the part.
PE_INLINE void load_zero(const int parts, int zero, vi *minus_zero) {
    const uint32_t x = (uint16_t)-zero;
    minus_zero[0] = vi_set1((int32_t)(parts == 1 ? x << 16 | x : x));
    minus_zero[1] = vi_set1((int32_t)(x << 16));
}

// Adds unit i of the slice, the panels' unit `at`, to sum [2][R] of R tokens whose rows q and ab are.
PE_INLINE void add_slice_unit(const int parts, const bool have_m, const int R, const slice *s, int i, int64_t at,
                              const vi *minus_zero, const int8_t *const *q, const pe_act_block *const *ab,
                              vf (*sum)[DOT_TOKENS]) {
    // Counted by what gcc cannot know: unrolled, it would keep what both parts read in registers, and spill sums.
    const int n_parts = parts == 1 ? 1 : s->parts, n_groups = 8 / parts;
    for (int part = 0; part < n_parts; part++) {
        vi dots[2][DOT_TOKENS];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            dots[0][r] = vi_set1(MAGIC_BITS);
            if (!have_m) dots[0][r] = dot_add_halves(dots[0][r], minus_zero[part], halves_bits(ab[r] + at));
            dots[1][r] = dots[0][r];
        }
#pragma GCC unroll 8
        for (int g = 0; g < n_groups; g++) {
            const vi w0 = s->w[i][0][part * 4 + g], w1 = s->w[i][1][part * 4 + g];
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                const vi x = dot_bcast4(q[r] + 32 * at + 16 * part + 4 * g);
                dots[0][r] = dot_add(dots[0][r], w0, x);
                dots[1][r] = dot_add(dots[1][r], w1, x);
            }
        }
#pragma GCC unroll 2
        for (int p = 0; p < 2; p++) {
            const vf d = s->d[i][p][part], minus_magic = s->minus_magic[i][p][part];
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                sum[p][r] = vf_fma(vf_fma(vi_as_f32(dots[p][r]), d, minus_magic), vf_set1(ab[r][at].d), sum[p][r]);
        }
    }
    if (!have_m) return;
#pragma GCC unroll 2
    for (int p = 0; p < 2; p++)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) sum[p][r] = vf_fma(s->m[i][p], vf_set1(ab[r][at].d_sum), sum[p][r]);
}

// The first terms of R tokens from token t on: n units from unit `at` on. sums: [R][2]
PE_INLINE void slice_tile(const int parts, const bool have_m, const int R, const slice *s, int64_t at, int n, int zero,
                          const pe_act *a, int64_t t, vf (*sums)[2]) {
    const int8_t *q[DOT_TOKENS];
    const pe_act_block *ab[DOT_TOKENS];
    vf sum[2][DOT_TOKENS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        q[r] = a->q + (t + r) * a->ldq;
        ab[r] = a->blocks + (t + r) * a->ldb;
        sum[0][r] = sums[r][0];
        sum[1][r] = sums[r][1];
    }
    vi minus_zero[2];
    load_zero(parts, zero, minus_zero);
    for (int i = 0; i < n; i++) add_slice_unit(parts, have_m, R, s, i, at + i, minus_zero, q, ab, sum);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        sums[r][0] = sum[0][r];
        sums[r][1] = sum[1][r];
    }
}

// The second terms that R tokens have at unit i of the slice, from the list's k-th on.
PE_INLINE void fine_tile(const int parts, const bool have_m, const int R, const slice *s, int i, int zero,
                         const fine_list *list, int k, vf (*sums)[2]) {
    const int8_t *q[DOT_TOKENS];
    const pe_act_block *ab[DOT_TOKENS];
    const uint8_t *tokens = list->token[i] + k;
    vf sum[2][DOT_TOKENS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        q[r] = list->q[i][k + r];
        ab[r] = &list->block[i][k + r];
        sum[0][r] = sums[tokens[r]][0];
        sum[1][r] = sums[tokens[r]][1];
    }
    vi minus_zero[2];
    load_zero(parts, zero, minus_zero);
    add_slice_unit(parts, have_m, R, s, i, 0, minus_zero, q, ab, sum);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        sums[tokens[r]][0] = sum[0][r];
        sums[tokens[r]][1] = sum[1][r];
    }
}

// The second terms of n tokens from token t on, where they lie.
PE_INLINE void fine_in_place(const int parts, const bool have_m, const slice *s, int64_t at, int zero, const pe_act *a,
                             int64_t t, int n, vf (*sums)[2]) {
    vi minus_zero[2];
    load_zero(parts, zero, minus_zero);
    for (int r = 0; r < n; r++) {
        const int8_t *const q = a->fine_q + (t + r) * a->ldq;
        const pe_act_block *const ab = a->fine + (t + r) * a->ldb;
        vf sum[2][DOT_TOKENS];
        sum[0][0] = sums[r][0];
        sum[1][0] = sums[r][1];
        for (unsigned some = fine_units(a, t + r, at); some; some &= some - 1) {
            const int i = __builtin_ctz(some);
            add_slice_unit(parts, have_m, 1, s, i, at + i, minus_zero, &q, &ab, sum);
        }
        sums[r][0] = sum[0][0];
        sums[r][1] = sum[1][0];
    }
}

// What the products work in: 190 KB, more than some threads' stacks take.
typedef struct slices_scratch {
    slice slice;
    fine_list fine;
    vf sums[MANY_PAIRS][MANY_TOKENS][2];
} slices_scratch;

// What a slice's products are, by the parts of a unit and whether there are minimums; tiles by their tokens, less one.
typedef struct slice_fns {
    void (*tile[DOT_TOKENS])(const slice *s, int64_t at, int n, int zero, const pe_act *a, int64_t t, vf (*sums)[2]);
    void (*fine[DOT_TOKENS])(const slice *s, int i, int zero, const fine_list *list, int k, vf (*sums)[2]);
    void (*fine_in_place)(const slice *s, int64_t at, int zero, const pe_act *a, int64_t t, int n, vf (*sums)[2]);
} slice_fns;

#define SLICE_TILE(name, parts, have_m, R)                                                                  \
    FLATTEN static void name##_##R(const slice *s, int64_t at, int n, int zero, const pe_act *a, int64_t t, \
                                   vf(*sums)[2]) {                                                          \
        slice_tile(parts, have_m, R, s, at, n, zero, a, t, sums);                                           \
    }
#define FINE_TILE(name, parts, have_m, R)                                                                              \
    FLATTEN static void name##_fine_##R(const slice *s, int i, int zero, const fine_list *list, int k, vf(*sums)[2]) { \
        fine_tile(parts, have_m, R, s, i, zero, list, k, sums);                                                        \
    }
#define SLICE_FNS(name, parts, have_m)                                                                           \
    SLICE_TILE(name, parts, have_m, 4)                                                                           \
    SLICE_TILE(name, parts, have_m, 5)                                                                           \
    SLICE_TILE(name, parts, have_m, 6)                                                                           \
    FINE_TILE(name, parts, have_m, 1)                                                                            \
    FINE_TILE(name, parts, have_m, 2)                                                                            \
    FINE_TILE(name, parts, have_m, 3)                                                                            \
    FINE_TILE(name, parts, have_m, 4)                                                                            \
    FINE_TILE(name, parts, have_m, 5)                                                                            \
    FINE_TILE(name, parts, have_m, 6)                                                                            \
    FLATTEN static void name##_in_place(const slice *s, int64_t at, int zero, const pe_act *a, int64_t t, int n, \
                                        vf(*sums)[2]) {                                                          \
        fine_in_place(parts, have_m, s, at, zero, a, t, n, sums);                                                \
    }                                                                                                            \
    static const slice_fns name = {                                                                              \
        {NULL, NULL, NULL, name##_4, name##_5, name##_6},                                                        \
        {name##_fine_1, name##_fine_2, name##_fine_3, name##_fine_4, name##_fine_5, name##_fine_6},              \
        name##_in_place};
SLICE_FNS(whole, 1, false)
SLICE_FNS(with_m, 1, true)
SLICE_FNS(halves, 2, false)

typedef void many_fn(const pe_weight *w, const pe_act *a, const float *bias, int64_t t, int n, int64_t panel, int pairs,
                     float *y, int64_t ldy, slices_scratch *scratch);

// Slice by slice: the second terms are gathered once, and stay in near cache with the first ones' integers, for all panels.
// `pairs` pairs of panels from `panel` on, MANY_PAIRS at most; n tokens from t on, MANY_FROM to MANY_TOKENS.
PE_INLINE void many_tokens(const pe_class cls, const pe_scales scales, const pe_weight *w, const pe_act *a,
                           const float *bias, int64_t t, int n, int64_t panel, int pairs, float *y, int64_t ldy,
                           slices_scratch *scratch) {
    const slice_fns *f = pe_scales_parts(scales) == 16 ? &halves : pe_scales_have_m(scales) ? &with_m : &whole;
    const int zero = (pe_scales_have_m(scales) ? 0 : pe_class_zero(cls)) + dot_offset(cls);
    const int64_t n_units = w->n_blocks * units_of(scales);
    const int n_tiles = (n + DOT_TOKENS - 1) / DOT_TOKENS;
    slice *s = &scratch->slice;
    fine_list *fine = &scratch->fine;
    vf(*sums)[MANY_TOKENS][2] = scratch->sums;
    s->parts = pe_scales_parts(scales) == 16 ? 2 : 1;
    for (int p = 0; p < pairs; p++)
        for (int r = 0; r < n; r++) sums[p][r][0] = sums[p][r][1] = vf_zero();
    for (int64_t at = 0; at < n_units; at += SLICE) {
        const int units = n_units - at < SLICE ? (int)(n_units - at) : SLICE;
        if (n >= GATHER_FROM) gather_fine(a, t, n, at, fine);
        for (int p = 0; p < pairs; p++) {
            load_slice(cls, scales, w, panel + 2 * p, at, units, s);
            for (int i = 0, r = 0; i < n_tiles; i++) {
                const int tokens = (n + i) / n_tiles;
                f->tile[tokens - 1](s, at, units, zero, a, t + r, sums[p] + r);
                r += tokens;
            }
            if (n < GATHER_FROM) {
                f->fine_in_place(s, at, zero, a, t, n, sums[p]);
                continue;
            }
            for (int i = 0; i < units; i++) {
                const int n_fine = (fine->n[i] + DOT_TOKENS - 1) / DOT_TOKENS;
                for (int k = 0, r = 0; k < n_fine; k++) {
                    const int tokens = (fine->n[i] + k) / n_fine;
                    f->fine[tokens - 1](s, i, zero, fine, r, sums[p]);
                    r += tokens;
                }
            }
        }
    }
    for (int r = 0; r < n; r++)
        for (int p = 0; p < 2 * pairs; p++) put(w, bias, panel + p, sums[p / 2][r][p % 2], y + (t + r) * ldy);
}

#define PE_MANY_FN(cls, scales)                                                                                   \
    static void cls##_##scales##_many(const pe_weight *w, const pe_act *a, const float *bias, int64_t t, int n,   \
                                      int64_t panel, int pairs, float *y, int64_t ldy, slices_scratch *scratch) { \
        many_tokens(PE_CLASS_##cls, PE_SCALES_##scales, w, a, bias, t, n, panel, pairs, y, ldy, scratch);         \
    }
PE_MANY(PE_MANY_FN)

static many_fn *many_of(const pe_weight *w) {
#define PE_FIND_MANY(cls_, scales_) \
    if (w->cls == PE_CLASS_##cls_ && w->scales == PE_SCALES_##scales_) return cls_##_##scales_##_many;
    PE_MANY(PE_FIND_MANY)
    return NULL;
}

#endif
