// Lays a tensor's rows out as panels, and reads single rows back. Owns the panel layout (described in cpu.h) together
// with matmul.c, which consumes it.
#include "cpu.h"
#include "formats/all.h"

size_t PE_FN(block_bytes)(pe_class cls, pe_scales scales) {
    switch (cls) {
    case PE_CLASS_F32: return 4 * VL;
    case PE_CLASS_F16:
    case PE_CLASS_BF16: return 2 * VL;
    default: return (size_t)(units_at(scales) + units_of(scales) * unit_bytes(cls));
    }
}

// Puts 32 integers of one lane into a unit of its panel block, which starts zeroed.
PE_INLINE void put_unit(pe_class cls, uint8_t *unit, int lane, const int8_t *q) {
    for (int k = 0; k < 32; k += 4) {
        const int g = k / 4;
        for (int c = 0; c < 4; c++) {
            const uint8_t v = (uint8_t)q[k + c];
            if (cls == PE_CLASS_I8) {
                unit[4 * VL * g + 4 * lane + c] = v;
            } else {
                unit[4 * VL * (g / 2) + 4 * lane + c] |= (uint8_t)((v & 15) << 4 * (g & 1));
                if (cls == PE_CLASS_U6)
                    unit[UNIT_U4 + 4 * VL * (g / 4) + 4 * lane + c] |= (uint8_t)(v >> 4 << 2 * (g & 3));
            }
        }
    }
}

PE_INLINE void pack_quantized(const pe_weight *w, const uint8_t *src, size_t src_block_bytes,
                              void (*lanes_of)(const void *, pe_lanes *), pe_class cls, pe_scales scales, int64_t p0,
                              int64_t p1) {
    const size_t row_bytes = (size_t)w->n_blocks * src_block_bytes;
    for (int64_t p = p0; p < p1; p++)
        for (int64_t b = 0; b < w->n_blocks; b++) {
            uint8_t *out = w->data + (size_t)p * w->panel_bytes + (size_t)b * w->block_bytes;
            memset(out, 0, w->block_bytes);
            for (int lane = 0; lane < VL && p * VL + lane < w->rows; lane++) {
                pe_lanes x;
                lanes_of(src + (size_t)(p * VL + lane) * row_bytes + (size_t)b * src_block_bytes, &x);
                memcpy(out + LAYOUT_D + 2 * lane, &x.d, 2);
                if (scales == PE_SCALES_DM) memcpy(out + LAYOUT_M + 2 * lane, &x.m, 2);
                if (scales == PE_SCALES_K16)
                    for (int i = 0; i < 16; i++) out[LAYOUT_SUB + VL * i + lane] = (uint8_t)x.sub[i];
                for (int u = 0; u < units_of(scales); u++)
                    put_unit(cls, out + units_at(scales) + u * unit_bytes(cls), lane, x.q + 32 * u);
            }
        }
}

static void pack_float(const pe_weight *w, const uint8_t *src, size_t size, int64_t p0, int64_t p1) {
    for (int64_t p = p0; p < p1; p++) {
        uint8_t *out = w->data + (size_t)p * w->panel_bytes;
        for (int lane = 0; lane < VL; lane++) {
            const bool there = p * VL + lane < w->rows;
            const uint8_t *row = there ? src + (size_t)((p * VL + lane) * w->cols) * size : NULL;
            for (int64_t k = 0; k < w->cols; k++) {
                uint8_t *to = out + ((size_t)k * VL + (size_t)lane) * size;
                if (there) memcpy(to, row + (size_t)k * size, size);
                else memset(to, 0, size);
            }
        }
    }
}

void PE_FN(pack)(const pe_weight *w, const pe_format_row *f, const void *src, int64_t p0, int64_t p1) {
    // One specialised copy of the loops per format that has lanes.
    switch (f->info.type) {
#define PE_PACK_NONE(NAME, type, bytes, cls, scales)
#define PE_PACK_F32(NAME, type, bytes, cls, scales) \
    case type: pack_float(w, src, bytes, p0, p1); return;
#define PE_PACK_F16 PE_PACK_F32
#define PE_PACK_BF16 PE_PACK_F32
#define PE_PACK_U4(NAME, type, bytes, cls, scales) \
    case type: pack_quantized(w, src, bytes, pe_lanes_##NAME, PE_CLASS_##cls, PE_SCALES_##scales, p0, p1); return;
#define PE_PACK_I8 PE_PACK_U4
#define PE_PACK_U6 PE_PACK_U4
#define PE_FORMAT(NAME, type, values, bytes, cls, scales) PE_PACK_##cls(NAME, type, bytes, cls, scales)
#include "formats/formats.def"
#undef PE_FORMAT
    default: return;  // the validator lets only formats that run come here
    }
}

PE_INLINE int unit_get(pe_class cls, const uint8_t *unit, int lane, int k) {
    const int g = k / 4, at = 4 * lane + k % 4;
    if (cls == PE_CLASS_I8) return (int8_t)unit[4 * VL * g + at];
    const int low = unit[4 * VL * (g / 2) + at] >> 4 * (g & 1) & 15;
    return cls == PE_CLASS_U6 ? low | (unit[UNIT_U4 + 4 * VL * (g / 4) + at] >> 2 * (g & 3) & 3) << 4 : low;
}

void PE_FN(unpack_row)(const pe_weight *w, int64_t row, float *out) {
    const uint8_t *block = w->data + (size_t)(row / VL) * w->panel_bytes;
    const int lane = (int)(row % VL), zero = pe_class_zero(w->cls);
    for (int64_t b = 0; b < w->n_blocks; b++, block += w->block_bytes) {
        const float d = pe_f16_to_f32(pe_load_u16(block + LAYOUT_D + 2 * lane));
        switch (w->cls) {
        case PE_CLASS_F32: memcpy(out++, block + 4 * lane, 4); continue;
        case PE_CLASS_F16: *out++ = pe_f16_to_f32(pe_load_u16(block + 2 * lane)); continue;
        case PE_CLASS_BF16: *out++ = pe_bf16_to_f32(pe_load_u16(block + 2 * lane)); continue;
        default: break;
        }
        if (w->scales == PE_SCALES_K16) {
            for (int k = 0; k < 256; k++) {
                const float scale = d * (float)(int8_t)block[LAYOUT_SUB + VL * (k / 16) + lane];
                *out++ =
                    scale * (float)(unit_get(w->cls, block + LAYOUT_Q_K16 + k / 32 * UNIT_U6, lane, k % 32) - zero);
            }
        } else if (w->scales == PE_SCALES_DM) {
            const float m = pe_f16_to_f32(pe_load_u16(block + LAYOUT_M + 2 * lane));
            for (int k = 0; k < 32; k++) *out++ = d * (float)unit_get(w->cls, block + LAYOUT_Q_DM, lane, k) + m;
        } else {
            for (int k = 0; k < 32; k++) *out++ = d * (float)(unit_get(w->cls, block + LAYOUT_Q_D, lane, k) - zero);
        }
    }
}

// The integers of all lanes at k (0..31) of a unit.
PE_INLINE vi unit_lanes(pe_class cls, const uint8_t *unit, int k) {
    const int g = k / 4, c = k % 4;
    if (cls == PE_CLASS_I8) return vi_byte(vi_load((const int32_t *)(unit + 4 * VL * g)), c);
    const vi low = vi_shr(vi_load((const int32_t *)(unit + 4 * VL * (g / 2))), 8 * c + 4 * (g & 1));
    if (cls == PE_CLASS_U4) return vi_and(low, vi_set1(15));
    const vi high = vi_shr(vi_load((const int32_t *)(unit + UNIT_U4 + 4 * VL * (g / 4))), 8 * c + 2 * (g & 3));
    return vi_or(vi_and(low, vi_set1(15)), vi_shl(vi_and(high, vi_set1(3)), 4));
}

// The same numbers as unpack_row gives, bit for bit, a lane per row.
void PE_FN(unpack_panel)(const pe_weight *w, int64_t panel, float *out) {
    const uint8_t *block = w->data + (size_t)panel * w->panel_bytes;
    const vi zero = vi_set1(pe_class_zero(w->cls));
    for (int64_t b = 0; b < w->n_blocks; b++, block += w->block_bytes) {
        const uint16_t *halves = (const uint16_t *)block;
        if (w->cls == PE_CLASS_F32 || w->cls == PE_CLASS_F16 || w->cls == PE_CLASS_BF16) {
            vf_store(out, w->cls == PE_CLASS_F32   ? vf_load((const float *)block)
                          : w->cls == PE_CLASS_F16 ? vf_load_f16(halves)
                                                   : vf_load_bf16(halves));
            out += VL;
            continue;
        }
        const vf d = vf_load_f16(halves);
        if (w->scales == PE_SCALES_K16) {
            for (int k = 0; k < 256; k++, out += VL) {
                const vf scale = vf_mul(d, vi_to_f32(vi_load_i8((const int8_t *)block + LAYOUT_SUB + VL * (k / 16))));
                const vi q = unit_lanes(w->cls, block + LAYOUT_Q_K16 + k / 32 * UNIT_U6, k % 32);
                vf_store(out, vf_mul(scale, vi_to_f32(vi_sub(q, zero))));
            }
        } else if (w->scales == PE_SCALES_DM) {
            const vf m = vf_load_f16(halves + VL);
            for (int k = 0; k < 32; k++, out += VL)
                vf_store(out, vf_add(vf_mul(d, vi_to_f32(unit_lanes(w->cls, block + LAYOUT_Q_DM, k))), m));
        } else {
            for (int k = 0; k < 32; k++, out += VL)
                vf_store(out, vf_mul(d, vi_to_f32(vi_sub(unit_lanes(w->cls, block + LAYOUT_Q_D, k), zero))));
        }
    }
}
