// Memory of an engine and the calls of its API; exec.c runs the ops.
#include "engine.h"

#include <math.h>
#include <stdlib.h>

#include "os.h"
#include "threads.h"

static size_t align64(size_t n) { return n > SIZE_MAX - 63 ? SIZE_MAX : (n + 63) & ~(size_t)63; }

// Sizes come from a file and from options: sums and products stop at SIZE_MAX, which no machine has, instead of wrapping.
static size_t times(size_t a, size_t b) {
    size_t out;
    return __builtin_mul_overflow(a, b, &out) ? SIZE_MAX : out;
}
static size_t plus(size_t a, size_t b) {
    size_t out;
    return __builtin_add_overflow(a, b, &out) ? SIZE_MAX : out;
}

static size_t layer_page_bytes(const pe_layer *l, int32_t page_size, int32_t kv_type) {
    return 2 * (size_t)l->n_kv_heads * pe_kv_head_bytes(kv_type, l->head_dim, page_size);
}

uint64_t pe_engine_page_bytes(const pe_model *m, int32_t page_size, int32_t kv_type) {
    uint64_t bytes = 0;
    for (int32_t i = 0; i < m->n_layers; i++) bytes += layer_page_bytes(&m->layers[i], page_size, kv_type);
    return bytes;
}

pe_kv_view pe_engine_layer(const pe_engine *e, int32_t layer) {
    const pe_layer *l = &e->model->layers[layer];
    return (pe_kv_view){.pages = e->kv + e->layer_offset[layer],
                        .page_bytes = (int64_t)e->layer_offset[e->model->n_layers],
                        .type = e->options.kv_type,
                        .page_size = e->options.page_size,
                        .n_kv_heads = l->n_kv_heads,
                        .head_dim = l->head_dim};
}

// ---- the arena: where each value lives -------------------------------------------------------------------------------

// Ops that read a row and write the same row, element by element: their output may take the place of an input that
// nobody reads later.
static bool works_in_place(pe_op_kind kind) {
    return kind == PE_OP_RMS_NORM || kind == PE_OP_LAYER_NORM || kind == PE_OP_ROPE || kind == PE_OP_ACTIVATION ||
           kind == PE_OP_ADD || kind == PE_OP_SCALE;
}

typedef struct span {
    size_t offset, bytes;
    int32_t value;  // -1: free
} span;

// Places values first-fit along the plan. Fills offsets [n_values]; returns the arena's size, 0 when out of memory.
static size_t plan_arena(const pe_model *m, int64_t max_tokens, size_t *offsets) {
    int32_t *last_use = calloc((size_t)m->n_values, sizeof *last_use);
    span *live = calloc((size_t)m->n_values + 1, sizeof *live);  // sorted by offset
    size_t top = 0;
    int32_t n_live = 0;
    if (!last_use || !live) goto done;
    for (int32_t i = 0; i < m->n_ops; i++) {
        for (int32_t k = 0; k < m->ops[i].n_outputs; k++) last_use[m->ops[i].outputs[k]] = i;
        for (int32_t k = 0; k < m->ops[i].n_inputs; k++) last_use[m->ops[i].inputs[k]] = i;
    }
    for (int32_t i = 0; i < m->n_ops; i++) {
        const pe_plan_op *op = &m->ops[i];
        for (int32_t k = 0; k < op->n_outputs && i < m->n_ops - 1; k++) {  // the last has memory of its own
            const int32_t value = op->outputs[k];
            const size_t bytes = align64((size_t)max_tokens * (size_t)m->widths[value] * sizeof(float));  // < 2^42
            bool placed = false;
            for (int32_t j = 0; j < n_live && works_in_place(op->kind) && !placed; j++) {
                if (live[j].value != op->inputs[0] || last_use[op->inputs[0]] != i || live[j].bytes != bytes) continue;
                offsets[value] = live[j].offset;
                live[j].value = value;
                placed = true;
            }
            if (placed) continue;
            size_t at = 0;
            int32_t before = 0;
            while (before < n_live && live[before].offset < at + bytes) {
                at = live[before].offset + live[before].bytes;
                before++;
            }
            memmove(&live[before + 1], &live[before], (size_t)(n_live - before) * sizeof *live);
            live[before] = (span){at, bytes, value};
            n_live++;
            offsets[value] = at;
            if (at + bytes > top) top = at + bytes;
        }
        for (int32_t j = 0; j < n_live;)  // a value that is never read dies where it was made
            if (last_use[live[j].value] <= i) {
                memmove(&live[j], &live[j + 1], (size_t)(n_live - j - 1) * sizeof *live);
                n_live--;
            } else {
                j++;
            }
    }
done:
    free(last_use);
    free(live);
    return top;
}

// ---- creation --------------------------------------------------------------------------------------------------------

static pe_status check_options(const pe_engine_options *o, pe_error *err) {
    if (o->page_size != 8 && o->page_size != 16 && o->page_size != 32)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "page_size %d: it must be 8, 16 or 32", o->page_size);
    if (o->kv_type < 0 || o->kv_type >= PE_N_KV_TYPES)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "no such kv_type: %d", o->kv_type);
    const struct {
        const char *name;
        int32_t value, most;
    } counts[] = {
        {"n_pages", o->n_pages, 1 << 28},           {"max_tokens", o->max_tokens, 65536},
        {"max_pieces", o->max_pieces, 65536},       {"max_rows", o->max_rows, 65536},
        {"max_sequences", o->max_sequences, 65536}, {"max_pages_per_sequence", o->max_pages_per_sequence, 1 << 24},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (counts[i].value < 1 || counts[i].value > counts[i].most)
            return pe_fail(err, PE_ERR_ARGUMENT, NULL, "%s is %d: it must be 1 to %d", counts[i].name, counts[i].value,
                           counts[i].most);
    if (o->threads < 0 || o->threads > PE_MAX_THREADS)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "threads is %d: it must be 0 to %d", o->threads, PE_MAX_THREADS);
    return PE_OK;
}

// Parts of one allocation: called once to measure (base NULL) and once to place.
static void *part(uint8_t *base, size_t *at, size_t bytes) {
    const size_t here = *at;
    *at = plus(*at, align64(bytes));
    return base ? base + here : NULL;
}

// The largest of what the plan's ops of a kind want.
typedef struct wants {
    size_t group, head_dim;      // attention: query heads per KV head
    size_t experts, used, d_ff;  // mixture of experts
} wants;

static size_t most(size_t a, int64_t b) { return a > (size_t)b ? a : (size_t)b; }

static wants wants_of(const pe_model *m) {
    wants w = {.group = 1};
    for (int32_t i = 0; i < m->n_layers; i++) w.head_dim = most(w.head_dim, m->layers[i].head_dim);
    for (int32_t i = 0; i < m->n_ops; i++) {
        const pe_plan_op *op = &m->ops[i];
        if (op->kind == PE_OP_ATTENTION) w.group = most(w.group, op->attention.n_heads / op->attention.n_kv_heads);
        if (op->kind != PE_OP_MOE) continue;
        w.experts = most(w.experts, op->moe.n_experts);
        w.used = most(w.used, op->moe.n_used);
        w.d_ff = most(w.d_ff, op->moe.d_ff);
    }
    return w;
}

static size_t place_scratch(pe_engine *e, uint8_t *base) {
    const pe_model *m = e->model;
    const pe_engine_options *o = &e->options;
    const wants w = wants_of(m);
    const size_t tokens = (size_t)o->max_tokens, pieces = (size_t)o->max_pieces, rows = (size_t)o->max_rows;
    const size_t expert_rows = tokens * w.used, gathered = expert_rows > rows ? expert_rows : rows;
    const size_t act_rows = tokens > gathered ? tokens : gathered, columns = (size_t)m->max_columns;
    const size_t chunks = ((size_t)o->max_pages_per_sequence * (size_t)o->page_size + PE_CHUNK - 1) / PE_CHUNK;
    const size_t unpack = columns * (size_t)m->kernels->lanes * sizeof(float);
    const size_t attend = pe_attention_scratch((int32_t)w.group);
    size_t at = 0;
    e->step.pieces = part(base, &at, pieces * sizeof(pe_piece));
    e->step.first_token = part(base, &at, (pieces + 1) * sizeof(int32_t));
    e->step.tokens = part(base, &at, tokens * sizeof(int32_t));
    e->step.positions = part(base, &at, tokens * sizeof(int32_t));
    e->step.piece_of = part(base, &at, tokens * sizeof(int32_t));
    e->step.rows = part(base, &at, rows * sizeof(int32_t));
    e->step.tables = part(base, &at, (size_t)o->max_sequences * (size_t)o->max_pages_per_sequence * sizeof(int32_t));
    e->tiles = part(base, &at, tokens * sizeof(pe_attention_tile));
    const size_t act_q = act_rows * (size_t)pe_act_ldq(m->max_columns);
    const size_t act_blocks = act_rows * ((size_t)pe_act_ldb(m->max_columns) + 1) * sizeof(pe_act_block);
    e->act.q = part(base, &at, act_q);
    e->act.fine_q = part(base, &at, act_q);
    e->act.blocks = part(base, &at, act_blocks);
    e->act.fine = part(base, &at, act_blocks);
    e->act.has_fine = part(base, &at, act_rows * (columns / PE_ACT_BLOCK / 64 + 1) * sizeof(uint64_t));
    e->gathered = part(base, &at, gathered * columns * sizeof(float));
    if (w.used) {
        e->moe.scores = part(base, &at, tokens * w.experts * sizeof(float));
        e->moe.weights = part(base, &at, expert_rows * sizeof(float));
        e->moe.experts = part(base, &at, expert_rows * sizeof(int32_t));
        e->moe.row_of = part(base, &at, expert_rows * sizeof(int32_t));
        e->moe.first_row = part(base, &at, (w.experts + 1) * sizeof(int32_t));
        e->moe.gate = part(base, &at, expert_rows * w.d_ff * sizeof(float));
        e->moe.up = part(base, &at, expert_rows * w.d_ff * sizeof(float));
        e->moe.products = part(base, &at, 2 * w.experts * sizeof(pe_product));
    }
    e->logits = part(base, &at, rows * (size_t)m->n_outputs * sizeof(float));
    e->worker_bytes = align64(most(most(unpack, (int64_t)attend), (int64_t)m->kernels->linear_scratch()));
    e->worker_scratch = part(base, &at, e->worker_bytes * (size_t)o->threads);
    const size_t partials = times(times(4 * (size_t)o->threads * w.group, chunks), pe_partial_bytes(PE_MAX_HEAD_DIM));
    e->max_partials = (int64_t)(partials / pe_partial_bytes((int32_t)w.head_dim));
    e->partials = part(base, &at, partials);
    return at;
}

static pe_status create(pe_engine *e, pe_error *err) {
    const pe_model *m = e->model;
    pe_machine machine;
    pe_machine_query(&machine);
    if (e->options.threads == 0) e->options.threads = machine.default_threads;

    e->layer_offset = calloc((size_t)m->n_layers + 1, sizeof *e->layer_offset);
    e->values = calloc((size_t)m->n_values, sizeof *e->values);
    size_t *offsets = calloc((size_t)m->n_values, sizeof *offsets);
    if (!e->layer_offset || !e->values || !offsets) {
        free(offsets);
        return pe_fail(err, PE_ERR_MEMORY, NULL, "out of memory");
    }
    for (int32_t i = 0; i < m->n_layers; i++) {
        const size_t page = layer_page_bytes(&m->layers[i], e->options.page_size, e->options.kv_type);
        e->layer_offset[i + 1] = plus(e->layer_offset[i], page);
    }
    e->kv_bytes = times(e->layer_offset[m->n_layers], (size_t)e->options.n_pages);
    e->arena_bytes = plan_arena(m, e->options.max_tokens, offsets);
    e->scratch_bytes = place_scratch(e, NULL);
    const size_t working = plus(e->arena_bytes, e->scratch_bytes);
    if (e->arena_bytes == 0 || plus(e->kv_bytes, working) > machine.memory_available) {
        free(offsets);
        return pe_fail(
            err, PE_ERR_MEMORY, NULL,
            "the KV cache needs %.2f GB and a step %.2f GB, %.2f GB of memory are free; ask for a shorter context "
            "or fewer pages",
            (double)e->kv_bytes / 1e9, (double)working / 1e9, (double)machine.memory_available / 1e9);
    }
    e->kv = pe_os_alloc_huge(e->kv_bytes);
    e->arena = pe_os_alloc_huge(e->arena_bytes);
    e->scratch = pe_os_alloc_huge(e->scratch_bytes);
    if (!e->kv || !e->arena || !e->scratch) {
        free(offsets);
        return pe_fail(
            err, PE_ERR_MEMORY, NULL,
            "the system gives no memory for a KV cache of %.2f GB and a step of %.2f GB; ask for a shorter context "
            "or fewer pages",
            (double)e->kv_bytes / 1e9, (double)working / 1e9);
    }
    place_scratch(e, e->scratch);
    for (int32_t i = 0; i < m->n_values; i++) e->values[i] = (float *)(e->arena + offsets[i]);
    e->values[m->ops[m->n_ops - 1].outputs[0]] = e->logits;
    free(offsets);
    const size_t entries = (size_t)e->options.max_sequences * (size_t)e->options.max_pages_per_sequence;
    memset(e->step.tables, 0xff, entries * sizeof(int32_t));
    return PE_OK;
}

pe_status pe_engine_create(pe_model *m, const pe_engine_options *options, pe_engine **out, pe_error *err) {
    *out = NULL;
    const pe_status sound = check_options(options, err);
    if (sound != PE_OK) return sound;
    pe_engine *e = calloc(1, sizeof *e);
    if (!e) return pe_fail(err, PE_ERR_MEMORY, NULL, "out of memory");
    atomic_init(&e->references, 1);
    pe_model_retain(m);
    e->model = m;
    e->options = *options;
    e->tap_op = -1;
    const pe_status status = create(e, err);
    if (status == PE_OK) *out = e;
    else pe_engine_release(e);
    return status;
}

void pe_engine_retain(pe_engine *e) { atomic_fetch_add(&e->references, 1); }

void pe_engine_release(pe_engine *e) {
    if (!e || atomic_fetch_sub(&e->references, 1) != 1) return;
    pe_os_free(e->kv, e->kv_bytes);
    pe_os_free(e->arena, e->arena_bytes);
    pe_os_free(e->scratch, e->scratch_bytes);
    free(e->layer_offset);
    free(e->values);
    free(e->op_times);
    pe_collected_free(e);
    pe_model_release(e->model);
    free(e);
}

// ---- a step ----------------------------------------------------------------------------------------------------------

pe_status pe_engine_set_pages(pe_engine *e, int32_t slot, int32_t first, const int32_t *pages, int32_t n,
                              pe_error *err) {
    const pe_engine_options *o = &e->options;
    e->step.n_rows = 0;  // the last step cannot be run again
    if (slot < 0 || slot >= o->max_sequences)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "slot %d: there are %d", slot, o->max_sequences);
    if (first < 0 || n < 0 || first > o->max_pages_per_sequence - n)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "%d entries from %d on: a block table has %d", n, first,
                       o->max_pages_per_sequence);
    for (int32_t i = 0; i < n; i++)
        if (pages[i] < 0 || pages[i] >= o->n_pages)
            return pe_fail(err, PE_ERR_ARGUMENT, NULL, "page %d: there are %d", pages[i], o->n_pages);
    if (n) memcpy(e->step.tables + (int64_t)slot * o->max_pages_per_sequence + first, pages, (size_t)n * sizeof *pages);
    return PE_OK;
}

static pe_status check_piece(const pe_engine *e, const pe_piece *p, int32_t tokens_before, pe_error *err) {
    const pe_engine_options *o = &e->options;
    if (p->slot < 0 || p->slot >= o->max_sequences)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "slot %d: there are %d", p->slot, o->max_sequences);
    if (p->start < 0 || p->end <= p->start || p->end > (int64_t)o->max_pages_per_sequence * o->page_size)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL,
                       "slot %d: positions [%d, %d) do not fit a block table of %d pages of %d", p->slot, p->start,
                       p->end, o->max_pages_per_sequence, o->page_size);
    if (p->end - p->start > o->max_tokens - tokens_before)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "more than %d tokens in a step", o->max_tokens);
    if (e->model->max_positions && p->end > e->model->max_positions)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "slot %d: position %d: the model has %lld", p->slot, p->end - 1,
                       (long long)e->model->max_positions);
    if (e->model->whole_sequences && p->start > 0)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "slot %d: this model takes a sequence whole, not from position %d",
                       p->slot, p->start);
    const int32_t *table = e->step.tables + (int64_t)p->slot * o->max_pages_per_sequence;
    for (int32_t i = 0; i * o->page_size < p->end; i++)
        if (table[i] < 0)
            return pe_fail(err, PE_ERR_ARGUMENT, NULL, "slot %d: page %d of its table is not set", p->slot, i);
    return PE_OK;
}

static pe_status fill_step(pe_engine *e, const pe_piece *pieces, int32_t n_pieces, const int32_t *tokens,
                           const int32_t *rows, int32_t n_rows, pe_error *err) {
    pe_step *s = &e->step;
    const pe_engine_options *o = &e->options;
    s->n_tokens = s->n_pieces = s->n_rows = 0;
    if (n_pieces < 1 || n_pieces > o->max_pieces)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "%d pieces in a step: 1 to %d are possible", n_pieces,
                       o->max_pieces);
    if (n_rows < 0 || n_rows > o->max_rows)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "%d rows of logits in a step: at most %d", n_rows, o->max_rows);
    int32_t n = 0;
    for (int32_t i = 0; i < n_pieces; i++) {
        const pe_status status = check_piece(e, &pieces[i], n, err);
        if (status != PE_OK) return status;
        s->pieces[i] = pieces[i];
        s->first_token[i] = n;
        for (int32_t position = pieces[i].start; position < pieces[i].end; position++, n++) {
            if (tokens[n] < 0 || tokens[n] >= e->model->n_vocab)
                return pe_fail(err, PE_ERR_ARGUMENT, NULL, "token %d: the vocabulary has %lld", tokens[n],
                               (long long)e->model->n_vocab);
            s->tokens[n] = tokens[n];
            s->positions[n] = position;
            s->piece_of[n] = i;
        }
    }
    s->first_token[n_pieces] = n;
    for (int32_t i = 0; i < n_rows; i++) {
        if (rows[i] < 0 || rows[i] >= n || (i && rows[i] <= rows[i - 1]))
            return pe_fail(err, PE_ERR_ARGUMENT, NULL, "row %d: rows ascend within the step's %d tokens", rows[i], n);
        s->rows[i] = rows[i];
    }
    s->n_tokens = n;
    s->n_pieces = n_pieces;
    s->n_rows = n_rows;
    return PE_OK;
}

static bool pass_to_tap(void *ctx, const pe_plan_op *op, int32_t output, const float *data, int64_t rows,
                        int64_t width) {
    const pe_engine *e = ctx;
    if (op == &e->model->ops[e->tap_op]) e->tap(e->tap_ctx, op->name, output, data, rows, width);
    return false;
}

pe_status pe_engine_step(pe_engine *e, const pe_piece *pieces, int32_t n_pieces, const int32_t *tokens,
                         const int32_t *rows, int32_t n_rows, pe_error *err) {
    atomic_store(&e->cancelled, false);
    const pe_status status = fill_step(e, pieces, n_pieces, tokens, rows, n_rows, err);
    if (status != PE_OK) return status;
    return pe_exec(e, e->tap_op >= 0 ? pass_to_tap : NULL, e, err);
}

const float *pe_engine_logits(const pe_engine *e) { return e->logits; }

void pe_engine_cancel(pe_engine *e) { atomic_store(&e->cancelled, true); }

void pe_engine_on_poll(pe_engine *e, bool (*poll)(void *ctx), void *ctx) {
    e->poll = poll;
    e->poll_ctx = ctx;
}

pe_status pe_engine_on_tap(pe_engine *e, const char *op, pe_tap tap, void *ctx, pe_error *err) {
    e->tap_op = -1;
    if (!op) return PE_OK;
    for (int32_t i = 0; i < e->model->n_ops; i++)
        if (strcmp(e->model->ops[i].name, op) == 0) e->tap_op = i;
    if (e->tap_op < 0) return pe_fail(err, PE_ERR_ARGUMENT, NULL, "the plan has no op '%.60s'", op);
    e->tap = tap;
    e->tap_ctx = ctx;
    return PE_OK;
}

pe_status pe_engine_profile(pe_engine *e, bool on, pe_error *err) {
    free(e->op_times);
    e->op_times = on ? calloc((size_t)e->model->n_ops, sizeof *e->op_times) : NULL;
    return on && !e->op_times ? pe_fail(err, PE_ERR_MEMORY, NULL, "out of memory") : PE_OK;
}

const int64_t *pe_engine_op_times(const pe_engine *e) { return e->op_times; }

pe_status pe_engine_copy_page(pe_engine *e, int32_t from, int32_t to, pe_error *err) {
    const int32_t n = e->options.n_pages;
    e->step.n_rows = 0;  // the last step cannot be run again
    if (from < 0 || from >= n || to < 0 || to >= n || from == to)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "page %d onto page %d: they must be two of %d", from, to, n);
    const size_t bytes = e->layer_offset[e->model->n_layers];
    memcpy(e->kv + (size_t)to * bytes, e->kv + (size_t)from * bytes, bytes);
    return PE_OK;
}

pe_status pe_engine_fill_page(pe_engine *e, int32_t page, float value, pe_error *err) {
    if (page < 0 || page >= e->options.n_pages)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "page %d: there are %d", page, e->options.n_pages);
    float row[PE_MAX_HEAD_DIM];
    for (int i = 0; i < PE_MAX_HEAD_DIM; i++) row[i] = value;
    for (int32_t layer = 0; layer < e->model->n_layers; layer++) {
        pe_kv_view kv = pe_engine_layer(e, layer);
        // kv_write takes all heads of a token at once; here one head at a time, each seen as a layer of its own.
        const size_t head = 2 * pe_kv_head_bytes(kv.type, kv.head_dim, kv.page_size);
        const int32_t n_kv_heads = kv.n_kv_heads;
        kv.table = &page;
        kv.n_kv_heads = 1;
        for (int32_t h = 0; h < n_kv_heads; h++, kv.pages += head)
            for (int32_t slot = 0; slot < kv.page_size; slot++) e->model->kernels->kv_write(&kv, slot, row, row);
    }
    return PE_OK;
}

// ---- which op made a number that is none -------------------------------------------------------------------------------

typedef struct search {
    const pe_engine *e;
    int32_t token, piece;
    char found[64];
} search;

// In any row of the token's piece that it sees: what those positions hold comes to it through attention.
static bool look(void *ctx, const pe_plan_op *op, int32_t output, const float *data, int64_t rows, int64_t width) {
    search *s = ctx;
    (void)output;
    const pe_step *step = &s->e->step;
    for (int64_t r = 0; r < rows; r++) {
        const int32_t token = pe_op_ends(op->kind) ? step->rows[r] : (int32_t)r;
        if (step->piece_of[token] != s->piece || (token > s->token && !s->e->model->whole_sequences)) continue;
        for (int64_t i = 0; i < width; i++)
            if (!isfinite(data[r * width + i])) {
                memcpy(s->found, op->name, sizeof s->found);
                return true;
            }
    }
    return false;
}

pe_status pe_engine_explain(pe_engine *e, int32_t row, pe_error *err) {
    if (row < 0 || row >= e->step.n_rows)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "row %d: the step has %d", row, e->step.n_rows);
    search s = {.e = e, .token = e->step.rows[row], .piece = e->step.piece_of[e->step.rows[row]]};
    const pe_status status = pe_exec(e, look, &s, err);
    if (status != PE_OK) return status;
    return pe_fail(err, PE_ERR_NUMERIC, s.found[0] ? s.found : NULL,
                   "makes numbers that are not finite; its weights, or the keys and values it reads, are not sound "
                   "(kv_type f32 helps when these are too large for the cache)");
}
