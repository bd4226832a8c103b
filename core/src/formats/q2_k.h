// Q2_K: 256 values in 16 parts of 16, a 4-bit scale and a 4-bit minimum per part. x = d * scale * q - m * minimum.
// Two halves of 128: value 32 g + l of a half (g = 0..3) is bits 2 g of qs[l].
#ifndef PE_FORMATS_Q2_K_H
#define PE_FORMATS_Q2_K_H

#include "formats.h"

typedef struct pe_block_q2_K {
    uint8_t scales[16];  // low nibble: scale, high nibble: minimum
    uint8_t qs[64];
    uint8_t d[2], m[2];  // f16
} pe_block_q2_K;

static inline void pe_lanes_Q2_K(const void *block, pe_lanes *out) {
    const pe_block_q2_K *b = block;
    out->d = pe_load_u16(b->d);
    out->m = pe_load_u16(b->m);
    for (int i = 0; i < 16; i++) {
        out->sub[i] = (int8_t)(b->scales[i] & 15);
        out->min[i] = b->scales[i] >> 4;
    }
    for (int i = 0; i < 256; i++) out->q[i] = (int8_t)(b->qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3);
}

static inline void pe_pack_Q2_K(const pe_lanes *in, void *block) {
    pe_block_q2_K *b = block;
    pe_store_u16(b->d, in->d);
    pe_store_u16(b->m, in->m);
    for (int i = 0; i < 16; i++) b->scales[i] = (uint8_t)(in->sub[i] | in->min[i] << 4);
    pe_pack_pairs(in->q, 0, b->qs);
}

#endif
