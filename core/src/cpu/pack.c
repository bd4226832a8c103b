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

// Four integers of one lane, k = 4 g .. 4 g + 3, as a word: planes consist of such words, so four integers are shifted,
// then masked of their neighbours' bits, at once. (The order of bytes is the machine's own.)
PE_INLINE uint32_t four(const int8_t *q, int g) {
    uint32_t v;
    memcpy(&v, q + 4 * g, sizeof v);
    return v;
}

PE_INLINE void put_word(uint8_t *plane, int word, int lane, uint32_t v) {
    memcpy(plane + 4 * (VL * word + lane), &v, sizeof v);
}

enum { EACH_1 = 0x01010101, EACH_3 = 0x03030303, EACH_15 = 0x0f0f0f0f };

// Bit `from` of 32 integers.
PE_INLINE void put_bits(uint8_t *plane, int lane, const int8_t *q, int from) {
    uint32_t v = 0;
    for (int g = 0; g < 8; g++) v |= (four(q, g) >> from & EACH_1) << g;
    put_word(plane, 0, lane, v);
}

// Bits `from` and `from` + 1.
PE_INLINE void put_pairs(uint8_t *plane, int lane, const int8_t *q, int from) {
    for (int h = 0; h < 2; h++) {
        uint32_t v = 0;
        for (int g = 0; g < 4; g++) v |= (four(q, 4 * h + g) >> from & EACH_3) << 2 * g;
        put_word(plane, h, lane, v);
    }
}

// Puts 32 integers of one lane into a unit of its panel block, and writes all bytes of the lane there.
PE_INLINE void put_unit(pe_class cls, uint8_t *unit, int lane, const int8_t *q) {
    if (cls == PE_CLASS_I8) {
        for (int g = 0; g < 8; g++) put_word(unit, g, lane, four(q, g));
    } else if (cls == PE_CLASS_U2 || cls == PE_CLASS_U3) {
        put_pairs(unit, lane, q, 0);
        if (cls == PE_CLASS_U3) put_bits(unit + PAIRS, lane, q, 2);
    } else {
        for (int j = 0; j < 4; j++)
            put_word(unit, j, lane, (four(q, 2 * j) & EACH_15) | (four(q, 2 * j + 1) & EACH_15) << 4);
        if (cls == PE_CLASS_U5) put_bits(unit + NIBBLES, lane, q, 4);
        if (cls == PE_CLASS_U6) put_pairs(unit + NIBBLES, lane, q, 4);
    }
}

PE_INLINE void put_scales(pe_scales scales, uint8_t *block, int lane, const pe_lanes *x) {
    if (scales == PE_SCALES_E8) block[lane] = (uint8_t)x->d;
    else memcpy(block + 2 * lane, &x->d, 2);
    if (pe_scales_have_m(scales)) memcpy(block + m_at(scales) + 2 * lane, &x->m, 2);
    for (int i = 0; i < pe_scales_parts(scales); i++) {
        uint8_t *sub = block + subs_at(scales) + VL * i + lane;
        *sub = (uint8_t)x->sub[i];
        if (scales == PE_SCALES_K16M) *sub = (uint8_t)(*sub | x->min[i] << 4);
        if (scales == PE_SCALES_K32M) block[mins_at(scales) + VL * i + lane] = x->min[i];
    }
}

PE_INLINE void pack_quantized(const pe_weight *w, const uint8_t *src, size_t src_block_bytes,
                              void (*lanes_of)(const void *, pe_lanes *), pe_class cls, pe_scales scales, int64_t p0,
                              int64_t p1) {
    const size_t row_bytes = (size_t)w->n_blocks * src_block_bytes;
    for (int64_t p = p0; p < p1; p++)
        for (int64_t b = 0; b < w->n_blocks; b++) {
            uint8_t *out = w->data + (size_t)p * w->panel_bytes + (size_t)b * w->block_bytes;
            const int lanes = w->rows - p * VL < VL ? (int)(w->rows - p * VL) : VL;
            if (lanes < VL) memset(out, 0, w->block_bytes);  // missing rows are zero; rows that are there write all
            for (int lane = 0; lane < lanes; lane++) {
                pe_lanes x;
                lanes_of(src + (size_t)(p * VL + lane) * row_bytes + (size_t)b * src_block_bytes, &x);
                put_scales(scales, out, lane, &x);
                for (int u = 0; u < units_of(scales); u++)
                    put_unit(cls, out + units_at(scales) + u * unit_bytes(cls), lane, x.q + 32 * u);
            }
        }
}

PE_INLINE void pack_float(const pe_weight *w, const uint8_t *src, size_t size, int64_t p0, int64_t p1) {
    const size_t row_bytes = (size_t)w->cols * size;
    for (int64_t p = p0; p < p1; p++) {
        uint8_t *out = w->data + (size_t)p * w->panel_bytes;
        const int lanes = w->rows - p * VL < VL ? (int)(w->rows - p * VL) : VL;
        if (lanes < VL) memset(out, 0, w->panel_bytes);
        const uint8_t *from = src + (size_t)(p * VL) * row_bytes;
        for (int64_t k = 0; k < w->cols; k++, from += size, out += VL * size)
            for (int lane = 0; lane < lanes; lane++)
                memcpy(out + (size_t)lane * size, from + (size_t)lane * row_bytes, size);
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
#define PE_PACK_U2 PE_PACK_U4
#define PE_PACK_U3 PE_PACK_U4
#define PE_PACK_U5 PE_PACK_U4
#define PE_PACK_U6 PE_PACK_U4
#define PE_PACK_I8 PE_PACK_U4
#define PE_PACK_IQ4 PE_PACK_U4
#define PE_PACK_FP4 PE_PACK_U4
#define PE_FORMAT(NAME, type, values, bytes, cls, scales) PE_PACK_##cls(NAME, type, bytes, cls, scales)
#include "formats/formats.def"
#undef PE_FORMAT
    default: return;  // the validator lets only formats that run come here
    }
}

// The integers of all lanes at k (0..31) of a unit, as stored.
PE_INLINE vi unit_lanes(pe_class cls, const uint8_t *unit, int k) {
    const int g = k / 4, c = k % 4;
    if (cls == PE_CLASS_I8) return vi_byte(vi_load((const int32_t *)(unit + 4 * VL * g)), c);
    if (cls == PE_CLASS_U2 || cls == PE_CLASS_U3) {
        const vi pairs = vi_shr(vi_load((const int32_t *)(unit + 4 * VL * (g / 4))), 8 * c + 2 * (g & 3));
        const vi low = vi_and(pairs, vi_set1(3));
        if (cls == PE_CLASS_U2) return low;
        return vi_or(low, vi_shl(vi_and(vi_shr(vi_load((const int32_t *)(unit + PAIRS)), 8 * c + g), vi_set1(1)), 2));
    }
    const vi low =
        vi_and(vi_shr(vi_load((const int32_t *)(unit + 4 * VL * (g / 2))), 8 * c + 4 * (g & 1)), vi_set1(15));
    const uint8_t *high = unit + NIBBLES;
    if (cls == PE_CLASS_U5)
        return vi_or(low, vi_shl(vi_and(vi_shr(vi_load((const int32_t *)high), 8 * c + g), vi_set1(1)), 4));
    if (cls == PE_CLASS_U6) {
        const vi pairs = vi_shr(vi_load((const int32_t *)(high + 4 * VL * (g / 4))), 8 * c + 2 * (g & 3));
        return vi_or(low, vi_shl(vi_and(pairs, vi_set1(3)), 4));
    }
    return low;
}

// What they stand for, the zero taken out.
PE_INLINE vf unit_values(pe_class cls, pe_scales scales, const uint8_t *unit, int k) {
    const vi q = unit_lanes(cls, unit, k);
    if (cls == PE_CLASS_IQ4 || cls == PE_CLASS_FP4) {
        int32_t lane[VL];
        vi_store(lane, q);
        for (int i = 0; i < VL; i++) lane[i] = pe_class_value(cls, lane[i]);
        return vi_to_f32(vi_load(lane));
    }
    return vi_to_f32(pe_scales_have_m(scales) ? q : vi_sub(q, vi_set1(pe_class_zero(cls))));
}

// Unpacks panel block `block` to float32 [values][lanes], in the order of operations of the format's definition.
static void unpack_block(pe_class cls, pe_scales scales, const uint8_t *block, float *out) {
    const vf d = load_d(scales, block);
    const vf m = pe_scales_have_m(scales) ? vf_load_f16((const uint16_t *)(block + m_at(scales))) : vf_zero();
    const int parts = pe_scales_parts(scales);
    for (int u = 0; u < units_of(scales); u++) {
        const uint8_t *unit = block + units_at(scales) + u * unit_bytes(cls);
        for (int k = 0; k < 32; k++, out += VL) {
            const vf q = unit_values(cls, scales, unit, k);
            if (!parts) {
                const vf x = vf_mul(d, q);
                vf_store(out, scales == PE_SCALES_DM ? vf_add(x, m) : x);
                continue;
            }
            const pe_part part = load_part(scales, block, parts == 16 ? 2 * u + k / 16 : u);
            const vf x = vf_mul(vf_mul(d, vi_to_f32(part.sub)), q);
            vf_store(out, pe_scales_have_m(scales) ? vf_sub(x, vf_mul(m, vi_to_f32(part.min))) : x);
        }
    }
}

void PE_FN(unpack_panel)(const pe_weight *w, int64_t panel, float *out) {
    const uint8_t *block = w->data + (size_t)panel * w->panel_bytes;
    const int64_t values = w->n_blocks ? w->cols / w->n_blocks : 0;
    for (int64_t b = 0; b < w->n_blocks; b++, block += w->block_bytes, out += values * VL) switch (w->cls) {
        case PE_CLASS_F32: vf_store(out, vf_load((const float *)block)); break;
        case PE_CLASS_F16: vf_store(out, vf_load_f16((const uint16_t *)block)); break;
        case PE_CLASS_BF16: vf_store(out, vf_load_bf16((const uint16_t *)block)); break;
        default: unpack_block(w->cls, w->scales, block, out);
        }
}

void PE_FN(unpack_row)(const pe_weight *w, int64_t row, float *out) {
    const uint8_t *block = w->data + (size_t)(row / VL) * w->panel_bytes;
    const int lane = (int)(row % VL);
    const int64_t values = w->n_blocks ? w->cols / w->n_blocks : 0;
    float panel[256 * VL];  // one block of all lanes: its cost is the same as one lane's
    for (int64_t b = 0; b < w->n_blocks; b++, block += w->block_bytes, out += values) switch (w->cls) {
        case PE_CLASS_F32: memcpy(out, block + 4 * lane, 4); break;
        case PE_CLASS_F16: *out = pe_f16_to_f32(pe_load_u16(block + 2 * lane)); break;
        case PE_CLASS_BF16: *out = pe_bf16_to_f32(pe_load_u16(block + 2 * lane)); break;
        default:
            unpack_block(w->cls, w->scales, block, panel);
            for (int64_t k = 0; k < values; k++) out[k] = panel[k * VL + lane];
        }
}
