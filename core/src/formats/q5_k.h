// Q5_K: 256 values in 8 parts of 32, scales and minimums as in Q4_K. x = d * scale * q - m * minimum.
// The low 4 bits are ordered as in Q4_K; bit i / 32 of qh[i % 32] is the fifth bit of value i.
#ifndef PE_FORMATS_Q5_K_H
#define PE_FORMATS_Q5_K_H

#include "formats.h"

#include "formats/q4_k.h"

typedef struct pe_block_q5_K {
    uint8_t d[2], m[2];  // f16
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
} pe_block_q5_K;

static inline void pe_lanes_Q5_K(const void *block, pe_lanes *out) {
    const pe_block_q5_K *b = block;
    out->d = pe_load_u16(b->d);
    out->m = pe_load_u16(b->m);
    pe_scales_K(b->scales, out);
    for (int i = 0; i < 256; i++) {
        const int low = b->qs[i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15, high = b->qh[i % 32] >> i / 32 & 1;
        out->q[i] = (int8_t)(low | high << 4);
    }
}

static inline void pe_pack_Q5_K(const pe_lanes *in, void *block) {
    pe_block_q5_K *b = block;
    pe_store_u16(b->d, in->d);
    pe_store_u16(b->m, in->m);
    pe_pack_scales_K(in, b->scales);
    for (int g = 0; g < 4; g++) pe_pack_nibbles_64(in->q + 64 * g, b->qs + 32 * g);
    pe_pack_bits(in->q, 4, b->qh);
}

#endif
