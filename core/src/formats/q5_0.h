// Q5_0: 32 values, one scale. x = d * (q - 16). Nibbles are ordered as in Q4_0; bit j of qh is the fifth bit of value j.
#ifndef PE_FORMATS_Q5_0_H
#define PE_FORMATS_Q5_0_H

#include "formats.h"

typedef struct pe_block_q5_0 {
    uint8_t d[2];   // f16
    uint8_t qh[4];  // one bit per value
    uint8_t qs[16];
} pe_block_q5_0;

static inline void pe_lanes_Q5_0(const void *block, pe_lanes *out) {
    const pe_block_q5_0 *b = block;
    out->d = pe_load_u16(b->d);
    for (int j = 0; j < 16; j++) {
        out->q[j] = (int8_t)((b->qs[j] & 15) | (b->qh[j / 8] >> j % 8 & 1) << 4);
        out->q[j + 16] = (int8_t)(b->qs[j] >> 4 | (b->qh[2 + j / 8] >> j % 8 & 1) << 4);
    }
}

static inline void pe_pack_Q5_0(const pe_lanes *in, void *block) {
    pe_block_q5_0 *b = block;
    pe_store_u16(b->d, in->d);
    pe_pack_bit_of_32(in->q, 4, b->qh);
    pe_pack_nibbles(in->q, b->qs);
}

#endif
