// Paged attention. Keys are taken in chunks of 64 from position 0; each chunk gives a partial (max, sum, weighted
// values) of its own, and partials merge in chunk order: so a query's bits depend on its own sequence alone, whether it
// runs with 511 others or by itself, on one thread or cut over several (Dao et al. 2022, arXiv:2205.14135, with fixed cuts).
// Slots past a query's own position may hold anything, NaN included: their scores are replaced, never multiplied.
#include <math.h>

#include "kv.h"

enum { CHUNK_VECTORS = PE_CHUNK / VL, ROWS_PER_TILE = 4 };

typedef struct chunk {
    const uint8_t *k[CHUNK_VECTORS];                                    // the vector's keys at d = 0
    const uint8_t *v[PE_CHUNK / 8];                                     // first value row of each page
    const uint16_t *k_scales[CHUNK_VECTORS], *v_scales[CHUNK_VECTORS];  // of the vector's keys, block 0; if quantized
    int64_t k_stride;                                                   // bytes from one d to the next; q4_0: two d
    int n_vectors;                                                      // of keys that some query sees
} chunk;

// n: keys of the chunk that the last query of the call sees.
static void open_chunk(const pe_kv_view *kv, int32_t kv_head, int32_t c, int n, chunk *out) {
    const int per_page = kv->page_size / VL;
    const int64_t head_bytes = (int64_t)pe_kv_head_bytes(kv->type, kv->head_dim, kv->page_size);
    const int64_t scales_at = kv_scales_at(kv->type, kv->head_dim, kv->page_size);
    out->k_stride = kv_key_stride(kv->type, kv->page_size);
    out->n_vectors = (n + VL - 1) / VL;
    for (int page = 0; page * kv->page_size < n; page++) {
        const int64_t number = kv->table[c * (PE_CHUNK / kv->page_size) + page];
        const uint8_t *k = (const uint8_t *)kv->k + (number * kv->n_kv_heads + kv_head) * head_bytes;
        const uint8_t *v = (const uint8_t *)kv->v + (number * kv->n_kv_heads + kv_head) * head_bytes;
        out->v[page] = v;
        for (int i = 0; i < per_page; i++) {
            const int at = page * per_page + i;
            out->k[at] = k + i * VL * (out->k_stride / kv->page_size);
            out->k_scales[at] = (const uint16_t *)(k + scales_at) + i * VL;
            out->v_scales[at] = (const uint16_t *)(v + scales_at) + i * VL;
        }
    }
}

// scores[r][64]: q_r . k_j for the vectors [v0, v0 + V), in order of d; of quantized keys the sum over a block, in order
// of d, times its scale, in order of blocks.
PE_INLINE void score_tile(const int32_t type, const int R, const int V, const chunk *c, int v0, const float *const *q,
                          int head_dim, int page_size, float (*scores)[PE_CHUNK]) {
    vf s[ROWS_PER_TILE][CHUNK_VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) s[r][v] = vf_zero();
    const uint8_t *k[CHUNK_VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) k[v] = c->k[v0 + v];
    const int block = kv_has_scales(type) ? PE_KV_BLOCK : head_dim;
    for (int d0 = 0; d0 < head_dim; d0 += block) {
        const int end = d0 + block < head_dim ? d0 + block : head_dim;
        vf part[ROWS_PER_TILE][CHUNK_VECTORS];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) part[r][v] = vf_zero();
        for (int d = d0; d < end; d++)
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) {
                const vf key = kv_load_keys(type, k[v], c->k_stride, d);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) part[r][v] = vf_fma(vf_set1(q[r][d]), key, part[r][v]);
            }
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) {
            vf scale = vf_zero();
            if (kv_has_scales(type)) scale = vf_load_f16(c->k_scales[v0 + v] + d0 / PE_KV_BLOCK * page_size);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) s[r][v] = kv_has_scales(type) ? vf_fma(part[r][v], scale, s[r][v]) : part[r][v];
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) vf_store(scores[r] + (v0 + v) * VL, s[r][v]);
}

PE_INLINE void score_rows(const int32_t type, const int R, const chunk *c, const float *const *q, int head_dim,
                          int page_size, float (*scores)[PE_CHUNK]) {
    const int V = R == 1 ? 4 : kv_has_scales(type) ? 1 : 2;  // a quantized tile has twice as many sums
    int v = 0;
    for (; v + V <= c->n_vectors; v += V) score_tile(type, R, V, c, v, q, head_dim, page_size, scores);
    for (; v < c->n_vectors; v++) score_tile(type, R, 1, c, v, q, head_dim, page_size, scores);
}

// acc[r][dims of V vectors] += sum over keys [j0, j1) of p[r][j] * value[j], in order of j
PE_INLINE void value_tile(const int32_t type, const int R, const int V, const chunk *c, const pe_kv_view *kv, int d0,
                          int j0, int j1, const float *const *p, float *const *acc) {
    const int64_t stride = kv_value_stride(type, kv->head_dim);
    vf s[ROWS_PER_TILE][8];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) s[r][v] = vf_load(acc[r] + d0 + v * VL);
    for (int j = j0; j < j1;) {
        const int page = j / kv->page_size, page_end = (page + 1) * kv->page_size, end = page_end < j1 ? page_end : j1;
        const uint8_t *row = c->v[page] + (j - page * kv->page_size) * stride;
        for (; j < end; j++, row += stride)
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) {
                const vf x = kv_load_values(type, row, d0 + v * VL);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) s[r][v] = vf_fma(vf_set1(p[r][j]), x, s[r][v]);
            }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) vf_store(acc[r] + d0 + v * VL, s[r][v]);
}

// p[r]: [64]. Of quantized values each weight is first multiplied by the scale of its key's block.
PE_INLINE void value_rows(const int32_t type, const int R, const chunk *c, const pe_kv_view *kv, int j0, int j1,
                          const float *const *p, float *const *acc) {
    const int V = R == 1 ? (kv_has_scales(type) ? 4 : 8) : R == 2 ? 4 : 2;
    const int block = kv_has_scales(type) ? PE_KV_BLOCK : kv->head_dim;
    for (int d = 0; d < kv->head_dim;) {
        const int end = d + block < kv->head_dim ? d + block : kv->head_dim;
        float scaled[ROWS_PER_TILE][PE_CHUNK];
        const float *weights[ROWS_PER_TILE];
        for (int r = 0; r < R; r++) {
            weights[r] = kv_has_scales(type) ? scaled[r] : p[r];
            for (int v = j0 / VL; kv_has_scales(type) && v * VL < j1; v++) {
                const vf scale = vf_load_f16(c->v_scales[v] + d / PE_KV_BLOCK * kv->page_size);
                vf_store(scaled[r] + v * VL, vf_mul(vf_load(p[r] + v * VL), scale));
            }
        }
        for (; d + V * VL <= end; d += V * VL) value_tile(type, R, V, c, kv, d, j0, j1, weights, acc);
        for (; d < end; d += VL) value_tile(type, R, 1, c, kv, d, j0, j1, weights, acc);
    }
}

// The partials of R query rows over one chunk. sees[r]: keys of the chunk that row r sees, at least one.
PE_INLINE void partial_rows(const int32_t type, const int R, const chunk *c, const pe_attention *a,
                            const float *const *q, const pe_span *sees, pe_partial *const *out) {
    const pe_kv_view *kv = &a->kv;
    float scores[ROWS_PER_TILE][PE_CHUNK];
    score_rows(type, R, c, q, kv->head_dim, kv->page_size, scores);
    pe_span common = {0, PE_CHUNK};
    for (int r = 0; r < R; r++) {
        vf top = vf_set1(-INFINITY), sum = vf_zero();
        const int first = sees[r].first, end = sees[r].end, vectors = (end + VL - 1) / VL;
        for (int v = 0; v < vectors; v++) {
            vf s = vf_mul(vf_load(scores[r] + v * VL), vf_set1(a->scale));
            if (a->softcap > 0) s = vf_softcap(s, a->softcap);
            s = vf_keep_n(s, end - v * VL, -INFINITY);
            if (first > v * VL) s = vf_drop_n(s, first - v * VL, -INFINITY);
            vf_store(scores[r] + v * VL, s);
            top = vf_max(top, s);
        }
        out[r]->m = vf_hmax(top);
        for (int v = 0; v < vectors; v++) {
            vf p = vf_exp(vf_sub(vf_load(scores[r] + v * VL), vf_set1(out[r]->m)));
            p = vf_keep_n(p, end - v * VL, 0);
            if (first > v * VL) p = vf_drop_n(p, first - v * VL, 0);
            vf_store(scores[r] + v * VL, p);
            sum = vf_add(sum, p);
        }
        out[r]->l = vf_sum(sum);
        memset(out[r]->acc, 0, (size_t)kv->head_dim * sizeof(float));
        if (first > common.first) common.first = first;
        if (end < common.end) common.end = end;
    }
    // Each row's values in order of the keys it sees, and no others: even a zero times a value could change a zero's sign.
    const float *all[ROWS_PER_TILE];
    float *acc[ROWS_PER_TILE];
    for (int r = 0; r < R; r++) all[r] = scores[r], acc[r] = out[r]->acc;
    if (common.first >= common.end) common.first = common.end = PE_CHUNK;
    for (int r = 0; r < R; r++) {
        const int before = sees[r].end < common.first ? sees[r].end : common.first;
        if (sees[r].first < before) value_rows(type, 1, c, kv, sees[r].first, before, all + r, acc + r);
    }
    if (common.first < common.end) value_rows(type, R, c, kv, common.first, common.end, all, acc);
    for (int r = 0; r < R; r++)
        if (sees[r].end > common.end) value_rows(type, 1, c, kv, common.end, sees[r].end, all + r, acc + r);
}

#define PARTIAL_FN(name, type, R)                                                                                     \
    __attribute__((flatten, noinline)) static void name(const chunk *c, const pe_attention *a, const float *const *q, \
                                                        const pe_span *sees, pe_partial *const *out) {                \
        partial_rows(type, R, c, a, q, sees, out);                                                                    \
    }
#define PARTIAL_FNS(name, type)   \
    PARTIAL_FN(name##_1, type, 1) \
    PARTIAL_FN(name##_2, type, 2) \
    PARTIAL_FN(name##_3, type, 3) \
    PARTIAL_FN(name##_4, type, 4)
PARTIAL_FNS(partial_f32, PE_KV_F32)
PARTIAL_FNS(partial_f16, PE_KV_F16)
PARTIAL_FNS(partial_q8, PE_KV_Q8_0)
PARTIAL_FNS(partial_q4, PE_KV_Q4_0)

typedef void partial_fn(const chunk *c, const pe_attention *a, const float *const *q, const pe_span *sees,
                        pe_partial *const *out);
#define PARTIAL_ROW(name) {name##_1, name##_2, name##_3, name##_4}
static partial_fn *const partials_of[PE_N_KV_TYPES][ROWS_PER_TILE] = {
    [PE_KV_F32] = PARTIAL_ROW(partial_f32),
    [PE_KV_F16] = PARTIAL_ROW(partial_f16),
    [PE_KV_Q8_0] = PARTIAL_ROW(partial_q8),
    [PE_KV_Q4_0] = PARTIAL_ROW(partial_q4),
};

// into: the state so far. Both weights go through the same exp, so that a merge is one fixed function of two partials.
static void merge(pe_partial *into, const pe_partial *from, int head_dim) {
    const vf m = vf_max(vf_set1(into->m), vf_set1(from->m));
    const vf a = vf_exp(vf_sub(vf_set1(into->m), m)), b = vf_exp(vf_sub(vf_set1(from->m), m));
    into->m = vf_first(m);
    into->l = vf_first(vf_fma(vf_set1(from->l), b, vf_mul(vf_set1(into->l), a)));
    for (int d = 0; d < head_dim; d += VL)
        vf_store(into->acc + d, vf_fma(vf_load(from->acc + d), b, vf_mul(vf_load(into->acc + d), a)));
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
    for (int d = 0; d < head_dim; d += VL) vf_store(out + d, vf_mul(vf_load(p->acc + d), factor));
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

void PE_FN(attention)(const pe_attention *a, int32_t kv_head, int32_t t0, int32_t t1, pe_partial *scratch) {
    const int group = a->n_heads / a->kv.n_kv_heads, rows = (t1 - t0) * group, head_dim = a->kv.head_dim;
    pe_partial *state = scratch, *fresh = scratch + pe_attention_rows(group);  // [rows], [ROWS_PER_TILE]
    // Both ends of what a token sees grow with its position: the rows that see some of a chunk lie side by side.
    const int32_t end = pe_attention_sees(a, t1 - 1).end;
    for (int32_t c = pe_attention_sees(a, t0).first / PE_CHUNK; c * PE_CHUNK < end; c++) {
        chunk keys;
        const int32_t n = end - c * PE_CHUNK;
        open_chunk(&a->kv, kv_head, c, n < PE_CHUNK ? n : PE_CHUNK, &keys);
        int i = 0, to = rows;
        while (i < rows && sees_of_chunk(a, t0 + i / group, c).end <= 0) i++;
        while (to > i && sees_of_chunk(a, t0 + (to - 1) / group, c).first >= PE_CHUNK) to--;
        while (i < to) {
            const float *q[ROWS_PER_TILE];
            pe_partial *out[ROWS_PER_TILE];
            pe_span sees[ROWS_PER_TILE];
            int R = 0;
            for (; R < ROWS_PER_TILE && i + R < to; R++) {
                const int32_t t = t0 + (i + R) / group;
                sees[R] = sees_of_chunk(a, t, c);
                q[R] = a->q + row_offset(a, kv_head, group, t0, i + R, a->ldq);
                out[R] = c == pe_attention_sees(a, t).first / PE_CHUNK ? &state[i + R] : &fresh[R];
            }
            partials_of[a->kv.type][R - 1](&keys, a, q, sees, out);
            for (int r = 0; r < R; r++)
                if (out[r] == &fresh[r]) merge(&state[i + r], &fresh[r], head_dim);
            i += R;
        }
    }
    for (int i = 0; i < rows; i++)
        finish(&state[i], sink_of(a, kv_head, group, i), head_dim,
               a->out + row_offset(a, kv_head, group, t0, i, a->ldo));
}

void PE_FN(attention_chunks)(const pe_attention *a, int32_t kv_head, int32_t t, int32_t c0, int32_t c1,
                             pe_partial *partials) {
    const int group = a->n_heads / a->kv.n_kv_heads;
    const int32_t first = pe_attention_sees(a, t).first / PE_CHUNK;
    for (int32_t c = c0 > first ? c0 : first; c < c1; c++) {
        chunk keys;
        const pe_span seen = sees_of_chunk(a, t, c);
        open_chunk(&a->kv, kv_head, c, seen.end, &keys);
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
            partials_of[a->kv.type][R - 1](&keys, a, q, sees, out);
        }
    }
}

void PE_FN(attention_merge)(const pe_attention *a, int32_t kv_head, int32_t t, pe_partial *partials) {
    const int group = a->n_heads / a->kv.n_kv_heads;
    const pe_span sees = pe_attention_sees(a, t);
    const int32_t first = sees.first / PE_CHUNK, end = (sees.end + PE_CHUNK - 1) / PE_CHUNK;
    for (int i = 0; i < group; i++) {
        pe_partial *into = &partials[(int64_t)first * group + i];
        for (int32_t c = first + 1; c < end; c++) merge(into, &partials[(int64_t)c * group + i], a->kv.head_dim);
        finish(into, sink_of(a, kv_head, group, i), a->kv.head_dim,
               a->out + row_offset(a, kv_head, group, t, i, a->ldo));
    }
}
