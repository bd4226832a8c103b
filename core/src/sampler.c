// Sampling: from one row of logits and a request's settings to one token. Owns the order of the rules, the random
// numbers, the penalties' history and the log-probabilities; knows nothing of sequences, text or stop rules.
//
// The rules, in llama.cpp's order: the caller's mask, logit bias, penalties, top-k, top-p, min-p, temperature, draw.
// Top-p and min-p look at the distribution at temperature 1. Every filter keeps a prefix of the order (logit descending,
// token ascending), so the kept set is always "the first m", and equal logits are never a matter of luck. A draw walks
// the kept tokens in the vocabulary's order.
//
// Nothing here sorts the vocabulary. The few most likely tokens mostly decide: the maxima of blocks of logits tell which
// blocks may have them. Where they do not, logits are binned by their distance to the largest; a rule first finds the
// bin in which it cuts, and only that bin's tokens are gathered and sorted. The bits of a draw depend on IEEE arithmetic
// alone (own exp, fixed order of every sum), not on the C library or the instruction set.
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "kernels.h"
#include "row.h"

enum {
    LANES = PE_ROW_LANES,
    BINS = PE_ROW_BINS,
    HEAD = 128,              // most likely tokens that are looked at before all are binned
    FIRST_CANDIDATES = 512,  // room at create; a flat distribution makes it grow once
    MAX_VOCAB = 1 << 28,
    MAX_LAST_N = 1 << 20,  // a longer window must say -1 (all)
    MAX_LOGPROBS = sizeof(((pe_sampled *)0)->top_tokens) / sizeof(int32_t),
};

// Below this a temperature means greedy: a step of one float between two logits would already be a factor of e.
static const float GREEDY_BELOW = 1e-5f;

typedef struct candidate {
    union {
        uint32_t order;  // while sorting
        float weight;    // once sorted: exp((logit - max) / temperature)
    };
    int32_t token;
} candidate;

typedef struct tally {  // of one token in the sequence
    int32_t in_window;  // among the last repeat_last_n tokens
    int32_t generated;
    bool seen;  // listed in `distinct`
} tally;

// A row of logits with what one pass finds out about it.
typedef struct row {
    const float *x;    // [n_vocab]
    float *block_max;  // [pe_row_blocks(n_vocab)]
    float max;
} row;

struct pe_sampler {
    atomic_int references;
    const pe_kernels *kernels;
    pe_sampling p;
    int32_t n_vocab;
    int32_t n_bias;
    int32_t *bias_tokens;  // [n_bias]
    float *bias_values;    // [n_bias]
    float *adjusted;       // [n_vocab] logits after mask, bias and penalties; NULL when there are none
    float *block_max;      // [2, pe_row_blocks(n_vocab)] of the logits, and of the adjusted ones
    double *block_sums;    // [pe_row_blocks(n_vocab)] of weights
    tally *tallies;        // [n_vocab]; NULL without penalties
    int32_t *distinct;     // [n_vocab] tokens with a tally, in order of first sight
    int32_t n_distinct;
    int32_t *window;  // [repeat_last_n] ring of the last tokens; NULL when unused or all count
    int64_t n_accepted;
    candidate *candidates;  // [capacity]
    candidate *scratch;     // [capacity] the other half of the sort
    int32_t n_candidates;
    int32_t capacity;
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

// ---- candidates ------------------------------------------------------------------------------------------------------

static bool reserve(pe_sampler *s, int32_t n) {
    if (n <= s->capacity) return true;
    int64_t capacity = s->capacity ? s->capacity : FIRST_CANDIDATES;
    while (capacity < n) capacity *= 2;
    candidate *c = realloc(s->candidates, (size_t)capacity * sizeof *c);
    if (!c) return false;
    s->candidates = c;
    free(s->scratch);
    s->scratch = malloc((size_t)capacity * sizeof *c);
    s->capacity = s->scratch ? (int32_t)capacity : 0;
    return s->scratch != NULL;
}

static inline void add_candidate(pe_sampler *s, float logit, int32_t token) {
    const uint32_t u = pe_f32_bits(logit + 0.0f);  // -0 and +0 are equal
    const uint32_t rising = u >> 31 ? ~u : u | 0x80000000u;
    candidate *c = &s->candidates[s->n_candidates++];
    c->order = ~rising;  // rises as the logit falls
    c->token = token;
}

static inline bool in_bins(float x, float max, int32_t first, int32_t last) {
    const int32_t bin = pe_row_bin(x, max);
    return (bin >= first) & (bin <= last) & (x > -INFINITY);
}

// Candidates become the tokens of bins first..last, by token. Masked ones (-Inf) are never among them.
static bool gather(pe_sampler *s, const row *r, int32_t first, int32_t last) {
    s->n_candidates = 0;
    // Bounds that let a little more in and cost less than bins.
    const float low = last < BINS - 1 ? r->max - (float)(last + 2) / PE_BINS_PER_NAT : -FLT_MAX;
    const float high = first > 0 ? r->max - (float)(first - 1) / PE_BINS_PER_NAT : r->max;
    for (int32_t begin = 0; begin < s->n_vocab; begin += PE_ROW_BLOCK) {
        if (pe_row_bin(r->block_max[begin / PE_ROW_BLOCK], r->max) > last) continue;
        const int32_t end = s->n_vocab - begin < PE_ROW_BLOCK ? s->n_vocab : begin + PE_ROW_BLOCK;
        if (!reserve(s, s->n_candidates + PE_ROW_BLOCK)) return false;
        for (int32_t i = begin; i < end; i += LANES) {
            const int32_t n = end - i < LANES ? end - i : LANES;
            int32_t any = n < LANES;
            for (int j = 0; n == LANES && j < LANES; j++) any |= (r->x[i + j] >= low) & (r->x[i + j] <= high);
            if (!any) continue;
            for (int32_t j = i; j < i + n; j++)
                if (in_bins(r->x[j], r->max, first, last)) add_candidate(s, r->x[j], j);
        }
    }
    return true;
}

// By `order`; as it comes from `gather`, that is by logit descending, token ascending: both sorts are stable.
static void sort_candidates(pe_sampler *s) {
    const int32_t n = s->n_candidates;
    if (n <= 64) {
        candidate *c = s->candidates;
        for (int32_t i = 1; i < n; i++) {
            const candidate moved = c[i];
            int32_t j = i;
            for (; j > 0 && c[j - 1].order > moved.order; j--) c[j] = c[j - 1];
            c[j] = moved;
        }
        return;
    }
    for (int shift = 0; shift < 32; shift += 11) {
        int32_t start[2048] = {0};
        const candidate *from = s->candidates;
        candidate *to = s->scratch;
        for (int32_t i = 0; i < n; i++) start[(from[i].order >> shift) & 2047]++;
        if (start[(from[0].order >> shift) & 2047] == n) continue;  // all alike in these bits
        int32_t sum = 0;
        for (int d = 0; d < 2048; d++) {
            const int32_t count = start[d];
            start[d] = sum;
            sum += count;
        }
        for (int32_t i = 0; i < n; i++) to[start[(from[i].order >> shift) & 2047]++] = from[i];
        s->scratch = s->candidates;
        s->candidates = to;
    }
}

// Candidates become the k largest logits, sorted (fewer when fewer are not masked).
static bool select_top(pe_sampler *s, const row *r, int32_t k) {
    // The k-th largest logit is no smaller than the k-th largest of the blocks' maxima, which are logits too.
    const int32_t n_blocks = pe_row_blocks(s->n_vocab);
    const float *x = k <= n_blocks ? r->block_max : r->x;
    const int32_t n = k <= n_blocks ? n_blocks : s->n_vocab;
    int32_t count[BINS] = {0}, last = 0;
    for (int32_t i = 0; i < n; i++) count[pe_row_bin(x[i], r->max)]++;
    for (int32_t sum = count[0]; sum < k && last < BINS - 1;) sum += count[++last];
    if (!gather(s, r, 0, last)) return false;
    sort_candidates(s);
    if (s->n_candidates > k) s->n_candidates = k;
    return true;
}

// Replaces the sort keys by weights, and returns their sum.
static double weigh_candidates(pe_sampler *s, const row *r, float sharpness) {
    double sum = 0;
    for (int32_t i = 0; i < s->n_candidates; i++) {
        candidate *c = &s->candidates[i];
        c->weight = pe_row_weight(r->x[c->token], r->max, sharpness);
        sum += (double)c->weight;
    }
    return sum;
}

// ---- the rules -------------------------------------------------------------------------------------------------------

static int32_t first_equal(const row *r, float value) {
    int32_t i = 0;
    while (r->block_max[i] != value) i++;
    i *= PE_ROW_BLOCK;
    while (r->x[i] != value) i++;
    return i;
}

// Cuts sorted candidates with weights, before which `before` of all weight stands, at the first that brings the sum to
// `wanted` (top-p), and at the first below min-p. True if either cut. The most likely token of all is always kept.
static bool cut_candidates(pe_sampler *s, double before, double wanted) {
    int32_t n = 0;
    double kept = before;
    while (n < s->n_candidates && (kept < wanted || kept == 0)) kept += (double)s->candidates[n++].weight;
    bool cut = kept >= wanted;
    const int32_t least = before == 0;
    while (n > least && s->candidates[n - 1].weight < s->p.min_p) {
        n--;
        cut = true;
    }
    s->n_candidates = n;
    return cut;
}

// Draws one of the candidates. Where rounding leaves the running sum just short of the total, it is the last one that has
// any weight.
static int32_t draw_candidate(pe_sampler *s, const row *r, double u) {
    for (int32_t i = 0; i < s->n_candidates; i++) s->candidates[i].order = (uint32_t)s->candidates[i].token;
    sort_candidates(s);
    const double target = u * weigh_candidates(s, r, 1 / s->p.temperature);
    int32_t chosen = s->candidates[0].token;
    double sum = 0;
    for (int32_t i = 0; i < s->n_candidates && !(sum > target); i++) {
        if (s->candidates[i].weight <= 0) continue;
        chosen = s->candidates[i].token;
        sum += (double)s->candidates[i].weight;
    }
    return chosen;
}

// Draws one of the tokens from the most likely one down to `lowest`: by blocks, then within one.
static int32_t draw_down_to(pe_sampler *s, const row *r, pe_row_token lowest, double u) {
    const float sharpness = 1 / s->p.temperature;
    const double target = u * s->kernels->row_sums(r->x, s->n_vocab, r->max, sharpness, lowest, s->block_sums);
    double sum = 0, before = 0;
    int32_t block = 0;
    for (int32_t b = 0; b < pe_row_blocks(s->n_vocab) && !(sum > target); b++) {
        if (s->block_sums[b] <= 0) continue;
        block = b;
        before = sum;
        sum += s->block_sums[b];
    }
    int32_t chosen = 0;
    sum = before;
    for (int32_t i = block * PE_ROW_BLOCK; i < s->n_vocab && i < (block + 1) * PE_ROW_BLOCK && !(sum > target); i++) {
        const float w = pe_row_down_to(r->x[i], i, lowest) ? pe_row_weight(r->x[i], r->max, sharpness) : 0;
        if (w <= 0) continue;
        chosen = i;
        sum += (double)w;
    }
    return chosen;
}

// Draws by top-p and min-p where they leave more than the head: the bins say in which of them the rules cut, and only
// those are sorted.
static bool draw_binned(pe_sampler *s, const row *r, double total, double u, int32_t *token) {
    const double wanted = s->p.top_p < 1 ? (double)s->p.top_p * total : INFINITY;
    double sums[BINS], before = 0;
    s->kernels->row_bin_sums(r->x, s->n_vocab, r->max, sums);
    int32_t first = 0, last = BINS - 1;  // bins in which the rules cut; those before are kept wholly
    if (s->p.min_p > 0) {                // two bins around the bound, so that rounding of the logarithm cannot matter
        const double bound = -log((double)s->p.min_p) * PE_BINS_PER_NAT;
        if (bound + 1 < last) last = (int32_t)bound + 1;
        first = last > 2 ? last - 2 : 0;
    }
    int32_t bin = 0;
    for (; bin < last && before + sums[bin] < wanted; bin++) before += sums[bin];
    if (bin < last || s->p.min_p <= 0) last = bin;  // where top-p cuts
    if (first > last || s->p.min_p <= 0) first = last;
    do {  // and a bin before, which is kept: so the least likely token that stays is among those that are sorted
        first -= first > 0;
    } while (first > 0 && sums[first] <= 0);
    before = 0;
    for (int32_t b = 0; b < first; b++) before += sums[b];
    if (!gather(s, r, first, last)) return false;
    sort_candidates(s);
    weigh_candidates(s, r, 1);
    cut_candidates(s, before, wanted);
    const int32_t lowest = s->candidates[s->n_candidates - 1].token;
    *token = draw_down_to(s, r, (pe_row_token){r->x[lowest], lowest}, u);
    return true;
}

// Draws from what top-k, top-p and min-p leave.
static bool draw_filtered(pe_sampler *s, const row *r, double u, int32_t *token) {
    const pe_sampling *p = &s->p;
    const bool top_k = p->top_k > 0 && p->top_k < s->n_vocab;
    double total = 0;
    if (!top_k && p->top_p < 1) total = s->kernels->row_sums(r->x, s->n_vocab, r->max, 1, PE_ROW_ALL, s->block_sums);
    if (!select_top(s, r, top_k ? p->top_k : HEAD)) return false;
    const bool all = top_k || s->n_candidates < HEAD;
    const double sum = weigh_candidates(s, r, 1);
    if (top_k) total = sum;
    const bool cut = cut_candidates(s, 0, p->top_p < 1 ? (double)p->top_p * total : INFINITY);
    if (!cut && !all) return draw_binned(s, r, total, u, token);
    *token = draw_candidate(s, r, u);
    return true;
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

// Writes s->adjusted: logits after mask, bias and penalties.
static void adjust(pe_sampler *s, const float *logits, const uint32_t *mask) {
    float *x = s->adjusted;
    if (mask) copy_masked(x, logits, s->n_vocab, mask);
    else memcpy(x, logits, (size_t)s->n_vocab * sizeof *x);
    for (int32_t i = 0; i < s->n_bias; i++) {
        float *v = &x[s->bias_tokens[i]];
        *v = clamped((double)*v + s->bias_values[i]);
    }
    for (int32_t i = 0; i < s->n_distinct; i++) {
        const int32_t token = s->distinct[i];
        const tally *t = &s->tallies[token];
        double v = x[token];
        if (t->in_window) v = v > 0 ? v / s->p.repeat_penalty : v * s->p.repeat_penalty;
        if (t->generated) v -= s->p.presence_penalty + (double)s->p.frequency_penalty * t->generated;
        x[token] = clamped(v);
    }
}

// Log-probabilities of the chosen and the most likely tokens in the model's own distribution.
static bool report(pe_sampler *s, const row *r, pe_sampled *out) {
    const double log_sum = log(s->kernels->row_sums(r->x, s->n_vocab, r->max, 1, PE_ROW_ALL, s->block_sums));
    out->logprob = (float)((double)r->x[out->token] - (double)r->max - log_sum);
    if (s->p.n_logprobs == 0) return true;
    if (!select_top(s, r, s->p.n_logprobs)) return false;
    out->n_top = s->n_candidates;
    for (int32_t i = 0; i < out->n_top; i++) {
        out->top_tokens[i] = s->candidates[i].token;
        out->top_logprobs[i] = (float)((double)r->x[out->top_tokens[i]] - (double)r->max - log_sum);
    }
    return true;
}

// The model's own logits and their maxima; or an error where they are no numbers.
static pe_status read_row(const pe_sampler *s, const float *logits, row *out, pe_error *err) {
    *out = (row){.x = logits, .block_max = s->block_max};
    if (s->kernels->row_max(logits, s->n_vocab, out->block_max, &out->max)) return PE_OK;
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
    row model;
    const pe_status status = read_row(s, logits, &model, err);
    if (status != PE_OK) return status;
    row r = model;
    if (s->adjusted) {
        adjust(s, logits, mask);
        r.x = s->adjusted;
        r.block_max = s->block_max + pe_row_blocks(s->n_vocab);
        s->kernels->row_max(r.x, s->n_vocab, r.block_max, &r.max);
    }
    if (r.max == -INFINITY)
        return pe_fail(err, PE_ERR_NUMERIC, NULL, "no token is left to choose from: every logit is -Inf%s",
                       model.max == -INFINITY ? ""
                       : mask                 ? " after the mask and logit_bias"
                                              : " after logit_bias");

    const pe_sampling *p = &s->p;
    bool done = true;
    if (p->temperature < GREEDY_BELOW || p->top_k == 1 || p->top_p <= 0 || p->min_p >= 1) {
        out->token = first_equal(&r, r.max);
    } else {
        const bool filters = (p->top_k > 0 && p->top_k < s->n_vocab) || p->top_p < 1 || p->min_p > 0;
        const double u = uniform(p->seed, position);
        if (filters) done = draw_filtered(s, &r, u, &out->token);
        else out->token = draw_down_to(s, &r, PE_ROW_ALL, u);
    }
    out->logprob = NAN;
    out->n_top = 0;
    if (done && p->n_logprobs >= 0) done = report(s, &model, out);
    if (!done) return pe_fail(err, PE_ERR_MEMORY, NULL, "no memory left to sort %d candidate tokens", s->n_vocab);
    return PE_OK;
}

pe_status pe_sampler_score(pe_sampler *s, const float *logits, int32_t token, pe_sampled *out, pe_error *err) {
    if (s->p.n_logprobs < 0)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "the settings ask for no log-probabilities: set n_logprobs");
    if (token < 0 || token >= s->n_vocab)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "token %d is not in the vocabulary (0 to %d)", token,
                       s->n_vocab - 1);
    row model;
    const pe_status status = read_row(s, logits, &model, err);
    if (status != PE_OK) return status;
    if (model.max == -INFINITY)
        return pe_fail(err, PE_ERR_NUMERIC, NULL, "every logit is -Inf: no token has a probability");
    out->token = token;
    out->n_top = 0;
    if (!report(s, &model, out))
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
    s->n_bias = n_bias;
    const bool repeats = p->repeat_penalty != 1 && p->repeat_last_n != 0;
    const bool penalties = repeats || p->presence_penalty != 0 || p->frequency_penalty != 0;
    const size_t n = (size_t)n_vocab, b = (size_t)n_bias;
    bool ok = reserve(s, FIRST_CANDIDATES);
    ok &= (s->block_max = malloc(2 * (size_t)pe_row_blocks(n_vocab) * sizeof *s->block_max)) != NULL;
    ok &= (s->block_sums = malloc((size_t)pe_row_blocks(n_vocab) * sizeof *s->block_sums)) != NULL;
    if (n_bias > 0) {
        ok &= (s->bias_tokens = malloc(b * sizeof *s->bias_tokens)) != NULL;
        ok &= (s->bias_values = malloc(b * sizeof *s->bias_values)) != NULL;
    }
    if (n_bias > 0 || penalties || p->masked) ok &= (s->adjusted = malloc(n * sizeof *s->adjusted)) != NULL;
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
    free(s->adjusted);
    free(s->block_max);
    free(s->block_sums);
    free(s->tallies);
    free(s->distinct);
    free(s->window);
    free(s->candidates);
    free(s->scratch);
    free(s);
}
