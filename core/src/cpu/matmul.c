// Matrix products of panels with activations: one tile is R tokens x P panels, and every output sums over k in the same
// order whatever R and P are. Classes differ only in their integer dot product (isa/<name>/dot.h) and their scales.
#include "matmul.h"

enum {
    BLOCK_VECTORS = PE_ACT_BLOCK / VL,
    FLOAT_TOKENS = 4,   // of a full tile of floats, with two panels: sums enough to hide an fma's latency, none spilled
    PANELS_OF_ONE = 4,  // panels a lone token reads at once: as many streams from memory
    PREFETCH = 1152,    // bytes ahead in each stream
};

// ---- quantization of activations -------------------------------------------------------------------------------------

// Rounds 32 numbers to q * d, |q| <= 127.
PE_INLINE pe_act_block round_block(const vf *x, int8_t *q) {
    // The bits of |x| compare like integers, and NaN is the largest: it reaches d and so the logits, where it is told.
    vi top = vi_zero();
    for (int i = 0; i < BLOCK_VECTORS; i++) top = vi_max(top, vf_as_i32(vf_abs(x[i])));
    const float max = pe_bits_f32((uint32_t)vi_hmax(top)), d = max / 127.0f;
    const vf inverse = vf_set1(max > 1e-35f ? 127.0f / max : 0);  // below, 127 / max may be infinite
    vi half[2] = {vi_zero(), vi_zero()};
    for (int i = 0; i < BLOCK_VECTORS; i++) {
        const vi n = vf_to_i32(vf_max(vf_min(vf_mul(x[i], inverse), vf_set1(127)), vf_set1(-127)));
        vi_store_i8(q + i * VL, n);
        half[2 * i / BLOCK_VECTORS] = vi_add(half[2 * i / BLOCK_VECTORS], n);
    }
    const int32_t h0 = vi_sum(half[0]), h1 = vi_sum(half[1]);
    return (pe_act_block){d, d * (float)(h0 + h1), -8 * (h0 + h1), {(int16_t)h0, (int16_t)h1}};
}

void PE_FN(quantize)(const pe_act *a, int64_t t, int64_t k) {
    const float *x = a->x + t * a->ldx;
    int8_t *q = a->q + t * a->ldq, *fine_q = a->fine_q + t * a->ldq;
    pe_act_block *block = a->blocks + t * a->ldb, *fine = a->fine + t * a->ldb;
    const int64_t n = k / PE_ACT_BLOCK;
    vf v[BLOCK_VECTORS];
    float sum = 0;
    for (int64_t b = 0; b < n; b++) {
        for (int i = 0; i < BLOCK_VECTORS; i++) v[i] = vf_load(x + b * PE_ACT_BLOCK + i * VL);
        block[b] = round_block(v, q + b * PE_ACT_BLOCK);
        sum += block[b].d;
    }
    const float limit = a->fine_above * sum / (float)n;  // NaN or infinite: no block is above it
    uint64_t *has_fine = a->has_fine + t * a->ldm;
    for (int64_t i = 0; i < a->ldm; i++) has_fine[i] = 0;
    for (int64_t b = 0; b < n; b++) {
        if (!(block[b].d > limit)) continue;
        has_fine[b / 64] |= UINT64_C(1) << b % 64;
        const vf d = vf_set1(-block[b].d);
        for (int i = 0; i < BLOCK_VECTORS; i++) {
            const int64_t at = b * PE_ACT_BLOCK + i * VL;
            v[i] = vf_fma(d, vi_to_f32(vi_load_i8(q + at)), vf_load(x + at));
        }
        fine[b] = round_block(v, fine_q + b * PE_ACT_BLOCK);
    }
}

// ---- integer tiles ---------------------------------------------------------------------------------------------------

// Adds to s [P][R] the integer dot products of a unit, or of its first or last half, of P panels with R tokens. The panels'
// units lie `stride` bytes apart. part: 0 or 1 of the `parts`, 2 or 1.
PE_INLINE void dot_units(const pe_class cls, const uint8_t *unit, size_t stride, const int P, const int part,
                         const int parts, const int8_t *const *q, int64_t k, const int R, vi (*s)[DOT_TOKENS]) {
#ifdef DOT_PANELS
    const int first = part * 8 / parts, end = (part + 1) * 8 / parts;
#pragma GCC unroll 4
    for (int p = 0; p < P; p += DOT_PANELS)
        dot_groups(cls, unit + (size_t)p * stride, stride, P - p < DOT_PANELS ? P - p : DOT_PANELS, first, end, q, k, R,
                   s + p);
#else
#pragma GCC unroll 4
    for (int p = 0; p < P; p++, unit += stride) {
#ifdef DOT_HALF
        if (parts == 2) {
            dot_half(cls, unit, part, q, k, R, s[p]);
            continue;
        }
#else
        (void)part, (void)parts;  // a unit is one part
#endif
        dot(cls, unit, NULL, q, k, R, s[p]);
    }
#endif
}

#ifndef DOT_HALF
// The classes with a scale per 16 k, where that goes into the dot product: a unit of one panel.
PE_INLINE void add_unit_16(const pe_class cls, const pe_scales scales, const int R, const unsigned who,
                           const uint8_t *block, int64_t at, int u, const int zero, const int8_t *const *q,
                           const pe_act_block *const *ab, vf *sum) {
    const vf d = load_d(scales, block);
    const pe_part first = load_part(scales, block, 2 * u), last = load_part(scales, block, 2 * u + 1);
    const vi subs[2] = {first.sub, last.sub};
    vi s[DOT_TOKENS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) s[r] = vi_zero();
    dot(cls, block + units_at(scales) + (size_t)u * unit_bytes(cls), subs, q, 32 * at, R, s);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        if (!(who >> r & 1)) continue;
        if (zero)
            s[r] = vi_sub(s[r], vi_shl(dot_halves(first.sub, last.sub, halves_bits(ab[r] + at)), __builtin_ctz(zero)));
        sum[r] = vf_fma(vf_mul(d, vi_to_f32(s[r])), vf_set1(ab[r][at].d), sum[r]);
    }
}
#endif

// Adds unit u of the same block of P panels, the panels' unit `at` (32 k), to sum [P][R], for those of the R tokens whose
// bit is set in `who`. block: the first panel's, the others' lie `stride` bytes apart. q, ab: the tokens' rows.
PE_INLINE void add_units(const pe_class cls, const pe_scales scales, const int R, const int P, const unsigned who,
                         const uint8_t *block, size_t stride, int64_t at, int u, const int8_t *const *q,
                         const pe_act_block *const *ab, vf (*sum)[DOT_TOKENS]) {
    const uint8_t *unit = block + units_at(scales) + (size_t)u * unit_bytes(cls);
    // What the stored integers are above those that are meant, 0 or a power of two from 8 on; no class has both reasons.
    const int zero = (pe_scales_have_m(scales) ? 0 : pe_class_zero(cls)) + dot_offset(cls);
    const int parts = pe_scales_parts(scales) == 16 ? 2 : 1;  // of the unit, with a scale each
    vi s[PANELS_OF_ONE][DOT_TOKENS];
#ifndef DOT_HALF
    if (parts == 2) {
#pragma GCC unroll 4
        for (int p = 0; p < P; p++)
            add_unit_16(cls, scales, R, who, block + (size_t)p * stride, at, u, zero, q, ab, sum[p]);
    } else
#endif
#pragma GCC unroll 2
        for (int part = 0; part < parts; part++) {
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                vi start = vi_zero();
                if (zero && (who >> r & 1))
                    start = parts == 2 ? vi_set1(-zero * ab[r][at].half[part])
                                       : vi_shl(vi_set1(ab[r][at].minus8), __builtin_ctz(zero) - 3);
#pragma GCC unroll 4
                for (int p = 0; p < P; p++) s[p][r] = start;
            }
            dot_units(cls, unit, stride, P, part, parts, q, 32 * at, R, s);
#pragma GCC unroll 4
            for (int p = 0; p < P; p++) {
                const uint8_t *from = block + (size_t)p * stride;
                vf d = load_d(scales, from);
                // A scale per 16 or 32 k goes into d.
                if (pe_scales_parts(scales)) d = vf_mul(d, vi_to_f32(load_part(scales, from, parts * u + part).sub));
#pragma GCC unroll 8
                for (int r = 0; r < R; r++)
                    if (who >> r & 1)
                        sum[p][r] = vf_fma(vf_mul(d, vi_to_f32(s[p][r])), vf_set1(ab[r][at].d), sum[p][r]);
            }
        }
    if (!pe_scales_have_m(scales)) return;
#pragma GCC unroll 4
    for (int p = 0; p < P; p++, block += stride) {
        vf m = vf_load_f16((const uint16_t *)(block + m_at(scales)));
        if (parts == 2) {
            const vi first = load_part(scales, block, 2 * u).min, last = load_part(scales, block, 2 * u + 1).min;
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                if (!(who >> r & 1)) continue;
                const vi mins = dot_halves(first, last, halves_bits(ab[r] + at));
                sum[p][r] = vf_fma(vf_mul(m, vf_set1(-ab[r][at].d)), vi_to_f32(mins), sum[p][r]);
            }
            continue;
        }
        if (pe_scales_parts(scales)) m = vf_sub(vf_zero(), vf_mul(m, vi_to_f32(load_part(scales, block, u).min)));
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            if (who >> r & 1) sum[p][r] = vf_fma(m, vf_set1(ab[r][at].d_sum), sum[p][r]);
    }
}

// Slice by slice: all first terms in order of k, then the second terms of those units that have one, in order of k.
PE_INLINE void integer_tile(const pe_class cls, const pe_scales scales, const int R, const int P, const pe_weight *w,
                            const pe_act *a, const float *bias, int64_t t, int64_t panel, float *y, int64_t ldy) {
    const int units = units_of(scales);
    const uint8_t *panels = w->data + (size_t)panel * w->panel_bytes, *block = panels;
    const int8_t *q[DOT_TOKENS], *fine_q[DOT_TOKENS];
    const pe_act_block *ab[DOT_TOKENS], *fine[DOT_TOKENS];
    vf sum[PANELS_OF_ONE][DOT_TOKENS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        q[r] = a->q + (t + r) * a->ldq;
        ab[r] = a->blocks + (t + r) * a->ldb;
        fine_q[r] = a->fine_q + (t + r) * a->ldq;
        fine[r] = a->fine + (t + r) * a->ldb;
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) sum[p][r] = vf_zero();
    }
    const int64_t n = w->n_blocks * units;
    for (int64_t slice = 0; slice < n; slice += SLICE) {
        const int64_t end_block = (slice + SLICE < n ? slice + SLICE : n) / units;
        for (int64_t b = slice / units; b < end_block; b++, block += w->block_bytes) {
            if (R == 1) {  // streams side by side, each read ahead as far as it is used: a burst would wait for itself
                for (int u = 0; u < units; u++) {
                    const size_t first = w->block_bytes * (size_t)u / (size_t)units / 64 * 64;
                    const size_t end = w->block_bytes * (size_t)(u + 1) / (size_t)units / 64 * 64;
#pragma GCC unroll 4
                    for (int p = 0; p < P; p++) {
                        const uint8_t *from = block + (size_t)p * w->panel_bytes;
                        for (size_t ahead = first; ahead < end; ahead += 64) v_prefetch(from + PREFETCH + ahead);
                        add_units(cls, scales, R, 1, ~0u, from, 0, units * b + u, u, q, ab, sum + p);
                    }
                }
                continue;
            }
            for (int u = 0; u < units; u++)
                add_units(cls, scales, R, P, ~0u, block, w->panel_bytes, units * b + u, u, q, ab, sum);
        }
        unsigned any = 0;
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) any |= fine_units(a, t + r, slice);
        for (; any; any &= any - 1) {
            const int i = __builtin_ctz(any);
            const int64_t at = slice + i;
            // A token that has no second term here must not even add zero: it could change a zero's sign.
            unsigned who = 0;
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) who |= (fine_units(a, t + r, slice) >> i & 1) << r;
            const uint8_t *from = panels + (size_t)(at / units) * w->block_bytes;
            add_units(cls, scales, R, P, who, from, w->panel_bytes, at, (int)(at % units), fine_q, fine, sum);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) put(w, bias, panel + p, sum[p][r], y + (t + r) * ldy);
}

#ifdef DOT_PANELS
#include "slices.h"
#endif

// ---- float tiles -----------------------------------------------------------------------------------------------------

PE_INLINE vf load_lanes(const pe_class cls, const uint8_t *p) {
    return cls == PE_CLASS_F32   ? vf_load((const float *)p)
           : cls == PE_CLASS_F16 ? vf_load_f16((const uint16_t *)p)
                                 : vf_load_bf16((const uint16_t *)p);
}

// from: the panel's floats, [cols][lanes] of the class; the next panel lies panel_bytes on.
PE_INLINE void float_tile(const pe_class cls, const int R, const int P, const uint8_t *from, size_t panel_bytes,
                          int64_t cols, int64_t rows, const pe_act *a, const float *bias, int64_t t, int64_t panel,
                          float *y, int64_t ldy) {
    const int step = (cls == PE_CLASS_F32 ? 4 : 2) * VL;
    const float *x[FLOAT_TOKENS];
    vf sum[PANELS_OF_ONE][FLOAT_TOKENS];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        x[r] = a->x + (t + r) * a->ldx;
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) sum[p][r] = vf_zero();
    }
    for (int64_t k = 0; k < cols; k++, from += step) {
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            const vf w = load_lanes(cls, from + (size_t)p * panel_bytes);
            if (R == 1) v_prefetch(from + (size_t)p * panel_bytes + PREFETCH);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) sum[p][r] = vf_fma(w, vf_set1(x[r][k]), sum[p][r]);
        }
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
        const int64_t row = (panel + p) * VL, n = rows - row < VL ? rows - row : VL;
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const vf b = bias ? vf_load_n(bias + row, (int)n) : vf_zero();
            vf_store_n(y + (t + r) * ldy + row, bias ? vf_add(sum[p][r], b) : sum[p][r], (int)n);
        }
    }
}

// ---- tiles by class, tokens and panels -------------------------------------------------------------------------------

typedef void tile_fn(const pe_weight *w, const pe_act *a, const float *bias, int64_t t, int64_t panel, float *y,
                     int64_t ldy);

#define INTEGER_TILE(name, cls, scales, R, P)                                                                  \
    FLATTEN static void name(const pe_weight *w, const pe_act *a, const float *bias, int64_t t, int64_t panel, \
                             float *y, int64_t ldy) {                                                          \
        integer_tile(cls, scales, R, P, w, a, bias, t, panel, y, ldy);                                         \
    }
#define FLOAT_TILE(name, cls, R, P)                                                                                   \
    FLATTEN static void name(const pe_weight *w, const pe_act *a, const float *bias, int64_t t, int64_t panel,        \
                             float *y, int64_t ldy) {                                                                 \
        float_tile(cls, R, P, w->data + (size_t)panel * w->panel_bytes, w->panel_bytes, w->cols, w->rows, a, bias, t, \
                   panel, y, ldy);                                                                                    \
    }

typedef struct tiles {
    tile_fn *fn[2][6];  // [panels - 1][tokens - 1]; NULL: there is none
    int most[2];        // tokens of a full tile of 1 panel, of 2 panels
    int two_from;  // tokens that make two panels worth it, and half of a full tile at most; 0: there is no such tile
    tile_fn *streams;  // one token, PANELS_OF_ONE panels
} tiles;

#define FLOAT_TILES(name, cls)                                                                          \
    FLOAT_TILE(name##_1x1, cls, 1, 1)                                                                   \
    FLOAT_TILE(name##_2x1, cls, 2, 1)                                                                   \
    FLOAT_TILE(name##_3x1, cls, 3, 1)                                                                   \
    FLOAT_TILE(name##_4x1, cls, 4, 1)                                                                   \
    FLOAT_TILE(name##_2x2, cls, 2, 2)                                                                   \
    FLOAT_TILE(name##_3x2, cls, 3, 2)                                                                   \
    FLOAT_TILE(name##_4x2, cls, 4, 2)                                                                   \
    FLOAT_TILE(name##_streams, cls, 1, PANELS_OF_ONE)                                                   \
    static const tiles name = {                                                                         \
        {{name##_1x1, name##_2x1, name##_3x1, name##_4x1}, {NULL, name##_2x2, name##_3x2, name##_4x2}}, \
        {4, 4},                                                                                         \
        2,                                                                                              \
        name##_streams};
#ifdef DOT_PANELS
#define INTEGER_TILES(name, cls, scales)                                                                      \
    INTEGER_TILE(name##_1x1, cls, scales, 1, 1)                                                               \
    INTEGER_TILE(name##_2x1, cls, scales, 2, 1)                                                               \
    INTEGER_TILE(name##_3x1, cls, scales, 3, 1)                                                               \
    INTEGER_TILE(name##_3x2, cls, scales, 3, 2)                                                               \
    INTEGER_TILE(name##_4x2, cls, scales, 4, 2)                                                               \
    INTEGER_TILE(name##_5x2, cls, scales, 5, 2)                                                               \
    INTEGER_TILE(name##_6x2, cls, scales, 6, 2)                                                               \
    INTEGER_TILE(name##_streams, cls, scales, 1, PANELS_OF_ONE)                                               \
    static const tiles name = {                                                                               \
        {{name##_1x1, name##_2x1, name##_3x1}, {NULL, NULL, name##_3x2, name##_4x2, name##_5x2, name##_6x2}}, \
        {3, 6},                                                                                               \
        3,                                                                                                    \
        name##_streams};
#else
#define INTEGER_TILES(name, cls, scales)                        \
    INTEGER_TILE(name##_1x1, cls, scales, 1, 1)                 \
    INTEGER_TILE(name##_2x1, cls, scales, 2, 1)                 \
    INTEGER_TILE(name##_3x1, cls, scales, 3, 1)                 \
    INTEGER_TILE(name##_4x1, cls, scales, 4, 1)                 \
    INTEGER_TILE(name##_streams, cls, scales, 1, PANELS_OF_ONE) \
    static const tiles name = {{{name##_1x1, name##_2x1, name##_3x1, name##_4x1}}, {4}, 0, name##_streams};
#endif

// The pairs of class and scales that formats.def has.
// clang-format off
#define PE_QUANTIZED(X) \
    X(U2, K16M) X(U3, K16) X(U4, D) X(U4, DM) X(U4, K32M) X(U5, D) X(U5, DM) X(U5, K32M) X(U6, K16) \
    X(I8, D) X(IQ4, D) X(IQ4, K32) X(FP4, E8)
// clang-format on
#define PE_TILES(cls, scales) INTEGER_TILES(cls##_##scales, PE_CLASS_##cls, PE_SCALES_##scales)
PE_QUANTIZED(PE_TILES)
FLOAT_TILES(f32, PE_CLASS_F32)
FLOAT_TILES(f16, PE_CLASS_F16)
FLOAT_TILES(bf16, PE_CLASS_BF16)

static const tiles *tiles_of(const pe_weight *w) {
    switch (w->cls) {
    case PE_CLASS_F32: return &f32;
    case PE_CLASS_F16: return &f16;
    case PE_CLASS_BF16: return &bf16;
    default: break;
    }
#define PE_FIND(cls_, scales_) \
    if (w->cls == PE_CLASS_##cls_ && w->scales == PE_SCALES_##scales_) return &cls_##_##scales_;
    PE_QUANTIZED(PE_FIND)
    return NULL;  // formats.def has no such pair
}

size_t PE_FN(linear_scratch)(void) {
#ifdef DOT_PANELS
    return sizeof(slices_scratch);
#else
    return 0;
#endif
}

void PE_FN(linear)(const pe_weight *w, const pe_act *a, const float *bias, int64_t t0, int64_t t1, int64_t p0,
                   int64_t p1, float *y, int64_t ldy, void *scratch) {
    (void)scratch;
    const tiles *tile = tiles_of(w);
    int64_t p = p0;
    if (t1 - t0 == 1)
        for (; p + PANELS_OF_ONE <= p1; p += PANELS_OF_ONE) tile->streams(w, a, bias, t0, p, y, ldy);
#ifdef DOT_PANELS
    many_fn *many = t1 - t0 >= MANY_FROM ? many_of(w) : NULL;
    const int64_t rounds = (t1 - t0 + MANY_TOKENS - 1) / MANY_TOKENS;
    while (many && p + 2 <= p1) {
        // The activations of few tokens stay near in any case: their time goes into reading panels, two streams at once.
        const int most = t1 - t0 < GATHER_FROM ? 1 : MANY_PAIRS, pairs = (p1 - p) / 2 < most ? (int)(p1 - p) / 2 : most;
        for (int64_t i = 0, t = t0; i < rounds; i++) {
            const int64_t tokens = (t1 - t0 + i) / rounds;
            many(w, a, bias, t, (int)tokens, p, pairs, y, ldy, scratch);
            t += tokens;
        }
        p += 2 * pairs;
    }
#endif
    while (p < p1) {
        const int panels = tile->two_from && t1 - t0 >= tile->two_from && p + 1 < p1 ? 2 : 1;
        // As few tiles as there can be, of sizes that differ by one at most: a small last one would be slow for its tokens.
        const int64_t n = (t1 - t0 + tile->most[panels - 1] - 1) / tile->most[panels - 1];
        for (int64_t i = 0, t = t0; i < n; i++) {
            const int64_t tokens = (t1 - t0 + i) / n;
            tile->fn[panels - 1][tokens - 1](w, a, bias, t, p, y, ldy);
            t += tokens;
        }
        p += panels;
    }
}

// ---- the reference path ----------------------------------------------------------------------------------------------

#define REFERENCE_TILE(R)                                                                                              \
    FLATTEN static void reference_##R(const float *panel_data, const pe_weight *w, const pe_act *a, const float *bias, \
                                      int64_t t, int64_t panel, float *y, int64_t ldy) {                               \
        float_tile(PE_CLASS_F32, R, 1, (const uint8_t *)panel_data, 0, w->cols, w->rows, a, bias, t, panel, y, ldy);   \
    }
REFERENCE_TILE(1)
REFERENCE_TILE(2)
REFERENCE_TILE(3)
REFERENCE_TILE(4)

void PE_FN(linear_f32)(const pe_weight *w, const pe_act *a, const float *bias, int64_t t0, int64_t t1, int64_t p0,
                       int64_t p1, float *y, int64_t ldy, void *scratch) {
    static void (*const tile[])(const float *, const pe_weight *, const pe_act *, const float *, int64_t, int64_t,
                                float *, int64_t) = {reference_1, reference_2, reference_3, reference_4};
    for (int64_t p = p0; p < p1; p++) {
        PE_FN(unpack_panel)(w, p, scratch);
        for (int64_t t = t0; t < t1; t += FLOAT_TOKENS) {
            const int64_t n = t1 - t < FLOAT_TOKENS ? t1 - t : FLOAT_TOKENS;
            tile[n - 1](scratch, w, a, bias, t, p, y, ldy);
        }
    }
}
