// What goes into each matrix: sums of squares of what it is multiplied with, column by column, for importance matrices.
// Taken where products are made, so that experts and fused inputs need nothing of their own.
#include <stdlib.h>

#include "exec.h"
#include "threads.h"

enum { BLOCK = 512 };  // columns of a work item

typedef struct squares_job {
    const run *r;
    const float *x;
    int64_t cols, blocks;
    const pe_product *products;
} squares_job;

static void add_item(void *ctx, int64_t item, int worker) {
    (void)worker;
    const squares_job *j = ctx;
    const pe_product *o = &j->products[item / j->blocks];
    const int64_t first = item % j->blocks * BLOCK, n = least(BLOCK, j->cols - first);
    const int64_t matrix = o->w - j->r->m->matrices;
    double *sums = j->r->e->collected.sums + j->r->e->collected.first[matrix] + first;
    for (int64_t row = o->row0; row < o->row1; row++) {
        const float *x = j->x + row * j->cols + first;
        for (int64_t i = 0; i < n; i++) sums[i] += (double)x[i] * x[i];
    }
}

void pe_collect(const run *r, const float *x, int64_t cols, const pe_product *products, int32_t n) {
    squares_job j = {.r = r, .x = x, .cols = cols, .blocks = (cols + BLOCK - 1) / BLOCK, .products = products};
    for (int32_t i = 0; i < n; i++)
        r->e->collected.rows[products[i].w - r->m->matrices] += products[i].row1 - products[i].row0;
    pe_parallel(r->width, n * j.blocks, add_item, &j);
}

void pe_collected_free(pe_engine *e) {
    free(e->collected.sums);
    free(e->collected.first);
    free(e->collected.rows);
    memset(&e->collected, 0, sizeof e->collected);
}

pe_status pe_engine_collect(pe_engine *e, bool on, pe_error *err) {
    pe_collected_free(e);
    if (!on) return PE_OK;
    const pe_model *m = e->model;
    const size_t n = (size_t)m->n_matrices;
    int64_t *first = calloc(n + 1, sizeof *first), *rows = calloc(n + 1, sizeof *rows);
    if (first)
        for (size_t i = 0; i < n; i++) first[i + 1] = first[i] + m->matrices[i].cols;
    double *sums = first ? calloc((size_t)first[n] + 1, sizeof *sums) : NULL;
    e->collected.first = first;
    e->collected.rows = rows;
    e->collected.sums = sums;
    if (sums && rows) return PE_OK;
    pe_collected_free(e);
    return pe_fail(err, PE_ERR_MEMORY, NULL, "out of memory");
}

pe_status pe_engine_collected(const pe_engine *e, int32_t op, int32_t slot, pe_collected *out, pe_error *err) {
    const pe_model *m = e->model;
    if (!e->collected.sums)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "nothing is collected; call pe_engine_collect first");
    const bool multiplies = op >= 0 && op < m->n_ops && m->ops[op].kind != PE_OP_EMBED;
    const int32_t matrix = multiplies ? pe_op_matrix(&m->ops[op], slot) : -1;
    if (matrix < 0)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "weight %d of op %d is multiplied with nothing", slot, op);
    const bool experts = m->ops[op].kind == PE_OP_MOE && slot > 0;
    *out = (pe_collected){.sums = e->collected.sums + e->collected.first[matrix],
                          .rows = e->collected.rows + matrix,
                          .n = experts ? (int32_t)m->ops[op].moe.n_experts : 1,
                          .columns = m->matrices[matrix].cols};
    return PE_OK;
}
