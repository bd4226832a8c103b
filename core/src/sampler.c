// Sampling: from one row of logits and a request's settings to one token. Owns the order of the rules, the random
// numbers, the penalties' history and the log-probabilities; knows nothing of sequences, text or stop rules.
//
// The rules, in llama.cpp's order: the caller's mask, logit bias, penalties, top-k, top-p, min-p, temperature, draw.
// Top-p and min-p look at the distribution at temperature 1. Every filter keeps a prefix of the order (logit descending,
// token ascending), so the kept set is always "the first m" (cut.h), and equal logits are never a matter of luck. A draw
// walks the kept tokens in the vocabulary's order. Its bits depend on IEEE arithmetic alone (own exp, fixed order of every
// sum), not on the C library or the instruction set.
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cut.h"
#include "error.h"
#include "kernels.h"

enum {
    MAX_VOCAB = 1 << 28,
    MAX_LAST_N = 1 << 20,  // a longer window must say -1 (all)
    MAX_LOGPROBS = sizeof(((pe_sampled *)0)->top_tokens) / sizeof(int32_t),
};

// Below this a temperature means greedy: a step of one float between two logits would already be a factor of e.
static const float GREEDY_BELOW = 1e-5f;

typedef struct tally {  // of one token in the sequence
    int32_t in_window;  // among the last repeat_last_n tokens
    int32_t generated;
    bool seen;  // listed in `distinct`
} tally;

struct pe_sampler {
    atomic_int references;
    const pe_kernels *kernels;
    pe_sampling p;
    int32_t n_vocab;
    int32_t n_bias;
    int32_t *bias_tokens;  // [n_bias]
    float *bias_values;    // [n_bias]
    int32_t n_blocks;
    pe_row model, changed;  // the logits as they came, and after mask, bias and penalties
    float *copies;          // [n_blocks, PE_ROW_BLOCK] of the blocks that these change; NULL when there are none
    float *last_block;      // [PE_ROW_BLOCK] of the model's, filled up; NULL when the vocabulary ends with a whole one
    float *block_sums;      // [n_blocks] of weights
    tally *tallies;         // [n_vocab]; NULL without penalties
    int32_t *distinct;      // [n_vocab] tokens with a tally, in order of first sight
    int32_t n_distinct;
    int32_t *window;  // [repeat_last_n] ring of the last tokens; NULL when unused or all count
    int64_t n_accepted;
    pe_cut cut;
};

// ---- numbers ---------------------------------------------------------------------------------------------------------

// Philox4x32-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3": ten rounds over a 128-bit counter.
static void philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

// Uniform in [0, 1) with 53 bits: counter (position, 0), key seed, the first two words as one big number.
static double uniform(uint64_t seed, int64_t position) {
    const uint64_t at = (uint64_t)position;
    const uint32_t counter[4] = {(uint32_t)at, (uint32_t)(at >> 32), 0, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    philox4x32_10(counter, key, out);
    return (double)((((uint64_t)out[0] << 32) | out[1]) >> 11) * 0x1p-53;
}

// ---- the rules -------------------------------------------------------------------------------------------------------

static int32_t first_equal(const pe_row *r, float value) {
    int32_t i = 0;
    while (r->block_max[i] != value) i++;
    i *= PE_ROW_BLOCK;
    while (pe_row_logit(r, i) != value) i++;
    return i;
}

// Draws one of the tokens from the most likely one down to `lowest`: by blocks, then within one. Where rounding leaves the
// running sum just short of the total, it is the last one that has any weight.
static int32_t draw_down_to(pe_sampler *s, const pe_row *r, pe_row_token lowest, double u) {
    const pe_row_scale scale = pe_row_scale_at(r->max, s->p.temperature);
    const double total = s->kernels->row_sums(r->blocks, s->n_blocks, r->block_max, scale, lowest, s->block_sums);
    const double target = u * total;
    double sum = 0, before = 0;
    int32_t block = 0;
    for (int32_t b = 0; b < s->n_blocks && !(sum > target); b++) {
        if (s->block_sums[b] <= 0) continue;
        block = b;
        before = sum;
        sum += (double)s->block_sums[b];
    }
    int32_t chosen = 0;
    sum = before;
    for (int32_t j = 0; j < PE_ROW_BLOCK && !(sum > target); j++) {
        const int32_t i = block * PE_ROW_BLOCK + j;
        const float x = r->blocks[block][j], w = pe_row_down_to(x, i, lowest) ? pe_row_weight(x, scale) : 0;
        if (w <= 0) continue;
        chosen = i;
        sum += (double)w;
    }
    return chosen;
}

static float clamped(double v) {  // keeps -Inf (masked), keeps the rest finite
    if (v == -INFINITY) return -INFINITY;
    return v > FLT_MAX ? FLT_MAX : v < -FLT_MAX ? -FLT_MAX : (float)v;
}

// Copies logits, those that the mask leaves out as -Inf. A mask is mostly zeros, or mostly ones.
static void copy_masked(float *x, const float *logits, int32_t n, const uint32_t *mask) {
    for (int32_t i = 0; i < n; i += 32) {
        const uint32_t word = mask[i / 32];
        const int32_t m = n - i < 32 ? n - i : 32;
        for (int32_t j = 0; j < m; j++) x[i + j] = (word >> j) & 1 ? logits[i + j] : -INFINITY;
    }
}

// Changes one logit of s->changed, and what is known of its block.
static void set_logit(pe_sampler *s, int32_t token, double v) {
    pe_row *r = &s->changed;
    const int32_t b = token / PE_ROW_BLOCK, i = token % PE_ROW_BLOCK;
    float *block = s->copies + (size_t)b * PE_ROW_BLOCK, most;
    if (r->blocks[b] != block) r->blocks[b] = memcpy(block, r->blocks[b], PE_ROW_BLOCK * sizeof *block);
    const float was = block[i];
    block[i] = clamped(v);
    if (block[i] >= r->block_max[b]) r->block_max[b] = block[i];
    else if (was == r->block_max[b]) s->kernels->row_max(&r->blocks[b], 1, &r->block_max[b], &most);
}

// Makes s->changed: the logits after mask, bias and penalties.
static void change(pe_sampler *s, const float *logits, const uint32_t *mask) {
    pe_row *r = &s->changed;
    if (mask) {
        copy_masked(s->copies, logits, s->n_vocab, mask);
        for (int32_t b = 0; b < s->n_blocks; b++) r->blocks[b] = s->copies + (size_t)b * PE_ROW_BLOCK;
        s->kernels->row_max(r->blocks, s->n_blocks, r->block_max, &r->max);
    } else {
        memcpy(r->blocks, s->model.blocks, (size_t)s->n_blocks * sizeof *r->blocks);
        memcpy(r->block_max, s->model.block_max, (size_t)s->n_blocks * sizeof *r->block_max);
    }
    for (int32_t i = 0; i < s->n_bias; i++) {
        const int32_t token = s->bias_tokens[i];
        set_logit(s, token, (double)pe_row_logit(r, token) + (double)s->bias_values[i]);
    }
    for (int32_t i = 0; i < s->n_distinct; i++) {
        const int32_t token = s->distinct[i];
        const tally *t = &s->tallies[token];
        double v = (double)pe_row_logit(r, token);
        if (t->in_window) v = v > 0 ? v / (double)s->p.repeat_penalty : v * (double)s->p.repeat_penalty;
        if (t->generated) v -= (double)s->p.presence_penalty + (double)s->p.frequency_penalty * t->generated;
        if (t->in_window || t->generated) set_logit(s, token, v);
    }
    float max = -INFINITY;
    for (int32_t b = 0; b < s->n_blocks; b++) max = r->block_max[b] > max ? r->block_max[b] : max;
    r->max = max;
}

// Log-probabilities of the chosen and the most likely tokens in the model's own distribution.
static bool report(pe_sampler *s, const pe_row *r, pe_sampled *out) {
    const double log_sum = log(s->kernels->row_sums(r->blocks, s->n_blocks, r->block_max, pe_row_scale_at(r->max, 1),
                                                    PE_ROW_ALL, s->block_sums));
    out->logprob = (float)((double)pe_row_logit(r, out->token) - (double)r->max - log_sum);
    if (s->p.n_logprobs == 0) return true;
    if (!pe_cut_select_top(&s->cut, r, s->p.n_logprobs)) return false;
    out->n_top = s->cut.n_candidates;
    for (int32_t i = 0; i < out->n_top; i++) {
        out->top_tokens[i] = s->cut.candidates[i].token;
        out->top_logprobs[i] = (float)((double)pe_row_logit(r, out->top_tokens[i]) - (double)r->max - log_sum);
    }
    return true;
}

// Makes s->model: the logits as they came; or an error where they are no numbers.
static pe_status read_row(pe_sampler *s, const float *logits, pe_error *err) {
    for (int32_t b = 0; b < s->n_blocks; b++) s->model.blocks[b] = logits + (size_t)b * PE_ROW_BLOCK;
    if (s->last_block) {
        const int32_t whole = s->n_blocks - 1;
        const size_t n = (size_t)(s->n_vocab % PE_ROW_BLOCK);
        s->model.blocks[whole] = memcpy(s->last_block, s->model.blocks[whole], n * sizeof *logits);
    }
    if (s->kernels->row_max(s->model.blocks, s->n_blocks, s->model.block_max, &s->model.max)) return PE_OK;
    int32_t i = 0;
    while (logits[i] < INFINITY) i++;
    return pe_fail(err, PE_ERR_NUMERIC, NULL, "the logit of token %d is %s: the model's arithmetic has failed", i,
                   isnan(logits[i]) ? "NaN" : "+Inf");
}

pe_status pe_sampler_sample(pe_sampler *s, const float *logits, int64_t position, const uint32_t *mask, pe_sampled *out,
                            pe_error *err) {
    if (position < 0) return pe_fail(err, PE_ERR_ARGUMENT, NULL, "position %lld: must be >= 0", (long long)position);
    if (mask && !s->p.masked)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "a mask came, and the settings do not say `masked`");
    const pe_status status = read_row(s, logits, err);
    if (status != PE_OK) return status;
    const pe_row *r = &s->model;
    if (s->copies) {
        change(s, logits, mask);
        r = &s->changed;
    }
    if (r->max == -INFINITY)
        return pe_fail(err, PE_ERR_NUMERIC, NULL, "no token is left to choose from: every logit is -Inf%s",
                       s->model.max == -INFINITY ? ""
                       : mask                    ? " after the mask and logit_bias"
                                                 : " after logit_bias");

    const pe_sampling *p = &s->p;
    bool done = true;
    if (p->temperature < GREEDY_BELOW || p->top_k == 1 || p->top_p <= 0 || p->min_p >= 1) {
        out->token = first_equal(r, r->max);
    } else {
        pe_row_token lowest;
        done = pe_cut_find(&s->cut, r, p->top_k, p->top_p, p->min_p, &lowest);
        if (done) out->token = draw_down_to(s, r, lowest, uniform(p->seed, position));
    }
    out->logprob = NAN;
    out->n_top = 0;
    if (done && p->n_logprobs >= 0) done = report(s, &s->model, out);
    if (!done) return pe_fail(err, PE_ERR_MEMORY, NULL, "no memory left to sort %d candidate tokens", s->n_vocab);
    return PE_OK;
}

pe_status pe_sampler_score(pe_sampler *s, const float *logits, int32_t token, pe_sampled *out, pe_error *err) {
    if (s->p.n_logprobs < 0)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "the settings ask for no log-probabilities: set n_logprobs");
    if (token < 0 || token >= s->n_vocab)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "token %d is not in the vocabulary (0 to %d)", token,
                       s->n_vocab - 1);
    const pe_status status = read_row(s, logits, err);
    if (status != PE_OK) return status;
    if (s->model.max == -INFINITY)
        return pe_fail(err, PE_ERR_NUMERIC, NULL, "every logit is -Inf: no token has a probability");
    out->token = token;
    out->n_top = 0;
    if (!report(s, &s->model, out))
        return pe_fail(err, PE_ERR_MEMORY, NULL, "no memory left to sort %d candidate tokens", s->n_vocab);
    return PE_OK;
}

// ---- history and life ------------------------------------------------------------------------------------------------

void pe_sampler_accept(pe_sampler *s, const int32_t *tokens, int32_t n, bool generated) {
    if (!s->tallies) return;
    for (int32_t i = 0; i < n; i++) {
        const int32_t token = tokens[i];
        if (token < 0 || token >= s->n_vocab) continue;  // has no logit, so nothing to penalize
        tally *t = &s->tallies[token];
        if (!t->seen) {
            t->seen = true;
            s->distinct[s->n_distinct++] = token;
        }
        t->generated += generated;
        if (s->window) {
            int32_t *oldest = &s->window[s->n_accepted % s->p.repeat_last_n];
            if (s->n_accepted >= s->p.repeat_last_n) s->tallies[*oldest].in_window--;
            *oldest = token;
        }
        t->in_window += s->p.repeat_last_n != 0;
        s->n_accepted++;
    }
}

static pe_status check_settings(const pe_sampling *p, int32_t n_vocab, const int32_t *bias_tokens,
                                const float *bias_values, int32_t n_bias, pe_error *err) {
    if (n_vocab < 1 || n_vocab > MAX_VOCAB)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "n_vocab must be from 1 to %d, not %d", MAX_VOCAB, n_vocab);
    if (!(p->temperature >= 0 && p->temperature <= FLT_MAX))
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "temperature must be a number >= 0, not %g", p->temperature);
    if (p->top_k < 0) return pe_fail(err, PE_ERR_ARGUMENT, NULL, "top_k must be >= 0 (0: off), not %d", p->top_k);
    if (!(p->top_p >= 0 && p->top_p <= 1))
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "top_p must be from 0 to 1, not %g", p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "min_p must be from 0 to 1, not %g", p->min_p);
    if (!(p->repeat_penalty > 0 && p->repeat_penalty <= FLT_MAX))
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "repeat_penalty must be > 0 (1: off), not %g", p->repeat_penalty);
    if (!isfinite(p->presence_penalty))
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "presence_penalty must be finite, not %g", p->presence_penalty);
    if (!isfinite(p->frequency_penalty))
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "frequency_penalty must be finite, not %g", p->frequency_penalty);
    if (p->repeat_last_n < -1 || p->repeat_last_n > MAX_LAST_N)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "repeat_last_n must be -1 (all) or from 0 to %d, not %d", MAX_LAST_N,
                       p->repeat_last_n);
    if (p->n_logprobs < -1 || p->n_logprobs > MAX_LOGPROBS)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "n_logprobs must be -1 (off) or from 0 to %d, not %d", MAX_LOGPROBS,
                       p->n_logprobs);
    if (n_bias < 0) return pe_fail(err, PE_ERR_ARGUMENT, NULL, "n_bias must be >= 0, not %d", n_bias);
    for (int32_t i = 0; i < n_bias; i++) {
        if (bias_tokens[i] < 0 || bias_tokens[i] >= n_vocab)
            return pe_fail(err, PE_ERR_ARGUMENT, NULL, "logit_bias: token %d is not in the vocabulary (0 to %d)",
                           bias_tokens[i], n_vocab - 1);
        if (!(bias_values[i] <= FLT_MAX))
            return pe_fail(err, PE_ERR_ARGUMENT, NULL, "logit_bias of token %d must be finite or -Inf, not %g",
                           bias_tokens[i], bias_values[i]);
    }
    return PE_OK;
}

static bool make_row(pe_row *r, size_t n_blocks) {
    r->blocks = malloc(n_blocks * sizeof *r->blocks);
    r->block_max = malloc(n_blocks * sizeof *r->block_max);
    return r->blocks && r->block_max;
}

static float *make_blocks(size_t n) {  // the last of which ends with what is no token
    float *blocks = malloc(n * PE_ROW_BLOCK * sizeof *blocks);
    for (int32_t i = 0; blocks && i < PE_ROW_BLOCK; i++) blocks[(n - 1) * PE_ROW_BLOCK + (size_t)i] = -INFINITY;
    return blocks;
}

pe_status pe_sampler_create(const pe_sampling *p, int32_t n_vocab, const int32_t *bias_tokens, const float *bias_values,
                            int32_t n_bias, pe_sampler **out, pe_error *err) {
    *out = NULL;
    const pe_status status = check_settings(p, n_vocab, bias_tokens, bias_values, n_bias, err);
    if (status != PE_OK) return status;
    pe_error local;
    if (!err) err = &local;
    const pe_kernels *kernels = pe_kernels_active(err);
    if (!kernels) return (pe_status)err->code;
    pe_sampler *s = calloc(1, sizeof *s);
    if (!s) return pe_fail(err, PE_ERR_MEMORY, NULL, "no memory left for a sampler");
    atomic_init(&s->references, 1);
    s->kernels = kernels;
    s->p = *p;
    s->n_vocab = n_vocab;
    s->n_blocks = pe_row_blocks(n_vocab);
    s->n_bias = n_bias;
    const bool repeats = p->repeat_penalty != 1 && p->repeat_last_n != 0;
    const bool penalties = repeats || p->presence_penalty != 0 || p->frequency_penalty != 0;
    const size_t n = (size_t)n_vocab, b = (size_t)n_bias, blocks = (size_t)s->n_blocks;
    bool ok = pe_cut_create(&s->cut, kernels, n_vocab);
    ok &= make_row(&s->model, blocks);
    ok &= (s->block_sums = malloc(blocks * sizeof *s->block_sums)) != NULL;
    if (n_vocab % PE_ROW_BLOCK) ok &= (s->last_block = make_blocks(1)) != NULL;
    if (n_bias > 0) {
        ok &= (s->bias_tokens = malloc(b * sizeof *s->bias_tokens)) != NULL;
        ok &= (s->bias_values = malloc(b * sizeof *s->bias_values)) != NULL;
    }
    if (n_bias > 0 || penalties || p->masked) {
        ok &= make_row(&s->changed, blocks);
        ok &= (s->copies = make_blocks(blocks)) != NULL;
    }
    if (penalties) {
        ok &= (s->tallies = calloc(n, sizeof *s->tallies)) != NULL;
        ok &= (s->distinct = malloc(n * sizeof *s->distinct)) != NULL;
    }
    if (repeats && p->repeat_last_n > 0)
        ok &= (s->window = malloc((size_t)p->repeat_last_n * sizeof *s->window)) != NULL;
    if (!ok) {
        pe_sampler_release(s);
        return pe_fail(err, PE_ERR_MEMORY, NULL, "no memory left for a sampler over %d tokens", n_vocab);
    }
    if (n_bias > 0) {
        memcpy(s->bias_tokens, bias_tokens, b * sizeof *bias_tokens);
        memcpy(s->bias_values, bias_values, b * sizeof *bias_values);
    }
    *out = s;
    return PE_OK;
}

void pe_sampler_retain(pe_sampler *s) { atomic_fetch_add_explicit(&s->references, 1, memory_order_relaxed); }

void pe_sampler_release(pe_sampler *s) {
    if (!s || atomic_fetch_sub_explicit(&s->references, 1, memory_order_acq_rel) != 1) return;
    free(s->bias_tokens);
    free(s->bias_values);
    free(s->model.blocks);
    free(s->model.block_max);
    free(s->changed.blocks);
    free(s->changed.block_max);
    free(s->copies);
    free(s->last_block);
    free(s->block_sums);
    pe_cut_release(&s->cut);
    free(s->tallies);
    free(s->distinct);
    free(s->window);
    free(s);
}
