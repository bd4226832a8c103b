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
    PE_CLASS_U4,  // lanes 0..15
    PE_CLASS_I8,  // lanes -128..127
    PE_CLASS_U6,  // lanes 0..63
} pe_class;

// How a lane q becomes a value x. `zero` is 8 for u4, 32 for u6, 0 for i8.
typedef enum pe_scales {
    PE_SCALES_NONE,
    PE_SCALES_D,    // x = d * (q - zero)               one f16 d per 32 values
    PE_SCALES_DM,   // x = d * q + m                    f16 d and m per 32 values
    PE_SCALES_K16,  // x = d * sub[i / 16] * (q - zero) one f16 d per 256 values, an int8 per 16
} pe_scales;

static inline int pe_class_zero(pe_class c) { return c == PE_CLASS_U4 ? 8 : c == PE_CLASS_U6 ? 32 : 0; }

// One block as integers, whatever its format: what a format header produces and packing consumes.
typedef struct pe_lanes {
    int8_t q[256];  // [block_values]
    uint16_t d, m;  // f16
    int8_t sub[16];
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
