// What the encoders share: a tile of blocks that are searched side by side, one lane per block, and how a value becomes a
// code. As a lane sums over its own block only, its result depends neither on its neighbours nor on the number of lanes.
#ifndef PE_ENCODE_H
#define PE_ENCODE_H

#include "cpu.h"

enum { TILE = 16, LONGEST = 32 };  // blocks of a tile, values of a block at most

typedef struct pe_tile {
    float x[LONGEST][TILE];  // [values of a block]
    float w[LONGEST][TILE];  // likewise, where there are weights
} pe_tile;

// What codes there are: all whole numbers of a range, or those of a table.
typedef struct pe_codes {
    pe_class cls;
    float low, high;
} pe_codes;

void PE_FN(encode_super)(const pe_format_row *f, const float *x, const float *w, int64_t n, uint8_t *out);
void PE_FN(load_tile)(pe_tile *t, const float *x, const float *w, int n, int64_t n_blocks);

#define EACH_VECTOR(v) for (int v = 0; v < TILE; v += VL)

PE_INLINE vf vf_round(vf x) {  // nearest even, of |x| < 2^22
    const vf big = vf_set1(0x1.8p23f);
    return vf_sub(vf_add(x, big), big);
}
PE_INLINE vf vf_clamp(vf x, float low, float high) { return vf_min(vf_max(x, vf_set1(low)), vf_set1(high)); }
// 1 / x, and 0 where x is 0.
PE_INLINE vf vf_inverse(vf x) { return vf_select_gt(vf_abs(x), vf_zero(), vf_div(vf_set1(1), x), vf_zero()); }
// As an f16 has it.
PE_INLINE vf vf_half(vf x) {
    uint16_t half[VL];
    vf_store_f16(half, vf_clamp(x, -65504, 65504));
    return vf_load_f16(half);
}

// Where the next larger number of PE_IQ4_VALUES becomes the nearer one.
static const float iq4_bounds[15] = {-115.5f, -93.5f, -74,   -57,   -42, -28.5f, -16, -4.5f,
                                     7,       19,     31.5f, 45.5f, 61,  79,     101};
static const float iq4_values[16] = PE_IQ4_VALUES;

// The number nearest to v that a code can stand for.
PE_INLINE vf nearest(pe_codes c, vf v) {
    if (c.cls == PE_CLASS_IQ4) {
        vf value = vf_set1(iq4_values[0]);
        for (int i = 0; i < 15; i++) {
            const vf gap = vf_set1(iq4_values[i + 1] - iq4_values[i]);
            value = vf_add(value, vf_select_gt(v, vf_set1(iq4_bounds[i]), gap, vf_zero()));
        }
        return value;
    }
    if (c.cls == PE_CLASS_FP4) {  // steps of 1 up to 4, of 2 up to 8, of 4 up to 12
        const vf a = vf_min(vf_abs(v), vf_set1(12));
        const vf step = vf_select_gt(a, vf_set1(4), vf_select_gt(a, vf_set1(8), vf_set1(4), vf_set1(2)), vf_set1(1));
        const vf parts =
            vf_select_gt(a, vf_set1(4), vf_select_gt(a, vf_set1(8), vf_set1(0.25f), vf_set1(0.5f)), vf_set1(1));
        return vf_copysign(vf_mul(vf_round(vf_mul(a, parts)), step), v);
    }
    return vf_round(vf_clamp(v, c.low, c.high));
}

// The codes of n values (16 or 32) as a format's lanes have them: of x * inverse, + shift.
PE_INLINE void put_codes(pe_codes c, const float *x, int n, float inverse, float shift, int8_t *q) {
    for (int i = 0; i < n; i += VL) {
        const vf v = vf_fma(vf_load(x + i), vf_set1(inverse), vf_set1(shift));
        vi code;
        if (c.cls == PE_CLASS_IQ4) {
            code = vi_zero();
            for (int b = 0; b < 15; b++) {
                const vf one = vf_select_gt(v, vf_set1(iq4_bounds[b]), vf_set1(1), vf_zero());
                code = vi_add(code, vf_to_i32(one));
            }
        } else if (c.cls == PE_CLASS_FP4) {
            const vf value = nearest(c, v), a = vf_abs(value);
            vf place = vf_min(a, vf_set1(4));
            place = vf_add(place, vf_select_gt(a, vf_set1(5), vf_set1(1), vf_zero()));
            place = vf_add(place, vf_select_gt(a, vf_set1(7), vf_set1(1), vf_zero()));
            place = vf_add(place, vf_select_gt(a, vf_set1(10), vf_set1(1), vf_zero()));
            code = vf_to_i32(vf_add(place, vf_select_gt(vf_zero(), value, vf_set1(8), vf_zero())));
        } else {
            code = vf_to_i32(vf_sub(nearest(c, v), vf_set1(c.cls == PE_CLASS_I8 ? 0 : c.low)));
        }
        vi_store_i8(q + i, code);
    }
}

// Sums over a block for given codes q: of w x q and w q q.
typedef struct pe_fit {
    vf xq, qq;
} pe_fit;

PE_INLINE pe_fit fit_scale(const pe_tile *t, int n, bool weighted, pe_codes c, int v, vf inverse) {
    pe_fit s = {vf_zero(), vf_zero()};
    for (int i = 0; i < n; i++) {
        const vf x = vf_load(t->x[i] + v), q = nearest(c, vf_mul(x, inverse));
        const vf wq = weighted ? vf_mul(vf_load(t->w[i] + v), q) : q;
        s.xq = vf_fma(wq, x, s.xq);
        s.qq = vf_fma(wq, q, s.qq);
    }
    return s;
}

// The best scale that was found, and by how much it lowers the error of a block of zeros.
typedef struct pe_scale {
    vf scale, gain;
} pe_scale;

PE_INLINE void try_inverse(const pe_tile *t, int n, bool weighted, pe_codes c, int v, vf inverse, pe_scale *best) {
    const pe_fit s = fit_scale(t, n, weighted, c, v, inverse);
    const vf scale = vf_mul(s.xq, vf_inverse(s.qq)), gain = vf_mul(scale, s.xq);
    best->scale = vf_select_gt(gain, best->gain, scale, best->scale);
    best->gain = vf_max(gain, best->gain);
}

// The value that is farthest from zero.
PE_INLINE vf farthest(const pe_tile *t, int n, int v) {
    vf most = vf_load(t->x[0] + v);
    for (int i = 1; i < n; i++) {
        const vf x = vf_load(t->x[i] + v);
        most = vf_select_gt(vf_abs(x), vf_abs(most), x, most);
    }
    return most;
}

// Where a search begins: numbers that codes are solved for, one after the other, and how often the best is then rounded
// and solved again. With weights the search is longer: they move the best scale further from the plain one.
typedef struct pe_tries {
    const float (*codes)[2];  // of the least and the largest value, or, where there is no minimum, of the farthest one
    int n[2], rounds[2];      // without weights and with them
} pe_tries;

// Ranges that x is tried over by unsigned codes of 4 and 5 bits, likeliest first: of blocks and of super-blocks' parts.
static const float lines_4[][2] = {{0, 15},        {-0.3f, 15.3f}, {0.4f, 14.6f}, {-0.6f, 15},    {0, 15.6f},
                                   {-0.8f, 15.8f}, {0.8f, 15},     {0, 14},       {-1.3f, 15},    {0, 16.3f},
                                   {1, 14},        {-1.4f, 16.4f}, {1.3f, 15.5f}, {-0.5f, 13.7f}, {-2, 15},
                                   {0, 17},        {-2, 17},       {2, 13},       {0, 13},        {2, 15}};
static const float lines_5[][2] = {{0, 31},        {-0.3f, 31.3f}, {0.4f, 30.6f}, {-0.6f, 31},    {0, 31.6f},
                                   {-0.8f, 31.8f}, {0.8f, 31},     {0, 30},       {-1.3f, 31},    {0, 32.3f},
                                   {1, 30},        {-1.4f, 32.4f}, {1.3f, 31.5f}, {-0.5f, 29.7f}, {-2, 31},
                                   {0, 33},        {-2, 33},       {2, 29},       {0, 29},        {2, 31}};

// x ~ scale * code
PE_INLINE pe_scale search_scale(const pe_tile *t, int n, bool weighted, pe_codes c, int v, const pe_tries *tries) {
    const vf unit = vf_inverse(farthest(t, n, v));
    pe_scale best = {vf_zero(), vf_zero()};
    const int n_tries = tries->n[weighted];
    for (int i = 0; i < n_tries + tries->rounds[weighted]; i++)
        try_inverse(t, n, weighted, c, v,
                    i < n_tries ? vf_mul(unit, vf_set1(tries->codes[i][0])) : vf_inverse(best.scale), &best);
    return best;
}

// Sums over a block: of w, w x and w x x, and for given codes q of w q, w q q and w x q.
typedef struct pe_line {
    vf w, x, q, qq, xq;
} pe_line;

PE_INLINE void sum_values(const pe_tile *t, int n, bool weighted, int v, pe_line *s) {
    s->w = weighted ? vf_zero() : vf_set1((float)n);
    s->x = vf_zero();
    for (int i = 0; i < n; i++) {
        const vf x = vf_load(t->x[i] + v);
        if (weighted) {
            const vf w = vf_load(t->w[i] + v);
            s->w = vf_add(s->w, w);
            s->x = vf_fma(w, x, s->x);
        } else {
            s->x = vf_add(s->x, x);
        }
    }
}

// For the codes nearest to x * inverse + shift.
PE_INLINE void sum_codes(const pe_tile *t, int n, bool weighted, pe_codes c, int v, vf inverse, vf shift, pe_line *s) {
    s->q = s->qq = s->xq = vf_zero();
    for (int i = 0; i < n; i++) {
        const vf x = vf_load(t->x[i] + v), q = nearest(c, vf_fma(x, inverse, shift));
        const vf wq = weighted ? vf_mul(vf_load(t->w[i] + v), q) : q;
        s->q = vf_add(s->q, wq);
        s->qq = vf_fma(wq, q, s->qq);
        s->xq = vf_fma(wq, x, s->xq);
    }
}

// The best scale and offset that were found: x ~ scale * code + offset.
typedef struct pe_affine {
    vf scale, offset, gain;
} pe_affine;

// Solves for both by least squares; with `below`, for an offset that is not above zero.
PE_INLINE pe_affine solve_line(const pe_line *s, bool below) {
    const vf det = vf_sub(vf_mul(s->w, s->qq), vf_mul(s->q, s->q));
    const vf least = vf_mul(vf_set1(1e-5f), vf_mul(s->w, s->qq));  // below this, all codes are the same
    const vf inverse = vf_select_gt(det, least, vf_inverse(det), vf_zero());
    pe_affine a;
    a.scale = vf_mul(vf_sub(vf_mul(s->w, s->xq), vf_mul(s->x, s->q)), inverse);
    a.offset = vf_mul(vf_sub(vf_mul(s->qq, s->x), vf_mul(s->q, s->xq)), inverse);
    if (below) {  // where the offset would be above zero, or all codes are the same, there is none
        const vf alone = vf_max(vf_mul(s->xq, vf_inverse(s->qq)), vf_zero());
        a.scale = vf_select_gt(det, least, vf_select_gt(a.offset, vf_zero(), alone, a.scale), alone);
        a.offset = vf_min(a.offset, vf_zero());
    }
    a.gain = vf_fma(a.scale, s->xq, vf_mul(a.offset, s->x));
    return a;
}

// x ~ scale * code + offset; with `below`, the offset is not above zero. *s: what is left of it is the sums of values.
PE_INLINE pe_affine search_line(const pe_tile *t, int n, bool weighted, pe_codes c, int v, bool below,
                                const pe_tries *tries, pe_line *s) {
    vf least = vf_load(t->x[0] + v), most = least;
    for (int i = 1; i < n; i++) {
        const vf x = vf_load(t->x[i] + v);
        least = vf_min(x, least);
        most = vf_max(x, most);
    }
    if (below) least = vf_min(least, vf_zero());
    sum_values(t, n, weighted, v, s);
    pe_affine best;  // all codes zero
    best.scale = vf_zero();
    best.offset = vf_mul(s->x, vf_inverse(s->w));
    if (below) best.offset = vf_min(best.offset, vf_zero());
    best.gain = vf_mul(best.offset, s->x);
    const vf unit = vf_inverse(vf_sub(most, least));
    for (int i = 0; i < tries->n[weighted] + tries->rounds[weighted]; i++) {
        vf inverse, shift;
        if (i < tries->n[weighted]) {
            const float low = tries->codes[i][0], high = tries->codes[i][1];
            inverse = vf_mul(unit, vf_set1(high - low));
            shift = vf_sub(vf_set1(low), vf_mul(least, inverse));
        } else {
            inverse = vf_inverse(best.scale);
            shift = vf_sub(vf_zero(), vf_mul(best.offset, inverse));
        }
        sum_codes(t, n, weighted, c, v, inverse, shift, s);
        const pe_affine a = solve_line(s, below);
        best.scale = vf_select_gt(a.gain, best.gain, a.scale, best.scale);
        best.offset = vf_select_gt(a.gain, best.gain, a.offset, best.offset);
        best.gain = vf_max(a.gain, best.gain);
    }
    return best;
}

#endif
