// Q3_K: 256 values in 16 parts of 16, a 6-bit scale less 32 per part. x = d * scale * (q - 4).
// The low 2 bits are ordered as in Q2_K; bit i / 32 of hmask[i % 32] is the third bit of value i. Of scale i, the low 4
// bits are nibble i / 8 of scales[i % 8] and the high 2 are bits 2 (i / 4) of scales[8 + i % 4].
#ifndef PE_FORMATS_Q3_K_H
#define PE_FORMATS_Q3_K_H

#include "formats.h"

typedef struct pe_block_q3_K {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    uint8_t d[2];  // f16
} pe_block_q3_K;

static inline void pe_lanes_Q3_K(const void *block, pe_lanes *out) {
    const pe_block_q3_K *b = block;
    out->d = pe_load_u16(b->d);
    for (int i = 0; i < 16; i++) {
        const int low = b->scales[i % 8] >> i / 8 * 4 & 15, high = b->scales[8 + i % 4] >> i / 4 * 2 & 3;
        out->sub[i] = (int8_t)((low | high << 4) - 32);
    }
    for (int i = 0; i < 256; i++) {
        const int low = b->qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3, high = b->hmask[i % 32] >> i / 32 & 1;
        out->q[i] = (int8_t)(low | high << 2);
    }
}

static inline void pe_pack_Q3_K(const pe_lanes *in, void *block) {
    pe_block_q3_K *b = block;
    pe_store_u16(b->d, in->d);
    memset(b->scales, 0, sizeof b->scales);
    for (int i = 0; i < 16; i++) {
        const int scale = in->sub[i] + 32;
        b->scales[i % 8] |= (uint8_t)((scale & 15) << i / 8 * 4);
        b->scales[8 + i % 4] |= (uint8_t)(scale >> 4 << i / 4 * 2);
    }
    pe_pack_pairs(in->q, 0, b->qs);
    pe_pack_bits(in->q, 2, b->hmask);
}

#endif
