// Paged attention. Keys are taken in chunks of 64 from position 0; each chunk gives a partial (max, sum, weighted
// values) of its own, and partials merge in chunk order: so a query's bits depend on its own sequence alone, whether it
// runs with 511 others or by itself, on one thread or cut over several (Dao et al. 2022, arXiv:2205.14135, with fixed cuts).
// Slots past a query's own position may hold anything, NaN included: their scores are replaced, never multiplied.
//
// What the cache holds is unpacked (kv.c) once for all the queries of a call, a chunk at a time, into floats that stay in
// the nearest cache: the loops here know neither pages nor types.
#include <math.h>

#include "cpu.h"

enum {
    CHUNK_VECTORS = PE_CHUNK / VL,
    ROWS_PER_TILE = 4,
    // Sums of a tile: as many as the registers hold beside a vector for each column and one for a row.
    VECTORS_PER_TILE = V_REGISTERS >= 32 ? 4 : 2,
};

typedef struct workspace {
    float keys[PE_MAX_HEAD_DIM * PE_CHUNK];    // [head_dim, 64]
    float values[PE_MAX_HEAD_DIM * PE_CHUNK];  // [64, ld]
} workspace;

static int64_t value_stride(const pe_kv_view *kv) { return (kv->head_dim + VL - 1) / VL * VL; }

// scores[r][64]: q_r . k_j for the vectors [v0, v0 + V), in order of d
PE_INLINE void score_tile(const int R, const int V, const float *keys, int v0, const float *const *q, int head_dim,
                          float (*scores)[PE_CHUNK]) {
    vf s[ROWS_PER_TILE][CHUNK_VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) s[r][v] = vf_zero();
    const float *key = keys + v0 * VL;
    for (int d = 0; d < head_dim; d++, key += PE_CHUNK) {
        vf k[CHUNK_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) k[v] = vf_load(key + v * VL);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const vf x = vf_set1(q[r][d]);
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) s[r][v] = vf_fma(x, k[v], s[r][v]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) vf_store(scores[r] + (v0 + v) * VL, s[r][v]);
}

// n: keys that some row sees
PE_INLINE void score_rows(const int R, const float *keys, int n, const float *const *q, int head_dim,
                          float (*scores)[PE_CHUNK]) {
    const int V = R == 1 ? 4 : VECTORS_PER_TILE, vectors = (n + VL - 1) / VL;
    int v = 0;
    for (; v + V <= vectors; v += V) score_tile(R, V, keys, v, q, head_dim, scores);
    for (; v < vectors; v++) score_tile(R, 1, keys, v, q, head_dim, scores);
}

// acc[r][dims of V vectors] += sum over keys [j0, j1) of p[r][j] * value[j], in order of j
PE_INLINE void value_tile(const int R, const int V, const float *values, int64_t ld, int d0, int j0, int j1,
                          float (*p)[PE_CHUNK], float *const *acc) {
    vf s[ROWS_PER_TILE][8];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) s[r][v] = vf_load(acc[r] + d0 + v * VL);
    const float *value = values + j0 * ld + d0;
    for (int j = j0; j < j1; j++, value += ld) {
        vf x[8];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) x[v] = vf_load(value + v * VL);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const vf weight = vf_set1(p[r][j]);
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) s[r][v] = vf_fma(weight, x[v], s[r][v]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) vf_store(acc[r] + d0 + v * VL, s[r][v]);
}

PE_INLINE void value_rows(const int R, const float *values, int64_t ld, int j0, int j1, float (*p)[PE_CHUNK],
                          float *const *acc) {
    const int V = R <= 2 ? 4 : VECTORS_PER_TILE;
    int d = 0;
    for (; d + V * VL <= ld; d += V * VL) value_tile(R, V, values, ld, d, j0, j1, p, acc);
    for (; d < ld; d += VL) value_tile(R, 1, values, ld, d, j0, j1, p, acc);
}

// Scores become exp(score - max) for the keys that the row sees, and 0 for others.
PE_INLINE void soften(const bool whole, const pe_attention *a, pe_span sees, float *scores, pe_partial *out) {
    const int vectors = whole ? CHUNK_VECTORS : (sees.end + VL - 1) / VL;
    vf top = vf_set1(-INFINITY), sum = vf_zero();
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
        vf s = vf_mul(vf_load(scores + v * VL), vf_set1(a->scale));
        if (a->softcap > 0) s = vf_softcap(s, a->softcap);
        if (!whole) {
            s = vf_keep_n(s, sees.end - v * VL, -INFINITY);
            if (sees.first > v * VL) s = vf_drop_n(s, sees.first - v * VL, -INFINITY);
        }
        vf_store(scores + v * VL, s);
        top = vf_max(top, s);
    }
    out->m = vf_hmax(top);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
        vf p = vf_exp(vf_sub(vf_load(scores + v * VL), vf_set1(out->m)));
        if (!whole) {
            p = vf_keep_n(p, sees.end - v * VL, 0);
            if (sees.first > v * VL) p = vf_drop_n(p, sees.first - v * VL, 0);
        }
        vf_store(scores + v * VL, p);
        sum = vf_add(sum, p);
    }
    out->l = vf_sum(sum);
}

// The partials of R query rows over one chunk. sees[r]: keys of the chunk that row r sees, at least one.
PE_INLINE void partial_rows(const int R, const workspace *w, const pe_attention *a, const float *const *q,
                            const pe_span *sees, pe_partial *const *out) {
    const int64_t ld = value_stride(&a->kv);
    float scores[ROWS_PER_TILE][PE_CHUNK], *acc[ROWS_PER_TILE];
    pe_span common = {0, PE_CHUNK};
    int n = 0;
    for (int r = 0; r < R; r++) {
        if (sees[r].first > common.first) common.first = sees[r].first;
        if (sees[r].end < common.end) common.end = sees[r].end;
        if (sees[r].end > n) n = sees[r].end;
        acc[r] = out[r]->acc;
        memset(acc[r], 0, (size_t)ld * sizeof(float));
    }
    score_rows(R, w->keys, n, q, a->kv.head_dim, scores);
    if (common.first == 0 && common.end == PE_CHUNK) {
        for (int r = 0; r < R; r++) soften(true, a, common, scores[r], out[r]);
        value_rows(R, w->values, ld, 0, PE_CHUNK, scores, acc);
        return;
    }
    for (int r = 0; r < R; r++) soften(false, a, sees[r], scores[r], out[r]);
    // Each row's values in order of the keys it sees, and no others: even a zero times a value could change a zero's sign.
    if (common.first >= common.end) common.first = common.end = PE_CHUNK;
    for (int r = 0; r < R; r++) {
        const int before = sees[r].end < common.first ? sees[r].end : common.first;
        if (sees[r].first < before) value_rows(1, w->values, ld, sees[r].first, before, scores + r, acc + r);
    }
    if (common.first < common.end) value_rows(R, w->values, ld, common.first, common.end, scores, acc);
    for (int r = 0; r < R; r++)
        if (sees[r].end > common.end) value_rows(1, w->values, ld, common.end, sees[r].end, scores + r, acc + r);
}

#define PARTIAL_FN(R)                                                                                      \
    __attribute__((flatten, noinline)) static void partial_##R(const workspace *w, const pe_attention *a,  \
                                                               const float *const *q, const pe_span *sees, \
                                                               pe_partial *const *out) {                   \
        partial_rows(R, w, a, q, sees, out);                                                               \
    }
PARTIAL_FN(1)
PARTIAL_FN(2)
PARTIAL_FN(3)
PARTIAL_FN(4)
static void (*const partials_of[ROWS_PER_TILE])(const workspace *w, const pe_attention *a, const float *const *q,
                                                const pe_span *sees,
                                                pe_partial *const *out) = {partial_1, partial_2, partial_3, partial_4};

// into [R]: the states so far. All weights go through the same exp, lane by lane, so that a merge is one fixed function of
// two partials.
static void merge(pe_partial *const *into, const pe_partial *const *from, int R, int64_t n) {
    float old[VL] = {0}, new[VL] = {0}, top[VL];
    for (int r = 0; r < R; r++) old[r] = into[r]->m, new[r] = from[r]->m;
    const vf m = vf_max(vf_load(old), vf_load(new));
    vf_store(old, vf_exp(vf_sub(vf_load(old), m)));
    vf_store(new, vf_exp(vf_sub(vf_load(new), m)));
    vf_store(top, m);
    for (int r = 0; r < R; r++) {
        const vf a = vf_set1(old[r]), b = vf_set1(new[r]);
        into[r]->m = top[r];
        into[r]->l = vf_first(vf_fma(vf_set1(from[r]->l), b, vf_mul(vf_set1(into[r]->l), a)));
        for (int64_t d = 0; d < n; d += VL)
            vf_store(into[r]->acc + d, vf_fma(vf_load(from[r]->acc + d), b, vf_mul(vf_load(into[r]->acc + d), a)));
    }
}

// A sink is one more score in the softmax, of a key whose value is zero.
static void finish(const pe_partial *p, const float *sink, int head_dim, float *out) {
    vf by = vf_set1(p->l), times = vf_set1(1);
    if (sink) {
        const vf m = vf_max(vf_set1(p->m), vf_set1(*sink));
        times = vf_exp(vf_sub(vf_set1(p->m), m));
        by = vf_fma(by, times, vf_exp(vf_sub(vf_set1(*sink), m)));
    }
    const vf factor = vf_div(times, by);
    int d = 0;
    for (; d + VL <= head_dim; d += VL) vf_store(out + d, vf_mul(vf_load(p->acc + d), factor));
    if (d < head_dim) vf_store_n(out + d, vf_mul(vf_load(p->acc + d), factor), head_dim - d);
}

// Query rows of the call: token t0 + i / group, query head kv_head * group + i % group.
PE_INLINE int64_t row_offset(const pe_attention *a, int32_t kv_head, int group, int32_t t0, int i, int64_t ld) {
    return (t0 + i / group) * ld + (int64_t)(kv_head * group + i % group) * a->kv.head_dim;
}

PE_INLINE const float *sink_of(const pe_attention *a, int32_t kv_head, int group, int i) {
    return a->sinks ? a->sinks + kv_head * group + i % group : NULL;
}

// What a token sees of chunk c, from the chunk's first key on.
PE_INLINE pe_span sees_of_chunk(const pe_attention *a, int32_t t, int32_t c) {
    pe_span s = pe_attention_sees(a, t);
    s.first -= c * PE_CHUNK;
    s.end -= c * PE_CHUNK;
    return (pe_span){s.first > 0 ? s.first : 0, s.end < PE_CHUNK ? s.end : PE_CHUNK};
}

void PE_FN(attention)(const pe_attention *a, int32_t kv_head, int32_t t0, int32_t t1, void *scratch) {
    const int group = a->n_heads / a->kv.n_kv_heads, rows = (t1 - t0) * group, head_dim = a->kv.head_dim;
    const int64_t ld = value_stride(&a->kv);
    workspace *w = scratch;
    pe_partial *state = (pe_partial *)(w + 1), *fresh = state + pe_attention_rows(group);  // [rows], [ROWS_PER_TILE]
    // Both ends of what a token sees grow with its position: the rows that see some of a chunk lie side by side.
    const int32_t end = pe_attention_sees(a, t1 - 1).end;
    for (int32_t c = pe_attention_sees(a, t0).first / PE_CHUNK; c * PE_CHUNK < end; c++) {
        PE_FN(kv_unpack)(&a->kv, kv_head, c, end, w->keys, w->values, ld);
        int32_t from = t0, to = t1;
        while (from < to && sees_of_chunk(a, from, c).end <= 0) from++;
        while (to > from && sees_of_chunk(a, to - 1, c).first >= PE_CHUNK) to--;
        int32_t t = from, of_group = 0;
        pe_span seen = sees_of_chunk(a, t, c);
        for (int i = (from - t0) * group; t < to;) {
            const float *q[ROWS_PER_TILE];
            pe_partial *out[ROWS_PER_TILE], *old[ROWS_PER_TILE];
            const pe_partial *new[ROWS_PER_TILE];
            pe_span sees[ROWS_PER_TILE];
            int R = 0, merged = 0;
            for (; R < ROWS_PER_TILE && t < to; R++, i++) {
                sees[R] = seen;
                q[R] = a->q + t * a->ldq + (int64_t)(kv_head * group + of_group) * head_dim;
                const bool first = c == pe_attention_sees(a, t).first / PE_CHUNK;
                out[R] = first ? &state[i] : &fresh[R];
                if (!first) old[merged] = &state[i], new[merged++] = &fresh[R];
                if (++of_group < group) continue;
                of_group = 0;
                if (++t < to) seen = sees_of_chunk(a, t, c);
            }
            partials_of[R - 1](w, a, q, sees, out);
            merge(old, new, merged, ld);
        }
    }
    for (int i = 0; i < rows; i++)
        finish(&state[i], sink_of(a, kv_head, group, i), head_dim,
               a->out + row_offset(a, kv_head, group, t0, i, a->ldo));
}

void PE_FN(attention_chunks)(const pe_attention *a, int32_t kv_head, int32_t t, int32_t c0, int32_t c1,
                             pe_partial *partials, void *scratch) {
    const int group = a->n_heads / a->kv.n_kv_heads;
    const pe_span span = pe_attention_sees(a, t);
    const int32_t first = span.first / PE_CHUNK, end = c1 * PE_CHUNK < span.end ? c1 * PE_CHUNK : span.end;
    workspace *w = scratch;
    for (int32_t c = c0 > first ? c0 : first; c < c1; c++) {
        const pe_span seen = sees_of_chunk(a, t, c);
        PE_FN(kv_unpack)(&a->kv, kv_head, c, end, w->keys, w->values, value_stride(&a->kv));
        for (int i = 0; i < group; i += ROWS_PER_TILE) {
            const float *q[ROWS_PER_TILE];
            pe_partial *out[ROWS_PER_TILE];
            pe_span sees[ROWS_PER_TILE];
            int R = 0;
            for (; R < ROWS_PER_TILE && i + R < group; R++) {
                sees[R] = seen;
                q[R] = a->q + row_offset(a, kv_head, group, t, i + R, a->ldq);
                out[R] = &partials[(int64_t)c * group + i + R];
            }
            partials_of[R - 1](w, a, q, sees, out);
        }
    }
}

void PE_FN(attention_merge)(const pe_attention *a, int32_t kv_head, int32_t t, pe_partial *partials) {
    const int group = a->n_heads / a->kv.n_kv_heads;
    const pe_span sees = pe_attention_sees(a, t);
    const int32_t first = sees.first / PE_CHUNK, end = (sees.end + PE_CHUNK - 1) / PE_CHUNK;
    for (int i = 0; i < group; i += ROWS_PER_TILE) {
        const int R = group - i < ROWS_PER_TILE ? group - i : ROWS_PER_TILE;
        pe_partial *into[ROWS_PER_TILE];
        for (int r = 0; r < R; r++) into[r] = &partials[(int64_t)first * group + i + r];
        for (int32_t c = first + 1; c < end; c++) {
            const pe_partial *from[ROWS_PER_TILE];
            for (int r = 0; r < R; r++) from[r] = &partials[(int64_t)c * group + i + r];
            merge(into, from, R, value_stride(&a->kv));
        }
        for (int r = 0; r < R; r++)
            finish(into[r], sink_of(a, kv_head, group, i + r), a->kv.head_dim,
                   a->out + row_offset(a, kv_head, group, t, i + r, a->ldo));
    }
}
