// Values to super-blocks of 256: the encoders of K-quants and IQ4_XS, whose parts have whole numbers as scales under the
// block's one or two f16.
//
// First each part is searched for by itself, as if its scale were free. Then, in turn: all values are rounded under the
// scales as the block can hold them; the block's d (and m) are solved for by least squares over all parts; and each part's
// whole numbers are those nearest to its own best scale. The state with the least weighted error is kept.
#include <math.h>

#include "encode.h"

// Sums over the parts of each super-block of a tile, in every lane.
static void sum_parts(const float *a, int parts, float *out) {
    for (int first = 0; first < TILE; first += parts) {
        float s = 0;
        for (int l = 0; l < parts; l++) s += a[first + l];
        for (int l = 0; l < parts; l++) out[first + l] = s;
    }
}

// Of each super-block, the value that is farthest from zero, in every lane.
static void farthest_part(const float *a, int parts, float *out) {
    for (int first = 0; first < TILE; first += parts) {
        float most = a[first];
        for (int l = 1; l < parts; l++)
            if (fabsf(a[first + l]) > fabsf(most)) most = a[first + l];
        for (int l = 0; l < parts; l++) out[first + l] = most;
    }
}

typedef struct shape {
    int parts, n;  // per super-block, and values of each
    float sub_low, sub_high, min_high;
    pe_tries tries;           // of the search by parts
    const float *starts;      // what the largest scale is first divided by
    int n_starts[2], passes;  // how many (without weights and with them), and passes of the common search from each
} shape;

// One per part. d and m are the same in all parts of a super-block.
typedef struct state {
    float d[TILE], m[TILE], sub[TILE], min[TILE], error[TILE];
} state;

static void keep_better(const state *now, state *best) {
    EACH_VECTOR(v) {
        const vf error = vf_load(now->error + v), least = vf_load(best->error + v);
#define KEEP(field) \
    vf_store(best->field + v, vf_select_gt(least, error, vf_load(now->field + v), vf_load(best->field + v)))
        KEEP(d);
        KEEP(m);
        KEEP(sub);
        KEEP(min);
        KEEP(error);
#undef KEEP
    }
}

// What follows is the same for every format but for what is inlined, and that is large: the rest stays apart.
#define PE_APART static __attribute__((noinline))

// ---- x = d * sub * q -------------------------------------------------------------------------------------------------

PE_APART void start_scales(const float *scales, const shape *p, float start, state *now) {
    float most[TILE];
    farthest_part(scales, p->parts, most);
    memset(now, 0, sizeof *now);
    EACH_VECTOR(v) {
        const vf d = vf_half(vf_mul(vf_load(most + v), vf_set1(1 / start)));
        const vf sub = vf_mul(vf_load(scales + v), vf_inverse(d));
        vf_store(now->d + v, d);
        vf_store(now->sub + v, vf_round(vf_clamp(sub, p->sub_low, p->sub_high)));
    }
}

// Takes the sums of a pass: keeps its state if it is the best one, and makes the next.
PE_APART void step_scales(const pe_fit *fit, const shape *p, state *now, state *best) {
    float terms[3][TILE], sums[3][TILE];
    EACH_VECTOR(v) {
        const pe_fit s = fit[v / VL];
        const vf sub = vf_load(now->sub + v), scale = vf_mul(vf_load(now->d + v), sub);
        // The error, less that of zeros.
        vf_store(terms[0] + v, vf_mul(scale, vf_sub(vf_mul(scale, s.qq), vf_mul(vf_set1(2), s.xq))));
        vf_store(terms[1] + v, vf_mul(sub, s.xq));
        vf_store(terms[2] + v, vf_mul(vf_mul(sub, sub), s.qq));
    }
    for (int i = 0; i < 3; i++) sum_parts(terms[i], p->parts, sums[i]);
    memcpy(now->error, sums[0], sizeof now->error);
    keep_better(now, best);
    EACH_VECTOR(v) {
        const pe_fit s = fit[v / VL];
        const vf qq = vf_load(sums[2] + v), solved = vf_mul(vf_load(sums[1] + v), vf_inverse(qq));
        const vf d = vf_half(vf_select_gt(qq, vf_zero(), solved, vf_load(now->d + v)));
        const vf sub = vf_mul(vf_mul(s.xq, vf_inverse(s.qq)), vf_inverse(d));
        vf_store(now->d + v, d);
        vf_store(now->sub + v, vf_round(vf_clamp(sub, p->sub_low, p->sub_high)));
    }
}

PE_INLINE void search_scales(const pe_tile *t, pe_codes c, const shape *p, int n, bool weighted, state *best) {
    float scales[TILE];
    state now;
    EACH_VECTOR(v) vf_store(scales + v, search_scale(t, n, weighted, c, v, &p->tries).scale);
    for (int start = 0; start < p->n_starts[weighted]; start++) {
        start_scales(scales, p, p->starts[start], &now);
        for (int pass = 0; pass < p->passes; pass++) {
            pe_fit fit[TILE / VL];
            EACH_VECTOR(v) {
                const vf scale = vf_mul(vf_load(now.d + v), vf_load(now.sub + v));
                fit[v / VL] = fit_scale(t, n, weighted, c, v, vf_inverse(scale));
            }
            step_scales(fit, p, &now, best);
        }
    }
}

// ---- x = d * sub * q - m * min ---------------------------------------------------------------------------------------

PE_APART void start_lines(const float *scales, const float *mins, const shape *p, float start, state *now) {
    float most_scale[TILE], most_min[TILE];
    farthest_part(scales, p->parts, most_scale);
    farthest_part(mins, p->parts, most_min);
    EACH_VECTOR(v) {
        const vf d = vf_half(vf_mul(vf_load(most_scale + v), vf_set1(1 / start)));
        const vf m = vf_half(vf_mul(vf_load(most_min + v), vf_set1(1 / p->min_high)));
        const vf sub = vf_mul(vf_load(scales + v), vf_inverse(d)), min = vf_mul(vf_load(mins + v), vf_inverse(m));
        vf_store(now->d + v, d);
        vf_store(now->m + v, m);
        vf_store(now->sub + v, vf_round(vf_clamp(sub, 0, p->sub_high)));
        vf_store(now->min + v, vf_round(vf_clamp(min, 0, p->min_high)));
    }
}

// The error of a part under scale s and minimum m (which is subtracted), less that of zeros.
PE_INLINE vf part_error(const pe_line *s, vf scale, vf m) {
    const vf two = vf_set1(2);
    vf e = vf_mul(scale, vf_sub(vf_mul(scale, s->qq), vf_mul(two, s->xq)));
    e = vf_add(e, vf_mul(m, vf_add(vf_mul(m, s->w), vf_mul(two, s->x))));
    return vf_sub(e, vf_mul(vf_mul(two, vf_mul(scale, m)), s->q));
}

PE_APART void step_lines(const pe_line *line, const shape *p, state *now, state *best) {
    float terms[6][TILE], sums[6][TILE];
    EACH_VECTOR(v) {
        const pe_line *s = &line[v / VL];
        const vf sub = vf_load(now->sub + v), min = vf_load(now->min + v);
        vf_store(terms[0] + v, part_error(s, vf_mul(vf_load(now->d + v), sub), vf_mul(vf_load(now->m + v), min)));
        vf_store(terms[1] + v, vf_mul(vf_mul(sub, sub), s->qq));
        vf_store(terms[2] + v, vf_mul(vf_mul(sub, min), s->q));
        vf_store(terms[3] + v, vf_mul(vf_mul(min, min), s->w));
        vf_store(terms[4] + v, vf_mul(sub, s->xq));
        vf_store(terms[5] + v, vf_mul(min, s->x));
    }
    for (int i = 0; i < 6; i++) sum_parts(terms[i], p->parts, sums[i]);
    memcpy(now->error, sums[0], sizeof now->error);
    keep_better(now, best);
    EACH_VECTOR(v) {
        const pe_line *s = &line[v / VL];
        const vf ss = vf_load(sums[1] + v), sm = vf_load(sums[2] + v), mm = vf_load(sums[3] + v);
        const vf sx = vf_load(sums[4] + v), mx = vf_load(sums[5] + v);
        const vf det = vf_sub(vf_mul(ss, mm), vf_mul(sm, sm)), least = vf_mul(vf_set1(1e-5f), vf_mul(ss, mm));
        const vf inverse = vf_inverse(det);
        // Least squares of d and m over all parts; m must not turn its sign.
        vf d = vf_mul(vf_sub(vf_mul(mm, sx), vf_mul(sm, mx)), inverse);
        vf m = vf_mul(vf_sub(vf_mul(sm, sx), vf_mul(ss, mx)), inverse);
        d = vf_half(vf_select_gt(det, least, d, vf_load(now->d + v)));
        m = vf_half(vf_max(vf_select_gt(det, least, m, vf_load(now->m + v)), vf_zero()));
        const vf per_d = vf_inverse(d), per_m = vf_inverse(m), per_qq = vf_inverse(s->qq);
        // Each part's own best, as whole numbers: of two minimums, each with its scale, the better one.
        const vf exact = vf_sub(vf_zero(), vf_mul(solve_line(s, true).offset, per_m));
        const vf low = vf_round(vf_sub(exact, vf_set1(0.5f)));
        vf best_sub = vf_zero(), best_min = vf_zero(), best_error = vf_set1(INFINITY);
        for (int i = 0; i < 2; i++) {
            const vf min = vf_clamp(vf_add(low, vf_set1((float)i)), 0, p->min_high), offset = vf_mul(m, min);
            const vf ideal = vf_mul(vf_fma(offset, s->q, s->xq), vf_mul(per_qq, per_d));
            const vf sub = vf_round(vf_clamp(ideal, 0, p->sub_high));
            const vf error = part_error(s, vf_mul(d, sub), offset);
            best_sub = vf_select_gt(best_error, error, sub, best_sub);
            best_min = vf_select_gt(best_error, error, min, best_min);
            best_error = vf_min(error, best_error);
        }
        vf_store(now->d + v, d);
        vf_store(now->m + v, m);
        vf_store(now->sub + v, best_sub);
        vf_store(now->min + v, best_min);
    }
}

PE_INLINE void search_lines(const pe_tile *t, pe_codes c, const shape *p, int n, bool weighted, state *best) {
    float scales[TILE], mins[TILE];
    pe_line line[TILE / VL];
    state now;
    EACH_VECTOR(v) {
        const pe_affine a = search_line(t, n, weighted, c, v, true, &p->tries, &line[v / VL]);
        vf_store(scales + v, a.scale);
        vf_store(mins + v, vf_sub(vf_zero(), a.offset));
    }
    for (int start = 0; start < p->n_starts[weighted]; start++) {
        start_lines(scales, mins, p, p->starts[start], &now);
        for (int pass = 0; pass < p->passes; pass++) {
            EACH_VECTOR(v) {
                const vf scale = vf_mul(vf_load(now.d + v), vf_load(now.sub + v)), inverse = vf_inverse(scale);
                const vf m = vf_mul(vf_load(now.m + v), vf_load(now.min + v));
                sum_codes(t, n, weighted, c, v, inverse, vf_mul(m, inverse), &line[v / VL]);
            }
            step_lines(line, p, &now, best);
        }
    }
}

// ---- blocks ----------------------------------------------------------------------------------------------------------

PE_INLINE void put_supers(const pe_format_row *f, pe_codes c, const shape *p, const state *s, const float *x, int64_t n,
                          uint8_t *out) {
    pe_lanes lanes;
    for (int first = 0; first < TILE && n > 0; first += p->parts, x += 256, n -= 256, out += f->info.block_bytes) {
        lanes.d = pe_f32_to_f16(s->d[first]);
        lanes.m = pe_f32_to_f16(s->m[first]);
        for (int i = 0; i < p->parts; i++) {
            const float sub = s->sub[first + i], min = s->min[first + i], scale = s->d[first] * sub;
            const float inverse = scale != 0 ? 1 / scale : 0;
            lanes.sub[i] = (int8_t)sub;
            lanes.min[i] = (uint8_t)min;
            put_codes(c, x + p->n * i, p->n, inverse, s->m[first] * min * inverse, lanes.q + p->n * i);
        }
        f->pack(&lanes, out);
    }
}

static const float lines_2[][2] = {{0, 3},       {0, 2.6f},     {-0.3f, 3.3f}, {0, 3.4f},    {0.3f, 2.7f},
                                   {-0.4f, 3},   {-0.6f, 2.6f}, {0, 2.2f},     {0.4f, 3},    {-0.2f, 2.8f},
                                   {0, 3.8f},    {-0.6f, 3.6f}, {0.3f, 2.3f},  {-0.8f, 3},   {0, 1.9f},
                                   {0.6f, 2.6f}, {-1, 3.4f},    {-0.4f, 2.2f}, {0.6f, 3.6f}, {0, 4.4f}};
static const float codes_3[][2] = {{-4},    {-3.5f}, {3},     {-3.2f}, {-4.4f},  {3.4f},  {2.7f},
                                   {-3.8f}, {-2.9f}, {2.4f},  {-4.8f}, {3.8f},   {-2.5f}, {2.1f},
                                   {-5.3f}, {4.2f},  {-2.2f}, {1.8f},  {-3.35f}, {3.2f}};
static const float codes_6[][2] = {{-32},    {31},     {-31.4f}, {30.4f},  {-32.6f}, {31.6f},  {-30.7f},
                                   {29.8f},  {-33.3f}, {32.2f},  {-30.1f}, {29.1f},  {-33.9f}, {32.9f},
                                   {-29.4f}, {28.5f},  {-28.8f}, {27.9f},  {-34.6f}, {33.5f}};
static const float codes_iq4[][2] = {{-127},   {113},     {-118.1f}, {105.1f},  {-135.9f}, {120.9f},  {-109.2f},
                                     {97.2f},  {-144.8f}, {128.8f},  {-100.3f}, {89.3f},   {-153.7f}, {136.7f},
                                     {-91.4f}, {81.4f},   {-82.5f},  {73.4f},   {-162.6f}, {144.6f}};
static const float starts_2[] = {15.0f, 14.0f, 13.0f, 12.0f};
static const float starts_4[] = {63.0f, 61.0f};
static const float starts_k6[] = {-32.0f, 31.0f, -27.0f};
// The last of each: an f16 of this size may have few bits, and where the first was rounded down, scales do not fit.
static const float starts_k8[] = {-128.0f, -108.0f};

#define SUPERS(search)                                                                             \
    for (; n > 0; n -= p.n * TILE, x += p.n * TILE, out += TILE / p.parts * f->info.block_bytes) { \
        PE_FN(load_tile)(&t, x, w, p.n, n / p.n);                                                  \
        memset(&best, 0, sizeof best);                                                             \
        for (int l = 0; l < TILE; l++) best.error[l] = INFINITY;                                   \
        if (w) {                                                                                   \
            search(&t, c, &p, p.n, true, &best);                                                   \
            w += p.n * TILE;                                                                       \
        } else {                                                                                   \
            search(&t, c, &p, p.n, false, &best);                                                  \
        }                                                                                          \
        put_supers(f, c, &p, &best, x, n, out);                                                    \
    }

void PE_FN(encode_super)(const pe_format_row *f, const float *x, const float *w, int64_t n, uint8_t *out) {
    pe_tile t;
    state best;
    if (f->cls == PE_CLASS_U2) {
        const pe_codes c = {PE_CLASS_U2, 0, 3};
        const shape p = {16, 16, 0, 15, 15, {lines_2, {8, 20}, {2, 3}}, starts_2, {4, 4}, 4};
        SUPERS(search_lines)
    } else if (f->cls == PE_CLASS_U3) {
        const pe_codes c = {PE_CLASS_U3, -4, 3};
        const shape p = {16, 16, -32, 31, 0, {codes_3, {8, 20}, {2, 3}}, starts_k6, {2, 2}, 4};
        SUPERS(search_scales)
    } else if (f->cls == PE_CLASS_U4) {
        const pe_codes c = {PE_CLASS_U4, 0, 15};
        const shape p = {8, 32, 0, 63, 63, {lines_4, {8, 20}, {2, 3}}, starts_4, {2, 2}, 4};
        SUPERS(search_lines)
    } else if (f->cls == PE_CLASS_U5) {
        const pe_codes c = {PE_CLASS_U5, 0, 31};
        const shape p = {8, 32, 0, 63, 63, {lines_5, {8, 20}, {2, 3}}, starts_4, {2, 2}, 4};
        SUPERS(search_lines)
    } else if (f->cls == PE_CLASS_U6) {
        const pe_codes c = {PE_CLASS_U6, -32, 31};
        const shape p = {16, 16, -128, 127, 0, {codes_6, {6, 14}, {2, 2}}, starts_k8, {2, 2}, 3};
        SUPERS(search_scales)
    } else {
        const pe_codes c = {PE_CLASS_IQ4, 0, 0};
        const shape p = {8, 32, -32, 31, 0, {codes_iq4, {12, 20}, {2, 2}}, starts_k6, {3, 3}, 3};
        SUPERS(search_scales)
    }
}
