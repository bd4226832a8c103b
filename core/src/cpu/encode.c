// Values to blocks: the encoders of formats whose blocks stand alone, and of floats. Super-blocks are encode_super.c's.
//
// Every block's scale (and minimum) is searched for the least weighted sum of squared errors: for some places that the
// farthest value may take among the codes, all values are rounded and the scale solved for by least squares; the best is
// rounded and solved again.
#include <math.h>

#include "encode.h"

typedef float four __attribute__((vector_size(16)));
#ifdef __clang__
#define PE_SHUFFLE __builtin_shufflevector
#else  // the name under which every version of gcc has it
typedef int32_t four_places __attribute__((vector_size(16)));
#define PE_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (four_places){__VA_ARGS__})
#endif

// out[i][l] = in[l][i], for whole tiles by fours.
PE_INLINE void transpose(const float *in, int n, int lanes, float (*out)[TILE]) {
    if (lanes < TILE) {
        memset(out, 0, (size_t)n * sizeof *out);
        for (int l = 0; l < lanes; l++)
            for (int i = 0; i < n; i++) out[i][l] = in[l * n + i];
        return;
    }
    for (int l = 0; l < TILE; l += 4)
        for (int i = 0; i < n; i += 4) {
            four r[4];
            for (int k = 0; k < 4; k++) memcpy(&r[k], in + (l + k) * n + i, sizeof *r);
            const four a = PE_SHUFFLE(r[0], r[1], 0, 4, 1, 5), b = PE_SHUFFLE(r[2], r[3], 0, 4, 1, 5);
            const four c = PE_SHUFFLE(r[0], r[1], 2, 6, 3, 7), d = PE_SHUFFLE(r[2], r[3], 2, 6, 3, 7);
            r[0] = PE_SHUFFLE(a, b, 0, 1, 4, 5);
            r[1] = PE_SHUFFLE(a, b, 2, 3, 6, 7);
            r[2] = PE_SHUFFLE(c, d, 0, 1, 4, 5);
            r[3] = PE_SHUFFLE(c, d, 2, 3, 6, 7);
            for (int k = 0; k < 4; k++) memcpy(&out[i + k][l], &r[k], sizeof *r);
        }
}

// x: [n_blocks, n], w: likewise, or NULL. Lanes without a block hold zeros.
void PE_FN(load_tile)(pe_tile *t, const float *x, const float *w, int n, int64_t n_blocks) {
    const int lanes = n_blocks < TILE ? (int)n_blocks : TILE;
    transpose(x, n, lanes, t->x);
    if (w) transpose(w, n, lanes, t->w);
}

// What is found for each block of a tile, as it goes into the lanes: d and m as f16.
typedef struct found {
    uint16_t d[TILE], m[TILE];
    float inverse[TILE], shift[TILE];  // a value's code is x * inverse + shift, rounded
} found;

static void store_found(found *f, int v, vf scale, vf offset) {
    vf_store_f16(f->d + v, vf_clamp(scale, -65504, 65504));
    vf_store_f16(f->m + v, vf_clamp(offset, -65504, 65504));
    const vf inverse = vf_inverse(vf_load_f16(f->d + v)), m = vf_load_f16(f->m + v);
    vf_store(f->inverse + v, inverse);
    vf_store(f->shift + v, vf_sub(vf_zero(), vf_mul(m, inverse)));
}

// What is tried first for each kind of codes.
static const float codes_4[][2] = {{-8},    {7},     {-7.4f}, {6.4f},  {-8.6f},  {7.6f},  {-6.7f},
                                   {5.9f},  {-9.3f}, {8.1f},  {-6.1f}, {5.3f},   {-9.9f}, {8.7f},
                                   {-5.4f}, {4.8f},  {-4.8f}, {4.2f},  {-10.6f}, {9.2f}};
static const float codes_5[][2] = {{-16},    {15},     {-15.3f}, {14.3f},  {-16.7f}, {15.7f},  {-14.6f},
                                   {13.7f},  {-17.4f}, {16.4f},  {-13.8f}, {13},     {-18.2f}, {17},
                                   {-13.1f}, {12.3f},  {-12.4f}, {11.6f},  {-18.9f}, {17.7f}};
static const float codes_8[][2] = {{-127}, {-126.2f}, {127}, {-125}};
static const float codes_iq4[][2] = {{-127},   {113},     {-118.1f}, {105.1f},  {-135.9f}, {120.9f},  {-109.2f},
                                     {97.2f},  {-144.8f}, {128.8f},  {-100.3f}, {89.3f},   {-153.7f}, {136.7f},
                                     {-91.4f}, {81.4f},   {-82.5f},  {73.4f},   {-162.6f}, {144.6f}};
static const pe_tries tries_4 = {codes_4, {6, 20}, {1, 2}};
static const pe_tries tries_5 = {codes_5, {6, 20}, {1, 2}};
static const pe_tries tries_8 = {codes_8, {1, 3}, {1, 1}};
static const pe_tries tries_iq4 = {codes_iq4, {12, 20}, {2, 2}};
static const pe_tries tries_line_4 = {lines_4, {3, 20}, {1, 3}};
static const pe_tries tries_line_5 = {lines_5, {3, 20}, {1, 3}};

PE_INLINE void search_d(const pe_tile *t, pe_codes c, bool weighted, const pe_tries *tries, found *f) {
    EACH_VECTOR(v) {
        const pe_scale s = search_scale(t, 32, weighted, c, v, tries);
        store_found(f, v, s.scale, vf_zero());
    }
}

PE_INLINE void search_dm(const pe_tile *t, pe_codes c, bool weighted, const pe_tries *tries, found *f) {
    EACH_VECTOR(v) {
        pe_line s;
        const pe_affine a = search_line(t, 32, weighted, c, v, false, tries, &s);
        store_found(f, v, a.scale, a.offset);
    }
}

// The power of two under which the errors are least, of the one that OCP Microscaling names and its neighbours.
PE_INLINE void search_e8(const pe_tile *t, pe_codes c, bool weighted, found *f) {
    EACH_VECTOR(v) {
        const vf most = vf_max(vf_abs(farthest(t, 32, v)), vf_set1(0x1p-120f));
        const vf power = vi_as_f32(vi_and(vf_as_i32(most), vi_set1(0x7f800000)));  // 2^k <= most
        vf best = vf_zero(), best_error = vf_set1(INFINITY);
        static const float steps[3] = {0.125f, 0.25f, 0.0625f};
        for (int i = 0; i < 3; i++) {
            const vf scale = vf_mul(power, vf_set1(steps[i])), inverse = vf_div(vf_set1(1), scale);
            vf error = vf_zero();
            for (int k = 0; k < 32; k++) {
                const vf x = vf_mul(vf_load(t->x[k] + v), inverse), e = vf_sub(x, nearest(c, x));
                error = vf_fma(weighted ? vf_mul(vf_load(t->w[k] + v), e) : e, e, error);
            }
            error = vf_mul(error, vf_set1(steps[i] * steps[i]));
            best = vf_select_gt(best_error, error, scale, best);
            best_error = vf_select_gt(best_error, error, error, best_error);
        }
        float scales[VL];
        vf_store(scales, best);
        for (int l = 0; l < VL; l++) {
            f->d[v + l] = (uint16_t)((pe_f32_bits(scales[l]) >> 23) + 1);  // x = 2^(e - 128) * code
            f->m[v + l] = 0;
            f->inverse[v + l] = 1 / scales[l];
            f->shift[v + l] = 0;
        }
    }
}

PE_INLINE void put_blocks(const pe_format_row *f, pe_codes c, const found *s, const float *x, int64_t n_blocks,
                          uint8_t *out) {
    pe_lanes lanes;
    for (int l = 0; l < n_blocks && l < TILE; l++) {
        lanes.d = s->d[l];
        lanes.m = s->m[l];
        put_codes(c, x + 32 * l, 32, s->inverse[l], s->shift[l], lanes.q);
        f->pack(&lanes, out + l * f->info.block_bytes);
    }
}

#define TILES(search)                                                                           \
    for (; n_blocks > 0; n_blocks -= TILE, x += 32 * TILE, out += TILE * f->info.block_bytes) { \
        PE_FN(load_tile)(&t, x, w, 32, n_blocks);                                               \
        if (w) {                                                                                \
            const bool weighted = true;                                                         \
            search;                                                                             \
            w += 32 * TILE;                                                                     \
        } else {                                                                                \
            const bool weighted = false;                                                        \
            search;                                                                             \
        }                                                                                       \
        put_blocks(f, c, &result, x, n_blocks, out);                                            \
    }

static void encode_plain(const pe_format_row *f, const float *x, const float *w, int64_t n_blocks, uint8_t *out) {
    pe_tile t;
    found result;
    if (f->scales == PE_SCALES_E8) {
        const pe_codes c = {PE_CLASS_FP4, 0, 0};
        TILES(search_e8(&t, c, weighted, &result))
    } else if (f->cls == PE_CLASS_IQ4) {
        const pe_codes c = {PE_CLASS_IQ4, 0, 0};
        TILES(search_d(&t, c, weighted, &tries_iq4, &result))
    } else if (f->cls == PE_CLASS_I8) {
        const pe_codes c = {PE_CLASS_I8, -127, 127};
        TILES(search_d(&t, c, weighted, &tries_8, &result))
    } else if (f->cls == PE_CLASS_U4 && f->scales == PE_SCALES_D) {
        const pe_codes c = {PE_CLASS_U4, -8, 7};
        TILES(search_d(&t, c, weighted, &tries_4, &result))
    } else if (f->cls == PE_CLASS_U4) {
        const pe_codes c = {PE_CLASS_U4, 0, 15};
        TILES(search_dm(&t, c, weighted, &tries_line_4, &result))
    } else if (f->scales == PE_SCALES_D) {
        const pe_codes c = {PE_CLASS_U5, -16, 15};
        TILES(search_d(&t, c, weighted, &tries_5, &result))
    } else {
        const pe_codes c = {PE_CLASS_U5, 0, 31};
        TILES(search_dm(&t, c, weighted, &tries_line_5, &result))
    }
}

static void encode_f16(const float *x, int64_t n, uint8_t *out) {
    uint16_t half[VL];
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf_store_f16(half, vf_load(x + i));
        memcpy(out + 2 * i, half, sizeof half);
    }
    for (; i < n; i++) pe_store_u16(out + 2 * i, pe_f32_to_f16(x[i]));
}

static void encode_bf16(const float *x, int64_t n, uint8_t *out) {
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = pe_f32_bits(x[i]);
        pe_store_u16(out + 2 * i, (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16));  // to nearest even
    }
}

void PE_FN(encode)(const pe_format_row *f, const float *x, const float *w, int64_t n, void *out) {
    switch (f->cls) {
    case PE_CLASS_F32: memcpy(out, x, (size_t)n * sizeof *x); return;
    case PE_CLASS_F16: encode_f16(x, n, out); return;
    case PE_CLASS_BF16: encode_bf16(x, n, out); return;
    default: break;
    }
    if (pe_scales_parts(f->scales)) PE_FN(encode_super)(f, x, w, n, out);
    else encode_plain(f, x, w, n / 32, out);
}

void PE_FN(decode)(const pe_format_row *f, const void *src, int64_t n, float *out) {
    const uint8_t *p = src;
    uint16_t half[VL];
    int64_t i = 0;
    if (f->cls == PE_CLASS_F16 || f->cls == PE_CLASS_BF16)
        for (; i + VL <= n; i += VL) {
            memcpy(half, p + 2 * i, sizeof half);
            vf_store(out + i, f->cls == PE_CLASS_F16 ? vf_load_f16(half) : vf_load_bf16(half));
        }
    pe_format_unpack(f, p + i / f->info.block_values * f->info.block_bytes, n - i, out + i);
}

// Largest magnitude, and NaN if a value is NaN or infinite.
float PE_FN(largest)(const float *x, int64_t n) {
    vf most = vf_zero(), poison = vf_zero();
    for (int64_t i = 0; i < n; i += VL) {
        const vf v = vf_load_n(x + i, n - i < VL ? (int)(n - i) : VL);
        poison = vf_fma(v, vf_zero(), poison);
        most = vf_max(vf_abs(v), most);
    }
    return vf_hmax(most) + vf_sum(poison);
}
