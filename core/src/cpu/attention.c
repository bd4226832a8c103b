// Paged attention. Keys are taken in chunks of 64 from position 0; each chunk gives a partial (max, sum, weighted
// values) of its own, and partials merge in chunk order: so a query's bits depend on its own sequence alone, whether it
// runs with 511 others or by itself, on one thread or cut over several (Dao et al. 2022, arXiv:2205.14135, with fixed cuts).
// Slots past a query's own position may hold anything, NaN included: their scores are replaced, never multiplied.
//
// What the cache holds is unpacked (kv.c) once for all the queries of a call, a chunk at a time, into floats that stay in
// the nearest cache; or read where it lies, by few. Meanwhile the next chunk is called for, line by line.
#include <math.h>

#include "cpu.h"

enum {
    CHUNK_VECTORS = PE_CHUNK / VL,
    CHUNK_BITS = 6,
    ROWS_PER_TILE = 4,
    IN_PLACE_ROWS = 16,  // up to so many, what is unpacked would not be read often enough to pay
    // Sums of a tile: as many as the registers hold beside a vector for each column and one for a row.
    VECTORS_PER_TILE = V_REGISTERS >= 32 ? 4 : 2,
};

_Static_assert(1 << CHUNK_BITS == PE_CHUNK, "a chunk is one run");

typedef struct workspace {
    float keys[PE_MAX_HEAD_DIM * PE_CHUNK];    // [head_dim, 64]
    float values[PE_MAX_HEAD_DIM * PE_CHUNK];  // [64, ld]
} workspace;

static int64_t value_stride(const pe_kv_view *kv) { return (kv->head_dim + VL - 1) / VL * VL; }

PE_INLINE vf load(const bool f16, const uint8_t *p) {
    return f16 ? vf_load_f16((const uint16_t *)p) : vf_load((const float *)p);
}

// scores[r][64]: q_r . k_j for the vectors [v0, v0 + V), in order of d. Here and below, so many `lines` of the next chunk
// are called for with every 8 dims, or keys.
PE_INLINE void score_tile(const int R, const int V, const bool f16, const kv_chunk *chunk, int v0,
                          const float *const *q, int head_dim, float (*scores)[PE_CHUNK], kv_ahead *ahead, int lines) {
    const int64_t bytes = f16 ? 2 : 4, stride = chunk->key_stride;
    const uint8_t *key[CHUNK_VECTORS];
    vf s[ROWS_PER_TILE][CHUNK_VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++)
        key[v] = chunk->keys[(v0 + v) * VL >> chunk->run_bits] + ((v0 + v) * VL & ((1 << chunk->run_bits) - 1)) * bytes;
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) s[r][v] = vf_zero();
    for (int d = 0; d < head_dim; d++) {
        if (d % 8 == 0) kv_fetch(ahead, lines);
        vf k[CHUNK_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) k[v] = load(f16, key[v] + d * stride);
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
PE_INLINE void score_rows(const int R, const bool f16, const kv_chunk *chunk, int n, const float *const *q,
                          int head_dim, float (*scores)[PE_CHUNK], kv_ahead *ahead, int lines) {
    const int V = R == 1 ? 4 : VECTORS_PER_TILE, vectors = (n + VL - 1) / VL;
    const int each = kv_share(lines, vectors / V * (head_dim / 8));
    int v = 0;
    for (; v + V <= vectors; v += V) score_tile(R, V, f16, chunk, v, q, head_dim, scores, ahead, each);
    for (; v < vectors; v++) score_tile(R, 1, f16, chunk, v, q, head_dim, scores, ahead, 0);
}

// acc[r][dims of V vectors] += sum over keys [j0, j1) of p[r][j] * value[j], in order of j
PE_INLINE void value_tile(const int R, const int V, const bool f16, const kv_chunk *chunk, int d0, int j0, int j1,
                          float (*p)[PE_CHUNK], float *const *acc, kv_ahead *ahead, int lines) {
    const int64_t bytes = f16 ? 2 : 4;
    vf s[ROWS_PER_TILE][8];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) s[r][v] = vf_load(acc[r] + d0 + v * VL);
    for (int j = j0; j < j1;) {
        const int run = j >> chunk->run_bits, first = run << chunk->run_bits, next = (run + 1) << chunk->run_bits;
        const int end = next < j1 ? next : j1;
        const uint8_t *value = chunk->values[run] + (j - first) * chunk->value_stride + d0 * bytes;
        for (; j < end; j++, value += chunk->value_stride) {
            if (j % 8 == 0) kv_fetch(ahead, lines);
            vf x[8];
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) x[v] = load(f16, value + v * VL * bytes);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                const vf weight = vf_set1(p[r][j]);
#pragma GCC unroll 8
                for (int v = 0; v < V; v++) s[r][v] = vf_fma(weight, x[v], s[r][v]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) vf_store(acc[r] + d0 + v * VL, s[r][v]);
}

PE_INLINE void value_rows(const int R, const bool f16, const kv_chunk *chunk, int64_t ld, int j0, int j1,
                          float (*p)[PE_CHUNK], float *const *acc, kv_ahead *ahead, int lines) {
    const int V = R <= 2 ? 4 : VECTORS_PER_TILE;
    const int each = kv_share(lines, ld / (V * VL) * ((j1 - j0) / 8));
    int d = 0;
    for (; d + V * VL <= ld; d += V * VL) value_tile(R, V, f16, chunk, d, j0, j1, p, acc, ahead, each);
    for (; d < ld; d += VL) value_tile(R, 1, f16, chunk, d, j0, j1, p, acc, ahead, 0);
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

// The partials of R query rows over one chunk, while so many lines of the next one are called for. sees[r]: keys of the
// chunk that row r sees, at least one.
PE_INLINE void partial_rows(const int R, const bool f16, const kv_chunk *chunk, const pe_attention *a,
                            const float *const *q, const pe_span *sees, pe_partial *const *out, kv_ahead *ahead,
                            int lines) {
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
    score_rows(R, f16, chunk, n, q, a->kv.head_dim, scores, ahead, lines / 2);
    if (common.first == 0 && common.end == PE_CHUNK) {
        for (int r = 0; r < R; r++) soften(true, a, common, scores[r], out[r]);
        value_rows(R, f16, chunk, ld, 0, PE_CHUNK, scores, acc, ahead, lines / 2);
        return;
    }
    for (int r = 0; r < R; r++) soften(false, a, sees[r], scores[r], out[r]);
    // Each row's values in order of the keys it sees, and no others: even a zero times a value could change a zero's sign.
    if (common.first >= common.end) common.first = common.end = PE_CHUNK;
    for (int r = 0; r < R; r++) {
        const int before = sees[r].end < common.first ? sees[r].end : common.first;
        if (sees[r].first < before) value_rows(1, f16, chunk, ld, sees[r].first, before, scores + r, acc + r, ahead, 0);
    }
    if (common.first < common.end)
        value_rows(R, f16, chunk, ld, common.first, common.end, scores, acc, ahead, lines / 2);
    for (int r = 0; r < R; r++)
        if (sees[r].end > common.end)
            value_rows(1, f16, chunk, ld, common.end, sees[r].end, scores + r, acc + r, ahead, 0);
}

typedef void partial_fn(const kv_chunk *chunk, const pe_attention *a, const float *const *q, const pe_span *sees,
                        pe_partial *const *out, kv_ahead *ahead, int lines);
#define PARTIAL_FN(R, f16)                                                                        \
    __attribute__((flatten, noinline)) static void partial_##R##_##f16(                           \
        const kv_chunk *chunk, const pe_attention *a, const float *const *q, const pe_span *sees, \
        pe_partial *const *out, kv_ahead *ahead, int lines) {                                     \
        partial_rows(R, f16, chunk, a, q, sees, out, ahead, lines);                               \
    }
PARTIAL_FN(1, 0)
PARTIAL_FN(2, 0)
PARTIAL_FN(3, 0)
PARTIAL_FN(4, 0)
PARTIAL_FN(1, 1)
PARTIAL_FN(2, 1)
PARTIAL_FN(3, 1)
PARTIAL_FN(4, 1)
static partial_fn *const partials_of[2][ROWS_PER_TILE] = {{partial_1_0, partial_2_0, partial_3_0, partial_4_0},
                                                          {partial_1_1, partial_2_1, partial_3_1, partial_4_1}};

// into [R]: the states so far. All weights go through the same exp, lane by lane, so that a merge is one fixed function of
// two partials.
static void merge(pe_partial *const *into, const pe_partial *const *from, int R, int64_t n) {
    if (R == 0) return;
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

// Query rows of a call: token t0 + i / group, query head kv_head * group + i % group.
typedef struct queries {
    const pe_attention *a;
    int32_t kv_head, group, t0, t1;
} queries;

static queries queries_of(const pe_attention *a, int32_t kv_head, int32_t t0, int32_t t1) {
    return (queries){a, kv_head, a->n_heads / a->kv.n_kv_heads, t0, t1};
}

static int64_t row_offset(const queries *qs, int32_t i, int64_t ld) {
    return (qs->t0 + i / qs->group) * ld + (int64_t)(qs->kv_head * qs->group + i % qs->group) * qs->a->kv.head_dim;
}

static void finish_row(const queries *qs, int32_t i, const pe_partial *p) {
    const float *sink = qs->a->sinks ? qs->a->sinks + qs->kv_head * qs->group + i % qs->group : NULL;
    finish(p, sink, qs->a->kv.head_dim, qs->a->out + row_offset(qs, i, qs->a->ldo));
}

// What a token sees of chunk c, from the chunk's first key on.
PE_INLINE pe_span sees_of_chunk(const pe_attention *a, int32_t t, int32_t c) {
    pe_span s = pe_attention_sees(a, t);
    s.first -= c * PE_CHUNK;
    s.end -= c * PE_CHUNK;
    return (pe_span){s.first > 0 ? s.first : 0, s.end < PE_CHUNK ? s.end : PE_CHUNK};
}

// Tokens that see some of chunk c. Both ends of what a token sees grow with its position: they lie side by side.
static pe_span seers_of_chunk(const queries *qs, int32_t c) {
    pe_span s = {qs->t0, qs->t1};
    while (s.first < s.end && sees_of_chunk(qs->a, s.first, c).end <= 0) s.first++;
    while (s.end > s.first && sees_of_chunk(qs->a, s.end - 1, c).first >= PE_CHUNK) s.end--;
    return s;
}

// Chunk c, of which the next is looked ahead to: into state [rows], or, where a row has a state already, through fresh
// [ROWS_PER_TILE], if given.
static void add_chunk(const queries *qs, int32_t c, int32_t end, workspace *w, pe_partial *state, pe_partial *fresh) {
    const pe_attention *a = qs->a;
    const int32_t head_dim = a->kv.head_dim, group = qs->group;
    const int64_t ld = value_stride(&a->kv);
    const pe_span seers = seers_of_chunk(qs, c);
    const int32_t first = (seers.first - qs->t0) * group, last = (seers.end - qs->t0) * group;
    const int32_t rows = last - first, tiles = (rows + ROWS_PER_TILE - 1) / ROWS_PER_TILE;
    kv_ahead ahead;
    kv_chunk chunk;
    PE_FN(kv_look_ahead)(&a->kv, qs->kv_head, c + 1, end, &ahead);
    const int lines = kv_share(kv_lines(&ahead), tiles);
    if (rows > IN_PLACE_ROWS || !PE_FN(kv_in_place)(&a->kv, qs->kv_head, c, end, VL, &chunk)) {
        PE_FN(kv_unpack)(&a->kv, qs->kv_head, c, end, w->keys, w->values, ld);
        chunk = (kv_chunk){.keys = {(const uint8_t *)w->keys},
                           .values = {(const uint8_t *)w->values},
                           .key_stride = PE_CHUNK * sizeof(float),
                           .value_stride = ld * (int64_t)sizeof(float),
                           .run_bits = CHUNK_BITS};
    }

    int32_t t = seers.first, of_group = 0;
    pe_span seen = sees_of_chunk(a, t, c);
    for (int32_t i = first; i < last;) {
        const float *q[ROWS_PER_TILE];
        pe_partial *out[ROWS_PER_TILE], *old[ROWS_PER_TILE];
        const pe_partial *new[ROWS_PER_TILE];
        pe_span sees[ROWS_PER_TILE];
        int R = 0, merged = 0;
        for (; R < ROWS_PER_TILE && i < last; R++, i++) {
            sees[R] = seen;
            q[R] =
                a->q + t * a->ldq + (int64_t)(qs->kv_head * group + of_group) * head_dim;  // row i's, without divisions
            out[R] = pe_partial_at(state, i, head_dim);
            if (fresh && c != pe_attention_sees(a, t).first / PE_CHUNK) {
                old[merged] = out[R];
                new[merged++] = out[R] = pe_partial_at(fresh, R, head_dim);
            }
            if (++of_group < group) continue;
            of_group = 0;
            if (++t < seers.end) seen = sees_of_chunk(a, t, c);
        }
        partials_of[chunk.f16][R - 1](&chunk, a, q, sees, out, &ahead, lines);
        merge(old, new, merged, ld);
    }
}

void PE_FN(attention)(const pe_attention *a, int32_t kv_head, int32_t t0, int32_t t1, void *scratch) {
    const queries qs = queries_of(a, kv_head, t0, t1);
    const int32_t rows = (t1 - t0) * qs.group, end = pe_attention_sees(a, t1 - 1).end;
    const pe_span chunks = pe_attention_chunks_of(a, t0, t1);
    workspace *w = scratch;
    pe_partial *state = (pe_partial *)(w + 1), *fresh = pe_partial_at(state, rows, a->kv.head_dim);
    for (int32_t c = chunks.first; c < chunks.end; c++) add_chunk(&qs, c, end, w, state, fresh);
    for (int32_t i = 0; i < rows; i++) finish_row(&qs, i, pe_partial_at(state, i, a->kv.head_dim));
}

void PE_FN(attention_chunks)(const pe_attention *a, int32_t kv_head, int32_t t0, int32_t t1, int32_t c0, int32_t c1,
                             pe_partial *partials, void *scratch) {
    const queries qs = queries_of(a, kv_head, t0, t1);
    const int32_t rows = (t1 - t0) * qs.group, seen = pe_attention_sees(a, t1 - 1).end;
    const int32_t end = c1 * PE_CHUNK < seen ? c1 * PE_CHUNK : seen;
    const pe_span chunks = pe_attention_chunks_of(a, t0, t1);
    for (int32_t c = c0; c < c1; c++)
        add_chunk(&qs, c, end, scratch, pe_partial_at(partials, (c - chunks.first) * rows, a->kv.head_dim), NULL);
}

void PE_FN(attention_merge)(const pe_attention *a, int32_t kv_head, int32_t t0, int32_t t1, pe_partial *partials) {
    const queries qs = queries_of(a, kv_head, t0, t1);
    const int32_t rows = (t1 - t0) * qs.group, head_dim = a->kv.head_dim;
    const pe_span chunks = pe_attention_chunks_of(a, t0, t1);
    for (int32_t i0 = 0; i0 < rows; i0 += ROWS_PER_TILE) {
        const int32_t i1 = i0 + ROWS_PER_TILE < rows ? i0 + ROWS_PER_TILE : rows;
        pe_partial *into[ROWS_PER_TILE] = {0};  // from a row's first chunk on, which is among those of the call
        pe_span own[ROWS_PER_TILE];
        for (int32_t i = i0; i < i1; i++)
            own[i - i0] = pe_attention_chunks_of(a, t0 + i / qs.group, t0 + i / qs.group + 1);
        for (int32_t c = chunks.first; c < chunks.end; c++) {
            pe_partial *old[ROWS_PER_TILE];
            const pe_partial *new[ROWS_PER_TILE];
            int merged = 0;
            for (int32_t i = i0; i < i1; i++) {
                if (c < own[i - i0].first || c >= own[i - i0].end) continue;
                pe_partial *here = pe_partial_at(partials, (int64_t)(c - chunks.first) * rows + i, head_dim);
                if (c == own[i - i0].first) {
                    into[i - i0] = here;
                } else {
                    old[merged] = into[i - i0];
                    new[merged++] = here;
                }
            }
            merge(old, new, merged, value_stride(&a->kv));
        }
        for (int32_t i = i0; i < i1; i++) finish_row(&qs, i, into[i - i0]);
    }
}
