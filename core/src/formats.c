#include "formats.h"

#include <math.h>

#include "f16.h"
#include "formats/all.h"

static const pe_format_row formats[] = {
#define PE_FORMAT(NAME, type, values, bytes, cls, scales)           \
    {{#NAME, type, values, bytes, PE_CLASS_##cls != PE_CLASS_NONE}, \
     PE_CLASS_##cls,                                                \
     PE_SCALES_##scales,                                            \
     PE_LANES_OF(NAME, cls),                                        \
     PE_PACK_OF(NAME, cls)},
#include "formats/formats.def"
#undef PE_FORMAT
};

enum { N_FORMATS = sizeof formats / sizeof formats[0] };

int32_t pe_format_count(void) { return N_FORMATS; }

void pe_format(int32_t i, pe_format_info *out) { *out = formats[i].info; }

const pe_format_row *pe_format_row_by_type(int32_t type) {
    for (int i = 0; i < N_FORMATS; i++)
        if (formats[i].info.type == type) return &formats[i];
    return NULL;
}

const pe_format_info *pe_format_by_type(int32_t type) {
    const pe_format_row *f = pe_format_row_by_type(type);
    return f ? &f->info : NULL;
}

static void unpack_block(const pe_format_row *f, const void *block, float *out) {
    pe_lanes b;
    f->lanes(block, &b);
    const float d = f->scales == PE_SCALES_E8 ? ldexpf(1, b.d - 128) : pe_f16_to_f32(b.d);
    const float m = pe_scales_have_m(f->scales) ? pe_f16_to_f32(b.m) : 0;
    const int zero = pe_scales_have_m(f->scales) ? 0 : pe_class_zero(f->cls), parts = pe_scales_parts(f->scales);
    for (int i = 0; i < f->info.block_values; i++) {
        const int part = parts ? i * parts / f->info.block_values : 0;
        const float scale = parts ? d * (float)b.sub[part] : d;
        const float x = scale * (float)(pe_class_value(f->cls, b.q[i]) - zero);
        if (f->scales == PE_SCALES_DM) out[i] = x + m;
        else out[i] = pe_scales_have_m(f->scales) ? x - m * (float)b.min[part] : x;
    }
}

void pe_format_unpack(const pe_format_row *f, const void *src, int64_t n, float *out) {
    const uint8_t *p = src;
    switch (f->cls) {
    case PE_CLASS_F32: memcpy(out, src, (size_t)n * sizeof *out); return;
    case PE_CLASS_F16:
        for (int64_t i = 0; i < n; i++) out[i] = pe_f16_to_f32(pe_load_u16(p + 2 * i));
        return;
    case PE_CLASS_BF16:
        for (int64_t i = 0; i < n; i++) out[i] = pe_bf16_to_f32(pe_load_u16(p + 2 * i));
        return;
    default:
        for (int64_t i = 0; i < n; i += f->info.block_values, p += f->info.block_bytes) unpack_block(f, p, out + i);
    }
}

pe_status pe_gguf_dequantize_rows(const pe_gguf *g, int64_t i, int64_t first, int64_t n, float *out, pe_error *err) {
    const pe_tensor *t = pe_gguf_tensor(g, i);
    const pe_format_row *f = pe_format_row_by_type(t->type);
    const int64_t rows = t->ne[1] * t->ne[2] * t->ne[3];
    if (first < 0 || n < 0 || first > rows || n > rows - first)
        return pe_fail_file(err, PE_ERR_ARGUMENT, pe_gguf_path(g), NULL,
                            "tensor '%s' has %lld rows, not %lld from %lld on", t->name, (long long)rows, (long long)n,
                            (long long)first);
    if (!f->info.runs)
        return pe_fail_file(err, PE_ERR_UNSUPPORTED, pe_gguf_path(g), NULL,
                            "tensor '%s' is %s, which this version cannot unpack; take another quantization of the "
                            "model",
                            t->name, f->info.name);
    enum { PIECE = 1 << 15 };  // bytes, on the stack
    uint8_t piece[PIECE];
    const int64_t per_row = t->ne[0] / f->info.block_values, at_once = PIECE / f->info.block_bytes;
    for (int64_t block = first * per_row, end = (first + n) * per_row; block < end;) {
        const int64_t count = end - block < at_once ? end - block : at_once;
        const size_t size = (size_t)f->info.block_bytes;
        const pe_status status = pe_gguf_read(g, i, (uint64_t)block * size, piece, (size_t)count * size, err);
        if (status != PE_OK) return status;
        pe_format_unpack(f, piece, count * f->info.block_values, out);
        out += count * f->info.block_values;
        block += count;
    }
    return PE_OK;
}

pe_status pe_gguf_dequantize(const pe_gguf *g, int64_t i, float *out, pe_error *err) {
    const pe_tensor *t = pe_gguf_tensor(g, i);
    return pe_gguf_dequantize_rows(g, i, 0, t->ne[1] * t->ne[2] * t->ne[3], out, err);
}
