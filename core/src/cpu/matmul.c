// Matrix products of panels with activations: one tile is R tokens x P panels, and every output sums over k in the same
// order whatever R and P are. Classes differ only in their integer dot product (isa/<name>/dot.h) and their scales.
#include "cpu.h"
#include "dot.h"

#define FLATTEN __attribute__((flatten, noinline))

enum {
    BLOCK_VECTORS = PE_ACT_BLOCK / VL,
    TOKENS_PER_TILE = 4,  // of integers, DOT_TOKENS where there are so many
    PANELS_OF_ONE = 4,    // panels a lone token reads at once: as many streams from memory
    PANELS_OF_MANY = 2,   // of floats, for a full tile of tokens: sums enough to hide an fma's latency, none spilled
    PREFETCH = 1152,      // bytes ahead in each stream
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
    const float limit = PE_FINE_ABOVE * sum / (float)n;  // NaN or infinite: no block is above it
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

PE_INLINE int32_t halves_bits(const pe_act_block *b) {
    int32_t v;
    memcpy(&v, b->half, sizeof v);
    return v;
}

// Adds unit u of a panel block, the panel's unit `at` (32 k), to sum [R], for those of the R tokens whose bit is set in
// `who`. q, ab: the tokens' rows.
PE_INLINE void add_unit(const pe_class cls, const pe_scales scales, const int R, const unsigned who,
                        const uint8_t *block, int64_t at, int u, const int8_t *const *q, const pe_act_block *const *ab,
                        vf *sum) {
    const uint8_t *unit = block + units_at(scales) + u * unit_bytes(cls);
    // What the stored integers are above those that are meant, 0 or a power of two from 8 on; no class has both reasons.
    const int zero = (pe_scales_have_m(scales) ? 0 : pe_class_zero(cls)) + dot_offset(cls);
    vf d = load_d(scales, block);
    vi s[DOT_TOKENS];
    if (pe_scales_parts(scales) == 16) {  // a scale per 16 k
        const pe_part first = load_part(scales, block, 2 * u), last = load_part(scales, block, 2 * u + 1);
        const vf m = scales == PE_SCALES_K16M ? vf_load_f16((const uint16_t *)(block + m_at(scales))) : vf_zero();
#ifdef DOT_HALF  // a set whose integer multiplications are slow: the scale goes into d
        vf part[DOT_TOKENS];
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const vf factor = vf_mul(d, vi_to_f32(half ? last.sub : first.sub));
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                s[r] = zero && (who >> r & 1) ? vi_set1(-zero * ab[r][at].half[half]) : vi_zero();
            dot_half(cls, unit, half, q, 32 * at, R, s);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                part[r] = half ? vf_fma(vi_to_f32(s[r]), factor, part[r]) : vf_mul(vi_to_f32(s[r]), factor);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            if (who >> r & 1) sum[r] = vf_fma(part[r], vf_set1(ab[r][at].d), sum[r]);
#else  // it goes into the dot product
        const vi subs[2] = {first.sub, last.sub};
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) s[r] = vi_zero();
        dot(cls, unit, subs, q, 32 * at, R, s);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            if (!(who >> r & 1)) continue;
            const int32_t halves = halves_bits(ab[r] + at);
            if (zero) s[r] = vi_sub(s[r], vi_shl(dot_halves(first.sub, last.sub, halves), __builtin_ctz(zero)));
            sum[r] = vf_fma(vf_mul(d, vf_set1(ab[r][at].d)), vi_to_f32(s[r]), sum[r]);
        }
#endif
#pragma GCC unroll 8
        for (int r = 0; r < R && scales == PE_SCALES_K16M; r++) {
            if (!(who >> r & 1)) continue;
            const vi mins = dot_halves(first.min, last.min, halves_bits(ab[r] + at));
            sum[r] = vf_fma(vf_mul(m, vf_set1(-ab[r][at].d)), vi_to_f32(mins), sum[r]);
        }
        return;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
        s[r] = zero && (who >> r & 1) ? vi_shl(vi_set1(ab[r][at].minus8), __builtin_ctz(zero) - 3) : vi_zero();
    dot(cls, unit, NULL, q, 32 * at, R, s);
    vf m = pe_scales_have_m(scales) ? vf_load_f16((const uint16_t *)(block + m_at(scales))) : vf_zero();
    if (pe_scales_parts(scales) == 8) {  // a scale per 32 k goes into d, a minimum into m
        const pe_part part = load_part(scales, block, u);
        d = vf_mul(d, vi_to_f32(part.sub));
        m = vf_sub(vf_zero(), vf_mul(m, vi_to_f32(part.min)));
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        if (!(who >> r & 1)) continue;
        sum[r] = vf_fma(vf_mul(d, vf_set1(ab[r][at].d)), vi_to_f32(s[r]), sum[r]);
        if (pe_scales_have_m(scales)) sum[r] = vf_fma(m, vf_set1(ab[r][at].d_sum), sum[r]);
    }
}

// All first terms in order of k, then the second terms of those units that have one, in order of k.
PE_INLINE void integer_tile(const pe_class cls, const pe_scales scales, const int R, const int P, const pe_weight *w,
                            const pe_act *a, const float *bias, int64_t t, int64_t panel, float *y, int64_t ldy) {
    const int units = units_of(scales);
    const uint8_t *panels = w->data + (size_t)panel * w->panel_bytes, *block = panels;
    const int8_t *q[DOT_TOKENS];
    const pe_act_block *ab[DOT_TOKENS];
    vf sum[PANELS_OF_ONE][DOT_TOKENS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        q[r] = a->q + (t + r) * a->ldq;
        ab[r] = a->blocks + (t + r) * a->ldb;
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) sum[p][r] = vf_zero();
    }
    for (int64_t b = 0; b < w->n_blocks; b++, block += w->block_bytes)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            const uint8_t *from = block + (size_t)p * w->panel_bytes;
            if (R == 1)
                for (size_t ahead = 0; ahead < w->block_bytes; ahead += 64) v_prefetch(from + PREFETCH + ahead);
            for (int u = 0; u < units; u++) add_unit(cls, scales, R, ~0u, from, units * b + u, u, q, ab, sum[p]);
        }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        q[r] = a->fine_q + (t + r) * a->ldq;
        ab[r] = a->fine + (t + r) * a->ldb;
    }
    for (int64_t word = 0; word < a->ldm; word++) {
        uint64_t any = 0;
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) any |= a->has_fine[(t + r) * a->ldm + word];
        for (; any; any &= any - 1) {
            const int64_t at = 64 * word + __builtin_ctzll(any);
            // A token that has no second term here must not even add zero: it could change a zero's sign.
            unsigned who = 0;
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) who |= (unsigned)(a->has_fine[(t + r) * a->ldm + word] >> at % 64 & 1) << r;
            const uint8_t *from = panels + (size_t)(at / units) * w->block_bytes;
#pragma GCC unroll 4
            for (int p = 0; p < P; p++)
                add_unit(cls, scales, R, who, from + (size_t)p * w->panel_bytes, at, (int)(at % units), q, ab, sum[p]);
        }
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; p++) {
        const int64_t row = (panel + p) * VL, n = w->rows - row;
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            float *to = y + (t + r) * ldy + row;
            if (n >= VL) vf_store(to, bias ? vf_add(sum[p][r], vf_load(bias + row)) : sum[p][r]);
            else vf_store_n(to, bias ? vf_add(sum[p][r], vf_load_n(bias + row, (int)n)) : sum[p][r], (int)n);
        }
    }
}

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
    const float *x[TOKENS_PER_TILE];
    vf sum[PANELS_OF_ONE][TOKENS_PER_TILE];
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
    tile_fn *tokens[TOKENS_PER_TILE];  // 1 to 4 tokens, one panel
    tile_fn *streams;                  // one token, PANELS_OF_ONE panels
    tile_fn *wide;                     // of more tokens or panels; NULL: nothing is faster
    int wide_tokens, wide_panels;
} tiles;

#if DOT_TOKENS > 4
#define INTEGER_WIDE(name, cls, scales) INTEGER_TILE(name##_w, cls, scales, DOT_TOKENS, 1)
#define INTEGER_WIDE_OF(name) name##_w, DOT_TOKENS, 1
#else
#define INTEGER_WIDE(name, cls, scales)
#define INTEGER_WIDE_OF(name) NULL, 0, 0
#endif

#define INTEGER_TILES(name, cls, scales)                  \
    INTEGER_TILE(name##_1, cls, scales, 1, 1)             \
    INTEGER_TILE(name##_2, cls, scales, 2, 1)             \
    INTEGER_TILE(name##_3, cls, scales, 3, 1)             \
    INTEGER_TILE(name##_4, cls, scales, 4, 1)             \
    INTEGER_TILE(name##_s, cls, scales, 1, PANELS_OF_ONE) \
    INTEGER_WIDE(name, cls, scales)                       \
    static const tiles name = {{name##_1, name##_2, name##_3, name##_4}, name##_s, INTEGER_WIDE_OF(name)};
#define FLOAT_TILES(name, cls)                                 \
    FLOAT_TILE(name##_1, cls, 1, 1)                            \
    FLOAT_TILE(name##_2, cls, 2, 1)                            \
    FLOAT_TILE(name##_3, cls, 3, 1)                            \
    FLOAT_TILE(name##_4, cls, 4, 1)                            \
    FLOAT_TILE(name##_s, cls, 1, PANELS_OF_ONE)                \
    FLOAT_TILE(name##_w, cls, TOKENS_PER_TILE, PANELS_OF_MANY) \
    static const tiles name = {                                \
        {name##_1, name##_2, name##_3, name##_4}, name##_s, name##_w, TOKENS_PER_TILE, PANELS_OF_MANY};

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

void PE_FN(linear)(const pe_weight *w, const pe_act *a, const float *bias, int64_t t0, int64_t t1, int64_t p0,
                   int64_t p1, float *y, int64_t ldy) {
    const tiles *tile = tiles_of(w);
    int64_t p = p0;
    if (t1 - t0 == 1)
        for (; p + PANELS_OF_ONE <= p1; p += PANELS_OF_ONE) tile->streams(w, a, bias, t0, p, y, ldy);
    const int tokens = tile->wide_tokens, panels = tile->wide_panels;
    const int64_t full = tile->wide ? t0 + (t1 - t0) / tokens * tokens : t0;
    const int64_t wide = full > t0 ? p + (p1 - p) / panels * panels : p;
    for (int64_t i = p; i < wide; i += panels)
        for (int64_t t = t0; t < full; t += tokens) tile->wide(w, a, bias, t, i, y, ldy);
    for (; p < p1; p++)
        for (int64_t t = p < wide ? full : t0; t < t1; t += TOKENS_PER_TILE) {
            const int64_t n = t1 - t < TOKENS_PER_TILE ? t1 - t : TOKENS_PER_TILE;
            tile->tokens[n - 1](w, a, bias, t, p, y, ldy);
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
                       int64_t p1, float *y, int64_t ldy, float *scratch) {
    static void (*const tile[])(const float *, const pe_weight *, const pe_act *, const float *, int64_t, int64_t,
                                float *, int64_t) = {reference_1, reference_2, reference_3, reference_4};
    for (int64_t p = p0; p < p1; p++) {
        PE_FN(unpack_panel)(w, p, scratch);
        for (int64_t t = t0; t < t1; t += TOKENS_PER_TILE) {
            const int64_t n = t1 - t < TOKENS_PER_TILE ? t1 - t : TOKENS_PER_TILE;
            tile[n - 1](scratch, w, a, bias, t, p, y, ldy);
        }
    }
}
