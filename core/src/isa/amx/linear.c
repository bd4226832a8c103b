// What AMX adds to AVX-512: products of many tokens, and the probe's peak. 16 tokens x 16 lanes x 32 k are one instruction;
// what takes the time is to scale its sums, and all else is done meanwhile. The same bits as AVX-512's.
//
// A tile register holds rows of up to 64 bytes: of tokens, 32 k (or 16, where each has a scale) of one token's activations,
// as they lie; of weights, a group of 4 k of 16 lanes, as load_unit puts them; of sums, 16 lanes of one token.
#include <tiles.h>

#include "cpu/matmul.h"

enum {
    MANY_FROM = 13,    // tokens: with fewer, a tile takes as long as AVX-512 does
    TILE_TOKENS = 16,  // a last tile of fewer is filled up
    MANY_TILES = MANY_TOKENS / TILE_TOKENS,
    MANY_SUMS = 128,  // tiles of them, of one panel each
    MANY_RUNS = 2 * MANY_TILES,
};

// A unit of a panel, as tiles read it.
typedef struct unit_tiles {
    vi w[8];            // the integers of the groups, times `times_of_integers`
    vf d[2];            // of the parts: the scale
    vf minus_magic[2];  // -MAGIC times it
    vf m;
} unit_tiles;

// Scales of 16 tokens' activations.
typedef struct token_scales {
    float d[TILE_TOKENS], d_sum[TILE_TOKENS];
} token_scales;

// Terms of up to 16 tokens with a slice's units.
typedef struct token_tile {
    const int8_t *q;  // [16, ldq]
    int64_t ldq;
    token_scales scales[SLICE];
} token_tile;
typedef int8_t last_tokens[TILE_TOKENS][32 * SLICE + 64];  // activations of a tile that has fewer tokens

// Second terms of a unit with up to 16 tokens, from k on in the list.
typedef struct fine_group {
    int unit, k, n;
} fine_group;

// What the products work in.
typedef struct scratch {
    unit_tiles units[SLICE];  // of one panel: those of two would push each other out of near cache
    token_tile first[MANY_TILES], second[MANY_TILES];
    last_tokens first_last, second_last;
    bool all_fine;   // `second` holds the second terms, else
    fine_list fine;  // the list, as so many groups
    int n_groups;
    fine_group groups[SLICE * MANY_TILES];
    vf sums[MANY_SUMS][TILE_TOKENS];  // [panel][tile]
} scratch;

// ---- what is multiplied ----------------------------------------------------------------------------------------------

// The integers of a unit as they are meant: no sum has too much of anything.
PE_INLINE void load_integers(const pe_class cls, const pe_scales scales, const uint8_t *unit, vi *w) {
    if (cls == PE_CLASS_U4 && !pe_scales_have_m(scales)) {
        // A nibble with its highest bit turned over is the integer less 8; in the high half of a byte, 16 times that.
        const vi high = _mm512_set1_epi8((char)0xf0), turn = _mm512_set1_epi8((char)0x80);
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
            const vi x = dot_load(unit + 64 * g);
            w[2 * g] = _mm512_ternarylogic_epi32(_mm512_slli_epi16(x, 4), turn, high, 0x28);  // (x ^ turn) & high
            w[2 * g + 1] = _mm512_ternarylogic_epi32(x, turn, high, 0x28);
        }
        return;
    }
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        w[g] = dot_group(cls, unit, g);
        if (dot_offset(cls)) w[g] = _mm512_xor_si512(w[g], _mm512_set1_epi8((char)dot_offset(cls)));
        else if (!pe_scales_have_m(scales)) w[g] = _mm512_sub_epi8(w[g], _mm512_set1_epi8((char)pe_class_zero(cls)));
    }
}

PE_INLINE float times_of_integers(const pe_class cls, const pe_scales scales) {
    return cls == PE_CLASS_U4 && !pe_scales_have_m(scales) ? 16 : 1;
}

// Unpacks unit u of a panel's block.
PE_INLINE void load_unit(const pe_class cls, const pe_scales scales, const uint8_t *block, int u, unit_tiles *to) {
    const int parts = pe_scales_parts(scales) == 16 ? 2 : 1;
    load_integers(cls, scales, block + units_at(scales) + (size_t)u * unit_bytes(cls), to->w);
#pragma GCC unroll 2
    for (int part = 0; part < parts; part++) {
        const vf d = scale_of(scales, block, u, part);
        const float times = times_of_integers(cls, scales);  // a power of two
        to->d[part] = times == 1 ? d : vf_mul(d, vf_set1(1 / times));
        to->minus_magic[part] = vf_mul(d, vf_set1(-MAGIC / times));
    }
    if (pe_scales_have_m(scales)) to->m = minimum_of(scales, block, u);
}

typedef void load_fn(const uint8_t *block, size_t block_bytes, int units, unit_tiles *to);

#define LOAD_FN(cls, scales)                                                                                         \
    FLATTEN static void cls##_##scales##_load(const uint8_t *block, size_t block_bytes, int units, unit_tiles *to) { \
        const int in_block = units_of(PE_SCALES_##scales);                                                           \
        for (int i = 0; i < units; i += in_block, block += block_bytes)                                              \
            for (int u = 0; u < in_block; u++) load_unit(PE_CLASS_##cls, PE_SCALES_##scales, block, u, to + i + u);  \
    }
PE_MANY(LOAD_FN)

// 16 floats, `stride` bytes apart; those from the n-th on are 0.
PE_INLINE vf gather(const float *from, int64_t stride, int n) {
    const vi lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const vi at = _mm512_mullo_epi32(lane, vi_set1((int32_t)stride));
    return _mm512_mask_i32gather_ps(vf_zero(), v_mask(n), at, from, 1);
}

// Lays terms of n tokens out as tiles. q: [n, ldq], b: [n, ldb], both from the slice on.
static void lay_tokens(const int8_t *q, int64_t ldq, const pe_act_block *b, int64_t ldb, int n, int units, bool have_m,
                       token_tile *to, int8_t (*last)[sizeof(last_tokens) / TILE_TOKENS]) {
    const int64_t stride = ldb * (int64_t)sizeof *b;
    for (int r = 0; r < n; r += TILE_TOKENS, to++) {
        const int left = n - r;
        const pe_act_block *from = b + r * ldb;
        for (int i = 0; i < units; i++) {
            vf_store(to->scales[i].d, gather(&from[i].d, stride, left));
            if (have_m) vf_store(to->scales[i].d_sum, gather(&from[i].d_sum, stride, left));
        }
        to->q = q + r * ldq;
        to->ldq = ldq;
        if (left >= TILE_TOKENS) continue;
        for (int k = 0; k < left; k++) memcpy(last[k], q + (r + k) * ldq, (size_t)(32 * units));
        to->q = last[0];
        to->ldq = sizeof last[0];
    }
}

// ---- tiles -----------------------------------------------------------------------------------------------------------

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

// Tiles 0 to 3 hold sums, 4 and 5 tokens, 6 and 7 weights. Instructions take the numbers as literals.
PE_INLINE void begin_tiles(int parts) {
    const uint8_t k = (uint8_t)(32 / parts);
    const tile_config config = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, k, k, 64, 64},
        .rows = {16, 16, 16, 16, TILE_TOKENS, TILE_TOKENS, k / 4, k / 4},
    };
    TILES_BEGIN(config);
}

typedef int32_t tile_sums[TILE_TOKENS][VL];

// The sums of activations, `q_at` bytes from q on, with 16 or 32 k of weights, `w_at` bytes from w on.
#define TILE_PRODUCT(sums, tokens, weights, q, q_at, ldq, w, w_at) \
    do {                                                           \
        TILE_LOAD(tokens, q, q_at, ldq);                           \
        TILE_LOAD(weights, w, w_at, 64);                           \
        TILE_ZERO(sums);                                           \
        TILE_DOT(sums, tokens, weights);                           \
    } while (0)

// sum + d_token * (x * d), where minus_magic is -MAGIC * d.
PE_INLINE vf scaled(const int32_t *x, vf d, vf minus_magic, float d_token, vf sum) {
    const vf magic = vi_as_f32(vi_add(vi_load(x), vi_set1(MAGIC_BITS)));
    return vf_fma(vf_fma(magic, d, minus_magic), vf_set1(d_token), sum);
}

PE_INLINE void scale_part(const pe_scales scales, const unit_tiles *u, int part, const int32_t (*x)[VL],
                          const token_scales *tokens, vf *sum) {
    const vf d = u->d[part], minus_magic = u->minus_magic[part];
#pragma GCC unroll 16
    for (int r = 0; r < TILE_TOKENS; r++) sum[r] = scaled(x[r], d, minus_magic, tokens->d[r], sum[r]);
    if (!pe_scales_have_m(scales)) return;
#pragma GCC unroll 16
    for (int r = 0; r < TILE_TOKENS; r++) sum[r] = vf_fma(u->m, vf_set1(tokens->d_sum[r]), sum[r]);
}

// Products with a tile of tokens, and what they add to.
typedef struct run {
    const token_tile *tokens;
    vf *sums;
    const uint8_t *ahead;  // memory to call for meanwhile, so many lines with every four products
    int lines;
} run;

PE_INLINE void copy_sums(vf *to, const vf *from) {
#pragma GCC unroll 16
    for (int r = 0; r < TILE_TOKENS; r++) to[r] = from[r];
}

// Product c of four, c a literal, of the loops of multiply_runs, whose names it takes: its sums go into tile c. Those of two products before, in tile (c + 2) % 4, are stored: a
// store that waits for its sums would keep everything behind it waiting. Those of three before, `scaled` of the ring, are
// scaled meanwhile.
#define RUN_STEP(c, stored, scaled, token_tile, weight_tile)                                     \
    do {                                                                                         \
        const int part = ((c) + 1) % parts; /* of the one three before */                        \
        if ((c) > 1 || !begins) TILE_STORE(stored, ring, (stored) * sizeof ring[0], 64);         \
        TILE_PRODUCT(c, token_tile, weight_tile, q, 32 / parts * (c), ldq, u,                    \
                     (c) / parts * sizeof *u + (c) % parts * 4 * sizeof(vi));                    \
        if ((c) == 3 && i == 0) {                                                                \
            if (!begins) copy_sums(r[-1].sums, sum);                                             \
            copy_sums(sum, r->sums);                                                             \
            done = slice;                                                                        \
            done_scales = r->tokens->scales;                                                     \
        }                                                                                        \
        if ((c) == 3 || !begins) scale_part(scales, done, part, ring[scaled], done_scales, sum); \
        if (part == parts - 1 && ((c) == 3 || !begins)) done++, done_scales++;                   \
    } while (0)

// All of a slice's units with tiles of tokens; the units' parts are a multiple of four.
PE_INLINE void multiply_runs(const pe_scales scales, const unit_tiles *slice, int units, const run *runs, int n_runs) {
    const int parts = pe_scales_parts(scales) == 16 ? 2 : 1;
    _Alignas(64) tile_sums ring[4];
    vf sum[TILE_TOKENS];
    const unit_tiles *done = slice;
    const token_scales *done_scales = runs->tokens->scales;
    copy_sums(sum, runs->sums);
    for (const run *r = runs; r < runs + n_runs; r++) {
        const unit_tiles *u = slice;
        const int8_t *q = r->tokens->q;
        const int64_t ldq = r->tokens->ldq;
        const uint8_t *ahead = r->ahead;
        const int lines = r->lines;
        for (int i = 0; i < units; i += 4 / parts, u += 4 / parts, q += 128 / parts) {
            const bool begins = r == runs && i == 0;
            for (int k = 0; k < lines; k++, ahead += 64) v_prefetch_l2(ahead);
            RUN_STEP(0, 2, 1, 4, 6);
            RUN_STEP(1, 3, 2, 5, 7);
            RUN_STEP(2, 0, 3, 4, 6);
            RUN_STEP(3, 1, 0, 5, 7);
        }
    }
    TILE_STORE(2, ring, 2 * sizeof ring[0], 64);
    scale_part(scales, done, parts == 2, ring[1], done_scales, sum);
    done++, done_scales++;
    TILE_STORE(3, ring, 3 * sizeof ring[0], 64);
    scale_part(scales, done, 0, ring[2], done_scales, sum);
    if (parts == 1) done++, done_scales++;
    scale_part(scales, done, parts == 2, ring[3], done_scales, sum);
    copy_sums(runs[n_runs - 1].sums, sum);
}

typedef void runs_fn(const unit_tiles *slice, int units, const run *runs, int n_runs);

#define RUNS_FN(name, scales)                                                                   \
    FLATTEN static void name(const unit_tiles *slice, int units, const run *runs, int n_runs) { \
        multiply_runs(scales, slice, units, runs, n_runs);                                      \
    }
RUNS_FN(whole_runs, PE_SCALES_D)
RUNS_FN(with_m_runs, PE_SCALES_DM)
RUNS_FN(halves_runs, PE_SCALES_K16)

// Products 0 to n - 1 as RUN_STEP does them, whatever they are: PRODUCT(m, sums, tokens, weights) computes one into its tile,
// SCALE(m, x) scales its sums.
#define PIPELINE_STEP(c, stored, scaled, token_tile, weight_tile, n, PRODUCT, SCALE)            \
    do {                                                                                        \
        const int done = j + (c) - 3;                                                           \
        if (done >= -1 && done <= (n)) TILE_STORE(stored, ring, (stored) * sizeof ring[0], 64); \
        if (j + (c) < (n)) PRODUCT(j + (c), c, token_tile, weight_tile);                        \
        if (done >= 0 && done < (n)) SCALE(done, ring[scaled]);                                 \
    } while (0)
#define PIPELINE(n, PRODUCT, SCALE)                      \
    _Alignas(64) tile_sums ring[4];                      \
    for (int j = 0; j < (n) + 3; j += 4) {               \
        PIPELINE_STEP(0, 2, 1, 4, 6, n, PRODUCT, SCALE); \
        PIPELINE_STEP(1, 3, 2, 5, 7, n, PRODUCT, SCALE); \
        PIPELINE_STEP(2, 0, 3, 4, 6, n, PRODUCT, SCALE); \
        PIPELINE_STEP(3, 1, 0, 5, 7, n, PRODUCT, SCALE); \
    }

// What multiply_runs does, for any other number of parts: a last slice's.
FLATTEN static void multiply_last_runs(pe_scales scales, const unit_tiles *slice, int units, const run *runs,
                                       int n_runs) {
    const int parts = pe_scales_parts(scales) == 16 ? 2 : 1, each = units * parts;
#define RUN_PRODUCT(m, sums, token_tile, weight_tile)                                                 \
    do {                                                                                              \
        const run *const r = runs + (m) / each;                                                       \
        const int k = (m) % each;                                                                     \
        TILE_PRODUCT(sums, token_tile, weight_tile, r->tokens->q + 32 / parts * k, 0, r->tokens->ldq, \
                     slice[k / parts].w + k % parts * 4, 0);                                          \
    } while (0)
#define RUN_SCALE(m, x)                                                                \
    do {                                                                               \
        const run *const r = runs + (m) / each;                                        \
        const int i = (m) % each / parts;                                              \
        scale_part(scales, slice + i, (m) % parts, x, r->tokens->scales + i, r->sums); \
    } while (0)
    PIPELINE(n_runs * each, RUN_PRODUCT, RUN_SCALE)
}

// Adds part `part` of the second terms that group f has, of which x are the sums.
PE_INLINE void scale_fine(const bool have_m, const unit_tiles *u, int part, const fine_group *f, const fine_list *list,
                          const int32_t (*x)[VL], vf *sums) {
    u += f->unit;
    const pe_act_block *b = &list->block[f->unit][f->k];
    const uint8_t *token = &list->token[f->unit][f->k];
    for (int r = 0; r < f->n; r++) {
        const vf sum = scaled(x[r], u->d[part], u->minus_magic[part], b[r].d, sums[token[r]]);
        sums[token[r]] = have_m ? vf_fma(u->m, vf_set1(b[r].d_sum), sum) : sum;
    }
}

// The second terms that were gathered.
PE_INLINE void second_terms(const int parts, const bool have_m, const unit_tiles *u, const fine_list *list,
                            const fine_group *groups, int n_groups, vf *sums) {
#define FINE_PRODUCT(m, sums_, token_tile, weight_tile)                                                \
    do {                                                                                               \
        const fine_group *const f = groups + (m) / parts;                                              \
        TILE_PRODUCT(sums_, token_tile, weight_tile, list->q[f->unit][f->k] + (m) % parts * 16, 0, 32, \
                     u[f->unit].w + (m) % parts * 4, 0);                                               \
    } while (0)
#define FINE_SCALE(m, x) scale_fine(have_m, u, (m) % parts, groups + (m) / parts, list, x, sums)
    PIPELINE(n_groups * parts, FINE_PRODUCT, FINE_SCALE)
}

typedef void second_fn(const unit_tiles *u, const fine_list *list, const fine_group *groups, int n_groups, vf *sums);

#define SECOND_FN(name, parts, have_m)                                                                                \
    FLATTEN static void name(const unit_tiles *u, const fine_list *list, const fine_group *groups, int n, vf *sums) { \
        second_terms(parts, have_m, u, list, groups, n, sums);                                                        \
    }
SECOND_FN(whole_second, 1, false)
SECOND_FN(with_m_second, 1, true)
SECOND_FN(halves_second, 2, false)

// ---- products --------------------------------------------------------------------------------------------------------

// Lays the second terms of a slice out: as tiles of tokens, where all have all of them, else as groups of a list.
static void lay_fine(const pe_act *a, int64_t t, int n, int64_t at, int units, bool have_m, scratch *s) {
    unsigned all = (1u << units) - 1;
    for (int r = 0; r < n; r++) all &= fine_units(a, t + r, at);
    s->all_fine = all == (1u << units) - 1;
    s->n_groups = 0;
    if (s->all_fine) {
        lay_tokens(a->fine_q + t * a->ldq + 32 * at, a->ldq, a->fine + t * a->ldb + at, a->ldb, n, units, have_m,
                   s->second, s->second_last);
        return;
    }
    gather_fine(a, t, n, at, &s->fine);
    for (int i = 0; i < units; i++)
        for (int k = 0; k < s->fine.n[i]; k += TILE_TOKENS) {
            const int left = s->fine.n[i] - k;
            s->groups[s->n_groups++] = (fine_group){i, k, left < TILE_TOKENS ? left : TILE_TOKENS};
        }
}

// Slice by slice, as AVX-512 does it. n tokens from t on; with `panels` panels they are MANY_SUMS tiles at most.
static void many_tokens(load_fn *load, const pe_weight *w, const pe_act *a, const float *bias, int64_t t, int n,
                        int64_t panel, int panels, float *y, int64_t ldy, scratch *s) {
    const int in_block = units_of(w->scales), parts = pe_scales_parts(w->scales) == 16 ? 2 : 1;
    const bool have_m = pe_scales_have_m(w->scales);
    runs_fn *const multiply = parts == 2 ? halves_runs : have_m ? with_m_runs : whole_runs;
    second_fn *const second = parts == 2 ? halves_second : have_m ? with_m_second : whole_second;
    const int64_t n_units = w->n_blocks * in_block;
    const int n_tiles = (n + TILE_TOKENS - 1) / TILE_TOKENS;
    memset(s->sums, 0, (size_t)(panels * n_tiles) * sizeof s->sums[0]);
    begin_tiles(parts);
    for (int64_t at = 0; at < n_units; at += SLICE) {
        const int units = n_units - at < SLICE ? (int)(n_units - at) : SLICE;
        lay_tokens(a->q + t * a->ldq + 32 * at, a->ldq, a->blocks + t * a->ldb + at, a->ldb, n, units, have_m, s->first,
                   s->first_last);
        lay_fine(a, t, n, at, units, have_m, s);
        const size_t slice_bytes = (size_t)(units / in_block) * w->block_bytes;
        const int n_runs = n_tiles * (s->all_fine ? 2 : 1);
        const int lines = (int)(4 * slice_bytes / 64) / (units * parts * n_runs) + 1;  // with every four products
        for (int p = 0; p < panels; p++) {
            const uint8_t *data = w->data + (size_t)(panel + p) * w->panel_bytes;
            const uint8_t *block = data + (size_t)(at / in_block) * w->block_bytes, *ahead = block + slice_bytes;
            vf(*const sums)[TILE_TOKENS] = s->sums + p * n_tiles;
            run runs[MANY_RUNS];
            for (int k = 0; k < n_runs; k++, ahead += lines * units * parts / 4 * 64)
                runs[k] = (run){k < n_tiles ? &s->first[k] : &s->second[k - n_tiles], sums[k % n_tiles], ahead, lines};
            load(block, w->block_bytes, units, s->units);
            if (units * parts % 4) multiply_last_runs(w->scales, s->units, units, runs, n_runs);
            else multiply(s->units, units, runs, n_runs);
            if (s->n_groups) second(s->units, &s->fine, s->groups, s->n_groups, sums[0]);
        }
    }
    TILES_END();  // a thread whose tiles are in use is slower to switch to
    for (int r = 0; r < n; r++)
        for (int p = 0; p < panels; p++)
            put(w, bias, panel + p, s->sums[p * n_tiles + r / TILE_TOKENS][r % TILE_TOKENS], y + (t + r) * ldy);
}

static load_fn *load_of(const pe_weight *w) {
#define PE_FIND_LOAD(cls_, scales_) \
    if (w->cls == PE_CLASS_##cls_ && w->scales == PE_SCALES_##scales_) return cls_##_##scales_##_load;
    PE_MANY(PE_FIND_LOAD)
    return NULL;
}

size_t PE_OWN(linear_scratch)(void) {
    const size_t other = PE_FN(linear_scratch)();
    return sizeof(scratch) > other ? sizeof(scratch) : other;
}

void PE_OWN(linear)(const pe_weight *w, const pe_act *a, const float *bias, int64_t t0, int64_t t1, int64_t p0,
                    int64_t p1, float *y, int64_t ldy, void *to) {
    load_fn *load = t1 - t0 >= MANY_FROM ? load_of(w) : NULL;
    if (!load) {
        PE_FN(linear)(w, a, bias, t0, t1, p0, p1, y, ldy, to);
        return;
    }
    const int64_t rounds = (t1 - t0 + MANY_TOKENS - 1) / MANY_TOKENS;
    const int most = (int)(MANY_SUMS / (((t1 - t0 + rounds - 1) / rounds + TILE_TOKENS - 1) / TILE_TOKENS));
    for (int64_t p = p0; p < p1; p += most)
        for (int64_t i = 0, t = t0; i < rounds; i++) {
            const int panels = p1 - p < most ? (int)(p1 - p) : most, tokens = (int)((t1 - t0 + i) / rounds);
            many_tokens(load, w, a, bias, t, tokens, p, panels, y, ldy, to);
            t += tokens;
        }
}

// ---- the probe -------------------------------------------------------------------------------------------------------

// Both operands and the sums stay in registers; four sums, since each product waits for the one before into its own.
int32_t PE_OWN(probe_int8)(int64_t rounds) {
    enum { MULTIPLIED = 16 * 16 * 64 / VL };  // multiply-adds of a tile, per lane
    static const tile_config config = {
        .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _Alignas(64) tile_sums numbers[4];
    for (int i = 0; i < 16 * VL; i++) numbers[0][i / VL][i % VL] = 0x01fe0203 + i;
    TILES_BEGIN(config);
    TILE_LOAD(4, numbers[0], 0, 64);
    TILE_LOAD(5, numbers[0], 0, 64);
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t n = 0; n * (4 * MULTIPLIED / PE_PROBE_INT8) < rounds; n++) {
        TILE_DOT(0, 4, 5);
        TILE_DOT(1, 4, 5);
        TILE_DOT(2, 4, 5);
        TILE_DOT(3, 4, 5);
    }
    TILE_STORE(0, numbers[0], 0, 64);
    TILE_STORE(1, numbers[1], 0, 64);
    TILE_STORE(2, numbers[2], 0, 64);
    TILE_STORE(3, numbers[3], 0, 64);
    TILES_END();
    return numbers[0][0][0] + numbers[1][0][0] + numbers[2][0][0] + numbers[3][0][0];
}
