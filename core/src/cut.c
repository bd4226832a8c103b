// How the last token that the rules keep is found. Nothing here sorts the vocabulary. The maxima of blocks of logits tell
// which blocks may have the k most likely. Where top-p cuts is estimated from a part of the row; one pass then sums all
// weights, and those above a window around the estimate, and marks the tokens in it; what it finds is exact whatever the
// estimate, which costs a second pass where it was wrong. The window's tokens are binned by logit, and those of one bin
// sorted.
#include "cut.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEAD = 128,              // most likely tokens that are known one by one when top-p's cut is estimated
    SAMPLED = 8,             // logits of each block that the estimate looks at
    FIRST_CANDIDATES = 512,  // room at create, which may grow once or twice
};

// ---- candidates ------------------------------------------------------------------------------------------------------

static bool reserve(pe_cut *s, int32_t n) {
    if (n <= s->capacity) return true;
    int64_t capacity = s->capacity ? s->capacity : FIRST_CANDIDATES;
    while (capacity < n) capacity *= 2;
    pe_candidate *c = realloc(s->candidates, (size_t)capacity * sizeof *c);
    if (!c) return false;
    s->candidates = c;
    free(s->scratch);
    s->scratch = malloc((size_t)capacity * sizeof *c);
    s->capacity = s->scratch ? (int32_t)capacity : 0;
    return s->scratch != NULL;
}

static inline uint32_t order_of(float logit) {     // rises as the logit falls
    const uint32_t u = pe_f32_bits(logit + 0.0f);  // -0 and +0 are equal
    return u >> 31 ? u : ~u & 0x7fffffffu;
}

static inline float logit_at(uint32_t order) { return pe_bits_f32(order >> 31 ? order : ~order & 0x7fffffffu); }

static inline void add_candidate(pe_cut *s, float logit, int32_t token) {
    pe_candidate *c = &s->candidates[s->n_candidates++];
    c->order = order_of(logit);
    c->token = token;
}

// The k-th largest of n logits that come in parts of `length`, or up to 2^-13 of it less.
static float about_kth(const float *const *parts, int32_t n_parts, int32_t length, int32_t k) {
    uint32_t count[2048] = {0}, high = 0, low = 0;
    for (int32_t p = 0; p < n_parts; p++)
        for (int32_t i = 0; i < length; i++) count[order_of(parts[p][i]) >> 21]++;
    for (; (uint32_t)k > count[high]; high++) k -= (int32_t)count[high];
    memset(count, 0, sizeof count);
    for (int32_t p = 0; p < n_parts; p++)
        for (int32_t i = 0; i < length; i++) {
            const uint32_t order = order_of(parts[p][i]);
            if (order >> 21 == high) count[order >> 10 & 2047]++;
        }
    for (; (uint32_t)k > count[low]; low++) k -= (int32_t)count[low];
    return logit_at(high << 21 | low << 10 | 1023);
}

// Candidates become the tokens whose logits are at least `low`, by token; of those equal to it, the first k. Masked ones
// (-Inf) are never among them.
static bool gather(pe_cut *s, const pe_row *r, float low, int32_t k) {
    s->n_candidates = 0;
    float from = low;
    for (int32_t b = 0; b < s->n_blocks; b++) {
        if (k <= 0) from = nextafterf(low, INFINITY);
        if (!(r->block_max[b] >= from)) continue;
        if (!reserve(s, s->n_candidates + PE_ROW_BLOCK)) return false;
        for (int32_t i = 0; i < PE_ROW_BLOCK; i += PE_ROW_LANES) {
            const float *x = r->blocks[b] + i;
            int32_t any = 0;
            for (int j = 0; j < PE_ROW_LANES; j++) any |= x[j] >= from;
            for (int j = 0; any && j < PE_ROW_LANES; j++)
                if (x[j] > low || (x[j] == low && k-- > 0)) add_candidate(s, x[j], b * PE_ROW_BLOCK + i + j);
        }
    }
    return true;
}

// By `order`; as it comes from `gather`, that is by logit descending, token ascending: both sorts are stable.
static void sort_candidates(pe_cut *s) {
    const int32_t n = s->n_candidates;
    if (n <= 64) {
        pe_candidate *c = s->candidates;
        for (int32_t i = 1; i < n; i++) {
            const pe_candidate moved = c[i];
            int32_t j = i;
            for (; j > 0 && c[j - 1].order > moved.order; j--) c[j] = c[j - 1];
            c[j] = moved;
        }
        return;
    }
    for (int shift = 0; shift < 32; shift += 11) {
        int32_t start[2048] = {0};
        const pe_candidate *from = s->candidates;
        pe_candidate *to = s->scratch;
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

// Candidates become, by token, the k largest logits and some more.
static bool gather_top(pe_cut *s, const pe_row *r, int32_t k) {
    // The k-th largest logit is no smaller than the k-th largest of the blocks' maxima, which are logits too.
    const float *block_max = r->block_max;
    const float low = k <= s->n_blocks ? about_kth(&block_max, 1, s->n_blocks, k)
                                       : about_kth((const float *const *)r->blocks, s->n_blocks, PE_ROW_BLOCK, k);
    return gather(s, r, low >= -FLT_MAX ? low : -FLT_MAX, k);  // NaN: beyond -Inf
}

// Candidates become the k largest logits, sorted (fewer when fewer are not masked).
bool pe_cut_select_top(pe_cut *s, const pe_row *r, int32_t k) {
    if (!gather_top(s, r, k)) return false;
    sort_candidates(s);
    if (s->n_candidates > k) s->n_candidates = k;
    return true;
}

// Replaces the sort keys by weights, and returns their sum.
static double weigh_candidates(pe_cut *s, const pe_row *r, pe_row_scale scale) {
    double sum = 0;
    for (int32_t i = 0; i < s->n_candidates; i++) {
        pe_candidate *c = &s->candidates[i];
        c->weight = pe_row_weight(pe_row_logit(r, c->token), scale);
        sum += (double)c->weight;
    }
    return sum;
}

// ---- the cuts -------------------------------------------------------------------------------------------------------

// The last of the sorted candidates with weights that top-p keeps, where `before` is the weight of all tokens above them:
// the one that brings the sum to `wanted`.
static pe_row_token cut_candidates(const pe_cut *s, const pe_row *r, double before, double wanted) {
    int32_t n = 0;
    double kept = before;
    do kept += (double)s->candidates[n++].weight;
    while (n < s->n_candidates && kept < wanted);
    const int32_t token = s->candidates[n - 1].token;
    return (pe_row_token){pe_row_logit(r, token), token};
}

// Where top-p is thought to cut: between two logits, `low` finite.
typedef struct window {
    float low, high;
} window;

// The part of a block that is sampled: of each another, for a row may have periods.
static inline const float *sampled_of(const pe_row *r, int32_t block) {
    return r->blocks[block] + block * SAMPLED % PE_ROW_BLOCK;
}

// Estimates where the most likely tokens first hold top_p of all weight. The head is known: `head` weighs its tokens, all
// logits above `from`. The rest is known from some logits of each block. With A and B the weights above and below a logit,
// what decides is (1 - p) A - p B; the window is where that is zero within what the sample leaves open.
static window estimate_cut(const pe_cut *s, const pe_row *r, pe_row_scale scale, double p, double head, float from) {
    enum { GROUP = PE_ROW_BLOCK / SAMPLED };  // blocks whose samples are weighed at once
    const double wide = 4;                    // standard deviations
    if (s->n_blocks < 2 * GROUP) return (window){-FLT_MAX, r->max};
    float least = from;  // of a sixteenth of the sample
    for (int32_t b = 0; b < s->n_blocks; b += GROUP)
        for (int32_t i = 0; i < SAMPLED; i++)
            if (r->blocks[b][i] < least && r->blocks[b][i] > -INFINITY) least = r->blocks[b][i];
    const float range = fminf(fmaxf(1.25f * (from - least), 1e-3f), 64.0f);
    const pe_row_bins bins = {from, PE_ROW_BINS / range};
    double sums[PE_ROW_BINS] = {0};
    int32_t n_sampled = 0;
    for (int32_t b = 0; b + GROUP <= s->n_blocks; b += GROUP) {
        float x[PE_ROW_BLOCK], weights[PE_ROW_BLOCK];
        int32_t in_bin[PE_ROW_BLOCK];
        for (int32_t i = 0; i < GROUP; i++) memcpy(x + i * SAMPLED, sampled_of(r, b + i), SAMPLED * sizeof *x);
        s->kernels->row_weigh(x, PE_ROW_BLOCK, scale, bins, weights, in_bin);
        for (int32_t i = 0; i < PE_ROW_BLOCK; i++) sums[in_bin[i]] += (double)weights[i];
        n_sampled += PE_ROW_BLOCK;
    }
    const double times = (double)s->n_vocab / n_sampled;
    const double first =
        (double)pe_row_weight(from, scale);  // the weight of a bin's tokens, at most; and from bin to bin
    const double step = (double)pe_row_power(-1 / bins.per_unit, pe_row_scale_at(0, 1));
    double rest = 0, rest_squares = 0;
    double w = first;
    for (int32_t b = 1; b < PE_ROW_BINS; b++, w *= step) {
        rest += sums[b];
        rest_squares += sums[b] * w;
    }
    window found = {-FLT_MAX, r->max};
    double above = 0, above_squares = 0;
    int32_t first_bin = 0, n_bins = PE_ROW_BINS;
    w = first;
    for (int32_t b = 1; b < PE_ROW_BINS; b++, w *= step) {  // before bin b
        const double balance = (1 - p) * (head + times * above) - p * times * (rest - above);
        const double variance = (1 - p) * (1 - p) * above_squares + p * p * (rest_squares - above_squares);
        const bool sure = balance * balance > wide * wide * times * times * variance;
        if (sure && balance < 0) {
            found.high = from - (float)(b - 1) / bins.per_unit;
            first_bin = b;
        }
        if (sure && balance > 0) {
            n_bins = b - first_bin;
            found.low = from - (float)(b - 1) / bins.per_unit;
            break;
        }
        above += sums[b];
        above_squares += sums[b] * w;
    }
    if (first_bin == 0 || n_bins > 2) return found;
    // Where all of the sample in so small a window is one logit, it is the window: many tokens are equal.
    float most = -INFINITY, fewest = INFINITY;
    int32_t n = 0;
    for (int32_t b = 0; b < s->n_blocks; b++)
        for (int32_t i = 0; i < SAMPLED; i++) {
            const float x = sampled_of(r, b)[i];
            if (!(x >= found.low && x <= found.high)) continue;
            most = x > most ? x : most;
            fewest = x < fewest ? x : fewest;
            n++;
        }
    if (n >= SAMPLED && most == fewest) found = (window){most, most};
    return found;
}

// The tokens of some marked words, as many as are worth weighing at once.
enum { WORD = 64, ENOUGH = 128, MOST_MARKED = ENOUGH + WORD };
typedef struct marked {
    int32_t n;
    int32_t token[MOST_MARKED];
    float logit[MOST_MARKED];
} marked;

static bool next_marked(const pe_cut *s, const pe_row *r, int32_t *word, marked *m) {
    int32_t n = 0;
    for (; *word < s->n_blocks * (PE_ROW_BLOCK / WORD) && n < ENOUGH; ++*word) {
        uint64_t bits = s->within[*word];
        const int32_t first = *word * WORD;
        const float *x = r->blocks[first / PE_ROW_BLOCK] + first % PE_ROW_BLOCK;
        while (bits)  // most words have few, and how many is hard to foretell: so four at once, whether or not they are
            for (int k = 0; k < 4; k++) {
                const int32_t i = (int32_t)__builtin_ctzll(bits | (uint64_t)1 << 63);
                m->token[n] = first + i;
                m->logit[n] = x[i];
                n += bits != 0;
                bits &= bits - 1;
            }
    }
    m->n = n;
    return n > 0;
}

static inline int32_t ones(uint64_t v) {  // bits that are set; the instruction for it is not in every processor
    v -= v >> 1 & 0x5555555555555555u;
    v = (v & 0x3333333333333333u) + (v >> 2 & 0x3333333333333333u);
    return (int32_t)(((v + (v >> 4)) & 0x0f0f0f0f0f0f0f0fu) * 0x0101010101010101u >> 56);
}

// The n-th marked token (from 1); -1 where there are fewer.
static int32_t nth_marked(const pe_cut *s, double n) {
    for (int32_t word = 0; word < s->n_blocks * (PE_ROW_BLOCK / WORD); word++) {
        uint64_t bits = s->within[word];
        if (n > ones(bits)) {
            n -= ones(bits);
            continue;
        }
        for (; n > 1; n--) bits &= bits - 1;
        return WORD * word + (int32_t)__builtin_ctzll(bits);
    }
    return -1;
}

// Tokens of one logit that together weigh `wanted`; at least one.
static double how_many(pe_row_scale scale, float logit, double wanted) {
    return fmax(ceil(wanted / (double)pe_row_weight(logit, scale)), 1);
}

typedef enum cut_result { CUT, NOT_REACHED, NO_MEMORY } cut_result;

// The last token that top-p keeps, in a window whose tokens are marked; `before`: the weight of all above it.
static cut_result cut_window(pe_cut *s, const pe_row *r, pe_row_scale scale, window w, double before, double top_p,
                             double total, pe_row_token *lowest) {
    const pe_row_bins bins = {w.high, PE_ROW_BINS / fmaxf(fminf(w.high - w.low, 90), 1e-30f)};
    double wanted = top_p * total;
    if (w.low == w.high) {
        *lowest = (pe_row_token){w.low, nth_marked(s, how_many(scale, w.low, wanted - before))};
        if (lowest->token < 0) return NOT_REACHED;
        return CUT;
    }
    marked m;
    double sums[PE_ROW_BINS] = {0};
    s->n_candidates = 0;
    for (int32_t word = 0; next_marked(s, r, &word, &m);) {
        float weights[MOST_MARKED];
        int32_t in_bin[MOST_MARKED], whole = m.n;
        while (whole % PE_ROW_LANES) m.logit[whole++] = w.low;
        s->kernels->row_weigh(m.logit, whole, scale, bins, weights, in_bin);
        if (!reserve(s, s->n_candidates + m.n)) return NO_MEMORY;
        pe_candidate *c = s->candidates + s->n_candidates;
        for (int32_t i = 0; i < m.n; i++) {
            sums[in_bin[i]] += (double)weights[i];
            c[i].logit = m.logit[i];
            c[i].token = m.token[i];
        }
        s->n_candidates += m.n;
    }
    if (w.low == -FLT_MAX) {  // the very sums that are compared with it: top_p may be next to 1
        total = before;
        for (int32_t b = 0; b < PE_ROW_BINS; b++) total += sums[b];
        wanted = top_p * total;
    }
    if (before >= wanted) {  // but for rounding
        *lowest = (pe_row_token){nextafterf(w.high, INFINITY), INT32_MAX};
        return CUT;
    }
    int32_t bin = 0;
    for (; bin < PE_ROW_BINS && before + sums[bin] < wanted; bin++) before += sums[bin];
    if (bin == PE_ROW_BINS) return NOT_REACHED;
    // Distances around the bin's: most are elsewhere, which costs less to find out than their bins do.
    const float near = (float)bin - 2, far = bin < PE_ROW_BINS - 1 ? (float)bin + 1 : INFINITY;
    const int32_t n = s->n_candidates;
    float most = -INFINITY, fewest = INFINITY;
    s->n_candidates = 0;
    for (int32_t i = 0; i < n; i++) {
        const pe_candidate c = s->candidates[i];
        const float d = (bins.top - c.logit) * bins.per_unit;
        if (!((d >= near) & (d <= far)) || pe_row_bin(c.logit, bins) != bin) continue;
        add_candidate(s, c.logit, c.token);
        most = c.logit > most ? c.logit : most;
        fewest = c.logit < fewest ? c.logit : fewest;
    }
    if (most == fewest) {
        const double kept = fmin(how_many(scale, most, wanted - before), s->n_candidates);
        *lowest = (pe_row_token){most, s->candidates[(int32_t)kept - 1].token};
        return CUT;
    }
    sort_candidates(s);
    weigh_candidates(s, r, scale);
    *lowest = cut_candidates(s, r, before, wanted);
    return CUT;
}

// The last token that top-p keeps of all.
static bool cut_top_p(pe_cut *s, const pe_row *r, pe_row_scale scale, double top_p, pe_row_token *lowest) {
    const int32_t n_head = s->n_blocks < HEAD ? s->n_blocks : HEAD;
    if (!gather_top(s, r, n_head)) return false;
    if (s->n_candidates < n_head) {  // these are all
        sort_candidates(s);
        const double total = weigh_candidates(s, r, scale);
        *lowest = cut_candidates(s, r, 0, top_p * total);
        return true;
    }
    float from = r->max;
    for (int32_t i = 0; i < s->n_candidates; i++) from = fminf(from, pe_row_logit(r, s->candidates[i].token));
    window w = estimate_cut(s, r, scale, top_p, weigh_candidates(s, r, scale), from);
    for (int attempt = 0;; attempt++) {  // an estimate that was wrong leaves one side of it
        double above;
        const double total = s->kernels->row_split(r->blocks, s->n_blocks, scale, w.low, w.high, s->within, &above);
        if (above >= top_p * total && attempt == 0) {
            w = (window){nextafterf(w.high, INFINITY), r->max};
            continue;
        }
        const cut_result result = cut_window(s, r, scale, w, above, top_p, total, lowest);
        if (result != NOT_REACHED) return result == CUT;
        if (attempt > 0 || w.low == -FLT_MAX) {  // but for rounding
            *lowest = (pe_row_token){w.low, INT32_MAX};
            return true;
        }
        w = (window){-FLT_MAX, nextafterf(w.low, -INFINITY)};
    }
}

// The smallest logit whose weight is at least min_p. Weights do not fall as logits rise, but for their last bit.
static float least_by_min_p(pe_row_scale scale, float min_p) {
    float out = scale.least, in = scale.max;
    if (pe_row_weight(out, scale) >= min_p) return out;
    for (;;) {
        const float middle = out / 2 + in / 2;
        if (!(middle > out && middle < in)) return in;
        *(pe_row_weight(middle, scale) >= min_p ? &in : &out) = middle;
    }
}

bool pe_cut_find(pe_cut *s, const pe_row *r, int32_t top_k, float top_p, float min_p, pe_row_token *lowest) {
    const pe_row_scale scale = pe_row_scale_at(r->max, 1);
    *lowest = PE_ROW_ALL;
    if (top_k > 0 && top_k < s->n_vocab) {
        if (!pe_cut_select_top(s, r, top_k)) return false;
        const double total = weigh_candidates(s, r, scale);
        *lowest = cut_candidates(s, r, 0, top_p < 1 ? (double)top_p * total : INFINITY);
    } else if (top_p < 1) {
        if (!cut_top_p(s, r, scale, (double)top_p, lowest)) return false;
    }
    if (min_p > 0) {
        const float least = least_by_min_p(scale, min_p);
        if (least > lowest->logit) *lowest = (pe_row_token){least, INT32_MAX};
    }
    return true;
}

bool pe_cut_create(pe_cut *s, const pe_kernels *kernels, int32_t n_vocab) {
    const int32_t n_blocks = pe_row_blocks(n_vocab);
    *s = (pe_cut){.kernels = kernels, .n_vocab = n_vocab, .n_blocks = n_blocks};
    s->within = malloc((size_t)n_blocks * (PE_ROW_BLOCK / 8));
    return reserve(s, FIRST_CANDIDATES) && s->within;
}

void pe_cut_release(pe_cut *s) {
    free(s->within);
    free(s->candidates);
    free(s->scratch);
}
