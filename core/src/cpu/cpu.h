// Shared by the kernel sources, each of which is compiled once per instruction set: names and vector mathematics.
#ifndef PE_CPU_H
#define PE_CPU_H

#include "f16.h"
#include "kernels.h"
#include "vec.h"

#define PE_JOIN_(a, b) pe_##a##_##b
#define PE_JOIN(a, b) PE_JOIN_(a, b)
#define PE_FN(name) PE_JOIN(name, PE_ISA)   // linear -> pe_linear_avx2
#define PE_OWN(name) PE_JOIN(name, PE_SET)  // the same, but where a set takes most functions from another: its own

size_t PE_FN(block_bytes)(pe_class cls, pe_scales scales);
void PE_FN(pack)(const pe_weight *w, const pe_format_row *f, const void *src, int64_t p0, int64_t p1);
void PE_FN(unpack_row)(const pe_weight *w, int64_t row, float *out);
void PE_FN(unpack_panel)(const pe_weight *w, int64_t panel, float *out);  // out: [cols][lanes]
void PE_FN(encode)(const pe_format_row *f, const float *x, const float *w, int64_t n, void *out);
void PE_FN(decode)(const pe_format_row *f, const void *src, int64_t n, float *out);
float PE_FN(largest)(const float *x, int64_t n);
void PE_FN(quantize)(const pe_act *a, int64_t t, int64_t k);
void PE_FN(linear)(const pe_weight *w, const pe_act *a, const float *bias, int64_t t0, int64_t t1, int64_t p0,
                   int64_t p1, float *y, int64_t ldy, void *scratch);
size_t PE_FN(linear_scratch)(void);
void PE_FN(linear_f32)(const pe_weight *w, const pe_act *a, const float *bias, int64_t t0, int64_t t1, int64_t p0,
                       int64_t p1, float *y, int64_t ldy, void *scratch);
void PE_FN(rms_norm)(const float *x, const float *weight, float eps, int64_t n, float *y);
void PE_FN(layer_norm)(const float *x, const float *weight, const float *bias, float eps, int64_t n, float *y);
void PE_FN(rope)(const float *x, const float *table, int32_t n_heads, int32_t head_dim, int32_t n_rot, int32_t pairing,
                 float *y);
void PE_FN(activation)(pe_function function, const float *x, const float *up, int64_t n, float *y);
void PE_FN(add)(const float *a, const float *b, float factor, int64_t n, float *y);
void PE_FN(scale)(const float *x, float factor, int64_t n, float *y);
void PE_FN(softcap)(const float *x, float cap, int64_t n, float *y);
void PE_FN(kv_write)(const pe_kv_view *kv, int64_t position, const float *k, const float *v);
void PE_FN(attention)(const pe_attention *a, int32_t kv_head, int32_t t0, int32_t t1, void *scratch);
void PE_FN(attention_chunks)(const pe_attention *a, int32_t kv_head, int32_t t0, int32_t t1, int32_t c0, int32_t c1,
                             pe_partial *partials, void *scratch);
void PE_FN(attention_merge)(const pe_attention *a, int32_t kv_head, int32_t t0, int32_t t1, pe_partial *partials);
bool PE_FN(row_max)(const float *const *blocks, int32_t n_blocks, float *block_max, float *max);
void PE_FN(row_weigh)(const float *x, int32_t n, pe_row_scale scale, pe_row_bins bins, float *weights, int32_t *in_bin);
double PE_FN(row_sums)(const float *const *blocks, int32_t n_blocks, const float *block_max, pe_row_scale scale,
                       pe_row_token lowest, float *block_sums);
double PE_FN(row_split)(const float *const *blocks, int32_t n_blocks, pe_row_scale scale, float low, float high,
                        uint64_t *within, double *above);
int32_t PE_FN(probe_read)(const uint8_t *p, size_t n, int32_t streams);
int32_t PE_FN(probe_int8)(int64_t rounds);
float PE_FN(probe_f32)(int64_t rounds);

void PE_OWN(linear)(const pe_weight *w, const pe_act *a, const float *bias, int64_t t0, int64_t t1, int64_t p0,
                    int64_t p1, float *y, int64_t ldy, void *scratch);
size_t PE_OWN(linear_scratch)(void);
int32_t PE_OWN(probe_int8)(int64_t rounds);

// What of the cache is read next: to be called for a line or a few at a time between the work at hand, so that a chunk's
// memory arrives while the one before is computed. Called for at once, most of it would wait for the rest.
typedef struct kv_ahead {
    const uint8_t *blocks[PE_CHUNK / 8];  // a head's keys and values, by page
    int32_t n_blocks, block;              // and the one whose turn it is
    int64_t block_bytes;
    uintptr_t at, end;  // in that one, and a few lines over; both 0 when there is no more
} kv_ahead;

// How many lines a call is to fetch so that all calls together fetch so many, or a few more.
PE_INLINE int kv_share(int lines, int64_t calls) { return calls ? (int)((lines + calls - 1) / calls) : 0; }

PE_INLINE int kv_lines(const kv_ahead *ahead) { return (int)(ahead->n_blocks * ahead->block_bytes / 64); }

PE_INLINE void kv_next_block(kv_ahead *ahead) {
    const bool more = ahead->block < ahead->n_blocks;
    ahead->at = more ? (uintptr_t)ahead->blocks[ahead->block++] : 0;
    ahead->end = more ? ahead->at + (uintptr_t)ahead->block_bytes : 0;
}

PE_INLINE void kv_fetch(kv_ahead *ahead, int lines) {
    if (ahead->at == 0) return;
    for (int i = 0; i < lines; i++, ahead->at += 64)
        v_prefetch_l2((const void *)ahead->at);  // the nearest holds the chunk at hand
    if (ahead->at >= ahead->end) kv_next_block(ahead);
}

// Looks ahead to chunk c of one head, as far as key `end`.
void PE_FN(kv_look_ahead)(const pe_kv_view *kv, int32_t head, int32_t c, int32_t end, kv_ahead *ahead);

// A chunk of one head's keys and values, as the loops of attention read them: in runs of keys that lie together.
typedef struct kv_chunk {
    const uint8_t *keys[PE_CHUNK / 8];    // [head_dim, keys of a run]
    const uint8_t *values[PE_CHUNK / 8];  // [keys of a run, head_dim]
    int64_t key_stride, value_stride;     // bytes to the next dim of the keys, the next key of the values
    int32_t run_bits;                     // a run has 1 << run_bits keys
    bool f16;                             // or floats
} kv_chunk;

// Chunk c of one head, as far as key `end`, where it lies in the cache; false if it cannot be read there by vectors of so
// many lanes: it is quantized, or a head or a page is no multiple of them.
bool PE_FN(kv_in_place)(const pe_kv_view *kv, int32_t head, int32_t c, int32_t end, int32_t lanes, kv_chunk *out);
// The same into keys [head_dim, 64] and values [64, ld], as floats. Exact, whatever the type: an integer of 8 bits times
// a scale of 11 fits a float.
void PE_FN(kv_unpack)(const pe_kv_view *kv, int32_t head, int32_t c, int32_t end, float *keys, float *values,
                      int64_t ld);

// The layout of one panel block: d, then m, then the parts' scales and minimums, where the scales have them, then the
// lanes' integers in units of 32 k. Floats have one block per k, [lanes], and none of this.
//   d: f16 [lanes], or a byte [lanes] of E8      m: f16 [lanes]
//   scales: int8 [parts][lanes]                  minimums: uint8 [parts][lanes]; of K16M both share a byte, low and high
// A unit has its bits in up to three planes, in this order; byte 4 * lane + c of each 4 * lanes bytes holds
//   nibbles (u4 u5 u6 iq4 fp4): 4 parts j, k = 8 j + c in the low nibble, 8 j + 4 + c in the high one
//   pairs   (u2 u3, and the high bits of u6): 2 parts h, k = 16 h + 4 g + c at bit 2 g
//   bits    (the high bit of u3 and u5): 1 part, k = 4 g + c at bit g
//   bytes   (i8): 8 parts j, k = 4 j + c
enum { NIBBLES = 16 * VL, PAIRS = 8 * VL, BITS = 4 * VL, BYTES = 32 * VL };  // sizes of the planes

PE_INLINE int unit_bytes(pe_class cls) {
    switch (cls) {
    case PE_CLASS_U2: return PAIRS;
    case PE_CLASS_U3: return PAIRS + BITS;
    case PE_CLASS_U5: return NIBBLES + BITS;
    case PE_CLASS_U6: return NIBBLES + PAIRS;
    case PE_CLASS_I8: return BYTES;
    default: return NIBBLES;
    }
}
PE_INLINE int units_of(pe_scales scales) { return pe_scales_parts(scales) ? 8 : 1; }  // in a panel block
PE_INLINE int m_at(pe_scales scales) { return scales == PE_SCALES_E8 ? VL : 2 * VL; }
PE_INLINE int subs_at(pe_scales scales) { return m_at(scales) + (pe_scales_have_m(scales) ? 2 * VL : 0); }
PE_INLINE int mins_at(pe_scales scales) { return subs_at(scales) + pe_scales_parts(scales) * VL; }
PE_INLINE int units_at(pe_scales scales) { return mins_at(scales) + (scales == PE_SCALES_K32M ? 8 * VL : 0); }

PE_INLINE vf load_d(pe_scales scales, const uint8_t *block) {
    if (scales != PE_SCALES_E8) return vf_load_f16((const uint16_t *)block);
    // 2^(e - 127), of which e = 0 is subnormal, halved.
    const vi bits = vi_max(vi_shl(vi_load_u8(block), 23), vi_set1(0x400000));
    return vf_mul(vi_as_f32(bits), vf_set1(0.5f));
}

typedef struct pe_part {
    vi sub, min;
} pe_part;

// The scale and minimum of part i of a panel block.
PE_INLINE pe_part load_part(pe_scales scales, const uint8_t *block, int i) {
    const uint8_t *sub = block + subs_at(scales) + VL * i;
    if (scales == PE_SCALES_K16M) {
        const vi both = vi_load_u8(sub);
        return (pe_part){vi_and(both, vi_set1(15)), vi_shr(both, 4)};
    }
    const vi min = scales == PE_SCALES_K32M ? vi_load_u8(block + mins_at(scales) + VL * i) : vi_zero();
    return (pe_part){vi_load_i8((const int8_t *)sub), min};
}

// exp(x) to about 1 ulp: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2], as in Cephes' expf. exp(0) is exactly 1;
// below -87 the result stays at exp(-87), so a caller that masks must do so by selecting; from 88.4 on it is infinite, so
// that the gate of a large negative number is zero. NaN stays NaN.
PE_INLINE vf vf_exp(vf x) {
    x = vf_max(vf_set1(-87.0f), vf_min(vf_set1(89.0f), x));  // x second: NaN passes through
    const vi n = vf_to_i32(vf_mul(x, vf_set1(1.44269504088896341f)));
    const vf nf = vi_to_f32(n);
    vf r = vf_fma(nf, vf_set1(-0.693359375f), x);
    r = vf_fma(nf, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_add(vf_fma(vf_mul(r, r), p, r), vf_set1(1.0f));
    const vf scale = vi_as_f32(vi_shl(vi_add(n, vi_set1(127)), 23));
    // NaN makes n INT32_MIN and the scale garbage, but p is NaN then.
    return vf_mul(p, scale);
}

PE_INLINE vf vf_sigmoid(vf x) { return vf_div(vf_set1(1), vf_add(vf_set1(1), vf_exp(vf_sub(vf_zero(), x)))); }

// tanh(x) to about 3e-7 of 1: as 1 - 2 / (exp(2 |x|) + 1), with the sign put back.
PE_INLINE vf vf_tanh(vf x) {
    const vf e = vf_exp(vf_mul(vf_abs(x), vf_set1(2)));
    const vf t = vf_sub(vf_set1(1), vf_div(vf_set1(2), vf_add(e, vf_set1(1))));
    return vf_copysign(t, x);
}

// cap * tanh(x / cap)
PE_INLINE vf vf_softcap(vf x, float cap) { return vf_mul(vf_tanh(vf_div(x, vf_set1(cap))), vf_set1(cap)); }

#endif
