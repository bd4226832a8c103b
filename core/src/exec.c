// The executor: runs a plan's ops one after the other over the step at hand. Work inside an op is cut into items that
// the pool's threads claim; how it is cut never changes a bit, since each item computes whole rows, panels or chunks.
#include <math.h>

#include "engine.h"
#include "threads.h"

enum {
    SERIAL_FLOATS = 32768,  // element-wise work below this is done by the caller: waking others costs more
    STREAM_BYTES = 32768,   // weights per item when few tokens share them: small, so that no thread waits for another
    ITEM_PANELS = 8,        // panels per item when many tokens do
    ITEM_TOKENS = 128,      // tokens per item then
    SPLIT_CHUNKS = 8,       // attention chunks per item when a context is cut
};

typedef struct run {
    pe_engine *e;
    const pe_model *m;
    const pe_kernels *k;
    const pe_step *s;
    const pe_plan_op *op;
    int width;  // threads
} run;

static float *in(const run *r, int i) { return r->e->values[r->op->inputs[i]]; }
static float *out(const run *r, int i) { return r->e->values[r->op->outputs[i]]; }
static int64_t in_width(const run *r, int i) { return r->m->widths[r->op->inputs[i]]; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- row by row ------------------------------------------------------------------------------------------------------

typedef struct row_job {
    const run *r;
    void (*row)(const run *r, int64_t token);
    int64_t rows, per_item;
} row_job;

static void rows_item(void *ctx, int64_t item, int worker) {
    (void)worker;
    const row_job *j = ctx;
    for (int64_t t = item * j->per_item; t < least((item + 1) * j->per_item, j->rows); t++) j->row(j->r, t);
}

static void each_row(const run *r, int64_t rows, int64_t row_width, void (*row)(const run *r, int64_t token)) {
    row_job j = {r, row, rows, rows};
    if (rows * row_width > SERIAL_FLOATS) j.per_item = SERIAL_FLOATS / 4 / row_width + 1;
    pe_parallel(r->width, (rows + j.per_item - 1) / j.per_item, rows_item, &j);
}

static void embed_row(const run *r, int64_t t) {
    const pe_weight *w = &r->m->matrices[r->op->weights[0]];
    r->k->unpack_row(w, r->s->tokens[t], out(r, 0) + t * w->cols);
}

static void rms_norm_row(const run *r, int64_t t) {
    const int64_t n = in_width(r, 0);
    r->k->rms_norm(in(r, 0) + t * n, r->m->vectors[r->op->weights[0]], (float)r->op->rms_norm.eps, n,
                   out(r, 0) + t * n);
}

static void rope_table_row(const run *r, int64_t t) {
    const pe_rope_table_parameters *p = &r->op->rope_table;
    const float *factors = r->op->weights[0] >= 0 ? r->m->vectors[r->op->weights[0]] : NULL;
    float *cosines = out(r, 0) + t * p->n_rot, *sines = cosines + p->n_rot / 2;
    for (int64_t i = 0; i < p->n_rot / 2; i++) {
        const double factor = p->scale * (factors ? factors[i] : 1);
        const double angle = r->s->positions[t] * pow(p->base, -2.0 * (double)i / (double)p->n_rot) / factor;
        cosines[i] = (float)cos(angle);
        sines[i] = (float)sin(angle);
    }
}

static void rope_row(const run *r, int64_t t) {
    const pe_rope_parameters *p = &r->op->rope;
    const int64_t n = in_width(r, 0);
    r->k->rope(in(r, 0) + t * n, in(r, 1) + t * p->n_rot, (int32_t)p->n_heads, (int32_t)p->head_dim, (int32_t)p->n_rot,
               (int32_t)p->pairing, out(r, 0) + t * n);
}

static void silu_mul_row(const run *r, int64_t t) {
    const int64_t n = in_width(r, 0);
    r->k->silu_mul(in(r, 0) + t * n, in(r, 1) + t * n, n, out(r, 0) + t * n);
}

static void add_row(const run *r, int64_t t) {
    const int64_t n = in_width(r, 0);
    r->k->add(in(r, 0) + t * n, in(r, 1) + t * n, n, out(r, 0) + t * n);
}

static void run_embed(const run *r) { each_row(r, r->s->n_tokens, 8 * r->op->embed.d_model, embed_row); }
static void run_rms_norm(const run *r) { each_row(r, r->s->n_tokens, in_width(r, 0), rms_norm_row); }
static void run_rope_table(const run *r) { each_row(r, r->s->n_tokens, 64 * r->op->rope_table.n_rot, rope_table_row); }
static void run_rope(const run *r) { each_row(r, r->s->n_tokens, 2 * in_width(r, 0), rope_row); }
static void run_silu_mul(const run *r) { each_row(r, r->s->n_tokens, 4 * in_width(r, 0), silu_mul_row); }
static void run_add(const run *r) { each_row(r, r->s->n_tokens, in_width(r, 0), add_row); }

// ---- matrix products -------------------------------------------------------------------------------------------------

typedef struct matmul {
    const run *r;
    pe_act act;
    int64_t rows, cols, per_item;
    bool f32;
    int n_outputs;
    struct {
        const pe_weight *w;
        const float *bias;
        float *y;
        int64_t panels_per_item, token_blocks, first_item;
    } out[PE_MAX_OUTPUTS];
} matmul;

static void quantize_item(void *ctx, int64_t item, int worker) {
    (void)worker;
    const matmul *j = ctx;
    for (int64_t t = item * j->per_item; t < least((item + 1) * j->per_item, j->rows); t++)
        j->r->k->quantize(&j->act, t, j->cols);
}

static void matmul_item(void *ctx, int64_t item, int worker) {
    const matmul *j = ctx;
    int i = 0;
    while (i + 1 < j->n_outputs && item >= j->out[i + 1].first_item) i++;
    const pe_weight *w = j->out[i].w;
    const int64_t inner = item - j->out[i].first_item, blocks = j->out[i].token_blocks;
    // Token blocks outermost: their activations stay in cache while the panels pass.
    const int64_t groups = (w->n_panels + j->out[i].panels_per_item - 1) / j->out[i].panels_per_item;
    const int64_t p0 = inner % groups * j->out[i].panels_per_item, t0 = inner / groups * ITEM_TOKENS;
    const int64_t p1 = least(p0 + j->out[i].panels_per_item, w->n_panels),
                  t1 = blocks > 1 ? least(t0 + ITEM_TOKENS, j->rows) : j->rows;
    if (j->f32) {
        float *scratch = (float *)(j->r->e->worker_scratch + (size_t)worker * j->r->e->worker_bytes);
        j->r->k->linear_f32(w, &j->act, j->out[i].bias, t0, t1, p0, p1, j->out[i].y, w->rows, scratch);
    } else {
        j->r->k->linear(w, &j->act, j->out[i].bias, t0, t1, p0, p1, j->out[i].y, w->rows);
    }
}

// y_i = x W_i^T + b_i over the op's weights; x: [rows, cols]
static void multiply(const run *r, const float *x, int64_t rows, int64_t cols, float *const *y) {
    matmul j = {.r = r,
                .act = r->e->act,
                .rows = rows,
                .cols = cols,
                .f32 = r->m->precision == PE_PRECISION_F32,
                .n_outputs = r->op->n_outputs};
    j.act.x = x;
    j.act.ldx = j.act.ldq = cols;
    j.act.ldb = cols / PE_ACT_BLOCK;
    j.act.ldm = (j.act.ldb + 63) / 64;
    int64_t n_items = 0;
    bool integers = false;
    for (int i = 0; i < j.n_outputs; i++) {
        const pe_weight *w = &r->m->matrices[r->op->weights[2 * i]];
        const int32_t bias = r->op->weights[2 * i + 1];
        integers |= !pe_class_is_float(w->cls);
        j.out[i].w = w;
        j.out[i].bias = bias >= 0 ? r->m->vectors[bias] : NULL;
        j.out[i].y = y[i];
        j.out[i].first_item = n_items;
        const int64_t streamed = (int64_t)(STREAM_BYTES / w->panel_bytes + 3) / 4 * 4;
        j.out[i].panels_per_item = j.f32 ? 1 : rows > 8 ? ITEM_PANELS : streamed ? streamed : 4;
        j.out[i].token_blocks = j.f32 ? 1 : (rows + ITEM_TOKENS - 1) / ITEM_TOKENS;
        n_items += (w->n_panels + j.out[i].panels_per_item - 1) / j.out[i].panels_per_item * j.out[i].token_blocks;
    }
    if (integers && !j.f32) {
        j.per_item = rows * cols > SERIAL_FLOATS ? SERIAL_FLOATS / 4 / cols + 1 : rows;
        pe_parallel(r->width, (rows + j.per_item - 1) / j.per_item, quantize_item, &j);
    }
    pe_parallel(r->width, n_items, matmul_item, &j);
}

static void run_linear(const run *r) {
    float *y[PE_MAX_OUTPUTS];
    for (int i = 0; i < r->op->n_outputs; i++) y[i] = out(r, i);
    multiply(r, in(r, 0), r->s->n_tokens, in_width(r, 0), y);
}

static void run_logits(const run *r) {
    const int64_t n = in_width(r, 0);
    for (int32_t i = 0; i < r->s->n_rows; i++)
        memcpy(r->e->gathered + i * n, in(r, 0) + r->s->rows[i] * n, (size_t)n * sizeof(float));
    float *y[1] = {r->e->logits};
    if (r->s->n_rows) multiply(r, r->e->gathered, r->s->n_rows, n, y);
}

// ---- attention -------------------------------------------------------------------------------------------------------

typedef struct attention_job {
    const run *r;
    pe_kv_view kv;
    int32_t n_heads, group, tokens_per_tile, n_tiles;
    float scale;
    int64_t per_item;  // tokens, when writing
    int32_t max_chunks;
} attention_job;

static pe_kv_view view_of(const attention_job *j, int32_t piece) {
    const pe_engine *e = j->r->e;
    pe_kv_view kv = j->kv;
    kv.table = j->r->s->tables + (int64_t)j->r->s->pieces[piece].slot * e->options.max_pages_per_sequence;
    return kv;
}

static pe_attention attention_of(const attention_job *j, int32_t piece) {
    const int64_t ld = (int64_t)j->n_heads * j->kv.head_dim, first = j->r->s->first_token[piece] * ld;
    return (pe_attention){.kv = view_of(j, piece),
                          .q = in(j->r, 0) + first,
                          .out = out(j->r, 0) + first,
                          .ldq = ld,
                          .ldo = ld,
                          .start = j->r->s->pieces[piece].start,
                          .n_heads = j->n_heads,
                          .scale = j->scale};
}

static void write_item(void *ctx, int64_t item, int worker) {
    (void)worker;
    const attention_job *j = ctx;
    const int64_t n = (int64_t)j->kv.n_kv_heads * j->kv.head_dim;
    for (int64_t t = item * j->per_item; t < least((item + 1) * j->per_item, j->r->s->n_tokens); t++) {
        const pe_kv_view kv = view_of(j, j->r->s->piece_of[t]);
        j->r->k->kv_write(&kv, j->r->s->positions[t], in(j->r, 1) + t * n, in(j->r, 2) + t * n);
    }
}

static void attend_item(void *ctx, int64_t item, int worker) {
    const attention_job *j = ctx;
    const pe_engine *e = j->r->e;
    // Last tiles first: they see the most keys, and the short ones fill the gaps at the end.
    const int32_t tile = j->n_tiles - 1 - (int32_t)(item / j->kv.n_kv_heads), head = (int32_t)(item % j->kv.n_kv_heads);
    int32_t lo = 0, hi = j->r->s->n_pieces;  // the piece whose tiles hold `tile`
    while (hi - lo > 1) {
        const int32_t middle = (lo + hi) / 2;
        if (e->tile_start[middle] <= tile) lo = middle;
        else hi = middle;
    }
    const pe_attention a = attention_of(j, lo);
    const int32_t n = j->r->s->pieces[lo].end - j->r->s->pieces[lo].start;
    const int32_t t0 = (tile - e->tile_start[lo]) * j->tokens_per_tile;
    j->r->k->attention(&a, head, t0, (int32_t)least(t0 + j->tokens_per_tile, n),
                       (pe_partial *)(e->worker_scratch + (size_t)worker * e->worker_bytes));
}

// Pieces of one token, cut by chunks: item = ((piece, head), cut).
static pe_partial *partials_at(const attention_job *j, int64_t pair) {
    return j->r->e->partials + pair * j->max_chunks * j->group;
}

static void chunks_item(void *ctx, int64_t item, int worker) {
    (void)worker;
    const attention_job *j = ctx;
    const int64_t cuts = (j->max_chunks + SPLIT_CHUNKS - 1) / SPLIT_CHUNKS, pair = item / cuts;
    const int32_t piece = (int32_t)(pair / j->kv.n_kv_heads), head = (int32_t)(pair % j->kv.n_kv_heads);
    const pe_attention a = attention_of(j, piece);
    const int32_t n_chunks = a.start / PE_CHUNK + 1, c0 = (int32_t)(item % cuts) * SPLIT_CHUNKS;
    if (c0 >= n_chunks) return;
    j->r->k->attention_chunks(&a, head, 0, c0, (int32_t)least(c0 + SPLIT_CHUNKS, n_chunks), partials_at(j, pair));
}

static void merge_item(void *ctx, int64_t item, int worker) {
    (void)worker;
    const attention_job *j = ctx;
    const pe_attention a = attention_of(j, (int32_t)(item / j->kv.n_kv_heads));
    j->r->k->attention_merge(&a, (int32_t)(item % j->kv.n_kv_heads), 0, partials_at(j, item));
}

static void run_attention(const run *r) {
    const pe_attention_parameters *p = &r->op->attention;
    attention_job j = {.r = r,
                       .kv = pe_engine_layer(r->e, (int32_t)p->layer),
                       .n_heads = (int32_t)p->n_heads,
                       .group = (int32_t)(p->n_heads / p->n_kv_heads),
                       .scale = (float)p->scale};
    const int64_t kv_width = 4 * p->n_kv_heads * p->head_dim, n_tokens = r->s->n_tokens;
    j.per_item = n_tokens * kv_width > SERIAL_FLOATS ? SERIAL_FLOATS / 2 / kv_width + 1 : n_tokens;
    pe_parallel(r->width, (n_tokens + j.per_item - 1) / j.per_item, write_item, &j);

    j.tokens_per_tile = pe_attention_rows(j.group) / j.group;
    int32_t longest = 0;
    for (int32_t i = 0; i < r->s->n_pieces; i++) {
        const int32_t n = r->s->pieces[i].end - r->s->pieces[i].start;
        r->e->tile_start[i] = j.n_tiles;
        j.n_tiles += (n + j.tokens_per_tile - 1) / j.tokens_per_tile;
        if (r->s->pieces[i].end > longest) longest = r->s->pieces[i].end;
    }
    r->e->tile_start[r->s->n_pieces] = j.n_tiles;
    j.max_chunks = (longest + PE_CHUNK - 1) / PE_CHUNK;
    const int64_t pairs = (int64_t)r->s->n_pieces * p->n_kv_heads;
    if (n_tokens == r->s->n_pieces && pairs <= r->e->max_split && j.max_chunks > SPLIT_CHUNKS) {
        pe_parallel(r->width, pairs * ((j.max_chunks + SPLIT_CHUNKS - 1) / SPLIT_CHUNKS), chunks_item, &j);
        pe_parallel(r->width, pairs, merge_item, &j);
    } else if (n_tokens * p->n_heads * longest < SERIAL_FLOATS / 16) {
        for (int64_t i = 0; i < j.n_tiles * p->n_kv_heads; i++) attend_item(&j, i, 0);
    } else {
        pe_parallel(r->width, j.n_tiles * p->n_kv_heads, attend_item, &j);
    }
}

// ---- the plan --------------------------------------------------------------------------------------------------------

static void (*const runners[PE_N_OPS])(const run *) = {
#define PE_OP(ID, name, min_in, max_in, min_out, max_out, weights, parameters) run_##name,
#include "ops.def"
#undef PE_OP
};

// Whoever is shown a step's progress may use the pool itself (load a model, run another engine): it is held per op.
static bool is_cancelled(pe_engine *e) {
    return atomic_load_explicit(&e->cancelled, memory_order_relaxed) || (e->poll && e->poll(e->poll_ctx));
}

pe_status pe_exec(pe_engine *e, pe_inspect inspect, void *ctx, pe_error *err) {
    run r = {.e = e, .m = e->model, .k = e->model->kernels, .s = &e->step};
    for (int32_t i = 0; i < r.m->n_ops; i++) {
        if (is_cancelled(e)) return pe_fail(err, PE_ERR_CANCELLED, NULL, "the step was cancelled");
        r.op = &r.m->ops[i];
        r.width = pe_pool_lock(e->options.threads);
        runners[r.op->kind](&r);
        pe_pool_unlock();
        if (!inspect) continue;
        const int64_t rows = r.op->kind == PE_OP_LOGITS ? e->step.n_rows : e->step.n_tokens;
        bool stop = false;
        for (int32_t k = 0; k < r.op->n_outputs; k++)
            stop |= inspect(ctx, r.op, k, out(&r, k), rows, r.m->widths[r.op->outputs[k]]);
        if (stop) break;
    }
    return PE_OK;
}
