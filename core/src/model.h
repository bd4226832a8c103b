// A model in the core: the validated plan, the widths of its values, and its weights packed for this machine.
#ifndef PE_MODEL_H
#define PE_MODEL_H

#include <stdatomic.h>

#include "kernels.h"

typedef enum pe_op_kind {
#define PE_OP(ID, name, min_in, max_in, min_out, max_out, weights, parameters) PE_OP_##ID,
#include "ops.def"
#undef PE_OP
    PE_N_OPS
} pe_op_kind;

// One struct per op, from the table: pe_linear_parameters and so on. Every field is 8 bytes, as in pe_parameter.
#define PE_I(name) int64_t name;
#define PE_F(name) double name;
#define PE_OP(ID, name, min_in, max_in, min_out, max_out, weights, parameters) \
    typedef struct pe_##name##_parameters {                                    \
        parameters                                                             \
    } pe_##name##_parameters;
#include "ops.def"
#undef PE_OP
#undef PE_I
#undef PE_F

typedef struct pe_plan_op {
    pe_op_kind kind;
    char name[64];
    int32_t n_inputs, n_outputs;
    int32_t inputs[PE_MAX_INPUTS], outputs[PE_MAX_OUTPUTS];
    int32_t weights[PE_MAX_WEIGHTS];  // numbers in model->matrices or ->vectors, as the kind has it; -1: absent
    union {
#define PE_OP(ID, name, min_in, max_in, min_out, max_out, weights_, parameters) pe_##name##_parameters name;
#include "ops.def"
#undef PE_OP
    };
} pe_plan_op;

// Whether an op ends a plan: it makes a row for each row that a step asks for, where the others make one for each token.
static inline bool pe_op_ends(pe_op_kind kind) { return kind == PE_OP_LOGITS || kind == PE_OP_POOL; }

typedef struct pe_layer {  // of the KV cache
    int32_t n_kv_heads, head_dim;
} pe_layer;

enum { PE_MAX_EXPERTS = 1024, PE_MAX_EXPERTS_USED = 64 };

struct pe_model {
    atomic_int references;
    const pe_kernels *kernels;
    pe_precision precision;
    int32_t n_ops, n_values, n_matrices, n_vectors, n_layers;
    pe_plan_op *ops;       // [n_ops]
    int64_t *widths;       // [n_values]
    bool *feeds_integers;  // [n_values]: a linear op multiplies it with a quantized matrix, in integers
    // [n_matrices]; a tensor used twice is here once; experts are matrices of their own, one behind the other
    pe_weight *matrices;
    uint8_t *packed;  // [packed_bytes] the memory of all matrices
    size_t packed_bytes;
    float **vectors;        // [n_vectors]: norms, biases, rope factors
    int64_t *vector_sizes;  // [n_vectors]
    pe_layer *layers;       // [n_layers]
    int64_t n_vocab, n_outputs;
    int64_t max_columns;    // of a matrix, and so of what is multiplied with one
    int64_t max_positions;  // rows of an embedding by position; 0: none
    bool whole_sequences;   // tokens see later ones, or are pooled: a sequence is one piece
    uint64_t bytes;         // of matrices and vectors
};

extern const pe_op_info pe_op_infos[PE_N_OPS];

// The number of the (first) matrix that a weight of an op is; -1: it is a vector, or not there.
int32_t pe_op_matrix(const pe_plan_op *op, int32_t slot);

// plan.c: checks the ops against the table, each other and the file, and fills the model's ops, widths and layers.
// use: [n_tensors], receives each tensor's number in matrices or vectors.
typedef struct pe_tensor_use {
    int32_t matrix, vector;  // its (first) number; -1: not used as one
} pe_tensor_use;
pe_status pe_plan_validate(pe_model *m, const pe_gguf *g, const pe_op *ops, int32_t n_ops, pe_tensor_use *use,
                           pe_error *err);

#endif
