// Q4_K: 256 values in 8 parts of 32, a 6-bit scale and a 6-bit minimum per part. x = d * scale * q - m * minimum.
// 32 bytes hold two parts, one in their low nibbles, the next in their high ones.
#ifndef PE_FORMATS_Q4_K_H
#define PE_FORMATS_Q4_K_H

#include "formats.h"

typedef struct pe_block_q4_K {
    uint8_t d[2], m[2];  // f16
    uint8_t scales[12];
    uint8_t qs[128];
} pe_block_q4_K;

// The 8 scales and 8 minimums of Q4_K and Q5_K: the first four of each are the low 6 bits of bytes 0..3 and 4..7; the
// others have their low 4 bits in the nibbles of bytes 8..11 and their high 2 on top of bytes 0..3 and 4..7.
static inline void pe_scales_K(const uint8_t *bytes, pe_lanes *out) {
    for (int i = 0; i < 4; i++) {
        out->sub[i] = (int8_t)(bytes[i] & 63);
        out->min[i] = bytes[4 + i] & 63;
        out->sub[4 + i] = (int8_t)((bytes[8 + i] & 15) | bytes[i] >> 6 << 4);
        out->min[4 + i] = (uint8_t)(bytes[8 + i] >> 4 | bytes[4 + i] >> 6 << 4);
    }
}

static inline void pe_pack_scales_K(const pe_lanes *in, uint8_t *bytes) {
    for (int i = 0; i < 4; i++) {
        bytes[i] = (uint8_t)(in->sub[i] | in->sub[4 + i] >> 4 << 6);
        bytes[4 + i] = (uint8_t)(in->min[i] | in->min[4 + i] >> 4 << 6);
        bytes[8 + i] = (uint8_t)((in->sub[4 + i] & 15) | in->min[4 + i] << 4);
    }
}

static inline void pe_lanes_Q4_K(const void *block, pe_lanes *out) {
    const pe_block_q4_K *b = block;
    out->d = pe_load_u16(b->d);
    out->m = pe_load_u16(b->m);
    pe_scales_K(b->scales, out);
    for (int i = 0; i < 256; i++) out->q[i] = (int8_t)(b->qs[i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15);
}

static inline void pe_pack_Q4_K(const pe_lanes *in, void *block) {
    pe_block_q4_K *b = block;
    pe_store_u16(b->d, in->d);
    pe_store_u16(b->m, in->m);
    pe_pack_scales_K(in, b->scales);
    for (int g = 0; g < 4; g++) pe_pack_nibbles_64(in->q + 64 * g, b->qs + 32 * g);
}

#endif
