// Mixtures of experts: which experts a token goes to, and the products of each expert with the tokens that are its own.
// How they are computed is exec.c's.
#include <math.h>

#include "exec.h"

// A score that is no number is the highest, so that the output is none either.
static float rank(float score) { return isnan(score) ? INFINITY : score; }

// The n_used experts with the highest scores, the lower number first among equals, and their weights.
static void route_row(const run *r, int64_t t) {
    const pe_moe_parameters *p = &r->op->moe;
    const pe_moe *moe = &r->e->moe;
    float *scores = moe->scores + t * p->n_experts;
    float *weights = moe->weights + t * p->n_used;
    int32_t *experts = moe->experts + t * p->n_used;
    for (int64_t u = 0; u < p->n_used; u++) {
        int32_t best = -1;
        for (int32_t e = 0; e < p->n_experts; e++) {
            bool taken = false;
            for (int64_t i = 0; i < u; i++) taken |= experts[i] == e;
            if (!taken && (best < 0 || rank(scores[e]) > rank(scores[best]))) best = e;
        }
        experts[u] = best;
    }
    const float top = scores[experts[0]];
    float sum = 0;
    for (int64_t u = 0; u < p->n_used; u++) sum += weights[u] = expf(scores[experts[u]] - top);
    if (!p->chosen) {
        sum = 0;
        for (int64_t e = 0; e < p->n_experts; e++) sum += expf(scores[e] - top);
    }
    for (int64_t u = 0; u < p->n_used; u++) weights[u] /= sum;
}

// Places each (token, choice) among the rows of its expert, in order of tokens.
static void sort_by_expert(const run *r) {
    const pe_moe_parameters *p = &r->op->moe;
    const pe_moe *moe = &r->e->moe;
    const int64_t n = r->s->n_tokens * p->n_used;
    memset(moe->first_row, 0, ((size_t)p->n_experts + 1) * sizeof *moe->first_row);
    for (int64_t i = 0; i < n; i++) moe->first_row[moe->experts[i] + 1]++;
    for (int64_t e = 0; e < p->n_experts; e++) moe->first_row[e + 1] += moe->first_row[e];
    for (int64_t i = 0; i < n; i++) moe->row_of[i] = moe->first_row[moe->experts[i]]++;
    for (int64_t e = p->n_experts; e > 0; e--) moe->first_row[e] = moe->first_row[e - 1];
    moe->first_row[0] = 0;
}

// Appends the products of weight slot i with the experts that have rows.
static int32_t expert_products(const run *r, int i, float *y, int32_t n) {
    const pe_moe *moe = &r->e->moe;
    for (int32_t e = 0; e < r->op->moe.n_experts; e++) {
        if (moe->first_row[e] == moe->first_row[e + 1]) continue;
        pe_product o = product_of(r, i, moe->first_row[e + 1], y);
        o.w += e;
        if (o.bias) o.bias += e * o.w->rows;
        o.row0 = moe->first_row[e];
        moe->products[n++] = o;
    }
    return n;
}

static void gather_row(const run *r, int64_t t) {
    const int64_t n = in_width(r, 0), n_used = r->op->moe.n_used;
    for (int64_t u = 0; u < n_used; u++)
        memcpy(r->e->gathered + r->e->moe.row_of[t * n_used + u] * n, in(r, 0) + t * n, (size_t)n * sizeof(float));
}

static void expert_activation_row(const run *r, int64_t i) {
    const int64_t n = r->op->moe.d_ff;
    float *gate = r->e->moe.gate + i * n;
    r->k->activation((pe_function)r->op->moe.function, gate, r->e->moe.up + i * n, n, gate);
}

// In the order in which the token chose them.
static void combine_row(const run *r, int64_t t) {
    const pe_moe *moe = &r->e->moe;
    const int64_t n = in_width(r, 0), n_used = r->op->moe.n_used;
    float *y = out(r, 0) + t * n;
    for (int64_t u = 0; u < n_used; u++) {
        const float *x = r->e->gathered + moe->row_of[t * n_used + u] * n, weight = moe->weights[t * n_used + u];
        if (u == 0) r->k->scale(x, weight, n, y);
        else r->k->add(y, x, weight, n, y);
    }
}

void pe_run_moe(const run *r) {
    const pe_moe_parameters *p = &r->op->moe;
    const pe_moe *moe = &r->e->moe;
    const int64_t n_tokens = r->s->n_tokens, d_model = in_width(r, 0), n_rows = n_tokens * p->n_used;
    pe_product router = product_of(r, 0, n_tokens, moe->scores);
    pe_multiply(r, in(r, 0), n_tokens, d_model, &router, 1);
    pe_each_row(r, n_tokens, p->n_experts * p->n_used, route_row);
    sort_by_expert(r);
    pe_each_row(r, n_tokens, d_model * p->n_used, gather_row);
    const int32_t n_gates = expert_products(r, 2, moe->gate, 0);
    pe_multiply(r, r->e->gathered, n_rows, d_model, moe->products, expert_products(r, 4, moe->up, n_gates));
    pe_each_row(r, n_rows, 4 * p->d_ff, expert_activation_row);
    pe_multiply(r, moe->gate, n_rows, p->d_ff, moe->products, expert_products(r, 6, r->e->gathered, 0));
    pe_each_row(r, n_tokens, d_model * p->n_used, combine_row);
}
