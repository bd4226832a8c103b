// The table of tensor formats: what a block holds, which kernel class runs it and how its scales apply.
// Formats know nothing of panels; kernels know classes, never formats. pack.c is where the two meet.
#ifndef PE_FORMATS_H
#define PE_FORMATS_H

#include <string.h>

#include "error.h"

typedef enum pe_class {
    PE_CLASS_NONE,  // no kernels in this build
    PE_CLASS_F32,
    PE_CLASS_F16,
    PE_CLASS_BF16,
    PE_CLASS_U2,  // lanes 0..3
    PE_CLASS_U3,
    PE_CLASS_U4,
    PE_CLASS_U5,
    PE_CLASS_U6,   // lanes 0..63
    PE_CLASS_I8,   // lanes -128..127
    PE_CLASS_IQ4,  // lanes 0..15, places in PE_IQ4_VALUES
    PE_CLASS_FP4,  // lanes 0..15, places in PE_MXFP4_VALUES
} pe_class;

#define PE_IQ4_VALUES {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
#define PE_MXFP4_VALUES {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// How a lane q becomes a value x. `zero` is 4 for u3, 8 for u4, 16 for u5, 32 for u6 and 0 for the others; of the table
// classes, q stands for what the table holds.
typedef enum pe_scales {
    PE_SCALES_NONE,
    PE_SCALES_D,     // x = d * (q - zero)               one f16 d per 32 values
    PE_SCALES_DM,    // x = d * q + m                    f16 d and m per 32 values
    PE_SCALES_E8,    // x = 2^(e - 128) * q              one byte e per 32 values
    PE_SCALES_K16,   // x = d * sub[i / 16] * (q - zero) one f16 d per 256 values, an int8 per 16
    PE_SCALES_K32,   // x = d * sub[i / 32] * q          one f16 d per 256 values, an int8 per 32
    PE_SCALES_K16M,  // x = d * sub[i / 16] * q - m * min[i / 16], both of 4 bits; f16 d and m per 256 values
    PE_SCALES_K32M,  // x = d * sub[i / 32] * q - m * min[i / 32], both of 6 bits; f16 d and m per 256 values
} pe_scales;

static inline int pe_class_zero(pe_class c) {
    switch (c) {
    case PE_CLASS_U3: return 4;
    case PE_CLASS_U4: return 8;
    case PE_CLASS_U5: return 16;
    case PE_CLASS_U6: return 32;
    default: return 0;
    }
}

static inline bool pe_class_is_float(pe_class c) {
    return c == PE_CLASS_F32 || c == PE_CLASS_F16 || c == PE_CLASS_BF16;
}

static inline bool pe_scales_have_m(pe_scales s) {
    return s == PE_SCALES_DM || s == PE_SCALES_K16M || s == PE_SCALES_K32M;
}
// Scales below d in a block: 0, 8 or 16.
static inline int pe_scales_parts(pe_scales s) {
    return s == PE_SCALES_K16 || s == PE_SCALES_K16M ? 16 : s == PE_SCALES_K32 || s == PE_SCALES_K32M ? 8 : 0;
}

// The integer that lane value q stands for.
static inline int pe_class_value(pe_class c, int q) {
    static const int8_t iq4[16] = PE_IQ4_VALUES, fp4[16] = PE_MXFP4_VALUES;
    return c == PE_CLASS_IQ4 ? iq4[q] : c == PE_CLASS_FP4 ? fp4[q] : q;
}

// One block as integers, whatever its format: what a format header produces and packing consumes.
typedef struct pe_lanes {
    int8_t q[256];  // [block_values]
    uint16_t d, m;  // f16; d is e where the scales are E8
    int8_t sub[16];
    uint8_t min[16];
} pe_lanes;

typedef struct pe_format_row {
    pe_format_info info;
    pe_class cls;
    pe_scales scales;
    // NULL for float classes and NONE. A file may ask for no alignment, so a block's struct is made of bytes alone.
    void (*lanes)(const void *block, pe_lanes *out);
    void (*pack)(const pe_lanes *in, void *block);  // and back; what a block has no room for must be zero
} pe_format_row;

const pe_format_row *pe_format_row_by_type(int32_t type);  // NULL: no such format
const pe_format_info *pe_format_by_type(int32_t type);     // NULL: no such format

// Unpacks n values (whole blocks) of a format that runs to float32, in the order of operations of the format's definition.
void pe_format_unpack(const pe_format_row *f, const void *src, int64_t n, float *out);

// ---- for the format headers ----

static inline uint16_t pe_load_u16(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void pe_store_u16(void *p, uint16_t v) { memcpy(p, &v, sizeof v); }

// Bits [shift, shift + bits) of 8 lanes, one in each byte.
static inline uint64_t pe_cut_lanes(const int8_t *q, int shift, int bits) {
    uint64_t v;
    memcpy(&v, q, sizeof v);
    return v >> shift & UINT64_C(0x0101010101010101) * ((1u << bits) - 1);
}
static inline void pe_put_8(uint8_t *out, uint64_t v) { memcpy(out, &v, sizeof v); }

// 32 lanes in 16 bytes: lane j + 16 i in nibble i of byte j.
static inline void pe_pack_nibbles(const int8_t *q, uint8_t *out) {
    for (int j = 0; j < 16; j += 8) pe_put_8(out + j, pe_cut_lanes(q + j, 0, 4) | pe_cut_lanes(q + 16 + j, 0, 4) << 4);
}
// 64 lanes in 32 bytes: lane l + 32 i in nibble i of byte l.
static inline void pe_pack_nibbles_64(const int8_t *q, uint8_t *out) {
    for (int l = 0; l < 32; l += 8) pe_put_8(out + l, pe_cut_lanes(q + l, 0, 4) | pe_cut_lanes(q + 32 + l, 0, 4) << 4);
}
// Bits shift and shift + 1 of 256 lanes in 64 bytes: lane 128 h + 32 g + l (l < 32) at bits 2 g of byte 32 h + l.
static inline void pe_pack_pairs(const int8_t *q, int shift, uint8_t *out) {
    for (int h = 0; h < 2; h++, q += 128, out += 32)
        for (int l = 0; l < 32; l += 8) {
            uint64_t v = 0;
            for (int g = 0; g < 4; g++) v |= pe_cut_lanes(q + 32 * g + l, shift, 2) << 2 * g;
            pe_put_8(out + l, v);
        }
}
// Bit `shift` of 256 lanes in 32 bytes: lane 32 g + l (l < 32) at bit g of byte l.
static inline void pe_pack_bits(const int8_t *q, int shift, uint8_t *out) {
    for (int l = 0; l < 32; l += 8) {
        uint64_t v = 0;
        for (int g = 0; g < 8; g++) v |= pe_cut_lanes(q + 32 * g + l, shift, 1) << g;
        pe_put_8(out + l, v);
    }
}
// Bit `shift` of 32 lanes in 4 bytes: lane j at bit j % 8 of byte j / 8. The product moves bit 0 of byte j to bit 56 + j.
static inline void pe_pack_bit_of_32(const int8_t *q, int shift, uint8_t *out) {
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(pe_cut_lanes(q + 8 * i, shift, 1) * UINT64_C(0x0102040810204080) >> 56);
}

#endif
