// Q6_K: 256 values in 16 parts of 16, an int8 scale per part under one f16. x = d * scale * (q - 32).
// Two halves of 128: value 32 g + l of a half (g = 0..3) has its low 4 bits in ql[l + 32 (g % 2)], nibble g / 2,
// and its high 2 bits in qh[l], bits 2 g.
#ifndef PE_FORMATS_Q6_K_H
#define PE_FORMATS_Q6_K_H

#include "formats.h"

typedef struct pe_block_q6_K {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint8_t d[2];  // f16
} pe_block_q6_K;

static inline void pe_lanes_Q6_K(const void *block, pe_lanes *out) {
    const pe_block_q6_K *b = block;
    out->d = pe_load_u16(b->d);
    memcpy(out->sub, b->scales, 16);
    for (int half = 0; half < 2; half++)
        for (int g = 0; g < 4; g++)
            for (int l = 0; l < 32; l++) {
                int low = b->ql[64 * half + l + 32 * (g & 1)] >> 4 * (g >> 1) & 15;
                int high = b->qh[32 * half + l] >> 2 * g & 3;
                out->q[128 * half + 32 * g + l] = (int8_t)(low | high << 4);
            }
}

static inline void pe_pack_Q6_K(const pe_lanes *in, void *block) {
    pe_block_q6_K *b = block;
    pe_store_u16(b->d, in->d);
    memcpy(b->scales, in->sub, 16);
    for (int half = 0; half < 2; half++)
        for (int l = 0; l < 64; l += 8) {
            const int8_t *q = in->q + 128 * half + l;
            pe_put_8(b->ql + 64 * half + l, pe_cut_lanes(q, 0, 4) | pe_cut_lanes(q + 64, 0, 4) << 4);
        }
    pe_pack_pairs(in->q, 4, b->qh);
}

#endif
