// The executor: runs a plan's ops one after the other over the step at hand. Work inside an op is cut into items that
// the pool's threads claim; how it is cut never changes a bit, since each item computes whole rows, panels or chunks.
#include <math.h>

#include "exec.h"
#include "os.h"
#include "threads.h"

enum {
    STREAM_BYTES = 32768,  // weights per item when few tokens share them: small, so that no thread waits for another
    ITEM_PANELS = 16,      // panels per item when many tokens do
    ITEM_TOKENS = 128,     // tokens per item then
    SPLIT_CHUNKS = 8,      // attention chunks per item, at least, when a context is cut
    SPLIT_ITEMS = 8,       // a tile's context is cut where there would be fewer items than so many per thread like it
    UNPACK_ROWS = 4,       // query rows that take as long as getting hold of a chunk for them
};

// ---- row by row ------------------------------------------------------------------------------------------------------

typedef struct row_job {
    const run *r;
    void (*row)(const run *r, int64_t i);
    int64_t rows, per_item;
    pe_act act;     // of the op's output
    int64_t width;  // of that; 0: its rows are not quantized
} row_job;

static void rows_item(void *ctx, int64_t item, int worker) {
    (void)worker;
    const row_job *j = ctx;
    for (int64_t t = item * j->per_item; t < least((item + 1) * j->per_item, j->rows); t++) {
        j->row(j->r, t);
        if (j->width) j->r->k->quantize(&j->act, t, j->width);
    }
}

static void run_rows(row_job *j, int64_t row_width) {
    j->per_item = j->rows;
    if (j->rows * row_width > SERIAL_FLOATS) j->per_item = SERIAL_FLOATS / 4 / row_width + 1;
    pe_parallel(j->r->width, (j->rows + j->per_item - 1) / j->per_item, rows_item, j);
}

void pe_each_row(const run *r, int64_t rows, int64_t row_width, void (*row)(const run *r, int64_t i)) {
    if (rows == 0) return;  // a step that asks for no embedding yet
    row_job j = {.r = r, .row = row, .rows = rows};
    run_rows(&j, row_width);
}

// The engine's activations with the strides of an input.
static pe_act act_of(const run *r, const float *x, int64_t cols) {
    pe_act act = r->e->act;
    act.x = x;
    act.ldx = cols;
    act.ldq = pe_act_ldq(cols);
    act.ldb = pe_act_ldb(cols);
    act.ldm = (cols / PE_ACT_BLOCK + 63) / 64;
    act.fine_above = r->op->kind == PE_OP_LOGITS ? 0 : PE_FINE_ABOVE;
    return act;
}

// Every token's row of an op with one output. A row that integer products read is quantized while it is in near cache.
static void each_token(const run *r, int64_t row_width, void (*row)(const run *r, int64_t i)) {
    row_job j = {.r = r, .row = row, .rows = r->s->n_tokens};
    const int32_t value = r->op->outputs[0];
    if (r->m->feeds_integers[value]) {
        j.width = r->m->widths[value];
        j.act = act_of(r, out(r, 0), j.width);
        r->e->quantized = value;
    }
    run_rows(&j, row_width);
}

static void embed_row(const run *r, int64_t t) {
    const pe_weight *w = &r->m->matrices[r->op->weights[0]];
    const int64_t by = r->op->embed.by;
    const int64_t row = by == PE_EMBED_TOKEN ? r->s->tokens[t] : by == PE_EMBED_POSITION ? r->s->positions[t] : 0;
    r->k->unpack_row(w, row, out(r, 0) + t * w->cols);
}

// From one group's weight to the next one's: none, where the vector is one group long.
static int64_t weight_step(const run *r, int slot, int64_t group) {
    const int32_t i = r->op->weights[slot];
    return i >= 0 && r->m->vector_sizes[i] > group ? group : 0;
}

static void rms_norm_row(const run *r, int64_t t) {
    const int64_t n = in_width(r, 0), group = r->op->rms_norm.group, step = weight_step(r, 0, group);
    const float *x = in(r, 0) + t * n, *weight = vector_of(r, 0);
    float *y = out(r, 0) + t * n;
    for (int64_t i = 0; i < n; i += group, weight += step)
        r->k->rms_norm(x + i, weight, (float)r->op->rms_norm.eps, group, y + i);
}

static void layer_norm_row(const run *r, int64_t t) {
    const int64_t n = in_width(r, 0), group = r->op->layer_norm.group;
    const int64_t step = weight_step(r, 0, group), bias_step = weight_step(r, 1, group);
    const float *x = in(r, 0) + t * n, *weight = vector_of(r, 0), *bias = vector_of(r, 1);
    float *y = out(r, 0) + t * n;
    for (int64_t i = 0; i < n; i += group, weight += step) {
        r->k->layer_norm(x + i, weight, bias, (float)r->op->layer_norm.eps, group, y + i);
        if (bias) bias += bias_step;
    }
}

static void split_row(const run *r, int64_t t) {
    const float *x = in(r, 0) + t * in_width(r, 0);
    for (int i = 0; i < r->op->n_outputs; i++) {
        const int64_t n = r->m->widths[r->op->outputs[i]];
        memcpy(out(r, i) + t * n, x, (size_t)n * sizeof *x);
        x += n;
    }
}

static void rope_table_row(const run *r, int64_t t) {
    const pe_rope_table_parameters *p = &r->op->rope_table;
    const float *factors = vector_of(r, 0);
    float *cosines = out(r, 0) + t * p->n_rot, *sines = cosines + p->n_rot / 2;
    for (int64_t i = 0; i < p->n_rot / 2; i++) {
        double share = 1;  // of `scale`
        if (p->ramp_low < p->ramp_high)
            share = fmin(1, fmax(0, ((double)i - p->ramp_low) / (p->ramp_high - p->ramp_low)));
        const double slower = (share / p->scale + (1 - share)) / (factors ? factors[i] : 1);
        const double angle = r->s->positions[t] * pow(p->base, -2.0 * (double)i / (double)p->n_rot) * slower;
        cosines[i] = (float)(p->magnitude * cos(angle));
        sines[i] = (float)(p->magnitude * sin(angle));
    }
}

static void rope_row(const run *r, int64_t t) {
    const pe_rope_parameters *p = &r->op->rope;
    const int64_t n = in_width(r, 0);
    r->k->rope(in(r, 0) + t * n, in(r, 1) + t * p->n_rot, (int32_t)p->n_heads, (int32_t)p->head_dim, (int32_t)p->n_rot,
               (int32_t)p->pairing, out(r, 0) + t * n);
}

static void activation_row(const run *r, int64_t t) {
    const int64_t n = in_width(r, 0);
    r->k->activation((pe_function)r->op->activation.function, in(r, 0) + t * n,
                     r->op->n_inputs == 2 ? in(r, 1) + t * n : NULL, n, out(r, 0) + t * n);
}

static void add_row(const run *r, int64_t t) {
    const int64_t n = in_width(r, 0);
    r->k->add(in(r, 0) + t * n, in(r, 1) + t * n, (float)r->op->add.factor, n, out(r, 0) + t * n);
}

static void scale_row(const run *r, int64_t t) {
    const int64_t n = in_width(r, 0);
    r->k->scale(in(r, 0) + t * n, (float)r->op->scale.factor, n, out(r, 0) + t * n);
}

// Row i of those that are asked for. Sums over tokens are in their order.
static void pool_row(const run *r, int64_t i) {
    const int64_t n = in_width(r, 0), pooling = r->op->pool.pooling;
    const int32_t token = r->s->rows[i], piece = r->s->piece_of[token], first = r->s->first_token[piece];
    const float *x = in(r, 0);
    float *y = r->e->logits + i * n;
    memcpy(y, x + (pooling == PE_POOLING_LAST ? token : first) * n, (size_t)n * sizeof *y);
    if (pooling != PE_POOLING_MEAN) return;
    const int32_t end = r->s->first_token[piece + 1];
    for (int32_t t = first + 1; t < end; t++) r->k->add(y, x + t * n, 1, n, y);
    r->k->scale(y, 1 / (float)(end - first), n, y);
}

static void run_embed(const run *r) { each_token(r, 8 * r->op->embed.d_model, embed_row); }
static void run_rms_norm(const run *r) { each_token(r, in_width(r, 0), rms_norm_row); }
static void run_layer_norm(const run *r) { each_token(r, 2 * in_width(r, 0), layer_norm_row); }
static void run_split(const run *r) { pe_each_row(r, r->s->n_tokens, in_width(r, 0), split_row); }
static void run_rope_table(const run *r) {
    pe_each_row(r, r->s->n_tokens, 64 * r->op->rope_table.n_rot, rope_table_row);
}
static void run_rope(const run *r) { each_token(r, 2 * in_width(r, 0), rope_row); }
static void run_activation(const run *r) { each_token(r, 4 * in_width(r, 0), activation_row); }
static void run_add(const run *r) { each_token(r, in_width(r, 0), add_row); }
static void run_scale(const run *r) { each_token(r, in_width(r, 0), scale_row); }
static void run_pool(const run *r) { pe_each_row(r, r->s->n_rows, 64 * in_width(r, 0), pool_row); }

// ---- matrix products -------------------------------------------------------------------------------------------------

// y = x W^T + b for rows [row0, row1) of the input that all products of a call share.
typedef struct matmul {
    const run *r;
    pe_act act;
    int64_t rows, cols, per_item;
    bool f32;
    int32_t n_products;
    pe_product *products;
} matmul;

static void quantize_item(void *ctx, int64_t item, int worker) {
    (void)worker;
    const matmul *j = ctx;
    for (int64_t t = item * j->per_item; t < least((item + 1) * j->per_item, j->rows); t++)
        j->r->k->quantize(&j->act, t, j->cols);
}

static void matmul_item(void *ctx, int64_t item, int worker) {
    const matmul *j = ctx;
    int32_t lo = 0, hi = j->n_products;  // the product whose items hold `item`
    while (hi - lo > 1) {
        const int32_t middle = (lo + hi) / 2;
        if (j->products[middle].first_item <= item) lo = middle;
        else hi = middle;
    }
    const pe_product *o = &j->products[lo];
    const pe_weight *w = o->w;
    const int64_t inner = item - o->first_item;
    // Token blocks outermost: their activations stay in cache while the panels pass.
    const int64_t groups = (w->n_panels + o->panels_per_item - 1) / o->panels_per_item;
    const int64_t p0 = inner % groups * o->panels_per_item, t0 = o->row0 + inner / groups * o->tokens_per_item;
    const int64_t p1 = least(p0 + o->panels_per_item, w->n_panels), t1 = least(t0 + o->tokens_per_item, o->row1);
    void *scratch = j->r->e->worker_scratch + (size_t)worker * j->r->e->worker_bytes;
    (j->f32 ? j->r->k->linear_f32 : j->r->k->linear)(w, &j->act, o->bias, t0, t1, p0, p1, o->y, w->rows, scratch);
}

// value: the input, if it is a whole one of the plan, which may be quantized already; else -1.
static void multiply(const run *r, int32_t value, const float *x, int64_t rows, int64_t cols, pe_product *products,
                     int32_t n) {
    if (r->e->collected.sums) pe_collect(r, x, cols, products, n);
    matmul j = {.r = r,
                .act = act_of(r, x, cols),
                .rows = rows,
                .cols = cols,
                .f32 = r->m->precision == PE_PRECISION_F32,
                .n_products = n,
                .products = products};
    int64_t n_items = 0;
    bool integers = false;
    for (int32_t i = 0; i < n; i++) {
        pe_product *o = &products[i];
        const pe_weight *w = o->w;
        const int64_t own_rows = o->row1 - o->row0;
        const int64_t streamed = (int64_t)(STREAM_BYTES / w->panel_bytes + 3) / 4 * 4;
        integers |= !pe_class_is_float(w->cls);
        o->first_item = n_items;
        o->panels_per_item = j.f32 ? 1 : own_rows > 8 ? ITEM_PANELS : streamed ? streamed : 4;
        o->tokens_per_item = j.f32 ? own_rows : ITEM_TOKENS;
        n_items += (w->n_panels + o->panels_per_item - 1) / o->panels_per_item *
                   ((own_rows + o->tokens_per_item - 1) / o->tokens_per_item);
    }
    if (integers && !j.f32 && (value < 0 || value != r->e->quantized)) {
        j.per_item = rows * cols > SERIAL_FLOATS ? SERIAL_FLOATS / 4 / cols + 1 : rows;
        pe_parallel(r->width, (rows + j.per_item - 1) / j.per_item, quantize_item, &j);
        r->e->quantized = value;
    }
    pe_parallel(r->width, n_items, matmul_item, &j);
}

void pe_multiply(const run *r, const float *x, int64_t rows, int64_t cols, pe_product *products, int32_t n) {
    multiply(r, -1, x, rows, cols, products, n);
}

static void run_linear(const run *r) {
    pe_product products[PE_MAX_OUTPUTS];
    for (int i = 0; i < r->op->n_outputs; i++) products[i] = product_of(r, 2 * i, r->s->n_tokens, out(r, i));
    multiply(r, r->op->inputs[0], in(r, 0), r->s->n_tokens, in_width(r, 0), products, r->op->n_outputs);
}

static void bend_logits(const run *r, int64_t i) {
    const pe_logits_parameters *p = &r->op->logits;
    float *y = r->e->logits + i * p->n_vocab;
    if (p->scale != 1) r->k->scale(y, (float)p->scale, p->n_vocab, y);
    if (p->softcap > 0) r->k->softcap(y, (float)p->softcap, p->n_vocab, y);
}

static void run_logits(const run *r) {
    const pe_logits_parameters *p = &r->op->logits;
    const int64_t n = in_width(r, 0);
    if (!r->s->n_rows) return;
    for (int32_t i = 0; i < r->s->n_rows; i++)
        memcpy(r->e->gathered + i * n, in(r, 0) + r->s->rows[i] * n, (size_t)n * sizeof(float));
    pe_product product = product_of(r, 0, r->s->n_rows, r->e->logits);
    pe_multiply(r, r->e->gathered, r->s->n_rows, n, &product, 1);
    if (p->scale != 1 || p->softcap > 0) pe_each_row(r, r->s->n_rows, 4 * p->n_vocab, bend_logits);
}

// ---- attention -------------------------------------------------------------------------------------------------------

typedef struct attention_job {
    const run *r;
    const pe_attention_parameters *p;
    pe_kv_view kv;
    int32_t n_heads, group, n_tiles;
    int64_t per_item;  // tokens, when writing
    int64_t cost;      // of all tiles, with the query heads of one KV head
    int64_t pairs;     // of query rows and keys, likewise
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
                          .end = j->r->s->pieces[piece].end,
                          .n_heads = j->n_heads,
                          .causal = j->p->causal,
                          .window = (int32_t)j->p->window,
                          .scale = (float)j->p->scale,
                          .softcap = (float)j->p->softcap,
                          .sinks = vector_of(j->r, 0)};
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

static int32_t rows_of(const attention_job *j, const pe_attention_tile *tile) {
    return (tile->t1 - tile->t0) * j->group;
}

static int32_t chunks_of(const pe_attention_tile *tile) { return tile->chunks.end - tile->chunks.first; }

static pe_partial *partials_at(const attention_job *j, const pe_attention_tile *tile, int32_t head) {
    const int64_t at = tile->partials + (int64_t)head * chunks_of(tile) * rows_of(j, tile);
    return pe_partial_at(j->r->e->partials, at, j->kv.head_dim);
}

static void attend_item(void *ctx, int64_t item, int worker) {
    const attention_job *j = ctx;
    const pe_engine *e = j->r->e;
    int32_t lo = 0, hi = j->n_tiles;  // the tile whose items hold `item`
    while (hi - lo > 1) {
        const int32_t middle = (lo + hi) / 2;
        if (e->tiles[middle].first_item <= item) lo = middle;
        else hi = middle;
    }
    const pe_attention_tile *tile = &e->tiles[lo];
    const pe_attention a = attention_of(j, tile->piece);
    const int32_t inner = (int32_t)(item - tile->first_item), head = inner / tile->parts, part = inner % tile->parts;
    void *scratch = e->worker_scratch + (size_t)worker * e->worker_bytes;
    if (tile->parts == 1) {
        j->r->k->attention(&a, head, tile->t0, tile->t1, scratch);
        return;
    }
    const int64_t n = chunks_of(tile);
    const int32_t c0 = tile->chunks.first + (int32_t)(n * part / tile->parts);
    const int32_t c1 = tile->chunks.first + (int32_t)(n * (part + 1) / tile->parts);
    j->r->k->attention_chunks(&a, head, tile->t0, tile->t1, c0, c1, partials_at(j, tile, head), scratch);
}

static void merge_item(void *ctx, int64_t item, int worker) {
    (void)worker;
    const attention_job *j = ctx;
    const pe_attention_tile *tile = &j->r->e->tiles[item / j->kv.n_kv_heads];
    if (tile->parts == 1) return;
    const pe_attention a = attention_of(j, tile->piece);
    const int32_t head = (int32_t)(item % j->kv.n_kv_heads);
    j->r->k->attention_merge(&a, head, tile->t0, tile->t1, partials_at(j, tile, head));
}

// What a tile costs: its query rows over its chunks, which are fetched for them.
static int64_t tile_cost(const attention_job *j, const pe_attention_tile *tile) {
    return (int64_t)chunks_of(tile) * (rows_of(j, tile) + UNPACK_ROWS);
}

// Cuts the step into tiles, of at least a token each. Last ones first: they see the most keys, and the short ones fill
// the gaps at the end.
static void lay_tiles(attention_job *j) {
    const int32_t tokens = pe_attention_rows(j->group) / j->group;
    for (int32_t piece = j->r->s->n_pieces - 1; piece >= 0; piece--) {
        const pe_attention a = attention_of(j, piece);
        const int32_t n = a.end - a.start;
        for (int32_t t0 = (n - 1) / tokens * tokens; t0 >= 0; t0 -= tokens) {
            pe_attention_tile *tile = &j->r->e->tiles[j->n_tiles++];
            const int32_t t1 = (int32_t)least(t0 + tokens, n);
            *tile = (pe_attention_tile){piece, t0, t1, pe_attention_chunks_of(&a, t0, t1), 1, 0, 0};
            j->cost += tile_cost(j, tile);
            j->pairs += (int64_t)rows_of(j, tile) * pe_attention_sees(&a, t1 - 1).end;
        }
    }
}

// Cuts those tiles by chunks that would keep other threads waiting. Returns the number of items.
static int64_t cut_tiles(const attention_job *j) {
    const int64_t n_kv_heads = j->kv.n_kv_heads;
    const int64_t most = j->r->width > 1 ? j->cost * n_kv_heads / (SPLIT_ITEMS * j->r->width) + 1 : INT64_MAX;
    int64_t items = 0, partials = 0;
    for (int32_t i = 0; i < j->n_tiles; i++) {
        pe_attention_tile *tile = &j->r->e->tiles[i];
        const int64_t n = n_kv_heads * chunks_of(tile) * rows_of(j, tile);
        const int64_t parts = least(tile_cost(j, tile) / most + 1, chunks_of(tile) / SPLIT_CHUNKS);
        if (parts > 1 && partials + n <= j->r->e->max_partials) {
            tile->parts = (int32_t)parts;
            tile->partials = partials;
            partials += n;
        }
        tile->first_item = items;
        items += n_kv_heads * tile->parts;
    }
    return items;
}

static void run_attention(const run *r) {
    const pe_attention_parameters *p = &r->op->attention;
    attention_job j = {.r = r,
                       .p = p,
                       .kv = pe_engine_layer(r->e, (int32_t)p->layer),
                       .n_heads = (int32_t)p->n_heads,
                       .group = (int32_t)(p->n_heads / p->n_kv_heads)};
    const int64_t kv_width = 4 * p->n_kv_heads * p->head_dim, n_tokens = r->s->n_tokens;
    j.per_item = n_tokens * kv_width > SERIAL_FLOATS ? SERIAL_FLOATS / 2 / kv_width + 1 : n_tokens;
    pe_parallel(r->width, (n_tokens + j.per_item - 1) / j.per_item, write_item, &j);

    lay_tiles(&j);
    const int64_t items = cut_tiles(&j), whole = j.n_tiles * p->n_kv_heads;
    const bool few = items == whole && j.pairs * p->n_kv_heads < SERIAL_FLOATS / 16;
    pe_parallel(few ? 1 : r->width, items, attend_item, &j);
    if (items > whole) pe_parallel(r->width, whole, merge_item, &j);
}

// ---- the plan --------------------------------------------------------------------------------------------------------

static void run_moe(const run *r) { pe_run_moe(r); }

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
    e->quantized = -1;
    for (int32_t i = 0; i < r.m->n_ops; i++) {
        if (is_cancelled(e)) return pe_fail(err, PE_ERR_CANCELLED, NULL, "the step was cancelled");
        r.op = &r.m->ops[i];
        r.width = pe_pool_lock(e->options.threads);
        const int64_t start = e->op_times ? pe_os_now() : 0;
        runners[r.op->kind](&r);
        if (e->op_times) e->op_times[i] += pe_os_now() - start;
        pe_pool_unlock();
        if (!inspect) continue;
        const int64_t rows = pe_op_ends(r.op->kind) ? e->step.n_rows : e->step.n_tokens;
        bool stop = false;
        for (int32_t k = 0; k < r.op->n_outputs; k++)
            stop |= inspect(ctx, r.op, k, out(&r, k), rows, r.m->widths[r.op->outputs[k]]);
        if (stop) break;
    }
    return PE_OK;
}
