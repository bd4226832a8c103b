// The cache's pages: writes keys and values, a token at a time, and reads them back as floats, a chunk at a time. How a
// head's keys and, right behind them, its values lie in a page is known here alone:
//
//   keys    numbers [head_dim, page_size], so that one lane is one key; then, quantized, scales f16 [blocks, page_size]
//   values  numbers [page_size, head_dim]; scales likewise
//
// A block is 32 dims of one head (the last may be shorter). f32 and f16 have no scales. q8_0 is int8. q4_0 is 0 to 15,
// 8 standing for zero, two in a byte: of keys dims 2i and 2i + 1; of values dims 16 g + i and 16 g + 8 + i, i < 8.
#include <math.h>

#include "cpu.h"

PE_INLINE bool kv_has_scales(int32_t type) { return type == PE_KV_Q8_0 || type == PE_KV_Q4_0; }

// Bytes of `page_size` numbers of keys at one d; for q4_0 of two d.
PE_INLINE int64_t kv_key_stride(int32_t type, int32_t page_size) {
    return page_size * (type == PE_KV_F32 ? 4 : type == PE_KV_F16 ? 2 : 1);
}

// Bytes of the values of one key.
PE_INLINE int64_t kv_value_stride(int32_t type, int32_t head_dim) {
    return type == PE_KV_F32   ? 4 * head_dim
           : type == PE_KV_F16 ? 2 * head_dim
                               : (int64_t)pe_kv_row_bytes(type, head_dim);
}

// From the first number of a head's keys or values on a page to its scales.
PE_INLINE int64_t kv_scales_at(int32_t type, int32_t head_dim, int32_t page_size) {
    return (int64_t)pe_kv_row_bytes(type, head_dim) * page_size;
}

// VL keys at dim d. from: the head's keys on the page, and the lane's offset in numbers.
PE_INLINE vf kv_load_keys(const int32_t type, const uint8_t *from, int64_t stride, int d) {
    switch (type) {
    case PE_KV_F32: return vf_load((const float *)(from + d * stride));
    case PE_KV_F16: return vf_load_f16((const uint16_t *)(from + d * stride));
    case PE_KV_Q8_0: return vi_to_f32(vi_load_i8((const int8_t *)(from + d * stride)));
    default:
        return vi_to_f32(
            vi_sub(vi_and(vi_shr(vi_load_u8(from + d / 2 * stride), 4 * (d & 1)), vi_set1(15)), vi_set1(8)));
    }
}

// Dims d to d + VL of one key's values.
PE_INLINE vf kv_load_values(const int32_t type, const uint8_t *row, int d) {
    switch (type) {
    case PE_KV_F32: return vf_load((const float *)row + d);
    case PE_KV_F16: return vf_load_f16((const uint16_t *)row + d);
    case PE_KV_Q8_0: return vi_to_f32(vi_load_i8((const int8_t *)row + d));
    default:
        return vi_to_f32(
            vi_sub(vi_and(vi_shr(vi_load_u8(row + d / 16 * 8 + d % 8), d & 8 ? 4 : 0), vi_set1(15)), vi_set1(8)));
    }
}

// ---- writing ---------------------------------------------------------------------------------------------------------

// Rounds a block to q * scale, as Q8_0 and Q4_0 weights are. Returns the scale's bits; NaN stays NaN.
static uint16_t round_q8(const float *x, int n, int8_t *q) {
    float top = 0;
    bool nan = false;
    for (int i = 0; i < n; i++) {
        nan |= isnan(x[i]);
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    }
    const uint16_t bits = pe_f32_to_f16(nan ? NAN : top / 127.0f);
    const float scale = pe_f16_to_f32(bits), inverse = scale > 0 ? 1 / scale : 0;
    for (int i = 0; i < n; i++) {
        const float v = x[i] * inverse;
        q[i] = (int8_t)(v > 127 ? 127 : v < -127 ? -127 : isnan(v) ? 0 : lrintf(v));
    }
    return bits;
}

// The largest number becomes -8, whatever its sign.
static uint16_t round_q4(const float *x, int n, uint8_t *q) {
    float top = 0;
    bool nan = false;
    for (int i = 0; i < n; i++) {
        nan |= isnan(x[i]);
        top = fabsf(x[i]) > fabsf(top) ? x[i] : top;
    }
    const uint16_t bits = pe_f32_to_f16(nan ? NAN : top / -8.0f);
    const float scale = pe_f16_to_f32(bits), inverse = scale != 0 && !isnan(scale) ? 1 / scale : 0;
    for (int i = 0; i < n; i++) {
        const float v = x[i] * inverse + 8;
        q[i] = (uint8_t)(v > 15 ? 15 : v > 0 ? lrintf(v) : 0);
    }
    return bits;
}

static void put_nibble(uint8_t *byte, int high, uint8_t q) {
    *byte = (uint8_t)(high ? (*byte & 0x0f) | q << 4 : (*byte & 0xf0) | q);
}

static void write_q8(const pe_kv_view *kv, uint8_t *to_k, uint8_t *to_v, int64_t slot, const float *k, const float *v) {
    const int32_t page = kv->page_size, dim = kv->head_dim;
    uint16_t *k_scales = (uint16_t *)(to_k + kv_scales_at(PE_KV_Q8_0, dim, page));
    uint16_t *v_scales = (uint16_t *)(to_v + kv_scales_at(PE_KV_Q8_0, dim, page));
    for (int d = 0; d < dim; d += PE_KV_BLOCK) {
        const int n = dim - d < PE_KV_BLOCK ? dim - d : PE_KV_BLOCK;
        int8_t q[PE_KV_BLOCK];
        k_scales[d / PE_KV_BLOCK * page + slot] = round_q8(k + d, n, q);
        for (int i = 0; i < n; i++) to_k[(d + i) * page + slot] = (uint8_t)q[i];
        v_scales[d / PE_KV_BLOCK * page + slot] = round_q8(v + d, n, (int8_t *)to_v + slot * dim + d);
    }
}

static void write_q4(const pe_kv_view *kv, uint8_t *to_k, uint8_t *to_v, int64_t slot, const float *k, const float *v) {
    const int32_t page = kv->page_size, dim = kv->head_dim;
    uint16_t *k_scales = (uint16_t *)(to_k + kv_scales_at(PE_KV_Q4_0, dim, page));
    uint16_t *v_scales = (uint16_t *)(to_v + kv_scales_at(PE_KV_Q4_0, dim, page));
    uint8_t *row = to_v + slot * kv_value_stride(PE_KV_Q4_0, dim);
    for (int d = 0; d < dim; d += PE_KV_BLOCK) {
        const int n = dim - d < PE_KV_BLOCK ? dim - d : PE_KV_BLOCK;
        uint8_t q[PE_KV_BLOCK];
        k_scales[d / PE_KV_BLOCK * page + slot] = round_q4(k + d, n, q);
        for (int i = 0; i < n; i++) put_nibble(&to_k[(d + i) / 2 * page + slot], i & 1, q[i]);
        v_scales[d / PE_KV_BLOCK * page + slot] = round_q4(v + d, n, q);
        for (int i = 0; i < n; i++) put_nibble(&row[(d + i) / 16 * 8 + i % 8], i & 8, q[i]);
    }
}

static void write_f16(const pe_kv_view *kv, uint16_t *to_k, uint16_t *to_v, int64_t slot, const float *k,
                      const float *v) {
    for (int64_t d = 0; d < kv->head_dim; d += VL) {
        uint16_t half[VL];
        vf_store_f16(half, vf_load(k + d));
        for (int i = 0; i < VL; i++) to_k[(d + i) * kv->page_size + slot] = half[i];
        vf_store_f16(to_v + slot * kv->head_dim + d, vf_load(v + d));
    }
}

static void write_f32(const pe_kv_view *kv, float *to_k, float *to_v, int64_t slot, const float *k, const float *v) {
    for (int64_t d = 0; d < kv->head_dim; d++) to_k[d * kv->page_size + slot] = k[d];
    memcpy(to_v + slot * kv->head_dim, v, (size_t)kv->head_dim * sizeof *v);
}

// The keys of a head on a page of the sequence; its values lie `half` behind them.
PE_INLINE uint8_t *kv_block(const pe_kv_view *kv, int64_t page, int32_t head, int64_t half) {
    return kv->pages + kv->table[page] * kv->page_bytes + 2 * half * head;
}

PE_INLINE int64_t kv_half(const pe_kv_view *kv) {
    return (int64_t)pe_kv_head_bytes(kv->type, kv->head_dim, kv->page_size);
}

void PE_FN(kv_write)(const pe_kv_view *kv, int64_t position, const float *k, const float *v) {
    const int64_t slot = position % kv->page_size, half = kv_half(kv);
    for (int32_t h = 0; h < kv->n_kv_heads; h++, k += kv->head_dim, v += kv->head_dim) {
        uint8_t *to_k = kv_block(kv, position / kv->page_size, h, half), *to_v = to_k + half;
        switch (kv->type) {
        case PE_KV_F32: write_f32(kv, (float *)to_k, (float *)to_v, slot, k, v); break;
        case PE_KV_F16: write_f16(kv, (uint16_t *)to_k, (uint16_t *)to_v, slot, k, v); break;
        case PE_KV_Q8_0: write_q8(kv, to_k, to_v, slot, k, v); break;
        default: write_q4(kv, to_k, to_v, slot, k, v); break;
        }
    }
}

// ---- reading ---------------------------------------------------------------------------------------------------------

// Keys of VL slots, all dims, into to [head_dim, 64]. lane: their numbers at d = 0.
PE_INLINE void unpack_lanes(const int32_t type, const uint8_t *lane, int64_t stride, const uint16_t *scales,
                            int32_t page_size, int head_dim, float *to) {
    for (int d0 = 0; d0 < head_dim; d0 += PE_KV_BLOCK) {
        const int end = d0 + PE_KV_BLOCK < head_dim ? d0 + PE_KV_BLOCK : head_dim;
        const vf scale = kv_has_scales(type) ? vf_load_f16(scales + d0 / PE_KV_BLOCK * page_size) : vf_zero();
        for (int d = d0; d < end; d += 8)  // as head_dim is
#pragma GCC unroll 8
            for (int i = d; i < d + 8; i++) {
                const vf k = kv_load_keys(type, lane, stride, i);
                vf_store(to + i * PE_CHUNK, kv_has_scales(type) ? vf_mul(k, scale) : k);
            }
    }
}

// A page's keys of one head, slots [0, n), into to [head_dim, 64].
PE_INLINE void unpack_keys(const int32_t type, const pe_kv_view *kv, const uint8_t *from, int n, float *to) {
    const int32_t page_size = kv->page_size, head_dim = kv->head_dim;
    const int64_t stride = kv_key_stride(type, page_size), lane = stride / page_size * VL;
    const uint16_t *scales = (const uint16_t *)(from + kv_scales_at(type, head_dim, page_size));
    for (int i = 0; i * VL < n; i++)
        unpack_lanes(type, from + i * lane, stride, scales + i * VL, page_size, head_dim, to + i * VL);
}

// A page's values of one head, slots [0, n), into to [n, ld].
PE_INLINE void unpack_values(const int32_t type, const pe_kv_view *kv, const uint8_t *from, int n, float *to,
                             int64_t ld) {
    const int32_t page_size = kv->page_size, head_dim = kv->head_dim;
    const int64_t stride = kv_value_stride(type, head_dim);
    const uint16_t *scales = (const uint16_t *)(from + kv_scales_at(type, head_dim, page_size));
    float scale_of[PE_MAX_HEAD_DIM / PE_KV_BLOCK * PE_CHUNK];  // [blocks, page_size]
    for (int i = 0; kv_has_scales(type) && i < (head_dim + PE_KV_BLOCK - 1) / PE_KV_BLOCK * page_size; i += VL)
        vf_store(scale_of + i, vf_load_f16(scales + i));
    for (int j = 0; j < n; j++, from += stride, to += ld) {
        for (int d0 = 0; d0 < head_dim; d0 += PE_KV_BLOCK) {
            const int end = d0 + PE_KV_BLOCK < head_dim ? d0 + PE_KV_BLOCK : head_dim;
            vf scale = vf_zero();
            if (kv_has_scales(type)) scale = vf_set1(scale_of[d0 / PE_KV_BLOCK * page_size + j]);
            for (int d = d0; d < end; d += VL) {
                const vf v = kv_load_values(type, from, d);
                vf_store(to + d, kv_has_scales(type) ? vf_mul(v, scale) : v);
            }
        }
        for (int64_t d = head_dim; d < ld; d += VL) vf_store(to + d, vf_zero());
    }
}

// Pages of chunk c as far as key `end`.
PE_INLINE int32_t pages_of_chunk(const pe_kv_view *kv, int32_t c, int32_t end) {
    const int32_t n = end - c * PE_CHUNK;
    return ((n < PE_CHUNK ? n : PE_CHUNK) + kv->page_size - 1) / kv->page_size;
}

PE_INLINE void unpack(const int32_t type, const pe_kv_view *kv, int32_t head, int32_t c, int32_t end, float *keys,
                      float *values, int64_t ld) {
    const int64_t half = kv_half(kv);
    const int32_t per_chunk = PE_CHUNK / kv->page_size, n = end - c * PE_CHUNK;
    for (int32_t i = 0; i < pages_of_chunk(kv, c, end); i++) {
        const uint8_t *from = kv_block(kv, c * per_chunk + i, head, half);
        const int first = i * kv->page_size, here = n - first < kv->page_size ? n - first : kv->page_size;
        unpack_keys(type, kv, from, here, keys + first);
        unpack_values(type, kv, from + half, here, values + first * ld, ld);
    }
}

void PE_FN(kv_unpack)(const pe_kv_view *kv, int32_t head, int32_t c, int32_t end, float *keys, float *values,
                      int64_t ld) {
    switch (kv->type) {
    case PE_KV_F32: unpack(PE_KV_F32, kv, head, c, end, keys, values, ld); break;
    case PE_KV_F16: unpack(PE_KV_F16, kv, head, c, end, keys, values, ld); break;
    case PE_KV_Q8_0: unpack(PE_KV_Q8_0, kv, head, c, end, keys, values, ld); break;
    default: unpack(PE_KV_Q4_0, kv, head, c, end, keys, values, ld); break;
    }
}

void PE_FN(kv_look_ahead)(const pe_kv_view *kv, int32_t head, int32_t c, int32_t end, kv_ahead *ahead) {
    const int64_t half = kv_half(kv);
    ahead->block = 0;
    ahead->n_blocks = c * PE_CHUNK < end ? pages_of_chunk(kv, c, end) : 0;
    ahead->block_bytes = 2 * half;
    for (int32_t i = 0; i < ahead->n_blocks; i++)
        ahead->blocks[i] = kv_block(kv, c * (PE_CHUNK / kv->page_size) + i, head, half);
    kv_next_block(ahead);
}

bool PE_FN(kv_in_place)(const pe_kv_view *kv, int32_t head, int32_t c, int32_t end, int32_t lanes, kv_chunk *out) {
    if (kv_has_scales(kv->type) || kv->head_dim % lanes || kv->page_size % lanes) return false;
    const int64_t half = kv_half(kv);
    out->key_stride = kv_key_stride(kv->type, kv->page_size);
    out->value_stride = kv_value_stride(kv->type, kv->head_dim);
    out->run_bits = __builtin_ctz((unsigned)kv->page_size);
    out->f16 = kv->type == PE_KV_F16;
    for (int32_t i = 0; i < pages_of_chunk(kv, c, end); i++) {
        out->keys[i] = kv_block(kv, c * (PE_CHUNK / kv->page_size) + i, head, half);
        out->values[i] = out->keys[i] + half;
    }
    return true;
}
