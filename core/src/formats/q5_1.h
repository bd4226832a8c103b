// Q5_1: 32 values, a scale and a minimum. x = d * q + m. Bits are ordered as in Q5_0.
#ifndef PE_FORMATS_Q5_1_H
#define PE_FORMATS_Q5_1_H

#include "formats.h"

typedef struct pe_block_q5_1 {
    uint8_t d[2], m[2];  // f16
    uint8_t qh[4];       // one bit per value
    uint8_t qs[16];
} pe_block_q5_1;

static inline void pe_lanes_Q5_1(const void *block, pe_lanes *out) {
    const pe_block_q5_1 *b = block;
    out->d = pe_load_u16(b->d);
    out->m = pe_load_u16(b->m);
    for (int j = 0; j < 16; j++) {
        out->q[j] = (int8_t)((b->qs[j] & 15) | (b->qh[j / 8] >> j % 8 & 1) << 4);
        out->q[j + 16] = (int8_t)(b->qs[j] >> 4 | (b->qh[2 + j / 8] >> j % 8 & 1) << 4);
    }
}

static inline void pe_pack_Q5_1(const pe_lanes *in, void *block) {
    pe_block_q5_1 *b = block;
    pe_store_u16(b->d, in->d);
    pe_store_u16(b->m, in->m);
    pe_pack_bit_of_32(in->q, 4, b->qh);
    pe_pack_nibbles(in->q, b->qs);
}

#endif
