// How keys and values lie in a page of the cache, one head after the other. Owned by kv.c, which writes them, and
// attention.c, which reads them.
//
//   keys    numbers [head_dim, page_size], so that one lane is one key; then, quantized, scales f16 [blocks, page_size]
//   values  numbers [page_size, head_dim]; scales likewise: the weight of a key is multiplied by them, 8 keys at once
//
// A block is 32 dims of one head (the last may be shorter). f32 and f16 have no scales. q8_0 is int8. q4_0 is 0 to 15,
// 8 standing for zero, two in a byte: of keys dims 2i and 2i + 1; of values dims 16 g + i and 16 g + 8 + i, i < 8.
#ifndef PE_KV_H
#define PE_KV_H

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

#endif
