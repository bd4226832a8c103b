// IQ4_NL: 32 values, one scale. x = d * table[q], the table being PE_IQ4_VALUES. Nibbles are ordered as in Q4_0.
#ifndef PE_FORMATS_IQ4_NL_H
#define PE_FORMATS_IQ4_NL_H

#include "formats.h"

typedef struct pe_block_iq4_nl {
    uint8_t d[2];  // f16
    uint8_t qs[16];
} pe_block_iq4_nl;

static inline void pe_lanes_IQ4_NL(const void *block, pe_lanes *out) {
    const pe_block_iq4_nl *b = block;
    out->d = pe_load_u16(b->d);
    for (int j = 0; j < 16; j++) {
        out->q[j] = (int8_t)(b->qs[j] & 15);
        out->q[j + 16] = (int8_t)(b->qs[j] >> 4);
    }
}

static inline void pe_pack_IQ4_NL(const pe_lanes *in, void *block) {
    pe_block_iq4_nl *b = block;
    pe_store_u16(b->d, in->d);
    pe_pack_nibbles(in->q, b->qs);
}

#endif
