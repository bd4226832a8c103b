// Q4_0: 32 values, one scale. x = d * (q - 8). Nibble i of byte j holds value j + 16 i.
#ifndef PE_FORMATS_Q4_0_H
#define PE_FORMATS_Q4_0_H

#include "formats.h"

typedef struct pe_block_q4_0 {
    uint8_t d[2];  // f16
    uint8_t qs[16];
} pe_block_q4_0;

static inline void pe_lanes_Q4_0(const void *block, pe_lanes *out) {
    const pe_block_q4_0 *b = block;
    out->d = pe_load_u16(b->d);
    for (int j = 0; j < 16; j++) {
        out->q[j] = (int8_t)(b->qs[j] & 15);
        out->q[j + 16] = (int8_t)(b->qs[j] >> 4);
    }
}

static inline void pe_pack_Q4_0(const pe_lanes *in, void *block) {
    pe_block_q4_0 *b = block;
    pe_store_u16(b->d, in->d);
    pe_pack_nibbles(in->q, b->qs);
}

#endif
