// What the executor's files share: the op at hand, its values and weights, and the two ways in which its work is spread
// over the pool's threads. exec.c runs the plan and most ops, exec_moe.c mixtures of experts.
#ifndef PE_EXEC_H
#define PE_EXEC_H

#include "engine.h"

enum { SERIAL_FLOATS = 32768 };  // element-wise work below this is done by the caller: waking others costs more

typedef struct run {
    pe_engine *e;
    const pe_model *m;
    const pe_kernels *k;
    const pe_step *s;
    const pe_plan_op *op;
    int width;  // threads
} run;

static inline float *in(const run *r, int i) { return r->e->values[r->op->inputs[i]]; }
static inline float *out(const run *r, int i) { return r->e->values[r->op->outputs[i]]; }
static inline int64_t in_width(const run *r, int i) { return r->m->widths[r->op->inputs[i]]; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline const float *vector_of(const run *r, int slot) {
    const int32_t i = r->op->weights[slot];
    return i >= 0 ? r->m->vectors[i] : NULL;
}

// The product of weight slot i and its bias, slot i + 1.
static inline pe_product product_of(const run *r, int i, int64_t rows, float *y) {
    return (pe_product){
        .w = &r->m->matrices[r->op->weights[i]], .bias = vector_of(r, i + 1), .y = y, .row0 = 0, .row1 = rows};
}

// Calls row(r, i) for i < rows. row_width: how much work one is, in floats that are added.
void pe_each_row(const run *r, int64_t rows, int64_t row_width, void (*row)(const run *r, int64_t i));

// The products of one input x [rows, cols], n of them. One without rows must not be among them.
void pe_multiply(const run *r, const float *x, int64_t rows, int64_t cols, pe_product *products, int32_t n);

// Adds the squares of x [rows, cols] to what is collected for the matrices of these products.
void pe_collect(const run *r, const float *x, int64_t cols, const pe_product *products, int32_t n);

void pe_run_moe(const run *r);

#endif
