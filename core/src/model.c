// Makes a model: validates the plan, packs each tensor it uses once, and keeps nothing of the file.
#include "model.h"

#include <stdlib.h>

#include "os.h"
#include "threads.h"

enum { PREFETCH_TAIL = 4096 };  // bytes behind a matrix that prefetches may touch

typedef struct packing {
    const pe_model *m;
    const pe_gguf *g;
    int64_t tensor;
    uint64_t first;  // byte of the tensor's data that the matrix begins at
    const pe_weight *w;
    const pe_format_row *format;
    int64_t panels_per_item;
    size_t row_bytes;
    uint8_t *buffers;  // [workers, buffer_bytes]: the rows of an item, as the file has them
    size_t buffer_bytes;
    atomic_bool failed;
    pe_error *err;  // of the first that failed
} packing;

static void pack_item(void *ctx, int64_t item, int worker) {
    packing *p = ctx;
    const int64_t p0 = item * p->panels_per_item, p1 = p0 + p->panels_per_item, row = p0 * p->w->lanes;
    pe_weight part = *p->w;
    part.data += (size_t)p0 * part.panel_bytes;
    part.n_panels = (p1 < part.n_panels ? p1 : part.n_panels) - p0;
    part.rows = (p1 * part.lanes < part.rows ? p1 * part.lanes : part.rows) - row;
    uint8_t *rows = p->buffers + (size_t)worker * p->buffer_bytes;
    pe_error err;
    if (atomic_load(&p->failed)) return;
    if (pe_gguf_read(p->g, p->tensor, p->first + (uint64_t)row * p->row_bytes, rows, (size_t)part.rows * p->row_bytes,
                     &err) == PE_OK)
        p->m->kernels->pack(&part, p->format, rows, 0, part.n_panels);
    else if (!atomic_exchange(&p->failed, true)) *p->err = err;
}

// Packs the matrices of tensor i; w[0].data is the memory for all.
static pe_status pack_matrices(const pe_model *m, const pe_gguf *g, int64_t i, pe_weight *w, int width, pe_error *err) {
    const pe_tensor *t = pe_gguf_tensor(g, i);
    const pe_format_row *f = pe_format_row_by_type(t->type);
    packing p = {.m = m, .g = g, .tensor = i, .format = f, .err = err};
    p.panels_per_item = w->panel_bytes > 65536 ? 1 : (int64_t)(65536 / w->panel_bytes) + 1;
    p.row_bytes = (size_t)(t->ne[0] / f->info.block_values) * (size_t)f->info.block_bytes;
    const int64_t panels = p.panels_per_item < w->n_panels ? p.panels_per_item : w->n_panels;
    p.buffer_bytes = ((size_t)(panels * w->lanes) * p.row_bytes + 63) / 64 * 64;  // workers share no cache line
    p.buffers = malloc((size_t)width * p.buffer_bytes);
    if (!p.buffers) return pe_fail(err, PE_ERR_MEMORY, t->name, "no memory to read it");
    for (int64_t e = 0; e < t->ne[2] && !atomic_load(&p.failed); e++) {
        w[e].data = w->data + (size_t)(e * w->n_panels) * w->panel_bytes;
        p.w = &w[e];
        p.first = (uint64_t)e * (t->n_bytes / (uint64_t)t->ne[2]);
        pe_parallel(width, (w->n_panels + p.panels_per_item - 1) / p.panels_per_item, pack_item, &p);
    }
    free(p.buffers);
    return atomic_load(&p.failed) ? (pe_status)err->code : PE_OK;
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
    w->bytes = (size_t)t->ne[2] * (size_t)w->n_panels * w->panel_bytes + PREFETCH_TAIL;
}

static pe_status pack_all(pe_model *m, const pe_gguf *g, const pe_tensor_use *use, int threads, pe_error *err) {
    pe_status status = PE_OK;
    const int width = pe_pool_lock(threads);
    for (int64_t i = 0; i < pe_gguf_n_tensors(g) && status == PE_OK; i++) {
        const pe_tensor *t = pe_gguf_tensor(g, i);
        if (use[i].vector >= 0) {
            const int64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
            float *to = m->vectors[use[i].vector] = malloc((size_t)n * sizeof *to);
            m->vector_sizes[use[i].vector] = n;
            if (!to) status = pe_fail(err, PE_ERR_MEMORY, t->name, "out of memory");
            else status = pe_gguf_dequantize(g, i, to, err);
        }
        if (use[i].matrix < 0 || status != PE_OK) continue;
        pe_weight *w = &m->matrices[use[i].matrix];
        w->data = pe_os_alloc(w->bytes);
        if (!w->data) {
            status = pe_fail(err, PE_ERR_MEMORY, t->name, "no memory for %zu bytes of weights", w->bytes);
            break;
        }
        status = pack_matrices(m, g, i, w, width, err);
    }
    pe_pool_unlock();
    return status;
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
    if (!m->matrices || !m->vectors || !m->vector_sizes) return pe_fail(err, PE_ERR_MEMORY, NULL, "out of memory");
    for (int64_t i = 0; i < n_tensors; i++) {
        const pe_tensor *t = pe_gguf_tensor(g, i);
        if (use[i].matrix >= 0) {
            shape_matrices(m, t, &m->matrices[use[i].matrix]);
            m->bytes += m->matrices[use[i].matrix].bytes;
        }
        if (use[i].vector >= 0) m->bytes += (uint64_t)(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]) * sizeof(float);
    }
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

void pe_model_retain(pe_model *m) { atomic_fetch_add(&m->references, 1); }

void pe_model_release(pe_model *m) {
    if (!m || atomic_fetch_sub(&m->references, 1) != 1) return;
    for (int32_t i = 0; m->matrices && i < m->n_matrices; i++)
        if (m->matrices[i].bytes) pe_os_free(m->matrices[i].data, m->matrices[i].bytes);
    for (int32_t i = 0; m->vectors && i < m->n_vectors; i++) free(m->vectors[i]);
    free(m->matrices);
    free(m->vectors);
    free(m->vector_sizes);
    free(m->layers);
    free(m->widths);
    free(m->ops);
    free(m);
}

int32_t pe_model_n_ops(const pe_model *m) { return m->n_ops; }
int32_t pe_model_n_vocab(const pe_model *m) { return (int32_t)m->n_vocab; }
int32_t pe_model_n_outputs(const pe_model *m) { return (int32_t)m->n_outputs; }
int32_t pe_model_n_layers(const pe_model *m) { return m->n_layers; }
uint64_t pe_model_weight_bytes(const pe_model *m) { return m->bytes; }
const char *pe_model_isa(const pe_model *m) { return m->kernels->name; }
