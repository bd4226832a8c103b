// Which tokens top-k, top-p and min-p leave, of a row of logits. Each keeps a prefix of the order (logit descending, token
// ascending), so the answer is the last token kept. Owns how that is found; knows nothing of requests and of draws.
#ifndef PE_CUT_H
#define PE_CUT_H

#include "error.h"
#include "kernels.h"

// A row of logits by its blocks, and what one pass finds out about it.
typedef struct pe_row {
    const float **blocks;  // [n_blocks] of PE_ROW_BLOCK
    float *block_max;      // [n_blocks]
    float max;
} pe_row;

static inline float pe_row_logit(const pe_row *r, int32_t token) {
    return r->blocks[token / PE_ROW_BLOCK][token % PE_ROW_BLOCK];
}

typedef struct pe_candidate {
    union {
        float logit;     // as found
        uint32_t order;  // while sorting
        float weight;    // once sorted, at temperature 1
    };
    int32_t token;
} pe_candidate;

// Memory to work in, for one vocabulary.
typedef struct pe_cut {
    const pe_kernels *kernels;
    int32_t n_vocab, n_blocks;
    uint64_t *within;          // [n_blocks, PE_ROW_BLOCK / 64] bits of the tokens in top-p's window
    pe_candidate *candidates;  // [capacity]
    pe_candidate *scratch;     // [capacity] the other half of the sort
    int32_t n_candidates;
    int32_t capacity;
} pe_cut;

bool pe_cut_create(pe_cut *s, const pe_kernels *kernels, int32_t n_vocab);  // false: no memory; release it even so
void pe_cut_release(pe_cut *s);

// Candidates become the k largest logits, sorted (fewer when fewer are not masked). False: no memory.
bool pe_cut_select_top(pe_cut *s, const pe_row *r, int32_t k);

// The last token that top_k (0: all), top_p (1: all) and min_p (0: all) keep, in this order and at temperature 1. The most
// likely one is always kept. False: no memory.
bool pe_cut_find(pe_cut *s, const pe_row *r, int32_t top_k, float top_p, float min_p, pe_row_token *lowest);

#endif
