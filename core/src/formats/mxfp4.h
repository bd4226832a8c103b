// MXFP4: 32 values, a power of two. x = 2^(e - 128) * table[q], the table being PE_MXFP4_VALUES (twice the numbers of
// FP4 E2M1, so that they are whole). Nibbles are ordered as in Q4_0.     OCP Microscaling Formats v1.0
#ifndef PE_FORMATS_MXFP4_H
#define PE_FORMATS_MXFP4_H

#include "formats.h"

typedef struct pe_block_mxfp4 {
    uint8_t e;
    uint8_t qs[16];
} pe_block_mxfp4;

static inline void pe_lanes_MXFP4(const void *block, pe_lanes *out) {
    const pe_block_mxfp4 *b = block;
    out->d = b->e;
    for (int j = 0; j < 16; j++) {
        out->q[j] = (int8_t)(b->qs[j] & 15);
        out->q[j + 16] = (int8_t)(b->qs[j] >> 4);
    }
}

static inline void pe_pack_MXFP4(const pe_lanes *in, void *block) {
    pe_block_mxfp4 *b = block;
    b->e = (uint8_t)in->d;
    pe_pack_nibbles(in->q, b->qs);
}

#endif
