// An engine: the KV pool, one step's inputs at fixed addresses, the arena for values, and scratch memory. Everything is
// taken at creation; a step allocates nothing. engine.c owns the memory and the API, exec.c runs the ops.
#ifndef PE_ENGINE_H
#define PE_ENGINE_H

#include "model.h"

// All that changes from step to step. One ragged batch: pieces of sequences, decodes being pieces of length 1.
typedef struct pe_step {
    int32_t n_tokens, n_pieces, n_rows;
    pe_piece *pieces;      // [max_pieces]
    int32_t *first_token;  // [max_pieces + 1]: where each piece's tokens begin
    int32_t *tokens;       // [max_tokens]
    int32_t *positions;    // [max_tokens]
    int32_t *piece_of;     // [max_tokens]
    int32_t *rows;         // [max_rows]: tokens whose logits are wanted
    int32_t *tables;       // [max_sequences, max_pages_per_sequence]; -1: no page
} pe_step;

// One matrix product over rows [row0, row1) of an input; the items that it is cut into.
typedef struct pe_product {
    const pe_weight *w;
    const float *bias;  // [w->rows], or NULL
    float *y;           // [rows of the input, w->rows]
    int64_t row0, row1;
    int64_t panels_per_item, tokens_per_item, first_item;
} pe_product;

// Scratch memory of a mixture of experts. A step has max_tokens * n_used rows: a row is a token at one of its experts, and
// the rows of an expert lie side by side.
typedef struct pe_moe {
    float *scores;         // [max_tokens, n_experts]
    float *weights;        // [max_tokens, n_used]
    int32_t *experts;      // [max_tokens, n_used]
    int32_t *row_of;       // [max_tokens, n_used]
    int32_t *first_row;    // [n_experts + 1]
    float *gate, *up;      // [rows, d_ff]
    pe_product *products;  // [2 * n_experts]
} pe_moe;

// Tokens [t0, t1) of a piece, whose queries attend together. Items: one for each KV head and part of the chunks.
typedef struct pe_attention_tile {
    int32_t piece, t0, t1;
    pe_span chunks;  // that some of its tokens see some of
    int32_t parts;   // 1: the chunks are not cut
    int64_t first_item;
    int64_t partials;  // of a tile that is cut: where its [n_kv_heads, chunks, rows] begin
} pe_attention_tile;

struct pe_engine {
    atomic_int references;
    pe_model *model;
    pe_engine_options options;
    pe_step step;
    atomic_bool cancelled;

    uint8_t *kv;  // [n_pages, n_layers]: all of a page lies together, so that few pages of memory hold what is in use
    size_t kv_bytes;
    size_t *layer_offset;  // [n_layers + 1]: in a page, of which the last is the size

    uint8_t *arena;  // every value, [max_tokens, width] each, sharing memory where their lives do not overlap
    size_t arena_bytes;
    float **values;  // [n_values], into the arena; the logits' own is `logits`
    float *logits;   // [max_rows, n_outputs]

    // Scratch, inside one allocation.
    uint8_t *scratch;
    size_t scratch_bytes;
    pe_act act;         // q, blocks and their fine terms for as many rows of max_columns as an op has
    int32_t quantized;  // the value of this step whose rows `act` has; -1: none of them
    float *gathered;    // [max_rows, max_columns]: the sampled rows; of a mixture of experts, all of its rows
    pe_moe moe;
    uint8_t *worker_scratch;  // [threads, worker_bytes]
    size_t worker_bytes;
    pe_attention_tile *tiles;  // [max_tokens]
    pe_partial *partials;      // [max_partials], of the tiles that are cut by chunks
    int64_t max_partials;

    bool (*poll)(void *ctx);
    void *poll_ctx;
    pe_tap tap;
    void *tap_ctx;
    int32_t tap_op;     // -1: none
    int64_t *op_times;  // [n_ops]: nanoseconds since pe_engine_profile; NULL: not counted
    struct {
        double *sums;    // of squares, [sum of the matrices' columns]; NULL: not collected
        int64_t *first;  // [n_matrices + 1]: where each one's begin
        int64_t *rows;   // [n_matrices]: that were summed
    } collected;
};

void pe_collected_free(pe_engine *e);

// One layer's part of the pages.
pe_kv_view pe_engine_layer(const pe_engine *e, int32_t layer);

// Runs the plan for the step at hand. `inspect`, if given, sees each op's outputs; true stops the run.
typedef bool (*pe_inspect)(void *ctx, const pe_plan_op *op, int32_t output, const float *data, int64_t rows,
                           int64_t width);
pe_status pe_exec(pe_engine *e, pe_inspect inspect, void *ctx, pe_error *err);

#endif
