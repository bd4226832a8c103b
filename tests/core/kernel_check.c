// Runs every kernel of every instruction set of this build that the processor supports, against vectors that
// make_vectors.py wrote, and checks what must hold between any two runs of a kernel: a row's bits depend on the row alone.
//
//     kernel_check formats               the formats that this build runs, one a line: name, number
//     kernel_check VECTORS [ISA [OP]]    all checks, or those of one instruction set, or of one op in it
//
// Owns tolerances that no vector names and the laws of kernels.h. Does not own expectations: they come from numpy; nor
// rows of logits (row_check.h).
#include <math.h>

#include "check.h"
#include "f16.h"
#include "kernels.h"
#include "row_check.h"

// ---- vectors ---------------------------------------------------------------------------------------------------------

typedef struct field {
    char name[16];
    char type;  // f: float, d: double, i: int64, b: bytes
    size_t n;
    void *data;  // an allocation of its own, without a byte to spare
} field;

typedef struct vector_case {
    char op[25], name[73];
    int n_fields;
    field fields[16];
} vector_case;

static size_t element_bytes(char type) { return type == 'b' ? 1 : type == 'f' ? 4 : 8; }

static void get(FILE *f, void *out, size_t n) {
    if (n && fread(out, n, 1, f) != 1) give_up("the vector file ends early");
}

static uint64_t get_u64(FILE *f) {
    uint64_t v;
    get(f, &v, sizeof v);
    return v;
}

static void read_case(FILE *f, vector_case *c) {
    memset(c, 0, sizeof *c);
    get(f, c->op, 24);
    get(f, c->name, 72);
    const uint64_t n = get_u64(f);
    if (n > 16) give_up("a case of %llu fields", (unsigned long long)n);
    c->n_fields = (int)n;
    for (int i = 0; i < c->n_fields; i++) {
        field *to = &c->fields[i];
        get(f, to->name, 15);
        get(f, &to->type, 1);
        to->n = (size_t)get_u64(f);
        if (to->n > 1u << 28) give_up("field '%s' has %zu elements", to->name, to->n);
        to->data = take(to->n * element_bytes(to->type));
        get(f, to->data, to->n * element_bytes(to->type));
    }
}

static const field *find(const vector_case *c, const char *name) {
    for (int i = 0; i < c->n_fields; i++)
        if (strcmp(c->fields[i].name, name) == 0) return &c->fields[i];
    return NULL;
}

static const void *array(const vector_case *c, const char *name, char type, size_t n) {
    const field *f = find(c, name);
    if (!f || f->type != type || f->n != n) give_up("field '%s' is missing, or not %zu of type %c", name, n, type);
    return f->data;
}
static const float *floats(const vector_case *c, const char *name, int64_t n) { return array(c, name, 'f', (size_t)n); }
static const double *doubles(const vector_case *c, const char *name, int64_t n) {
    return array(c, name, 'd', (size_t)n);
}
static int64_t integer(const vector_case *c, const char *name) { return *(const int64_t *)array(c, name, 'i', 1); }
static double number(const vector_case *c, const char *name) { return *doubles(c, name, 1); }
static int64_t count(const vector_case *c, const char *name) {
    const field *f = find(c, name);
    return f ? (int64_t)f->n : 0;
}

// ---- comparing -------------------------------------------------------------------------------------------------------

static float *take_floats(int64_t n) { return take((size_t)n * sizeof(float)); }

static bool same(const float *a, const float *b, int64_t n) { return memcmp(a, b, (size_t)n * sizeof *a) == 0; }

// Untouched since take().
static bool blank(const float *p, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (pe_f32_bits(p[i]) != UINT32_MAX) return false;
    return true;
}

// The same numbers, every NaN being like any other.
static bool equal(const float *got, const float *want, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (!(got[i] == want[i] || (isnan(got[i]) && isnan(want[i]))))
            return CHECK(false, "%s: value %lld is %.9g, not %.9g", what, (long long)i, (double)got[i],
                         (double)want[i]);
    return CHECK(true, "ok");
}

// |got - want| <= relative * |want| + absolute
static bool near(const float *got, const double *want, int64_t n, double relative, double absolute, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= relative * fabs(want[i]) + absolute))
            return CHECK(false, "%s: value %lld is %.9g, not %.9g", what, (long long)i, (double)got[i], want[i]);
    return CHECK(true, "ok");
}

static bool all_nan(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isnan(x[i])) return false;
    return true;
}

static bool none_finite(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i])) return false;
    return true;
}

// ---- weights ---------------------------------------------------------------------------------------------------------

typedef struct source {
    const pe_format_row *format;
    int64_t rows, cols;
    const uint8_t *data;
} source;

static source source_of(const vector_case *c) {
    source s = {pe_format_row_by_type((int32_t)integer(c, "type")), integer(c, "rows"), integer(c, "cols"), NULL};
    if (!s.format || !s.format->info.runs) give_up("this build does not run the format of this case");
    const int64_t blocks = s.rows * s.cols / s.format->info.block_values;
    s.data = array(c, "data", 'b', (size_t)(blocks * s.format->info.block_bytes));
    return s;
}

static pe_weight packed(const pe_kernels *k, const source *s) {
    pe_weight w = {.cls = s->format->cls, .scales = s->format->scales, .lanes = k->lanes, .rows = s->rows};
    w.cols = s->cols;
    w.n_panels = (w.rows + w.lanes - 1) / w.lanes;
    w.n_blocks = w.cols / s->format->info.block_values;
    w.block_bytes = k->block_bytes(w.cls, w.scales);
    w.panel_bytes = (size_t)w.n_blocks * w.block_bytes;
    w.bytes = (size_t)w.n_panels * w.panel_bytes;
    w.data = take(w.bytes);
    k->pack(&w, s->format, s->data, 0, w.n_panels);
    return w;
}

static void check_format(const pe_kernels *k, const vector_case *c) {
    const source s = source_of(c);
    const int64_t n = s.rows * s.cols;
    float *plain = take_floats(n), *row = take_floats(s.cols);
    pe_format_unpack(s.format, s.data, n, plain);
    equal(plain, floats(c, "want", n), n, "pe_format_unpack");

    pe_weight w = packed(k, &s);
    bool rows_equal = true;
    for (int64_t r = 0; r < s.rows && rows_equal; r++) {
        k->unpack_row(&w, r, row);
        rows_equal = equal(row, plain + r * s.cols, s.cols, "unpack_row");
    }
    pe_weight parts = w;
    parts.data = take(w.bytes);
    for (int64_t p = w.n_panels; p-- > 0;) k->pack(&parts, s.format, s.data, p, p + 1);
    CHECK(memcmp(parts.data, w.data, w.bytes) == 0, "panels packed one by one differ from panels packed together");
}

// ---- quantization of activations -------------------------------------------------------------------------------------

// The integers of [tokens, k] activations, rows a few elements apart; x and ldx are the caller's.
static pe_act take_act(const float *x, int64_t ldx, int64_t tokens, int64_t k) {
    const int64_t n_blocks = k / PE_ACT_BLOCK, ldq = k + 32, ldb = n_blocks + 2, ldm = (n_blocks + 63) / 64;
    const size_t q = (size_t)((tokens - 1) * ldq + k);
    const size_t blocks = (size_t)((tokens - 1) * ldb + n_blocks) * sizeof(pe_act_block);
    return (pe_act){.x = x,
                    .ldx = ldx,
                    .q = take(q),
                    .fine_q = take(q),
                    .ldq = ldq,
                    .blocks = take(blocks),
                    .fine = take(blocks),
                    .ldb = ldb,
                    .has_fine = take((size_t)(tokens * ldm) * sizeof(uint64_t)),
                    .fine_above = PE_FINE_ABOVE,
                    .ldm = ldm};
}

static bool sums_right(const pe_act_block *b, const int8_t *q) {
    int sums[2] = {0, 0};
    for (int i = 0; i < PE_ACT_BLOCK; i++) sums[i / 16] += q[i];
    return b->half[0] == sums[0] && b->half[1] == sums[1] && b->minus8 == -8 * (sums[0] + sums[1]) &&
           b->d_sum == b->d * (float)(sums[0] + sums[1]);
}

// Block b of the only row, whose mean scale is `mean`: no value is off by more than half a step.
static void check_block(const pe_act *a, int64_t b, double mean) {
    const float *x = a->x + b * PE_ACT_BLOCK;
    const int8_t *q = a->q + b * PE_ACT_BLOCK, *fine_q = a->fine_q + b * PE_ACT_BLOCK;
    const pe_act_block *block = &a->blocks[b], *fine = &a->fine[b];
    const bool has_fine = a->has_fine[b / 64] >> b % 64 & 1;
    const double d = block->d, fine_d = has_fine ? fine->d : 0;
    const long long number = b;
    double most = 0, left = 0, fine_left = 0;
    int least = 0;
    for (int i = 0; i < PE_ACT_BLOCK; i++) {
        const double rest = x[i] - d * q[i];
        most = fmax(most, fabs((double)x[i]));
        left = fmax(left, fabs(rest));
        if (q[i] < least) least = q[i];
        if (!has_fine) continue;
        fine_left = fmax(fine_left, fabs(rest - fine_d * fine_q[i]));
        if (fine_q[i] < least) least = fine_q[i];
    }
    CHECK(fabs(d - most / 127) <= 2e-7 * d + 0x1p-148, "block %lld: scale %g for %g", number, d, most);
    // A tiny block may become zero.
    CHECK(left <= (most < 1e-30 ? most : 0.50003 * d), "block %lld: off by %g in steps of %g", number, left, d);
    CHECK(least >= -127, "block %lld: %d", number, least);
    CHECK(sums_right(block, q), "block %lld: sums", number);
    if (d > 1.00001 * PE_FINE_ABOVE * mean) CHECK(has_fine, "block %lld: no second term", number);
    if (d < 0.99999 * PE_FINE_ABOVE * mean) CHECK(!has_fine, "block %lld: a second term", number);
    if (!has_fine || most < 1e-28) return;
    // What is left was rounded to the precision of x.
    CHECK(fabs(fine_d - left / 127) <= 2e-5 * d / 127, "block %lld: fine scale %g for %g", number, fine_d, left);
    CHECK(fine_left <= 0.50003 * fine_d + 2e-5 * d, "block %lld: off by %g in steps of %g", number, fine_left, fine_d);
    CHECK(sums_right(fine, fine_q), "block %lld: fine sums", number);
}

static void check_quantize(const pe_kernels *k, const vector_case *c) {
    const int64_t n = count(c, "x"), n_blocks = n / PE_ACT_BLOCK;
    float *x = take_floats(n);
    memcpy(x, floats(c, "x", n), (size_t)n * sizeof *x);
    const pe_act a = take_act(x, n, 1, n);
    k->quantize(&a, 0, n);
    double mean = 0;
    for (int64_t b = 0; b < n_blocks; b++) mean += (double)a.blocks[b].d / (double)n_blocks;
    for (int64_t b = 0; b < n_blocks; b++) check_block(&a, b, mean);
    // Whatever is not finite shows in the scale; the integers and their sums stay in range.
    static const float poison[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 6; i++) {
        const int64_t last = n_blocks - 1, at = last * PE_ACT_BLOCK;
        for (int j = 0; j < (i < 3 ? 1 : PE_ACT_BLOCK); j++) x[at + (j + 7 * i) % PE_ACT_BLOCK] = poison[i % 3];
        k->quantize(&a, 0, n);
        CHECK(!isfinite(a.blocks[last].d), "%g is hidden by a scale of %g", (double)poison[i % 3],
              (double)a.blocks[last].d);
    }
}

// ---- matrix products -------------------------------------------------------------------------------------------------

typedef struct product {
    const pe_kernels *k;
    const pe_weight *w;
    pe_act act;
    const float *bias;
    int64_t tokens, ldy;
    bool f32;
    void *scratch;
} product;

static void multiply(const product *p, int64_t t0, int64_t t1, int64_t p0, int64_t p1, float *y) {
    (p->f32 ? p->k->linear_f32 : p->k->linear)(p->w, &p->act, p->bias, t0, t1, p0, p1, y, p->ldy, p->scratch);
}

static const char *path_name(const product *p) { return p->f32 ? "linear_f32" : "linear"; }

// Every token by itself over all panels: what all other runs must equal.
static float *multiply_alone(const product *p) {
    float *y = take_floats(p->tokens * p->ldy);
    for (int64_t t = 0; t < p->tokens; t++) multiply(p, t, t + 1, 0, p->w->n_panels, y);
    return y;
}

// Tokens [t0, t1) and panels [p0, p1) together: the same bits there, nothing written elsewhere.
static void check_part(const product *p, const float *alone, int64_t t0, int64_t t1, int64_t p0, int64_t p1) {
    float *y = take_floats(p->tokens * p->ldy);
    multiply(p, t0, t1, p0, p1, y);
    const int64_t r0 = p0 * p->w->lanes, end = p1 * p->w->lanes, r1 = end < p->w->rows ? end : p->w->rows;
    bool bits = true, outside = true;
    for (int64_t t = 0; t < p->tokens; t++) {
        const float *row = y + t * p->ldy;
        if (t >= t0 && t < t1) {
            bits = bits && same(row + r0, alone + t * p->ldy + r0, r1 - r0);
            outside = outside && blank(row, r0) && blank(row + r1, p->ldy - r1);
        } else {
            outside = outside && blank(row, p->ldy);
        }
    }
    const long long t = (long long)t0, u = (long long)t1, a = (long long)p0, b = (long long)p1;
    CHECK(bits, "%s: tokens [%lld, %lld) over panels [%lld, %lld) have other bits than alone", path_name(p), t, u, a,
          b);
    CHECK(outside, "%s: tokens [%lld, %lld) over panels [%lld, %lld) write elsewhere", path_name(p), t, u, a, b);
    free(taken[--n_taken]);
}

static void check_parts(const product *p, const float *alone) {
    static const int64_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 30, 33, 47, 130};
    const size_t n_counts = sizeof counts / sizeof counts[0];
    const int64_t panels = p->w->n_panels;
    for (size_t i = 0; i < n_counts; i++) {
        const int64_t n = counts[i];
        if (n > p->tokens) break;
        const int64_t t0 = (p->tokens - n) * (int64_t)i / (int64_t)(n_counts - 1);
        check_part(p, alone, t0, t0 + n, 0, panels);
        if (panels > 1) check_part(p, alone, t0, t0 + n, (int64_t)i % panels, panels);
        if (panels > 2) check_part(p, alone, t0, t0 + n, 1, panels - 1);
    }
}

// What `poison` in one token does: none of its outputs is finite, and no other token notices.
static void check_poison(const product *clean, const float *alone, float poison) {
    if (clean->tokens < 4) return;
    product p = *clean;
    const int64_t cols = p.w->cols, ldx = p.act.ldx;
    float *x = take_floats(p.tokens * ldx);
    for (int64_t t = 0; t < p.tokens; t++) memcpy(x + t * ldx, p.act.x + t * ldx, (size_t)cols * sizeof *x);
    x[2 * ldx + cols / 2] = poison;
    p.act.x = x;
    if (p.act.q) {
        p.act = take_act(x, ldx, p.tokens, cols);
        for (int64_t t = 0; t < p.tokens; t++) p.k->quantize(&p.act, t, cols);
    }
    float *y = take_floats(p.tokens * p.ldy);
    const int64_t n = p.tokens < 15 ? 4 : 15;  // few of them, or as many as the fastest way is taken for
    multiply(&p, 0, n, 0, p.w->n_panels, y);
    bool others = true;
    for (int64_t t = 0; t < n; t++) others = others && (t == 2 || same(y + t * p.ldy, alone + t * p.ldy, p.w->rows));
    CHECK(others, "%s: %g in one token changes another", path_name(&p), (double)poison);
    const float *hit = y + 2 * p.ldy;
    CHECK(isnan(poison) ? all_nan(hit, p.w->rows) : none_finite(hit, p.w->rows), "%s: %g is lost", path_name(&p),
          (double)poison);
}

static void check_product(const product *p, const vector_case *c, double tolerance) {
    const int64_t rows = p->w->rows, n = p->tokens * rows;
    const double *want = doubles(c, "want", n), *scale = doubles(c, "scale", n);
    float *alone = multiply_alone(p);
    bool close = true;
    for (int64_t t = 0; t < p->tokens && close; t++)
        for (int64_t r = 0; r < rows && close; r++) {
            const double got = alone[t * p->ldy + r], off = fabs(got - want[t * rows + r]);
            close = off <= tolerance * scale[t * rows + r] + 1e-36;
            if (!close)
                CHECK(false, "%s: token %lld, row %lld: %.9g, not %.9g: off by %.2g of the %.2g allowed", path_name(p),
                      (long long)t, (long long)r, got, want[t * rows + r], off, tolerance * scale[t * rows + r]);
        }
    CHECK(close, "%s is off", path_name(p));
    check_parts(p, alone);
    check_poison(p, alone, NAN);
    check_poison(p, alone, INFINITY);
}

static void check_linear(const pe_kernels *k, const vector_case *c) {
    const source s = source_of(c);
    const pe_weight w = packed(k, &s);
    // Rows of all arrays lie a few elements apart.
    const int64_t tokens = count(c, "x") / s.cols, ldx = s.cols + 3;
    const float *x = floats(c, "x", tokens * s.cols);
    float *spread = take_floats((tokens - 1) * ldx + s.cols);
    for (int64_t t = 0; t < tokens; t++) memcpy(spread + t * ldx, x + t * s.cols, (size_t)s.cols * sizeof *x);
    product p = {.k = k, .w = &w, .act = {.x = spread, .ldx = ldx}, .tokens = tokens, .ldy = s.rows + 5};
    p.bias = find(c, "bias") ? floats(c, "bias", s.rows) : NULL;
    const size_t unpack = (size_t)(s.cols * w.lanes) * sizeof(float);
    p.scratch = take(unpack > k->linear_scratch() ? unpack : k->linear_scratch());
    if (s.format->lanes) {
        p.act = take_act(spread, ldx, tokens, s.cols);
        for (int64_t t = 0; t < tokens; t++) k->quantize(&p.act, t, s.cols);
    }
    check_product(&p, c, number(c, "tolerance"));
    p.f32 = true;
    check_product(&p, c, number(c, "tolerance_f32"));
    if (!s.format->lanes || tokens > 40) return;
    // Second terms that are not 0: of every block, as for logits, or of every other one.
    for (int64_t i = 0; i < (tokens - 1) * ldx + s.cols; i++)
        spread[i] = (float)((uint32_t)i * 2654435761u >> 8) / 8388608.0f - 1;
    p.f32 = false;
    for (int half = 0; half < 2; half++) {
        p.act.fine_above = (float)half;
        for (int64_t t = 0; t < tokens; t++) k->quantize(&p.act, t, s.cols);
        check_parts(&p, multiply_alone(&p));
    }
}

// ---- row by row ------------------------------------------------------------------------------------------------------

static void check_rms_norm(const pe_kernels *k, const vector_case *c) {
    const int64_t n = count(c, "x");
    const float *x = floats(c, "x", n), *weight = floats(c, "weight", n);
    const float eps = (float)number(c, "eps");
    float *y = take_floats(n), *in_place = take_floats(n);
    k->rms_norm(x, weight, eps, n, y);
    near(y, doubles(c, "want", n), n, 2e-6, 1e-36, "rms_norm");
    memcpy(in_place, x, (size_t)n * sizeof *x);
    k->rms_norm(in_place, weight, eps, n, in_place);
    CHECK(same(in_place, y, n), "in place, other bits");
    memset(in_place, 0, (size_t)n * sizeof *x);
    k->rms_norm(in_place, weight, eps, n, y);
    bool zero = true;
    for (int64_t i = 0; i < n; i++) zero = zero && y[i] == 0;
    CHECK(zero, "zeros do not stay zero");
    in_place[n - 1] = NAN;
    k->rms_norm(in_place, weight, eps, n, y);
    CHECK(all_nan(y, n), "NaN is lost");
}

static void check_layer_norm(const pe_kernels *k, const vector_case *c) {
    const int64_t n = count(c, "x");
    const float *x = floats(c, "x", n), *weight = floats(c, "weight", n);
    const float *bias = find(c, "bias") ? floats(c, "bias", n) : NULL;
    const float eps = (float)number(c, "eps");
    float *y = take_floats(n), *in_place = take_floats(n);
    k->layer_norm(x, weight, bias, eps, n, y);
    near(y, doubles(c, "want", n), n, 2e-6, number(c, "absolute"), "layer_norm");
    memcpy(in_place, x, (size_t)n * sizeof *x);
    k->layer_norm(in_place, weight, bias, eps, n, in_place);
    CHECK(same(in_place, y, n), "in place, other bits");
    in_place[n - 1] = NAN;
    k->layer_norm(in_place, weight, bias, eps, n, y);
    CHECK(all_nan(y, n), "NaN is lost");
}

static void check_rope(const pe_kernels *k, const vector_case *c) {
    const int32_t heads = (int32_t)integer(c, "heads"), dim = (int32_t)integer(c, "dim");
    const int32_t n_rot = (int32_t)integer(c, "n_rot"), pairing = (int32_t)integer(c, "pairing");
    const int64_t n = (int64_t)heads * dim;
    const float *x = floats(c, "x", n), *table = floats(c, "table", n_rot);
    float *y = take_floats(n), *other = take_floats(n), *lone = take_floats(dim);
    k->rope(x, table, heads, dim, n_rot, pairing, y);
    near(y, doubles(c, "want", n), n, 1e-6, 1e-6, "rope");
    memcpy(other, x, (size_t)n * sizeof *x);
    k->rope(other, table, heads, dim, n_rot, pairing, other);
    CHECK(same(other, y, n), "in place, other bits");
    bool rest = true, alone = true;
    for (int32_t h = 0; h < heads; h++) {
        rest = rest && same(y + h * dim + n_rot, x + h * dim + n_rot, dim - n_rot);
        k->rope(x + h * dim, table, 1, dim, n_rot, pairing, lone);
        alone = alone && same(lone, y + h * dim, dim);
    }
    CHECK(rest, "the dims that are not rotated change");
    CHECK(alone, "a head by itself has other bits");
}

typedef void elementwise(const float *a, const float *b, int64_t n, float *y);

// What the kernels below take besides rows.
static struct {
    const pe_kernels *k;
    pe_function function;
    bool gated;
    float factor;
} now;

// Every element is a function of its own inputs: any part of the row, at any alignment, has the same bits.
static void check_elementwise(elementwise *op, const vector_case *c, double relative, double absolute) {
    const int64_t n = count(c, "a");
    const float *a = floats(c, "a", n), *b = floats(c, "b", n);
    float *y = take_floats(n), *other = take_floats(n);
    op(a, b, n, y);
    near(y, doubles(c, "want", n), n, relative, absolute, c->op);
    bool parts = true, outside = true;
    for (int64_t at = 0; at < n && at < 9; at++)
        for (int64_t cut = 0; cut < 9 && at + cut < n; cut++) {
            const int64_t length = n - at - cut;
            memset(other, 0xff, (size_t)n * sizeof *other);
            op(a + at, b + at, length, other + at);
            parts = parts && same(other + at, y + at, length);
            outside = outside && blank(other, at) && blank(other + at + length, cut);
        }
    CHECK(parts, "a part of the row has other bits");
    CHECK(outside, "writes past the end");
    memcpy(other, a, (size_t)n * sizeof *a);
    op(other, b, n, other);
    CHECK(same(other, y, n), "in place of the first, other bits");
    if (now.gated) {
        memcpy(other, b, (size_t)n * sizeof *b);
        op(a, other, n, other);
        CHECK(same(other, y, n), "in place of the second, other bits");
    }
    for (int64_t i = 0; i < n; i += n / 3 + 1) {
        memcpy(other, a, (size_t)n * sizeof *a);
        other[i] = NAN;
        op(other, b, n, other);
        CHECK(isnan(other[i]), "NaN at %lld is lost", (long long)i);
        other[i] = y[i];
        CHECK(same(other, y, n), "NaN at %lld changes others", (long long)i);
    }
}

static void run_activation(const float *a, const float *b, int64_t n, float *y) {
    now.k->activation(now.function, a, now.gated ? b : NULL, n, y);
}
static void run_add(const float *a, const float *b, int64_t n, float *y) { now.k->add(a, b, now.factor, n, y); }
static void run_scale(const float *a, const float *b, int64_t n, float *y) {
    (void)b;
    now.k->scale(a, now.factor, n, y);
}
static void run_softcap(const float *a, const float *b, int64_t n, float *y) {
    (void)b;
    now.k->softcap(a, now.factor, n, y);
}

static void check_activation(const pe_kernels *k, const vector_case *c) {
    now.k = k;
    now.function = (pe_function)integer(c, "function");
    now.gated = integer(c, "gated") != 0;
    check_elementwise(run_activation, c, number(c, "relative"), number(c, "absolute"));
}

static void check_by_factor(const pe_kernels *k, const vector_case *c, elementwise *op) {
    now.k = k;
    now.gated = op == run_add;
    now.factor = (float)number(c, "factor");
    check_elementwise(op, c, number(c, "relative"), number(c, "absolute"));
}
static void check_add(const pe_kernels *k, const vector_case *c) { check_by_factor(k, c, run_add); }
static void check_scale(const pe_kernels *k, const vector_case *c) { check_by_factor(k, c, run_scale); }
static void check_softcap(const pe_kernels *k, const vector_case *c) { check_by_factor(k, c, run_softcap); }

// ---- attention -------------------------------------------------------------------------------------------------------

typedef struct heads {
    const pe_kernels *k;
    pe_attention a;
    int32_t tokens, length, group;
    const float *keys, *values;  // [length, n_kv_heads * head_dim]
    size_t kv_bytes;             // of the pages
    void *scratch;
} heads;

static int64_t token_width(const heads *h) { return (int64_t)h->a.n_heads * h->a.kv.head_dim; }

// Writes the keys and values of positions [0, n) onto pages full of `fill`.
static void write_positions(const heads *h, int fill, int32_t n) {
    memset(h->a.kv.pages, fill, h->kv_bytes);
    const int64_t width = (int64_t)h->a.kv.n_kv_heads * h->a.kv.head_dim;
    for (int32_t i = 0; i < n; i++) h->k->kv_write(&h->a.kv, i, h->keys + i * width, h->values + i * width);
}

// Tokens [t0, t1) of the piece, `step` at a time, into out [tokens, width].
static void attend(const heads *h, int32_t t0, int32_t t1, int32_t step, float *out) {
    pe_attention a = h->a;
    a.out = out;
    for (int32_t t = t0; t < t1; t += step)
        for (int32_t head = 0; head < a.kv.n_kv_heads; head++)
            h->k->attention(&a, head, t, t + step < t1 ? t + step : t1, h->scratch);
}

// The same, the chunks of each call made last first and one or two at a time.
static void attend_in_chunks(const heads *h, int32_t step, pe_partial *partials, float *out) {
    pe_attention a = h->a;
    a.out = out;
    for (int32_t t0 = 0; t0 < h->tokens; t0 += step) {
        const int32_t t1 = t0 + step < h->tokens ? t0 + step : h->tokens;
        const pe_span chunks = pe_attention_chunks_of(&a, t0, t1);
        for (int32_t head = 0; head < a.kv.n_kv_heads; head++) {
            for (int32_t end = chunks.end, n = 1; end > chunks.first; end -= n, n = 3 - n) {
                if (n > end - chunks.first) n = end - chunks.first;
                h->k->attention_chunks(&a, head, t0, t1, end - n, end, partials, h->scratch);
            }
            h->k->attention_merge(&a, head, t0, t1, partials);
        }
    }
}

static void check_heads(const heads *h, const vector_case *c) {
    const int64_t width = token_width(h), n = h->tokens * width;
    const int32_t most = pe_attention_rows(h->group) / h->group;
    float *alone = take_floats(n), *y = take_floats(n);
    const size_t n_partials = (size_t)(h->length / PE_CHUNK + 1) * (size_t)(most * h->group);
    pe_partial *partials = take(n_partials * pe_partial_bytes(h->a.kv.head_dim));
    // Each token by itself, when nothing that it does not see is written yet.
    for (int32_t t = 0; t < h->tokens; t++) {
        write_positions(h, 0xff, pe_attention_sees(&h->a, t).end);
        attend(h, t, t + 1, 1, alone);
    }
    write_positions(h, 0xff, h->length);
    // What quantized keys and values are worth is the oracle's to tell, over whole models; here: what they do to bits.
    if (h->a.kv.type == PE_KV_F32 || h->a.kv.type == PE_KV_F16)
        near(alone, doubles(c, "want", n), n, 0, number(c, "tolerance"), "attention");

    for (int32_t step = 1; step <= most && step <= h->tokens; step = step < 4 ? step + 1 : 2 * step + 1) {
        memset(y, 0xff, (size_t)n * sizeof *y);
        attend(h, 0, h->tokens, step, y);
        CHECK(same(y, alone, n), "%d tokens together have other bits than alone", step);
        if (step == 2) continue;
        memset(y, 0xff, (size_t)n * sizeof *y);
        attend_in_chunks(h, step, partials, y);
        CHECK(same(y, alone, n), "%d tokens cut by chunks have other bits", step);
    }
    if (h->a.causal) {
        // The same tokens as a piece that starts later.
        heads later = *h;
        later.a.start += h->tokens / 2;
        later.a.q += h->tokens / 2 * width;
        memset(y, 0xff, (size_t)n * sizeof *y);
        attend(&later, 0, h->tokens - h->tokens / 2, most < 1 ? 1 : most, y);
        CHECK(same(y, alone + h->tokens / 2 * width, (h->tokens - h->tokens / 2) * width),
              "a later piece has other bits");
    }

    write_positions(h, 0, h->length);
    memset(y, 0xff, (size_t)n * sizeof *y);
    attend(h, 0, h->tokens, 1, y);
    CHECK(same(y, alone, n), "what free slots hold changes the bits");

    // NaN in the last key reaches the tokens that see it, and no other.
    write_positions(h, 0xff, h->length - 1);
    memset(y, 0, (size_t)n * sizeof *y);
    attend(h, 0, h->tokens, most < h->tokens ? most : h->tokens, y);
    bool leaks = false, lost = false;
    for (int32_t t = 0; t < h->tokens; t++) {
        const bool sees = pe_attention_sees(&h->a, t).end == h->length;
        if (sees) lost = lost || !all_nan(y + t * width, width);
        else leaks = leaks || !same(y + t * width, alone + t * width, width);
    }
    CHECK(!leaks, "NaN in a later slot leaks");
    CHECK(!lost, "NaN in a slot that is seen is lost");
    n_taken -= 3;
    for (int i = 0; i < 3; i++) free(taken[n_taken + i]);
}

static void check_attention(const pe_kernels *k, const vector_case *c) {
    const int32_t dim = (int32_t)integer(c, "dim"), n_kv = (int32_t)integer(c, "kv_heads");
    heads h = {.k = k, .tokens = (int32_t)integer(c, "tokens")};
    h.a.n_heads = (int32_t)integer(c, "heads");
    h.a.start = (int32_t)integer(c, "start");
    h.a.scale = (float)number(c, "scale");
    h.a.softcap = (float)number(c, "softcap");
    h.a.causal = integer(c, "causal") != 0;
    h.a.window = (int32_t)integer(c, "window");
    h.a.end = h.length = h.a.start + h.tokens;
    h.a.sinks = find(c, "sinks") ? floats(c, "sinks", h.a.n_heads) : NULL;
    h.group = h.a.n_heads / n_kv;
    h.a.ldq = h.a.ldo = (int64_t)h.a.n_heads * dim;
    h.a.q = floats(c, "q", h.tokens * h.a.ldq);
    h.keys = floats(c, "k", (int64_t)h.length * n_kv * dim);
    h.values = floats(c, "v", (int64_t)h.length * n_kv * dim);
    h.scratch = take(pe_attention_scratch(h.group));
    char where[160];
    memcpy(where, check_where, sizeof where);
    for (int32_t type = 0; type < PE_N_KV_TYPES; type++)
        for (int32_t page = 8; page <= 32; page *= 2) {
            static const char *const names[PE_N_KV_TYPES] = {"f32", "f16", "q8_0", "q4_0"};
            snprintf(check_where, sizeof check_where, "%.120s, %s pages of %d", where, names[type], page);
            const int32_t used = (h.length + page - 1) / page, pages = used + 3;  // pages that nobody uses lie between
            int32_t *table = take((size_t)used * sizeof *table), *order = take((size_t)pages * sizeof *order);
            for (int32_t i = 0; i < pages; i++) order[i] = i;
            for (int32_t i = pages - 1; i > 0; i--) {
                const uint32_t j = random_below((uint32_t)i + 1);
                const int32_t swap = order[i];
                order[i] = order[j];
                order[j] = swap;
            }
            memcpy(table, order, (size_t)used * sizeof *table);
            const size_t page_bytes = (size_t)n_kv * 2 * pe_kv_head_bytes(type, dim, page) + 192;  // and other layers'
            h.kv_bytes = (size_t)pages * page_bytes;
            h.a.kv = (pe_kv_view){take(h.kv_bytes), (int64_t)page_bytes, table, type, page, n_kv, dim};
            check_heads(&h, c);
        }
}

// ---- all of it -------------------------------------------------------------------------------------------------------

static struct {
    const char *op;
    void (*check)(const pe_kernels *k, const vector_case *c);
    int seen;
} ops[] = {
    {"format", check_format, 0},         {"quantize", check_quantize, 0},
    {"linear", check_linear, 0},         {"rms_norm", check_rms_norm, 0},
    {"layer_norm", check_layer_norm, 0}, {"rope", check_rope, 0},
    {"activation", check_activation, 0}, {"add", check_add, 0},
    {"scale", check_scale, 0},           {"softcap", check_softcap, 0},
    {"attention", check_attention, 0},
};
enum { N_OPS = sizeof ops / sizeof ops[0] };

static void run_case(const pe_kernels *k, const vector_case *c) {
    for (int i = 0; i < N_OPS; i++)
        if (strcmp(ops[i].op, c->op) == 0) {
            snprintf(check_where, sizeof check_where, "%s %s %s", k->name, c->op, c->name);
            ops[i].check(k, c);
            ops[i].seen++;
            return;
        }
    give_up("no such op: %s", c->op);
}

// op: to be checked alone; NULL: all are.
static void run_set(const pe_kernels *k, const char *path, const char *op) {
    FILE *f = fopen(path, "rb");
    char magic[8];
    if (!f) give_up("cannot read %s", path);
    get(f, magic, sizeof magic);
    if (memcmp(magic, "PEKV0001", 8) != 0) give_up("%s is no vector file", path);
    for (int i = 0; i < N_OPS; i++) ops[i].seen = 0;
    bool *run = calloc((size_t)pe_format_count(), sizeof *run);
    for (uint64_t left = get_u64(f); left > 0; left--) {
        vector_case c;
        read_case(f, &c);
        if (!op || strcmp(op, c.op) == 0) run_case(k, &c);
        for (int32_t i = 0; i < pe_format_count() && strcmp(c.op, "linear") == 0; i++) {
            pe_format_info info;
            pe_format(i, &info);
            if (info.type == integer(&c, "type")) run[i] = true;
        }
        give_all_back();
    }
    fclose(f);
    snprintf(check_where, sizeof check_where, "%s", k->name);
    for (int i = 0; i < N_OPS; i++)
        CHECK(ops[i].seen > 0 || (op && strcmp(op, ops[i].op) != 0), "no vectors for %s", ops[i].op);
    for (int32_t i = 0; i < pe_format_count(); i++) {
        pe_format_info info;
        pe_format(i, &info);
        CHECK(!info.runs || run[i], "no vectors for %s", info.name);
    }
    free(run);
}

int main(int argc, char **argv) {
    snprintf(check_where, sizeof check_where, "kernel_check");
    if (argc == 2 && strcmp(argv[1], "formats") == 0) {
        for (int32_t i = 0; i < pe_format_count(); i++) {
            pe_format_info info;
            pe_format(i, &info);
            if (info.runs) printf("%s %d\n", info.name, info.type);
        }
        return 0;
    }
    if (argc < 2 || argc > 4) give_up("usage: kernel_check formats | VECTORS [ISA [OP]]");
    pe_error err;
    setenv("PYEDGE_ISA", "scalar", 1);
    const pe_kernels *scalar = pe_kernels_active(&err);
    if (!scalar) give_up("scalar: %s", err.message);
    for (int32_t i = 0; i < pe_isa_count(); i++) {
        bool supported;
        const char *name = pe_isa_name(i, &supported);
        if (argc > 2 && strcmp(argv[2], name) != 0) continue;
        if (!supported) {
            printf("%s: not on this processor\n", name);
            continue;
        }
        setenv("PYEDGE_ISA", name, 1);
        const pe_kernels *k = pe_kernels_active(&err);
        if (!k) give_up("%s: %s", name, err.message);
        CHECK(strcmp(k->name, name) == 0, "PYEDGE_ISA=%s gives %s", name, k->name);
        const long before = checks_passed + checks_failed;
        run_set(k, argv[1], argc > 3 ? argv[3] : NULL);
        snprintf(check_where, sizeof check_where, "%s rows", k->name);
        if (argc <= 3) check_rows(k, scalar);
        printf("%s: %ld checks\n", name, checks_passed + checks_failed - before);
        fflush(stdout);
    }
    return checks_done();
}
