// IQ4_XS: 256 values in 8 parts of 32, a 6-bit scale less 32 per part. x = d * scale * table[q], as in IQ4_NL.
// Of scale i, the low 4 bits are nibble i % 2 of scales_l[i / 2], the high 2 are bits 2 i of scales_h.
#ifndef PE_FORMATS_IQ4_XS_H
#define PE_FORMATS_IQ4_XS_H

#include "formats.h"

typedef struct pe_block_iq4_xs {
    uint8_t d[2];  // f16
    uint8_t scales_h[2];
    uint8_t scales_l[4];
    uint8_t qs[128];
} pe_block_iq4_xs;

static inline void pe_lanes_IQ4_XS(const void *block, pe_lanes *out) {
    const pe_block_iq4_xs *b = block;
    out->d = pe_load_u16(b->d);
    for (int i = 0; i < 8; i++) {
        const int low = b->scales_l[i / 2] >> i % 2 * 4 & 15, high = pe_load_u16(b->scales_h) >> 2 * i & 3;
        out->sub[i] = (int8_t)((low | high << 4) - 32);
    }
    for (int i = 0; i < 256; i++) out->q[i] = (int8_t)(b->qs[i / 32 * 16 + i % 16] >> i % 32 / 16 * 4 & 15);
}

static inline void pe_pack_IQ4_XS(const pe_lanes *in, void *block) {
    pe_block_iq4_xs *b = block;
    pe_store_u16(b->d, in->d);
    memset(b->scales_l, 0, sizeof b->scales_l);
    int high = 0;
    for (int i = 0; i < 8; i++) {
        const int scale = in->sub[i] + 32;
        b->scales_l[i / 2] |= (uint8_t)((scale & 15) << i % 2 * 4);
        high |= scale >> 4 << 2 * i;
    }
    pe_store_u16(b->scales_h, (uint16_t)high);
    for (int part = 0; part < 8; part++) pe_pack_nibbles(in->q + 32 * part, b->qs + 16 * part);
}

#endif
