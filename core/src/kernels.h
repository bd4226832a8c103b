// What a CPU instruction set offers: one table of functions, compiled from the same sources (`cpu/`) for each set.
// Every function computes a row (a panel, a chunk) wholly, in an order fixed by the shapes alone, so that bits depend
// neither on the batch nor on who computed what.
#ifndef PE_KERNELS_H
#define PE_KERNELS_H

#include "formats.h"
#include "row.h"

enum {
    PE_ACT_BLOCK = 32,  // activations per scale
    PE_CHUNK = 64,      // keys per attention partial
    PE_MAX_HEAD_DIM = 256,
};

// Query rows (tokens x heads of a group) of one attention call, at most.
static inline int32_t pe_attention_rows(int32_t group) { return group > 32 ? group : 32; }

// A matrix in panels: `lanes` output rows interleaved, so that one vector lane is one output row. A panel holds the
// blocks of its rows in order of k; the layout inside a block is pack.c's, and known to the kernels alone.
typedef struct pe_weight {
    pe_class cls;
    pe_scales scales;
    int32_t lanes;
    int64_t rows, cols;  // outputs, inputs (K)
    int64_t n_panels;    // ceil(rows / lanes); missing rows are zero
    int64_t n_blocks;    // per panel
    size_t block_bytes;  // of one panel block (all lanes)
    size_t panel_bytes;  // n_blocks * block_bytes
    size_t bytes;        // n_panels * panel_bytes, as allocated with a tail that prefetches may touch
    uint8_t *data;
} pe_weight;

// One block of 32 activations: x = d * q.
typedef struct pe_act_block {
    float d;          // max |x| / 127; NaN if an x is
    float d_sum;      // d * the sum of the 32 q
    int32_t minus8;   // -8 * their sum: where dot products start whose lanes are 8 above what is meant
    int16_t half[2];  // sums of the first and last 16
} pe_act_block;

// The input of one op, made once for all its weights.
//
// Rounding errors grow with a block's scale, and a few blocks that hold outliers make most of a row's: so a block whose
// d is over PE_FINE_ABOVE times the row's mean d gets a second term for what the first left, x = d * q + fine.d * fine_q.
// Whether it does depends on its own row alone. The rows whose logits are wanted have it in every block: their error goes
// straight into the logits, and the product of so few rows waits for memory. Measured on SmolLM2, mean error of the
// log-probabilities and prompt tokens/s under AVX-512: none 0.094, 2064; at 2 0.045, 1773; at 1.25 0.033, 1477. A
// model without outliers is as fast either way.
#define PE_FINE_ABOVE 1.25f
typedef struct pe_act {
    const float *x;  // [T, K], row stride ldx
    int64_t ldx;
    int8_t *q;       // [T, K], row stride ldq
    int8_t *fine_q;  // the same shape, written where there is a second term
    int64_t ldq;
    pe_act_block *blocks;  // [T, K / 32], row stride ldb
    pe_act_block *fine;    // the same shape, written where there is a second term
    int64_t ldb;
    uint64_t *has_fine;  // [T, ldm]: bit b of a row is its block b
    float fine_above;    // times a row's mean d: blocks above have a second term. PE_FINE_ABOVE, or 0: all
    int64_t ldm;         // K / 32 / 64, rounded up
} pe_act;

// Strides of rows of k activations: a cache line more than they have. Rows a power of two apart would share the same few
// sets of a cache, and tens of them, which a tile's neighbours read, would push one another out.
static inline int64_t pe_act_ldq(int64_t k) { return k + 64; }
static inline int64_t pe_act_ldb(int64_t k) { return k / PE_ACT_BLOCK + 64 / (int64_t)sizeof(pe_act_block); }

// Keys and values of one layer, as one sequence sees them through its block table.
typedef struct pe_kv_view {
    uint8_t *pages;        // the layer's part of page 0: [n_kv_heads] of a head's keys and its values; see cpu/kv.c
    int64_t page_bytes;    // from one page to the next
    const int32_t *table;  // [pages of the sequence]
    int32_t type;          // pe_kv_type
    int32_t page_size, n_kv_heads, head_dim;
} pe_kv_view;

enum { PE_KV_BLOCK = 32 };  // dims under one scale

// Bytes of the numbers of one head at one position, without scales. q4_0 counts in sixteens of dims.
static inline size_t pe_kv_row_bytes(int32_t type, int32_t head_dim) {
    const size_t n = (size_t)head_dim;
    return type == PE_KV_F32 ? 4 * n : type == PE_KV_F16 ? 2 * n : type == PE_KV_Q8_0 ? n : (n + 15) / 16 * 8;
}
// Bytes of the keys, or the values, of one head on a page.
static inline size_t pe_kv_head_bytes(int32_t type, int32_t head_dim, int32_t page_size) {
    const size_t scales = type == PE_KV_Q8_0 || type == PE_KV_Q4_0 ? ((size_t)head_dim + 31) / PE_KV_BLOCK * 2 : 0;
    return (pe_kv_row_bytes(type, head_dim) + scales) * (size_t)page_size;
}

// The softmax state of one query row over some chunks: max score, sum of exp(score - max), and their weighted values.
typedef struct pe_partial {
    float m, l, unused[14];  // so that acc begins a cache line
    float acc[];             // [head_dim], and zeros as far as whole vectors go, of 16 lanes at most
} pe_partial;

static inline size_t pe_partial_bytes(int32_t head_dim) {
    return sizeof(pe_partial) + (size_t)((head_dim + 15) / 16 * 16) * sizeof(float);
}
static inline pe_partial *pe_partial_at(pe_partial *first, int64_t i, int32_t head_dim) {
    return (pe_partial *)((uint8_t *)first + (size_t)i * pe_partial_bytes(head_dim));
}

// Bytes that one attention call works in: a chunk's keys and values as floats, the state of its rows and a tile of four.
static inline size_t pe_attention_scratch(int32_t group) {
    const size_t rows = (size_t)pe_attention_rows(group) + 4;
    return 2 * PE_MAX_HEAD_DIM * PE_CHUNK * sizeof(float) + rows * pe_partial_bytes(PE_MAX_HEAD_DIM);
}

typedef struct pe_attention {
    pe_kv_view kv;
    const float *q;  // [tokens of the piece, n_heads * head_dim]
    float *out;      // same shape
    int64_t ldq, ldo;
    int32_t start, end;  // positions of the piece
    int32_t n_heads;
    bool causal;
    int32_t window;  // 0: none
    float scale;
    float softcap;       // 0: none
    const float *sinks;  // [n_heads], or NULL
} pe_attention;

// Keys [first, end) that token t of the piece sees; at least its own.
typedef struct pe_span {
    int32_t first, end;
} pe_span;
static inline pe_span pe_attention_sees(const pe_attention *a, int32_t t) {
    const int32_t position = a->start + t;
    pe_span s = {0, a->causal ? position + 1 : a->end};
    if (a->window > 0) {
        if (position >= a->window) s.first = position - a->window + 1;
        if (a->window < s.end - position) s.end = position + a->window;
    }
    return s;
}

// Chunks [first, end) that some of tokens [t0, t1) see some of. Both ends of what a token sees grow with its position.
static inline pe_span pe_attention_chunks_of(const pe_attention *a, int32_t t0, int32_t t1) {
    return (pe_span){pe_attention_sees(a, t0).first / PE_CHUNK, (pe_attention_sees(a, t1 - 1).end - 1) / PE_CHUNK + 1};
}

// Multiply-adds per lane in one round of the probes below.
enum { PE_PROBE_INT8 = 64, PE_PROBE_F32 = 12 };
enum { PE_PROBE_STREAMS = 8, PE_PROBE_BYTES = 128 };  // streams at most; what is read of each in turn

typedef struct pe_kernels {
    const char *name;
    int32_t lanes;
    bool (*supported)(void);

    // Lays the source rows of panels [p0, p1) out as panels. src: the tensor's blocks, row by row.
    void (*pack)(const pe_weight *w, const pe_format_row *f, const void *src, int64_t p0, int64_t p1);
    size_t (*block_bytes)(pe_class cls, pe_scales scales);
    void (*unpack_row)(const pe_weight *w, int64_t row, float *out);  // out: [cols]

    // Encodes n values (whole blocks; of super-blocks, whole ones) so that the sum of w times the squared error is least.
    // w: [n], positive and finite; NULL: all the same. Blocks do not depend on their neighbours. x must be finite.
    void (*encode)(const pe_format_row *f, const float *x, const float *w, int64_t n, void *out);
    void (*decode)(const pe_format_row *f, const void *src, int64_t n,
                   float *out);                   // pe_format_unpack, but fast for floats
    float (*largest)(const float *x, int64_t n);  // magnitude; NaN if a value is NaN or infinite

    void (*quantize)(const pe_act *a, int64_t t, int64_t k);  // fills row t, of k activations, from x
    // y[t, row] = sum over k of w[row, k] * x[t, k], + bias[row], for tokens [t0, t1) and panels [p0, p1).
    // scratch: linear_scratch() bytes, aligned to 64
    void (*linear)(const pe_weight *w, const pe_act *a, const float *bias, int64_t t0, int64_t t1, int64_t p0,
                   int64_t p1, float *y, int64_t ldy, void *scratch);
    size_t (*linear_scratch)(void);
    // The same with float activations for every class. scratch: floats [cols, lanes]
    void (*linear_f32)(const pe_weight *w, const pe_act *a, const float *bias, int64_t t0, int64_t t1, int64_t p0,
                       int64_t p1, float *y, int64_t ldy, void *scratch);

    void (*rms_norm)(const float *x, const float *weight, float eps, int64_t n, float *y);  // y may be x
    // bias may be NULL. y may be x.
    void (*layer_norm)(const float *x, const float *weight, const float *bias, float eps, int64_t n, float *y);
    // x, y: [n_heads, head_dim]; table: cos [n_rot / 2], sin [n_rot / 2]. y may be x.
    void (*rope)(const float *x, const float *table, int32_t n_heads, int32_t head_dim, int32_t n_rot, int32_t pairing,
                 float *y);
    // y = f(x), or f(x) * up where up is not NULL. y may be x or up.
    void (*activation)(pe_function function, const float *x, const float *up, int64_t n, float *y);
    void (*add)(const float *a, const float *b, float factor, int64_t n, float *y);  // a + factor * b; y may be a or b
    void (*scale)(const float *x, float factor, int64_t n, float *y);                // y may be x
    void (*softcap)(const float *x, float cap, int64_t n, float *y);                 // cap * tanh(x / cap); y may be x

    // Writes the keys and values of one token at `position`. k, v: [n_kv_heads, head_dim]
    void (*kv_write)(const pe_kv_view *kv, int64_t position, const float *k, const float *v);
    // Attends for tokens [t0, t1) of a piece with the query heads of one KV head, over all their keys.
    // scratch: pe_attention_scratch(group) bytes
    void (*attention)(const pe_attention *a, int32_t kv_head, int32_t t0, int32_t t1, void *scratch);
    // The same cut by chunks, for long contexts and few queries: a partial for each query row and each of its chunks in
    // [c0, c1), into partials [chunks of the tokens, rows]; attention_merge takes them in chunk order. What a row does
    // not see is left out.
    void (*attention_chunks)(const pe_attention *a, int32_t kv_head, int32_t t0, int32_t t1, int32_t c0, int32_t c1,
                             pe_partial *partials, void *scratch);
    void (*attention_merge)(const pe_attention *a, int32_t kv_head, int32_t t0, int32_t t1, pe_partial *partials);

    // Passes over a row of logits by its blocks; see row.h. The same bits on every set.
    // Largest logit, in *max and of each block in block_max [n_blocks]; false where one is NaN or +Inf.
    bool (*row_max)(const float *const *blocks, int32_t n_blocks, float *block_max, float *max);
    // Weights and bins of n logits, whole PE_ROW_LANES.
    void (*row_weigh)(const float *x, int32_t n, pe_row_scale scale, pe_row_bins bins, float *weights, int32_t *in_bin);
    // Sum of the weights down to the `lowest` token, and by blocks: block_sums [n_blocks].
    double (*row_sums)(const float *const *blocks, int32_t n_blocks, const float *block_max, pe_row_scale scale,
                       pe_row_token lowest, float *block_sums);
    // Sum of all weights; *above: of the logits above `high`; within [n_blocks, PE_ROW_BLOCK / 64]: a bit for each logit
    // that is from `low` (finite) to `high`.
    double (*row_split)(const float *const *blocks, int32_t n_blocks, pe_row_scale scale, float low, float high,
                        uint64_t *within, double *above);

    // What probe.c times. Each returns a number that depends on all of its work.
    // Reads n bytes, a multiple of streams * PE_PROBE_BYTES, as 1, 2, 4 or 8 streams side by side.
    int32_t (*probe_read)(const uint8_t *p, size_t n, int32_t streams);
    int32_t (*probe_int8)(int64_t rounds);
    float (*probe_f32)(int64_t rounds);
} pe_kernels;

// The active set (see pe_isa_active); NULL with *err filled when PYEDGE_ISA asks for one that cannot run here.
const pe_kernels *pe_kernels_active(pe_error *err);

#endif
