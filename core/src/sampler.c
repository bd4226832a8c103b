// Sampling: from one row of logits and a request's settings to one token. Owns the order of the rules, the random
// numbers, the penalties' history and the log-probabilities; knows nothing of sequences, text or stop rules.
//
// The rules, in llama.cpp's order: logit bias, penalties, top-k, top-p, min-p, temperature, draw. Top-p and min-p look
// at the distribution at temperature 1. Every filter keeps a prefix of the order (logit descending, token ascending),
// so the kept set is always "the first m", and equal logits are never a matter of luck.
//
// Nothing here sorts the vocabulary. Logits are binned by their distance to the largest; a rule first finds the bin in
// which it cuts, and only the tokens of the bins that matter are gathered and sorted. The bits of a draw depend on
// IEEE arithmetic alone (own exp, fixed order of every sum), not on the C library or the instruction set.
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "f16.h"
#include "pyedge.h"

enum {
    LANES = 16,   // logits per block: whole vectors on any machine
    BINS = 2048,  // of 1 / BINS_PER_NAT each; the last one holds all that is farther
    BINS_PER_NAT = 32,
    FIRST_CANDIDATES = 256,  // room at create; a flat distribution makes it grow once
    MAX_VOCAB = 1 << 28,
    MAX_LAST_N = 1 << 20,  // a longer window must say -1 (all)
    MAX_LOGPROBS = sizeof(((pe_sampled *)0)->top_tokens) / sizeof(int32_t),
};

// Below this a temperature means greedy: a step of one float between two logits would already be a factor of e.
static const float GREEDY_BELOW = 1e-5f;

typedef struct candidate {
    union {
        uint32_t order;  // while sorting: rises as the logit falls
        float weight;    // once sorted: exp((logit - max) / temperature)
    };
    int32_t token;
} candidate;

typedef struct tally {  // of one token in the sequence
    int32_t in_window;  // among the last repeat_last_n tokens
    int32_t generated;
    bool seen;  // listed in `distinct`
} tally;

struct pe_sampler {
    atomic_int references;
    pe_sampling p;
    int32_t n_vocab;
    int32_t n_bias;
    int32_t *bias_tokens;  // [n_bias]
    float *bias_values;    // [n_bias]
    float *adjusted;       // [n_vocab] logits after bias and penalties; NULL when there are none
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

// exp(x) for x <= 0 within 2 units in the last place, exactly 1 at 0, and 0 below -87. x = n ln 2 + r, |r| <= ln(2)/2;
// exp(r) by its Taylor series to r^7 (truncated at 5e-9); 2^n by adding n to the exponent.
static inline float exp_neg(float x) {
    const float to_integer = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(v) in the low bits
    const float c = x > -87.0f ? x : -87.0f;
    const float shifted = c * 1.44269504f + to_integer;
    const float n = shifted - to_integer;
    const float r = c - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts, the first exact times n
    float y = 1.0f / 5040;
    y = y * r + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    const float e = pe_bits_f32(pe_f32_bits(y) + (pe_f32_bits(shifted) << 23));
    return x < -87.0f ? 0.0f : e;
}

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

// ---- passes over the vocabulary --------------------------------------------------------------------------------------
// Each works on blocks of LANES, whose loops the compiler turns into vectors, and on a tail that does the same.

// Largest logit; *sound is false when one is NaN or +Inf.
static float find_max(const float *x, int32_t n, bool *sound) {
    float m[LANES];
    int32_t bad[LANES] = {0};
    for (int j = 0; j < LANES; j++) m[j] = -INFINITY;
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const float v = x[i + j];
            bad[j] |= !(v < INFINITY);
            m[j] = v > m[j] ? v : m[j];
        }
    for (; i < n; i++) {
        bad[0] |= !(x[i] < INFINITY);
        m[0] = x[i] > m[0] ? x[i] : m[0];
    }
    for (int j = 1; j < LANES; j++) {
        bad[0] |= bad[j];
        m[0] = m[j] > m[0] ? m[j] : m[0];
    }
    *sound = !bad[0];
    return m[0];
}

// Sum of exp(x - max).
static double sum_exp(const float *x, int32_t n, float max) {
    double sum[4] = {0};
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        float w[LANES];
        for (int j = 0; j < LANES; j++) w[j] = exp_neg(x[i + j] - max);
        for (int j = 0; j < LANES; j += 4)
            for (int k = 0; k < 4; k++) sum[k] += w[j + k];
    }
    for (; i < n; i++) sum[0] += exp_neg(x[i] - max);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Bins never fall as logits fall: subtraction rounds monotonically.
static inline int32_t bin_of(float x, float max) {
    const float d = (max - x) * (float)BINS_PER_NAT;
    return (int32_t)(d < (float)(BINS - 1) ? d : (float)(BINS - 1));
}

static inline bool in_bins(float x, float max, int32_t first, int32_t last) {
    const int32_t bin = bin_of(x, max);
    return (bin >= first) & (bin <= last) & (x > -INFINITY);
}

static void count_bins(const float *x, int32_t n, float max, int32_t count[BINS]) {
    memset(count, 0, BINS * sizeof *count);
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        int32_t bin[LANES];
        for (int j = 0; j < LANES; j++) bin[j] = bin_of(x[i + j], max);
        for (int j = 0; j < LANES; j++) count[bin[j]]++;
    }
    for (; i < n; i++) count[bin_of(x[i], max)]++;
}

// mass[bin] = sum of exp((x - max) / temperature); returns the sum over bins, nearest first.
static double weigh_bins(const float *x, int32_t n, float max, float temperature, double mass[BINS]) {
    memset(mass, 0, BINS * sizeof *mass);
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        int32_t bin[LANES];
        float w[LANES];
        for (int j = 0; j < LANES; j++) {
            bin[j] = bin_of(x[i + j], max);
            w[j] = exp_neg((x[i + j] - max) / temperature);
        }
        for (int j = 0; j < LANES; j++) mass[bin[j]] += w[j];
    }
    for (; i < n; i++) mass[bin_of(x[i], max)] += exp_neg((x[i] - max) / temperature);
    double total = 0;
    for (int b = 0; b < BINS; b++) total += mass[b];
    return total;
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
    c->order = ~rising;
    c->token = token;
}

// Candidates become the tokens of bins first..last, by token. Masked ones (-Inf) are never among them.
static bool gather(pe_sampler *s, const float *x, float max, int32_t first, int32_t last) {
    s->n_candidates = 0;
    for (int32_t i = 0; i < s->n_vocab; i += LANES) {
        const int32_t n = s->n_vocab - i < LANES ? s->n_vocab - i : LANES;
        int32_t any = n < LANES;
        for (int j = 0; n == LANES && j < LANES; j++) any |= in_bins(x[i + j], max, first, last);
        if (!any) continue;
        if (!reserve(s, s->n_candidates + n)) return false;
        for (int32_t j = i; j < i + n; j++)
            if (in_bins(x[j], max, first, last)) add_candidate(s, x[j], j);
    }
    return true;
}

// By logit descending, token ascending: both sorts are stable and `gather` lists tokens in order.
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
static bool select_top(pe_sampler *s, const float *x, float max, int32_t k) {
    int32_t count[BINS], last = 0;
    count_bins(x, s->n_vocab, max, count);
    for (int32_t n = count[0]; n < k && last < BINS - 1;) n += count[++last];
    if (!gather(s, x, max, 0, last)) return false;
    sort_candidates(s);
    if (s->n_candidates > k) s->n_candidates = k;
    return true;
}

// Replaces the sort keys by weights, and returns their sum.
static double weigh_candidates(pe_sampler *s, const float *x, float max, float temperature) {
    double sum = 0;
    for (int32_t i = 0; i < s->n_candidates; i++) {
        candidate *c = &s->candidates[i];
        c->weight = exp_neg((x[c->token] - max) / temperature);
        sum += c->weight;
    }
    return sum;
}

// The first candidate at which the running sum, begun at `sum`, passes `target`. Rounding may leave it just short of
// the total: then the last candidate that has any weight.
static int32_t walk(const pe_sampler *s, double sum, double target) {
    int32_t chosen = s->candidates[0].token;
    for (int32_t i = 0; i < s->n_candidates; i++) {
        if (s->candidates[i].weight <= 0) continue;
        chosen = s->candidates[i].token;
        sum += s->candidates[i].weight;
        if (sum > target) break;
    }
    return chosen;
}

// ---- the rules -------------------------------------------------------------------------------------------------------

static int32_t first_equal(const float *x, float value) {
    int32_t i = 0;
    while (x[i] != value) i++;
    return i;
}

// Candidates become what top-k, top-p and min-p leave, sorted.
static bool filter(pe_sampler *s, const float *x, float max) {
    const pe_sampling *p = &s->p;
    const bool top_k = p->top_k > 0 && p->top_k < s->n_vocab;
    double total = 0;
    if (top_k) {
        if (!select_top(s, x, max, p->top_k)) return false;
    } else {
        int32_t last = BINS - 1;
        if (p->top_p < 1) {
            double mass[BINS], sum;
            total = weigh_bins(x, s->n_vocab, max, 1.0f, mass);
            last = 0;
            for (sum = mass[0]; sum < (double)p->top_p * total && last < BINS - 1;) sum += mass[++last];
        }
        if (p->min_p > 0) {  // one bin more than the bound, so that rounding of the logarithm cannot matter
            const double bin = -log((double)p->min_p) * BINS_PER_NAT + 1;
            if (bin < last) last = (int32_t)bin;
        }
        if (!gather(s, x, max, 0, last)) return false;
        sort_candidates(s);
    }
    const double sum = weigh_candidates(s, x, max, 1.0f);
    int32_t n = s->n_candidates;
    if (p->top_p < 1) {
        const double wanted = (double)p->top_p * (top_k ? sum : total);
        double kept = s->candidates[0].weight;
        for (n = 1; n < s->n_candidates && kept < wanted; n++) kept += s->candidates[n].weight;
    }
    while (n > 1 && s->candidates[n - 1].weight < p->min_p) n--;
    s->n_candidates = n;
    return true;
}

// Draws from the filtered candidates.
static bool draw_filtered(pe_sampler *s, const float *x, float max, double u, int32_t *token) {
    if (!filter(s, x, max)) return false;
    const double total = weigh_candidates(s, x, max, s->p.temperature);
    *token = walk(s, 0, u * total);
    return true;
}

// Draws from the whole distribution: only the bin where the sum passes its target is sorted.
static bool draw_any(pe_sampler *s, const float *x, float max, double u, int32_t *token) {
    double mass[BINS];
    const double target = u * weigh_bins(x, s->n_vocab, max, s->p.temperature, mass);
    double sum = 0, before = 0;
    int32_t bin = 0;
    for (int32_t b = 0; b < BINS; b++) {
        if (mass[b] <= 0) continue;
        bin = b;
        before = sum;
        sum += mass[b];
        if (sum > target) break;
    }
    if (!gather(s, x, max, bin, bin)) return false;
    sort_candidates(s);
    weigh_candidates(s, x, max, s->p.temperature);
    *token = walk(s, before, target);
    return true;
}

static float clamped(double v) {  // keeps -Inf (masked), keeps the rest finite
    if (v == -INFINITY) return -INFINITY;
    return v > FLT_MAX ? FLT_MAX : v < -FLT_MAX ? -FLT_MAX : (float)v;
}

// Writes s->adjusted: logits after bias and penalties.
static void adjust(pe_sampler *s, const float *logits) {
    float *x = s->adjusted;
    memcpy(x, logits, (size_t)s->n_vocab * sizeof *x);
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
static bool report(pe_sampler *s, const float *logits, float max, pe_sampled *out) {
    const double log_sum = log(sum_exp(logits, s->n_vocab, max));
    out->logprob = (float)((double)logits[out->token] - max - log_sum);
    if (s->p.n_logprobs == 0) return true;
    if (!select_top(s, logits, max, s->p.n_logprobs)) return false;
    out->n_top = s->n_candidates;
    for (int32_t i = 0; i < out->n_top; i++) {
        out->top_tokens[i] = s->candidates[i].token;
        out->top_logprobs[i] = (float)((double)logits[out->top_tokens[i]] - max - log_sum);
    }
    return true;
}

pe_status pe_sampler_sample(pe_sampler *s, const float *logits, int64_t position, pe_sampled *out, pe_error *err) {
    if (position < 0) return pe_fail(err, PE_ERR_ARGUMENT, NULL, "position %lld: must be >= 0", (long long)position);
    bool sound;
    const float model_max = find_max(logits, s->n_vocab, &sound);
    if (!sound) {
        int32_t i = 0;
        while (logits[i] < INFINITY) i++;
        return pe_fail(err, PE_ERR_NUMERIC, NULL, "the logit of token %d is %s: the model's arithmetic has failed", i,
                       isnan(logits[i]) ? "NaN" : "+Inf");
    }
    const float *x = logits;
    float max = model_max;
    if (s->adjusted) {
        adjust(s, logits);
        x = s->adjusted;
        max = find_max(x, s->n_vocab, &sound);
    }
    if (max == -INFINITY)
        return pe_fail(err, PE_ERR_NUMERIC, NULL, "no token is left to choose from: every logit is -Inf%s",
                       model_max == -INFINITY ? "" : " after logit_bias");

    const pe_sampling *p = &s->p;
    bool done = true;
    if (p->temperature < GREEDY_BELOW || p->top_k == 1 || p->top_p <= 0 || p->min_p >= 1) {
        out->token = first_equal(x, max);
    } else {
        const bool filters = (p->top_k > 0 && p->top_k < s->n_vocab) || p->top_p < 1 || p->min_p > 0;
        const double u = uniform(p->seed, position);
        done = filters ? draw_filtered(s, x, max, u, &out->token) : draw_any(s, x, max, u, &out->token);
    }
    out->logprob = NAN;
    out->n_top = 0;
    if (done && p->n_logprobs >= 0) done = report(s, logits, model_max, out);
    if (!done) return pe_fail(err, PE_ERR_MEMORY, NULL, "no memory left to sort %d candidate tokens", s->n_vocab);
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
    pe_sampler *s = calloc(1, sizeof *s);
    if (!s) return pe_fail(err, PE_ERR_MEMORY, NULL, "no memory left for a sampler");
    atomic_init(&s->references, 1);
    s->p = *p;
    s->n_vocab = n_vocab;
    s->n_bias = n_bias;
    const bool repeats = p->repeat_penalty != 1 && p->repeat_last_n != 0;
    const bool penalties = repeats || p->presence_penalty != 0 || p->frequency_penalty != 0;
    const size_t n = (size_t)n_vocab, b = (size_t)n_bias;
    bool ok = reserve(s, FIRST_CANDIDATES);
    if (n_bias > 0) {
        ok &= (s->bias_tokens = malloc(b * sizeof *s->bias_tokens)) != NULL;
        ok &= (s->bias_values = malloc(b * sizeof *s->bias_values)) != NULL;
    }
    if (n_bias > 0 || penalties) ok &= (s->adjusted = malloc(n * sizeof *s->adjusted)) != NULL;
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
    free(s->tallies);
    free(s->distinct);
    free(s->window);
    free(s->candidates);
    free(s->scratch);
    free(s);
}
