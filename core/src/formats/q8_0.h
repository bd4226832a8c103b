// Q8_0: 32 values, one scale. x = d * q.
#ifndef PE_FORMATS_Q8_0_H
#define PE_FORMATS_Q8_0_H

#include "formats.h"

typedef struct pe_block_q8_0 {
    uint8_t d[2];  // f16
    int8_t qs[32];
} pe_block_q8_0;

static inline void pe_lanes_Q8_0(const void *block, pe_lanes *out) {
    const pe_block_q8_0 *b = block;
    out->d = pe_load_u16(b->d);
    memcpy(out->q, b->qs, 32);
}

static inline void pe_pack_Q8_0(const pe_lanes *in, void *block) {
    pe_block_q8_0 *b = block;
    pe_store_u16(b->d, in->d);
    memcpy(b->qs, in->q, 32);
}

#endif
