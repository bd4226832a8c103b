// Q4_1: 32 values, a scale and a minimum. x = d * q + m. Nibbles are ordered as in Q4_0.
#ifndef PE_FORMATS_Q4_1_H
#define PE_FORMATS_Q4_1_H

#include "formats.h"

typedef struct pe_block_q4_1 {
    uint8_t d[2], m[2];  // f16
    uint8_t qs[16];
} pe_block_q4_1;

static inline void pe_lanes_Q4_1(const void *block, pe_lanes *out) {
    const pe_block_q4_1 *b = block;
    out->d = pe_load_u16(b->d);
    out->m = pe_load_u16(b->m);
    for (int j = 0; j < 16; j++) {
        out->q[j] = (int8_t)(b->qs[j] & 15);
        out->q[j + 16] = (int8_t)(b->qs[j] >> 4);
    }
}

static inline void pe_pack_Q4_1(const pe_lanes *in, void *block) {
    pe_block_q4_1 *b = block;
    pe_store_u16(b->d, in->d);
    pe_store_u16(b->m, in->m);
    pe_pack_nibbles(in->q, b->qs);
}

#endif
