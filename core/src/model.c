// Makes a model: validates the plan, packs each tensor it uses once, and keeps nothing of the file.
#include "model.h"

#include <stdlib.h>

#include "os.h"
#include "threads.h"

enum {
    PREFETCH_TAIL = 4096,  // bytes behind a matrix that prefetches may touch
    ITEM_BYTES = 65536,    // that are packed at once: what is read is still in the cache then
};

// A matrix to be packed: its rows in the file, cut into items of whole panels.
typedef struct source {
    int64_t tensor;
    uint64_t first;  // byte of the tensor's data that the matrix begins at
    const pe_weight *w;
    const pe_format_row *format;
    size_t row_bytes;
    int64_t panels_per_item;
    int64_t first_item;  // of all items of the model
} source;

// One job for all matrices: a wait at the end of each would cost a time slice each on a machine that has other work.
typedef struct packing {
    const pe_model *m;
    const pe_gguf *g;
    source *sources;  // [n_sources + 1] in the order of their items; the last has the count of all
    int32_t n_sources;
    uint8_t *buffers;  // [workers, buffer_bytes]: the rows of an item, as the file has them
    size_t buffer_bytes;
    atomic_bool failed;
    pe_error *err;  // of the first that failed
} packing;

static void pack_item(void *ctx, int64_t item, int worker) {
    packing *p = ctx;
    if (atomic_load(&p->failed)) return;
    int32_t low = 0, high = p->n_sources;  // the source that has the item: the last that begins at or before it
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (p->sources[middle].first_item <= item) low = middle;
        else high = middle;
    }
    const source *s = &p->sources[low];
    const int64_t p0 = (item - s->first_item) * s->panels_per_item, p1 = p0 + s->panels_per_item;
    const int64_t row = p0 * s->w->lanes;
    pe_weight part = *s->w;
    part.data += (size_t)p0 * part.panel_bytes;
    part.n_panels = (p1 < part.n_panels ? p1 : part.n_panels) - p0;
    part.rows = (p1 * part.lanes < part.rows ? p1 * part.lanes : part.rows) - row;
    uint8_t *rows = p->buffers + (size_t)worker * p->buffer_bytes;
    pe_error err;
    if (pe_gguf_read(p->g, s->tensor, s->first + (uint64_t)row * s->row_bytes, rows, (size_t)part.rows * s->row_bytes,
                     &err) == PE_OK)
        p->m->kernels->pack(&part, s->format, rows, 0, part.n_panels);
    else if (!atomic_exchange(&p->failed, true)) *p->err = err;
}

// Adds the matrices of tensor i, of which w is the first; `to` is the memory for them.
static void add_sources(packing *p, int64_t i, pe_weight *w, uint8_t *to) {
    const pe_tensor *t = pe_gguf_tensor(p->g, i);
    const pe_format_row *f = pe_format_row_by_type(t->type);
    const size_t row_bytes = (size_t)(t->ne[0] / f->info.block_values) * (size_t)f->info.block_bytes;
    const int64_t per_item = w->panel_bytes > ITEM_BYTES ? 1 : (int64_t)(ITEM_BYTES / w->panel_bytes) + 1;
    const int64_t panels = per_item < w->n_panels ? per_item : w->n_panels;
    const size_t buffer_bytes =
        ((size_t)(panels * w->lanes) * row_bytes + 63) / 64 * 64;  // workers share no cache line
    if (buffer_bytes > p->buffer_bytes) p->buffer_bytes = buffer_bytes;
    for (int64_t e = 0; e < t->ne[2]; e++) {
        w[e].data = to + (size_t)(e * w->n_panels) * w->panel_bytes;
        source *s = &p->sources[p->n_sources++];
        const int64_t first_item = s->first_item;
        *s = (source){i, (uint64_t)e * (t->n_bytes / (uint64_t)t->ne[2]), &w[e], f, row_bytes, per_item, first_item};
        s[1].first_item = first_item + (w->n_panels + per_item - 1) / per_item;
    }
}

// Of a tensor of n such matrices.
static size_t tensor_bytes(const pe_weight *w, int64_t n) {
    return ((size_t)n * (size_t)w->n_panels * w->panel_bytes + PREFETCH_TAIL + 63) / 64 * 64;
}

// The matrices of a tensor: experts are several.
static void shape_matrices(const pe_model *m, const pe_tensor *t, pe_weight *w) {
    const pe_format_row *f = pe_format_row_by_type(t->type);
    w->cls = f->cls;
    w->scales = f->scales;
    w->lanes = m->kernels->lanes;
    w->rows = t->ne[1];
    w->cols = t->ne[0];
    w->n_panels = (w->rows + w->lanes - 1) / w->lanes;
    w->n_blocks = w->cols / f->info.block_values;
    w->block_bytes = m->kernels->block_bytes(f->cls, f->scales);
    w->panel_bytes = (size_t)w->n_blocks * w->block_bytes;
    for (int64_t i = 1; i < t->ne[2]; i++) w[i] = *w;
    w->bytes = tensor_bytes(w, t->ne[2]);
}

static pe_status read_vector(pe_model *m, const pe_gguf *g, int64_t i, int32_t vector, pe_error *err) {
    const pe_tensor *t = pe_gguf_tensor(g, i);
    const int64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    float *to = m->vectors[vector] = malloc((size_t)n * sizeof *to);
    m->vector_sizes[vector] = n;
    return to ? pe_gguf_dequantize(g, i, to, err) : pe_fail(err, PE_ERR_MEMORY, t->name, "out of memory");
}

static pe_status pack_all(pe_model *m, const pe_gguf *g, const pe_tensor_use *use, int threads, pe_error *err) {
    packing p = {.m = m, .g = g, .err = err};
    p.sources = calloc((size_t)m->n_matrices + 1, sizeof *p.sources);
    uint8_t *to = m->packed = pe_os_alloc_huge(m->packed_bytes);
    pe_status status = PE_OK;
    if (!p.sources || !to)
        status = pe_fail(err, PE_ERR_MEMORY, NULL, "no memory for %zu bytes of weights", m->packed_bytes);
    for (int64_t i = 0; i < pe_gguf_n_tensors(g) && status == PE_OK; i++) {
        if (use[i].vector >= 0) status = read_vector(m, g, i, use[i].vector, err);
        if (use[i].matrix < 0) continue;
        pe_weight *w = &m->matrices[use[i].matrix];
        add_sources(&p, i, w, to);
        to += w->bytes;
    }
    if (status == PE_OK) {
        const int width = pe_pool_lock(threads);
        p.buffers = malloc((size_t)width * p.buffer_bytes);
        if (p.buffers) pe_parallel(width, p.sources[p.n_sources].first_item, pack_item, &p);
        else status = pe_fail(err, PE_ERR_MEMORY, NULL, "no memory to read weights");
        pe_pool_unlock();
    }
    free(p.buffers);
    free(p.sources);
    return atomic_load(&p.failed) ? (pe_status)err->code : status;
}

// Notes which values are multiplied in integers, so that what makes them can quantize them too.
static void find_integers(pe_model *m) {
    for (int32_t i = 0; i < m->n_ops; i++) {
        const pe_plan_op *op = &m->ops[i];
        if (op->kind != PE_OP_LINEAR) continue;
        for (int32_t k = 0; k < op->n_outputs; k++)
            if (!pe_class_is_float(m->matrices[op->weights[2 * k]].cls)) m->feeds_integers[op->inputs[0]] = true;
    }
}

static pe_status create(pe_model *m, const pe_gguf *g, const pe_op *ops, int32_t n_ops, const pe_model_options *o,
                        pe_tensor_use *use, pe_error *err) {
    const int64_t n_tensors = pe_gguf_n_tensors(g);
    for (int64_t i = 0; i < n_tensors; i++) use[i] = (pe_tensor_use){-1, -1};
    pe_status status = pe_plan_validate(m, g, ops, n_ops, use, err);
    if (status != PE_OK) return status;
    m->matrices = calloc((size_t)m->n_matrices, sizeof *m->matrices);
    m->vectors = calloc((size_t)m->n_vectors + 1, sizeof *m->vectors);
    m->vector_sizes = calloc((size_t)m->n_vectors + 1, sizeof *m->vector_sizes);
    m->feeds_integers = calloc((size_t)m->n_values, sizeof *m->feeds_integers);
    if (!m->matrices || !m->vectors || !m->vector_sizes || !m->feeds_integers)
        return pe_fail(err, PE_ERR_MEMORY, NULL, "out of memory");
    for (int64_t i = 0; i < n_tensors; i++) {
        const pe_tensor *t = pe_gguf_tensor(g, i);
        if (use[i].matrix >= 0) {
            shape_matrices(m, t, &m->matrices[use[i].matrix]);
            m->packed_bytes += m->matrices[use[i].matrix].bytes;
        }
        if (use[i].vector >= 0) m->bytes += (uint64_t)(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]) * sizeof(float);
    }
    if (m->precision == PE_PRECISION_FAST) find_integers(m);
    m->bytes += m->packed_bytes;
    pe_machine machine;
    pe_machine_query(&machine);
    if (m->bytes > machine.memory_available)
        return pe_fail_file(
            err, PE_ERR_MEMORY, pe_gguf_path(g), NULL,
            "its weights need %.2f GB, %.2f GB of memory are free; close other programs or take a smaller "
            "quantization",
            (double)m->bytes / 1e9, (double)machine.memory_available / 1e9);
    return pack_all(m, g, use, o->threads > 0 ? o->threads : machine.default_threads, err);
}

pe_status pe_model_create(const pe_gguf *g, const pe_op *ops, int32_t n_ops, const pe_model_options *options,
                          pe_model **out, pe_error *err) {
    *out = NULL;
    if (options->precision != PE_PRECISION_FAST && options->precision != PE_PRECISION_F32)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "no such precision: %d", options->precision);
    if (options->threads < 0 || options->threads > PE_MAX_THREADS)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "threads is %d: it must be 0 to %d", options->threads,
                       PE_MAX_THREADS);
    pe_error local;
    if (!err) err = &local;
    const pe_kernels *kernels = pe_kernels_active(err);
    if (!kernels) return (pe_status)err->code;
    pe_model *m = calloc(1, sizeof *m);
    pe_tensor_use *use = malloc(((size_t)pe_gguf_n_tensors(g) + 1) * sizeof *use);
    if (!m || !use) {
        free(m);
        free(use);
        return pe_fail(err, PE_ERR_MEMORY, NULL, "out of memory");
    }
    atomic_init(&m->references, 1);
    m->kernels = kernels;
    m->precision = (pe_precision)options->precision;
    const pe_status status = create(m, g, ops, n_ops, options, use, err);
    free(use);
    if (status == PE_OK) *out = m;
    else pe_model_release(m);
    return status;
}

int32_t pe_op_matrix(const pe_plan_op *op, int32_t slot) {
    int32_t n = 0;  // slots: each second one is a bias
    switch (op->kind) {
    case PE_OP_EMBED: n = 1; break;
    case PE_OP_LINEAR: n = 2 * op->n_outputs; break;
    case PE_OP_MOE: n = 8; break;
    case PE_OP_LOGITS: n = 2; break;
    default: break;
    }
    return slot >= 0 && slot < n && slot % 2 == 0 ? op->weights[slot] : -1;
}

typedef struct replacing {
    const pe_model *m;
    pe_weight *w;  // the first of the tensor's matrices
    const pe_format_row *format;
    const uint8_t *rows;
    size_t row_bytes;
    int64_t panels_per_item, items;  // of a matrix
} replacing;

static void replace_item(void *ctx, int64_t item, int worker) {
    (void)worker;
    const replacing *r = ctx;
    const int64_t matrix = item / r->items, p0 = item % r->items * r->panels_per_item;
    const pe_weight *w = &r->w[matrix];
    const uint8_t *rows = r->rows + (size_t)(matrix * w->rows) * r->row_bytes;
    const int64_t end = p0 + r->panels_per_item < w->n_panels ? p0 + r->panels_per_item : w->n_panels;
    r->m->kernels->pack(w, r->format, rows, p0, end);
}

pe_status pe_model_replace(pe_model *m, int32_t op, int32_t slot, int32_t type, const void *rows, uint64_t n_bytes,
                           int32_t threads, pe_error *err) {
    const int32_t matrix = op >= 0 && op < m->n_ops ? pe_op_matrix(&m->ops[op], slot) : -1;
    if (matrix < 0) return pe_fail(err, PE_ERR_ARGUMENT, NULL, "weight %d of op %d is no matrix", slot, op);
    pe_weight *w = &m->matrices[matrix];
    const char *name = m->ops[op].name;
    const pe_format_row *f = pe_format_row_by_type(type);
    if (!f || f->cls != w->cls || f->scales != w->scales)
        return pe_fail(err, PE_ERR_ARGUMENT, name, "weight %d is packed in another way than format %d is", slot, type);
    const size_t row_bytes = (size_t)w->n_blocks * (size_t)f->info.block_bytes;
    const uint64_t n = w->rows > 0 && row_bytes > 0 ? n_bytes / ((uint64_t)w->rows * row_bytes) : 0;
    if (n < 1 || n * (uint64_t)w->rows * row_bytes != n_bytes || tensor_bytes(w, (int64_t)n) != w->bytes)
        return pe_fail(err, PE_ERR_ARGUMENT, name, "weight %d has not %llu bytes", slot, (unsigned long long)n_bytes);
    if (threads < 0 || threads > PE_MAX_THREADS)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "threads is %d: it must be 0 to %d", threads, PE_MAX_THREADS);
    replacing r = {.m = m, .w = w, .format = f, .rows = rows, .row_bytes = row_bytes};
    r.panels_per_item = (int64_t)(ITEM_BYTES / w->panel_bytes) + 1;
    r.items = (w->n_panels + r.panels_per_item - 1) / r.panels_per_item;
    pe_machine machine;
    if (!threads) pe_machine_query(&machine);
    const int width = pe_pool_lock(threads ? threads : machine.default_threads);
    pe_parallel(width, (int64_t)n * r.items, replace_item, &r);
    pe_pool_unlock();
    return PE_OK;
}

void pe_model_retain(pe_model *m) { atomic_fetch_add(&m->references, 1); }

void pe_model_release(pe_model *m) {
    if (!m || atomic_fetch_sub(&m->references, 1) != 1) return;
    pe_os_free(m->packed, m->packed_bytes);
    for (int32_t i = 0; m->vectors && i < m->n_vectors; i++) free(m->vectors[i]);
    free(m->matrices);
    free(m->vectors);
    free(m->vector_sizes);
    free(m->layers);
    free(m->widths);
    free(m->feeds_integers);
    free(m->ops);
    free(m);
}

int32_t pe_model_n_ops(const pe_model *m) { return m->n_ops; }
int32_t pe_model_n_vocab(const pe_model *m) { return (int32_t)m->n_vocab; }
int32_t pe_model_n_outputs(const pe_model *m) { return (int32_t)m->n_outputs; }
int32_t pe_model_n_layers(const pe_model *m) { return m->n_layers; }
uint64_t pe_model_weight_bytes(const pe_model *m) { return m->bytes; }
const char *pe_model_isa(const pe_model *m) { return m->kernels->name; }
