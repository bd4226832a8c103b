// A C program as anybody might write one: it opens a model, builds a plan by hand, runs ragged steps and samples, with
// pyedge.h alone. Checks that a token's bits do not depend on batch, cuts, pages or threads; that wrong calls are refused
// and leave the engine sound; and that no plan, however broken, makes the core touch memory that is not its own.
//
//     plan_check MODEL [PLANS]     MODEL: as make_files.py writes it; PLANS: how many broken plans to try
#include <math.h>

#include "check.h"
#include "pyedge.h"

// ---- the plan of a llama ---------------------------------------------------------------------------------------------

enum { MAX_OPS = 64 };

typedef struct plan {
    const pe_gguf *g;
    pe_op ops[MAX_OPS];
    char names[MAX_OPS][64];
    int32_t n_ops, n_values;
} plan;

static void must(pe_status status, const pe_error *err) {
    if (status != PE_OK) give_up("status %d, op '%s': %s", (int)status, err->op, err->message);
}

static int32_t kind_of(const char *name) {
    for (int32_t i = 0; i < pe_op_count(); i++) {
        pe_op_info info;
        pe_op_describe(i, &info);
        if (strcmp(info.name, name) == 0) return i;
    }
    give_up("no op is called %s", name);
}

static int32_t tensor(const pe_gguf *g, const char *name) {
    for (int64_t i = 0; i < pe_gguf_n_tensors(g); i++)
        if (strcmp(pe_gguf_tensor(g, i)->name, name) == 0) return (int32_t)i;
    return -1;
}

static int64_t metadata(const pe_gguf *g, const char *key) {
    for (int64_t i = 0; i < pe_gguf_n_kv(g); i++) {
        pe_kv kv;
        uint32_t value;
        pe_gguf_kv(g, i, &kv);
        if (kv.key_len != strlen(key) || memcmp(kv.key, key, kv.key_len) != 0) continue;
        if (kv.type != PE_GGUF_U32 || kv.is_array) give_up("%s is no u32", key);
        memcpy(&value, kv.data, sizeof value);
        return value;
    }
    give_up("the file has no %s", key);
}

// A new op of one output; the caller adds inputs, weights and parameters.
__attribute__((format(printf, 3, 4))) static pe_op *add_op(plan *p, const char *kind, const char *format, ...) {
    if (p->n_ops == MAX_OPS) give_up("too many ops");
    pe_op *op = &p->ops[p->n_ops];
    char *name = p->names[p->n_ops++];
    va_list args;
    va_start(args, format);
    vsnprintf(name, 64, format, args);
    va_end(args);
    *op = (pe_op){.kind = kind_of(kind), .name = name, .n_outputs = 1, .outputs = {p->n_values++}};
    return op;
}

static void add_input(pe_op *op, int32_t value) { op->inputs[op->n_inputs++] = value; }

static void add_weight(const plan *p, pe_op *op, const char *suffix) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", op->name, suffix);
    op->weights[op->n_weights++] = tensor(p->g, name);
}

// x W^T + b, named after its weight.
static int32_t linear(plan *p, int32_t x, int layer, const char *name) {
    pe_op *op = add_op(p, "linear", "blk.%d.%s", layer, name);
    add_input(op, x);
    add_weight(p, op, "weight");
    add_weight(p, op, "bias");
    op->parameters[0].i = 1;
    return op->outputs[0];
}

static int32_t norm(plan *p, int32_t x, const char *name) {
    pe_op *op = add_op(p, "rms_norm", "%s", name);
    add_input(op, x);
    add_weight(p, op, "weight");
    op->parameters[0].f = 1e-5;
    op->parameters[1].i = pe_gguf_tensor(p->g, op->weights[0])->ne[0];
    return op->outputs[0];
}

static int32_t add(plan *p, int32_t a, int32_t b, int64_t width, const char *name) {
    pe_op *op = add_op(p, "add", "%s", name);
    add_input(op, a);
    add_input(op, b);
    op->parameters[0].i = width;
    op->parameters[1].f = 1;
    return op->outputs[0];
}

static int32_t silu_mul(plan *p, int32_t gate, int32_t up, int64_t width, const char *name) {
    pe_op *op = add_op(p, "activation", "%s", name);
    add_input(op, gate);
    add_input(op, up);
    op->parameters[0].i = PE_FUNCTION_SILU;
    op->parameters[1].i = width;
    return op->outputs[0];
}

static int32_t rope(plan *p, int32_t x, int32_t table, int64_t heads, int64_t dim, int layer, const char *name) {
    pe_op *op = add_op(p, "rope", "blk.%d.%s", layer, name);
    add_input(op, x);
    add_input(op, table);
    op->parameters[0].i = heads;
    op->parameters[1].i = op->parameters[2].i = dim;
    return op->outputs[0];
}

static void build(plan *p, const pe_gguf *g) {
    *p = (plan){.g = g};
    const int64_t heads = metadata(g, "llama.attention.head_count"), kv = metadata(g, "llama.attention.head_count_kv");
    const int64_t dim = metadata(g, "llama.attention.key_length"), width = metadata(g, "llama.embedding_length");
    const int64_t wide = metadata(g, "llama.feed_forward_length"), layers = metadata(g, "llama.block_count");
    pe_op *op = add_op(p, "embed", "token_embd");
    add_weight(p, op, "weight");
    op->parameters[0].i = width;
    op->parameters[1].i = PE_EMBED_TOKEN;
    int32_t x = op->outputs[0];
    op = add_op(p, "rope_table", "rope_freqs");
    add_weight(p, op, "weight");
    op->parameters[0].i = dim;
    op->parameters[1].f = 10000;
    op->parameters[2].f = op->parameters[3].f = 1;
    const int32_t table = op->outputs[0];
    for (int i = 0; i < layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.attn_norm", i);
        int32_t h = norm(p, x, name);
        const int32_t q = rope(p, linear(p, h, i, "attn_q"), table, heads, dim, i, "rope_q");
        const int32_t k = rope(p, linear(p, h, i, "attn_k"), table, kv, dim, i, "rope_k");
        const int32_t v = linear(p, h, i, "attn_v");
        op = add_op(p, "attention", "blk.%d.attn", i);
        add_input(op, q);
        add_input(op, k);
        add_input(op, v);
        op->parameters[0].i = i;
        op->parameters[1].i = heads;
        op->parameters[2].i = kv;
        op->parameters[3].i = dim;
        op->parameters[4].i = 1;
        op->parameters[6].f = 1 / sqrt((double)dim);
        op->weights[op->n_weights++] = -1;
        h = linear(p, op->outputs[0], i, "attn_output");
        snprintf(name, sizeof name, "blk.%d.attn_add", i);
        x = add(p, x, h, width, name);
        snprintf(name, sizeof name, "blk.%d.ffn_norm", i);
        h = norm(p, x, name);
        const int32_t gate = linear(p, h, i, "ffn_gate"), up = linear(p, h, i, "ffn_up");
        snprintf(name, sizeof name, "blk.%d.silu", i);
        h = linear(p, silu_mul(p, gate, up, wide, name), i, "ffn_down");
        snprintf(name, sizeof name, "blk.%d.ffn_add", i);
        x = add(p, x, h, width, name);
    }
    x = norm(p, x, "output_norm");
    op = add_op(p, "logits", "output");
    add_input(op, x);
    add_weight(p, op, "weight");
    add_weight(p, op, "bias");
    op->parameters[0].i = pe_gguf_tensor(g, op->weights[0])->ne[1];
    op->parameters[1].f = 1;
}

// ---- steps -----------------------------------------------------------------------------------------------------------

enum { LENGTH = 600, SHORT = 70, PAGES = 100, SLOTS = 3 };  // LENGTH is more than attention leaves uncut

typedef struct run {
    pe_engine *e;
    int32_t n_vocab, page_size, next_page;
    int32_t tokens[SLOTS][LENGTH];
} run;

static int32_t rows_all[LENGTH];

static void new_run(run *r, pe_model *m, int32_t page_size, int32_t kv_type, int32_t threads) {
    const pe_engine_options options = {
        .page_size = page_size,
        .n_pages = PAGES * 32 / page_size,
        .max_tokens = LENGTH,
        .max_pieces = 4,
        .max_rows = LENGTH,
        .max_sequences = SLOTS,
        .max_pages_per_sequence = (LENGTH + page_size - 1) / page_size,
        .kv_type = kv_type,
        .threads = threads,
    };
    pe_error err;
    must(pe_engine_create(m, &options, &r->e, &err), &err);
    r->n_vocab = pe_model_n_vocab(m);
    r->page_size = page_size;
    r->next_page = 1;
    random_state = 12345;
    for (int s = 0; s < SLOTS; s++)
        for (int i = 0; i < LENGTH; i++) r->tokens[s][i] = (int32_t)random_below((uint32_t)r->n_vocab);
    for (int i = 0; i < LENGTH; i++) rows_all[i] = i;
}

// Gives a slot pages for n tokens, none that another has, full of NaN, in an order of their own.
static void give_pages(run *r, int32_t slot, int32_t n) {
    pe_error err;
    const int32_t all = PAGES * 32 / r->page_size;
    for (int32_t i = 0; i * r->page_size < n; i++) {
        r->next_page = (r->next_page + 37) % all;  // 37 and the pool's size have no common factor
        must(pe_engine_fill_page(r->e, r->next_page, NAN, &err), &err);
        must(pe_engine_set_pages(r->e, slot, i, &r->next_page, 1, &err), &err);
    }
}

// Runs pieces and copies the logits of every token out, in piece order.
static void step(run *r, const pe_piece *pieces, int32_t n_pieces, float *logits) {
    int32_t tokens[LENGTH], n = 0;
    for (int32_t i = 0; i < n_pieces; i++)
        for (int32_t t = pieces[i].start; t < pieces[i].end; t++) tokens[n++] = r->tokens[pieces[i].slot][t];
    pe_error err;
    must(pe_engine_step(r->e, pieces, n_pieces, tokens, rows_all, n, &err), &err);
    memcpy(logits, pe_engine_logits(r->e), (size_t)n * (size_t)r->n_vocab * sizeof *logits);
}

static bool equal_rows(const run *r, const float *a, const float *b, int32_t n) {
    return memcmp(a, b, (size_t)n * (size_t)r->n_vocab * sizeof *a) == 0;
}

static bool all_finite(const run *r, const float *a, int32_t n) {
    for (int64_t i = 0; i < (int64_t)n * r->n_vocab; i++)
        if (!isfinite(a[i])) return false;
    return true;
}

static float *take_rows(const run *r, int32_t n) { return take((size_t)n * (size_t)r->n_vocab * sizeof(float)); }

// want: [SHORT, n_vocab] of sequence 0, made when it is NULL.
static float *check_invariance(run *r, float *want) {
    float *got = take_rows(r, 2 * SHORT);
    if (!want) {
        want = take_rows(r, SHORT);
        give_pages(r, 0, SHORT);
        step(r, &(pe_piece){0, 0, SHORT}, 1, want);
        CHECK(all_finite(r, want, SHORT), "NaN of free slots leaks");
    }
    give_pages(r, 0, SHORT);
    for (int32_t t = 0; t < SHORT; t++) step(r, &(pe_piece){0, t, t + 1}, 1, got + (int64_t)t * r->n_vocab);
    CHECK(equal_rows(r, got, want, SHORT), "token by token, other bits");

    give_pages(r, 0, SHORT);
    give_pages(r, 1, SHORT);
    give_pages(r, 2, SHORT);
    step(r, (pe_piece[]){{1, 0, 9}, {0, 0, 33}}, 2, got);
    CHECK(equal_rows(r, got + 9 * (int64_t)r->n_vocab, want, 33), "after another sequence, other bits");
    step(r, (pe_piece[]){{0, 33, 34}, {2, 0, 17}, {1, 9, 10}}, 3, got);
    CHECK(equal_rows(r, got, want + 33 * (int64_t)r->n_vocab, 1), "a decode beside a prompt has other bits");
    step(r, (pe_piece[]){{2, 17, 18}, {1, 10, 11}, {0, 34, SHORT}}, 3, got);
    CHECK(equal_rows(r, got + 2 * (int64_t)r->n_vocab, want + 34 * (int64_t)r->n_vocab, SHORT - 34),
          "the rest has other bits");
    return want;
}

// A context so long that attention is cut over the threads when it decodes alone, and not when a prompt is beside it.
static void check_long(run *r) {
    float *all = take_rows(r, LENGTH), *got = take_rows(r, 8);
    give_pages(r, 0, LENGTH);
    step(r, &(pe_piece){0, 0, LENGTH}, 1, all);
    step(r, &(pe_piece){0, LENGTH - 1, LENGTH}, 1, got);
    CHECK(equal_rows(r, got, all + (LENGTH - 1) * (int64_t)r->n_vocab, 1), "decoded alone, other bits");
    give_pages(r, 1, 8);
    step(r, (pe_piece[]){{0, LENGTH - 1, LENGTH}, {1, 0, 3}}, 2, got);
    CHECK(equal_rows(r, got, all + (LENGTH - 1) * (int64_t)r->n_vocab, 1), "decoded beside a prompt, other bits");
}

static void check_bits(pe_model *m, const char *precision) {
    static const struct {
        int32_t page_size, kv_type;
    } settings[] = {{16, PE_KV_F16}, {8, PE_KV_F32}, {32, PE_KV_F16}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        float *want = NULL;
        for (int32_t threads = 1; threads <= 3; threads++) {
            run r;
            snprintf(check_where, sizeof check_where, "%s, pages of %d, %s, %d threads", precision,
                     settings[i].page_size, settings[i].kv_type == PE_KV_F16 ? "f16" : "f32", threads);
            new_run(&r, m, settings[i].page_size, settings[i].kv_type, threads);
            want = check_invariance(&r, want);
            if (i == 0) check_long(&r);
            pe_engine_release(r.e);
        }
        give_all_back();
    }
}

// ---- wrong calls -----------------------------------------------------------------------------------------------------

static void refused(pe_status status, pe_status want, const pe_error *err, const char *what) {
    CHECK(status == want && err->code == (int32_t)want && err->message[0], "%s: status %d, %s", what, (int)status,
          err->message);
}

static bool stop_at_once(void *ctx) {
    int *left = ctx;
    return --*left < 0;
}

static int taps;
static void note_tap(void *ctx, const char *op, int32_t output, const float *data, int64_t n_rows, int64_t width) {
    taps += strcmp(op, ctx) == 0 && output == 0 && data && n_rows == 3 && width > 0;
}

static void check_refusals(pe_model *m) {
    snprintf(check_where, sizeof check_where, "wrong calls");
    pe_error err;
    run r;
    new_run(&r, m, 16, PE_KV_F16, 2);
    const int32_t all = PAGES * 2, most = (LENGTH + 15) / 16;
    float *want = take_rows(&r, 3), *got = take_rows(&r, 3);
    give_pages(&r, 0, 32);
    step(&r, &(pe_piece){0, 0, 3}, 1, want);

#define SET(slot, first, page, n) pe_engine_set_pages(r.e, slot, first, (int32_t[]){page}, n, &err)
    refused(SET(-1, 0, 0, 1), PE_ERR_ARGUMENT, &err, "slot -1");
    refused(SET(SLOTS, 0, 0, 1), PE_ERR_ARGUMENT, &err, "a slot too many");
    refused(SET(0, most, 0, 1), PE_ERR_ARGUMENT, &err, "an entry past the table");
    refused(SET(0, INT32_MAX, 0, 1), PE_ERR_ARGUMENT, &err, "entry 2^31 - 1");
    refused(SET(0, 0, all, 1), PE_ERR_ARGUMENT, &err, "a page past the pool");
    refused(SET(0, 0, -1, 1), PE_ERR_ARGUMENT, &err, "page -1");
    refused(SET(0, 0, 0, -1), PE_ERR_ARGUMENT, &err, "-1 pages");
    refused(pe_engine_fill_page(r.e, all, 0, &err), PE_ERR_ARGUMENT, &err, "filling a page past the pool");
    refused(pe_engine_copy_page(r.e, 0, all, &err), PE_ERR_ARGUMENT, &err, "copying past the pool");
    refused(pe_engine_copy_page(r.e, -1, 0, &err), PE_ERR_ARGUMENT, &err, "copying page -1");
    refused(pe_engine_copy_page(r.e, 1, 1, &err), PE_ERR_ARGUMENT, &err, "copying a page onto itself");

    static int32_t tokens[LENGTH + 8];
#define STEP(slot, start, end, rows, n_rows) \
    pe_engine_step(r.e, &(pe_piece){slot, start, end}, 1, tokens, rows, n_rows, &err)
    refused(STEP(0, 0, 0, rows_all, 0), PE_ERR_ARGUMENT, &err, "an empty piece");
    refused(STEP(0, 2, 1, rows_all, 0), PE_ERR_ARGUMENT, &err, "a piece that ends before it starts");
    refused(STEP(0, -1, 2, rows_all, 0), PE_ERR_ARGUMENT, &err, "position -1");
    refused(STEP(0, INT32_MIN, INT32_MAX, rows_all, 0), PE_ERR_ARGUMENT, &err, "all positions");
    refused(STEP(0, INT32_MAX - 1, INT32_MAX, rows_all, 0), PE_ERR_ARGUMENT, &err, "position 2^31 - 2");
    refused(STEP(0, 0, 33, rows_all, 0), PE_ERR_ARGUMENT, &err, "a page that is not set");
    refused(STEP(7, 0, 1, rows_all, 0), PE_ERR_ARGUMENT, &err, "a slot too many");
    refused(STEP(0, 0, 3, rows_all, 4), PE_ERR_ARGUMENT, &err, "a row too many");
    refused(STEP(0, 0, 3, rows_all, -1), PE_ERR_ARGUMENT, &err, "-1 rows");
    refused(STEP(0, 0, 3, ((int32_t[]){1, 1}), 2), PE_ERR_ARGUMENT, &err, "a row twice");
    tokens[1] = r.n_vocab;
    refused(STEP(0, 0, 3, rows_all, 3), PE_ERR_ARGUMENT, &err, "a token past the vocabulary");
    tokens[1] = -1;
    refused(STEP(0, 0, 3, rows_all, 3), PE_ERR_ARGUMENT, &err, "token -1");
    tokens[1] = 0;
    refused(pe_engine_step(r.e, NULL, 0, tokens, NULL, 0, &err), PE_ERR_ARGUMENT, &err, "no piece");
    CHECK(STEP(0, 0, 3, NULL, 0) == PE_OK, "a step without rows");
    refused(pe_engine_on_tap(r.e, "no.such", note_tap, NULL, &err), PE_ERR_ARGUMENT, &err, "a tap on nothing");

    int left = 5;
    pe_engine_on_poll(r.e, stop_at_once, &left);
    refused(STEP(0, 0, 3, rows_all, 3), PE_ERR_CANCELLED, &err, "a step that is polled");
    pe_engine_on_poll(r.e, NULL, NULL);
    char op[] = "blk.1.silu";
    must(pe_engine_on_tap(r.e, op, note_tap, op, &err), &err);
    step(&r, &(pe_piece){0, 0, 3}, 1, got);
    CHECK(taps == 1, "%d taps", taps);
    must(pe_engine_on_tap(r.e, NULL, NULL, NULL, &err), &err);
    CHECK(equal_rows(&r, got, want, 3), "after refusals, other bits");

    pe_sampler *s;
    pe_sampled out;
    const pe_sampling greedy = {.top_p = 1, .repeat_penalty = 1, .n_logprobs = 2};
    must(pe_sampler_create(&greedy, r.n_vocab, NULL, NULL, 0, &s, &err), &err);
    must(pe_sampler_sample(s, got + 2 * (int64_t)r.n_vocab, 3, NULL, &out, &err), &err);
    bool highest = true;
    for (int32_t i = 0; i < r.n_vocab; i++)
        highest = highest && got[2 * r.n_vocab + i] <= got[2 * r.n_vocab + out.token];
    CHECK(highest && out.n_top == 2 && out.top_tokens[0] == out.token, "greedy takes token %d", out.token);

    // NaN where keys and values are read: the sampler refuses it, and the op that read it is named.
    for (int32_t page = 0; page < all; page++) must(pe_engine_fill_page(r.e, page, NAN, &err), &err);
    step(&r, &(pe_piece){0, 3, 4}, 1, got);
    refused(pe_sampler_sample(s, got, 4, NULL, &out, &err), PE_ERR_NUMERIC, &err, "NaN logits");
    refused(pe_engine_explain(r.e, 0, &err), PE_ERR_NUMERIC, &err, "explaining NaN");
    CHECK(strcmp(err.op, "blk.0.attn") == 0, "the NaN is put down to '%s'", err.op);
    refused(pe_engine_explain(r.e, 1, &err), PE_ERR_ARGUMENT, &err, "a row that was not asked for");
    pe_sampler_release(s);
    pe_engine_release(r.e);
    give_all_back();
}

static void check_options(pe_model *m) {
    snprintf(check_where, sizeof check_where, "engine options");
    const pe_engine_options sound = {16, 4, 8, 2, 2, 2, 2, PE_KV_F16, 1};
    for (int field = 0; field < 9; field++) {
        static const int32_t values[] = {-1, 0, 1, 7, 1 << 17, INT32_MAX, INT32_MIN};
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            if (field == 1 && values[i] > 1 << 16) continue;  // so many pages may well be possible
            pe_engine_options options = sound;
            memcpy((int32_t *)(void *)&options + field, &values[i], sizeof values[i]);
            pe_engine *e = NULL;
            pe_error err = {0};
            const pe_status status = pe_engine_create(m, &options, &e, &err);
            CHECK(status == PE_OK ? e && !err.message[0] : !e && err.message[0], "field %d of %d: status %d", field,
                  values[i], (int)status);
            pe_engine_release(e);
        }
    }
}

// ---- what goes into the matrices -------------------------------------------------------------------------------------

static void check_collected(pe_model *m) {
    snprintf(check_where, sizeof check_where, "collecting");
    pe_error err;
    run r;
    new_run(&r, m, 16, PE_KV_F16, 2);
    float *want = take_rows(&r, SHORT), *got = take_rows(&r, SHORT);
    give_pages(&r, 0, SHORT);
    step(&r, &(pe_piece){0, 0, SHORT}, 1, want);
    pe_collected c;
    refused(pe_engine_collected(r.e, 0, 0, &c, &err), PE_ERR_ARGUMENT, &err, "nothing is collected");
    must(pe_engine_collect(r.e, true, &err), &err);
    must(pe_engine_collect(r.e, true, &err), &err);
    for (int i = 0; i < 2; i++) step(&r, &(pe_piece){0, 0, SHORT}, 1, got);
    CHECK(equal_rows(&r, got, want, SHORT), "collecting changes bits");
    int n_found = 0;
    for (int32_t op = -1; op <= pe_model_n_ops(m); op++)
        for (int32_t slot = -1; slot < 10; slot++) {
            if (pe_engine_collected(r.e, op, slot, &c, &err) != PE_OK) continue;
            n_found++;
            int64_t rows = 0;
            bool sound = true;
            for (int32_t i = 0; i < c.n; i++) rows += c.rows[i];
            for (int64_t i = 0; i < c.n * c.columns; i++) sound &= isfinite(c.sums[i]) && c.sums[i] >= 0;
            CHECK(sound && rows % (2 * SHORT) == 0 && rows > 0, "op %d, weight %d: %d rows", (int)op, (int)slot,
                  (int)rows);
        }
    CHECK(n_found > 6, "%d matrices", n_found);
    must(pe_engine_collect(r.e, false, &err), &err);
    free(want);
    free(got);
    pe_engine_release(r.e);
}

// ---- broken plans ----------------------------------------------------------------------------------------------------

static int64_t odd_number(void) {
    static const int64_t numbers[] = {0,  1,   2,  3,         8,         16,        63,        64,
                                      65, 256, -1, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, 1 << 24};
    return numbers[random_below(sizeof numbers / sizeof numbers[0])];
}

static void break_op(plan *p) {
    pe_op *op = &p->ops[random_below((uint32_t)p->n_ops)];
    const pe_op *other = &p->ops[random_below((uint32_t)p->n_ops)];
    switch (random_below(12)) {
    case 0: op->kind = (int32_t)random_below((uint32_t)pe_op_count()); break;
    case 1: op->kind = (int32_t)odd_number(); break;
    case 2: op->inputs[random_below(PE_MAX_INPUTS)] = (int32_t)odd_number(); break;
    case 3: op->inputs[random_below(PE_MAX_INPUTS)] = (int32_t)random_below((uint32_t)p->n_values); break;
    case 4: op->outputs[random_below(PE_MAX_OUTPUTS)] = (int32_t)odd_number(); break;
    case 5: op->weights[random_below(PE_MAX_WEIGHTS)] = (int32_t)random_below((uint32_t)pe_gguf_n_tensors(p->g)); break;
    case 6: op->weights[random_below(PE_MAX_WEIGHTS)] = (int32_t)odd_number(); break;
    case 7: op->parameters[random_below(PE_MAX_PARAMETERS)].i = odd_number(); break;
    case 8: op->parameters[random_below(PE_MAX_PARAMETERS)].f = random_below(2) ? NAN : (double)odd_number(); break;
    case 9: *(random_below(2) ? &op->n_inputs : &op->n_weights) = (int32_t)odd_number(); break;
    case 10: op->n_outputs = (int32_t)odd_number(); break;
    default:  // another op in its place, that makes the same value
        if (op->n_outputs == 1 && other->n_outputs == 1) {
            const int32_t output = op->outputs[0];
            const char *name = op->name;
            *op = *other;
            op->name = name;
            op->outputs[0] = output;
        }
    }
}

static void try_plan(const plan *p, int *sound) {
    static const pe_model_options options[] = {{PE_PRECISION_FAST, 1}, {PE_PRECISION_F32, 1}};
    pe_model *m = NULL;
    pe_engine *e = NULL;
    pe_error err = {0};
    const pe_status status = pe_model_create(p->g, p->ops, p->n_ops, &options[random_below(2)], &m, &err);
    CHECK(status == PE_OK ? m != NULL : !m && err.code == (int32_t)status && err.message[0], "status %d", (int)status);
    if (status != PE_OK) return;
    ++*sound;
    const int32_t vocabulary = pe_model_n_vocab(m), last = vocabulary - 1;
    const pe_engine_options small = {8, 2, 4, 2, 4, 1, 2, PE_KV_F16, 1};
    if (pe_engine_create(m, &small, &e, &err) == PE_OK) {
        must(pe_engine_set_pages(e, 0, 0, (int32_t[]){1, 0}, 2, &err), &err);
        const pe_status done = pe_engine_step(e, (pe_piece[]){{0, 0, 3}, {0, 3, 4}}, 2, (int32_t[]){0, last, 5, 7},
                                              (int32_t[]){0, 3}, 2, &err);
        CHECK(done == PE_OK, "a plan that was accepted does not run: %s", err.message);
    }
    pe_engine_release(e);
    pe_model_release(m);
}

// Plans whose faults chance does not find.
static void check_unsound(const plan *sound) {
    snprintf(check_where, sizeof check_where, "unsound plans");
    pe_error err;
    pe_model *m = NULL;
    const pe_model_options options = {PE_PRECISION_FAST, 1};
    plan p = *sound;
    for (int i = 0; i < p.n_ops; i++) {
        pe_op *op = &p.ops[i];
        if (strcmp(op->name, "blk.0.ffn_add") != 0) continue;
        op->kind = kind_of("embed");  // of a table that has fewer rows than there are tokens
        op->n_inputs = 0;
        op->n_weights = 1;
        op->weights[0] = tensor(p.g, "blk.0.attn_q.weight");
    }
    refused(pe_model_create(p.g, p.ops, p.n_ops, &options, &m, &err), PE_ERR_FILE, &err, "a second, smaller table");
    CHECK(strcmp(err.op, "blk.0.ffn_add") == 0, "it is put down to '%s'", err.op);
    refused(pe_model_create(p.g, p.ops, 0, &options, &m, &err), PE_ERR_ARGUMENT, &err, "no ops");
    refused(pe_model_create(p.g, sound->ops, sound->n_ops - 1, &options, &m, &err), PE_ERR_FILE, &err, "no logits");
    refused(pe_model_create(p.g, sound->ops, sound->n_ops, &(pe_model_options){7, 1}, &m, &err), PE_ERR_ARGUMENT, &err,
            "precision 7");
}

static void check_broken_plans(const plan *sound_plan, int n) {
    int sound = 0;
    for (int i = 0; i < n; i++) {
        plan p = *sound_plan;
        random_state = 1000 + (uint64_t)i;
        for (int k = 0; k < 10; k++) random_below(2);
        for (uint32_t left = 1 + random_below(3); left > 0; left--) break_op(&p);
        snprintf(check_where, sizeof check_where, "broken plan %d", i);
        try_plan(&p, &sound);
    }
    snprintf(check_where, sizeof check_where, "broken plans");
    CHECK(n == 0 || (sound > n / 100 && sound < n), "%d of %d run: too few of one kind", sound, n);
    printf("%d of %d broken plans run\n", sound, n);
}

int main(int argc, char **argv) {
    snprintf(check_where, sizeof check_where, "plan_check");
    if (argc < 2) give_up("usage: plan_check MODEL [PLANS]");
    pe_error err;
    pe_gguf *g;
    plan p;
    pe_model *models[2];
    must(pe_gguf_open(argv[1], &g, &err), &err);
    build(&p, g);
    for (int32_t i = 0; i < 2; i++) {
        const pe_model_options options = {.precision = i, .threads = 2};
        must(pe_model_create(g, p.ops, p.n_ops, &options, &models[i], &err), &err);
    }
    check_unsound(&p);
    check_broken_plans(&p, argc > 2 ? atoi(argv[2]) : 2000);
    pe_gguf_release(g);  // nothing refers to the file from here on
    check_bits(models[0], "fast");
    check_bits(models[1], "f32");
    check_refusals(models[0]);
    check_options(models[0]);
    for (int i = 0; i < 2; i++) check_collected(models[i]);
    for (int i = 0; i < 2; i++) pe_model_release(models[i]);
    return checks_done();
}
