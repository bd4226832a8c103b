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
} pe_format_row;

const pe_format_row *pe_format_row_by_type(int32_t type);  // NULL: no such format
const pe_format_info *pe_format_by_type(int32_t type);     // NULL: no such format

// Unpacks n values (whole blocks) of a format that runs to float32, in the order of operations of the format's definition.
void pe_format_unpack(const pe_format_row *f, const void *src, int64_t n, float *out);

static inline uint16_t pe_load_u16(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

#endif
