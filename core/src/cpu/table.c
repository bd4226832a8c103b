// The kernel table of this instruction set.
#include "cpu.h"
#include "supported.h"

#define PE_TEXT_(x) #x
#define PE_TEXT(x) PE_TEXT_(x)

extern const pe_kernels PE_OWN(kernels);
const pe_kernels PE_OWN(kernels) = {
    .name = PE_TEXT(PE_SET),
    .lanes = VL,
    .supported = v_supported,
    .pack = PE_FN(pack),
    .block_bytes = PE_FN(block_bytes),
    .unpack_row = PE_FN(unpack_row),
    .encode = PE_FN(encode),
    .decode = PE_FN(decode),
    .largest = PE_FN(largest),
    .quantize = PE_FN(quantize),
    .linear = PE_OWN(linear),
    .linear_scratch = PE_OWN(linear_scratch),
    .linear_f32 = PE_FN(linear_f32),
    .rms_norm = PE_FN(rms_norm),
    .layer_norm = PE_FN(layer_norm),
    .rope = PE_FN(rope),
    .activation = PE_FN(activation),
    .add = PE_FN(add),
    .scale = PE_FN(scale),
    .softcap = PE_FN(softcap),
    .kv_write = PE_FN(kv_write),
    .attention = PE_FN(attention),
    .attention_chunks = PE_FN(attention_chunks),
    .attention_merge = PE_FN(attention_merge),
    .row_max = PE_FN(row_max),
    .row_weigh = PE_FN(row_weigh),
    .row_sums = PE_FN(row_sums),
    .row_split = PE_FN(row_split),
    .probe_read = PE_FN(probe_read),
    .probe_int8 = PE_OWN(probe_int8),
    .probe_f32 = PE_FN(probe_f32),
};
