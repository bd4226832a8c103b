// Validates a plan. It is built from a file that somebody downloaded, so nothing in it is taken on trust: arity, order,
// aliasing, shapes and types are checked here, once, and the executor relies on it.
#include <math.h>
#include <stdlib.h>

#include "model.h"

#define PE_I(name) "i:" #name " "
#define PE_F(name) "f:" #name " "
#define PE_OP(ID, name, min_in, max_in, min_out, max_out, weights, parameters) \
    {#name, min_in, max_in, min_out, max_out, weights, parameters},
const pe_op_info pe_op_infos[PE_N_OPS] = {
#include "ops.def"
};
#undef PE_OP
#undef PE_I
#undef PE_F

int32_t pe_op_count(void) { return PE_N_OPS; }

void pe_op_describe(int32_t kind, pe_op_info *out) { *out = pe_op_infos[kind]; }

enum { MAX_OPS = 16384 };
static const int64_t MAX_WIDTH = 1 << 24;

typedef struct checker {
    pe_model *m;
    const pe_gguf *g;
    const pe_op *op;  // as given
    pe_plan_op *to;   // being filled
    pe_tensor_use *use;
    pe_error *err;
} checker;

#define BAD(c, ...) pe_fail_file((c)->err, PE_ERR_FILE, pe_gguf_path((c)->g), (c)->op->name, __VA_ARGS__)
#define LACKS(c, ...) pe_fail_file((c)->err, PE_ERR_UNSUPPORTED, pe_gguf_path((c)->g), (c)->op->name, __VA_ARGS__)
#define TRY(call)                             \
    do {                                      \
        const pe_status status_ = (call);     \
        if (status_ != PE_OK) return status_; \
    } while (0)

static int64_t in_width(const checker *c, int i) { return c->m->widths[c->op->inputs[i]]; }

static pe_status set_width(checker *c, int output, int64_t width) {
    if (width < 1 || width > MAX_WIDTH) return BAD(c, "a width of %lld is not possible", (long long)width);
    c->m->widths[c->op->outputs[output]] = width;
    return PE_OK;
}

static pe_status want_width(checker *c, int input, int64_t width) {
    if (in_width(c, input) != width)
        return BAD(c, "input %d has width %lld, %lld is needed", input, (long long)in_width(c, input),
                   (long long)width);
    return PE_OK;
}

// The tensor of weight slot i as a matrix [rows, cols].
static pe_status matrix(checker *c, int i, int64_t cols, const pe_tensor **out) {
    const pe_tensor *t = pe_gguf_tensor(c->g, c->op->weights[i]);
    const pe_format_info *f = pe_format_by_type(t->type);
    if (t->n_dims > 2 || t->ne[2] != 1 || t->ne[3] != 1)
        return BAD(c, "tensor '%s' has %d dimensions, a matrix has 2; convert the model again", t->name, t->n_dims);
    if (t->ne[0] != cols)
        return BAD(c, "tensor '%s' has %lld columns, its input has %lld", t->name, (long long)t->ne[0],
                   (long long)cols);
    if (!f->runs)
        return LACKS(c, "tensor '%s' is %s, which this version cannot run; take another quantization", t->name,
                     f->name);
    if (t->ne[0] > MAX_WIDTH || t->ne[1] > MAX_WIDTH) return BAD(c, "tensor '%s' is too large", t->name);
    if (c->m->max_columns < cols) c->m->max_columns = cols;
    pe_tensor_use *use = &c->use[c->op->weights[i]];
    if (use->matrix < 0) use->matrix = c->m->n_matrices++;
    c->to->weights[i] = use->matrix;
    *out = t;
    return PE_OK;
}

// The tensor of weight slot i as matrices of one shape, one for each expert.
static pe_status experts(checker *c, int i, int64_t n_experts, int64_t rows, int64_t cols) {
    const pe_tensor *t = pe_gguf_tensor(c->g, c->op->weights[i]);
    const pe_format_info *f = pe_format_by_type(t->type);
    if (t->ne[0] != cols || t->ne[1] != rows || t->ne[2] != n_experts || t->ne[3] != 1)
        return BAD(c, "tensor '%s' is not [%lld, %lld, %lld]: experts, rows, columns", t->name, (long long)n_experts,
                   (long long)rows, (long long)cols);
    if (!f->runs)
        return LACKS(c, "tensor '%s' is %s, which this version cannot run; take another quantization", t->name,
                     f->name);
    if (c->m->max_columns < cols) c->m->max_columns = cols;
    pe_tensor_use *use = &c->use[c->op->weights[i]];
    if (use->matrix < 0) {
        use->matrix = c->m->n_matrices;
        c->m->n_matrices += (int32_t)n_experts;
    }
    c->to->weights[i] = use->matrix;
    return PE_OK;
}

// The tensor of weight slot i as n floats, if it is there.
static pe_status vector(checker *c, int i, int64_t n) {
    if (c->op->weights[i] < 0) return PE_OK;
    const pe_tensor *t = pe_gguf_tensor(c->g, c->op->weights[i]);
    const pe_format_row *f = pe_format_row_by_type(t->type);
    const int64_t found = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    if (found != n)
        return BAD(c, "tensor '%s' has %lld values, %lld are needed", t->name, (long long)found, (long long)n);
    if (f->cls != PE_CLASS_F32 && f->cls != PE_CLASS_F16 && f->cls != PE_CLASS_BF16)
        return LACKS(c, "tensor '%s' is %s, a vector is F32, F16 or BF16; convert the model again", t->name,
                     f->info.name);
    pe_tensor_use *use = &c->use[c->op->weights[i]];
    if (use->vector < 0) use->vector = c->m->n_vectors++;
    c->to->weights[i] = use->vector;
    return PE_OK;
}

static pe_status want_heads(checker *c, int input, int64_t n_heads, int64_t head_dim) {
    if (n_heads < 1 || head_dim < 1 || n_heads > MAX_WIDTH || head_dim > MAX_WIDTH)
        return BAD(c, "%lld heads of %lld are not possible", (long long)n_heads, (long long)head_dim);
    if (n_heads * head_dim != in_width(c, input))
        return BAD(c, "%lld heads of %lld do not make the width of input %d, %lld", (long long)n_heads,
                   (long long)head_dim, input, (long long)in_width(c, input));
    return PE_OK;
}

// ---- one check per op: shapes in, shapes out, weights ----------------------------------------------------------------

static pe_status check_embed(checker *c) {
    const pe_embed_parameters *p = &c->to->embed;
    const pe_tensor *t;
    if (p->by < PE_EMBED_TOKEN || p->by > PE_EMBED_ZERO) return BAD(c, "no rows are chosen by %lld", (long long)p->by);
    TRY(matrix(c, 0, p->d_model, &t));
    int64_t *limit = p->by == PE_EMBED_TOKEN ? &c->m->n_vocab : &c->m->max_positions;
    if (p->by == PE_EMBED_TOKEN && *limit && t->ne[1] != *limit)  // tokens are checked against one number of rows
        return BAD(c, "tensor '%s' has %lld rows, the vocabulary has %lld", t->name, (long long)t->ne[1],
                   (long long)*limit);
    if (p->by != PE_EMBED_ZERO && (*limit == 0 || t->ne[1] < *limit)) *limit = t->ne[1];
    return set_width(c, 0, t->ne[0]);
}

// Values that are normed together, with a weight for each of them, or for each of the row.
static pe_status check_norm(checker *c, double eps, int64_t group, int n_weights) {
    const int64_t width = in_width(c, 0);
    if (!(eps >= 0 && eps < 1)) return BAD(c, "epsilon is %g", eps);
    if (group < 1 || group > width || width % group)
        return BAD(c, "groups of %lld do not make a row of %lld", (long long)group, (long long)width);
    for (int i = 0; i < n_weights; i++) {
        if (c->op->weights[i] < 0) continue;
        const pe_tensor *t = pe_gguf_tensor(c->g, c->op->weights[i]);
        TRY(vector(c, i, t->ne[0] == group && t->ne[1] == 1 ? group : width));
    }
    return set_width(c, 0, width);
}

static pe_status check_rms_norm(checker *c) { return check_norm(c, c->to->rms_norm.eps, c->to->rms_norm.group, 1); }

static pe_status check_layer_norm(checker *c) {
    return check_norm(c, c->to->layer_norm.eps, c->to->layer_norm.group, 2);
}

static pe_status check_linear(checker *c) {
    if (c->to->linear.n_weights != c->op->n_outputs)
        return BAD(c, "%lld weights make %d outputs", (long long)c->to->linear.n_weights, c->op->n_outputs);
    for (int i = 0; i < c->op->n_outputs; i++) {
        const pe_tensor *t;
        TRY(matrix(c, 2 * i, in_width(c, 0), &t));
        TRY(vector(c, 2 * i + 1, t->ne[1]));
        TRY(set_width(c, i, t->ne[1]));
    }
    return PE_OK;
}

static pe_status check_split(checker *c) {
    const pe_split_parameters *p = &c->to->split;
    const int64_t widths[] = {p->first, p->second, p->third};
    int64_t left = in_width(c, 0);
    for (int i = 0; i < c->op->n_outputs; i++) {
        TRY(set_width(c, i, widths[i]));
        left -= widths[i];
    }
    if (left != 0 || (c->op->n_outputs == 2 && p->third != 0))
        return BAD(c, "parts of %lld, %lld and %lld do not make a row of %lld", (long long)p->first,
                   (long long)p->second, (long long)p->third, (long long)in_width(c, 0));
    return PE_OK;
}

static pe_status check_rope_table(checker *c) {
    const pe_rope_table_parameters *p = &c->to->rope_table;
    if (p->n_rot < 2 || p->n_rot % 2 || p->n_rot > 4096) return BAD(c, "cannot rotate %lld dims", (long long)p->n_rot);
    if (!(p->base > 0 && p->base < 1e12 && p->scale > 0 && p->scale < 1e6))
        return BAD(c, "base %g and scale %g are not possible", p->base, p->scale);
    if (!(p->magnitude > 0 && p->magnitude < 1e6 && p->ramp_low >= -1e6 && p->ramp_low <= p->ramp_high &&
          p->ramp_high < 1e6))
        return BAD(c, "magnitude %g and a ramp from %g to %g are not possible", p->magnitude, p->ramp_low,
                   p->ramp_high);
    TRY(vector(c, 0, p->n_rot / 2));
    return set_width(c, 0, p->n_rot);
}

static pe_status check_rope(checker *c) {
    const pe_rope_parameters *p = &c->to->rope;
    TRY(want_heads(c, 0, p->n_heads, p->head_dim));
    TRY(want_width(c, 1, p->n_rot));
    if (c->op->inputs[0] == c->op->inputs[1]) return BAD(c, "rotates its own table");
    if (p->n_rot > p->head_dim || p->n_rot % 2)
        return BAD(c, "rotates %lld of %lld dims", (long long)p->n_rot, (long long)p->head_dim);
    if (p->pairing != PE_PAIRING_INTERLEAVED && p->pairing != PE_PAIRING_HALVES)
        return BAD(c, "no such pairing: %lld", (long long)p->pairing);
    return set_width(c, 0, in_width(c, 0));
}

static pe_status check_attention(checker *c) {
    const pe_attention_parameters *p = &c->to->attention;
    TRY(want_heads(c, 0, p->n_heads, p->head_dim));
    TRY(want_heads(c, 1, p->n_kv_heads, p->head_dim));
    TRY(want_heads(c, 2, p->n_kv_heads, p->head_dim));
    if (p->n_heads % p->n_kv_heads)
        return BAD(c, "%lld heads do not share %lld key heads evenly", (long long)p->n_heads, (long long)p->n_kv_heads);
    if (p->head_dim % 8 || p->head_dim > PE_MAX_HEAD_DIM)
        return LACKS(c, "a head size of %lld: it must be a multiple of 8, at most %d", (long long)p->head_dim,
                     PE_MAX_HEAD_DIM);
    if (!(p->scale > 0 && p->scale < 1e6)) return BAD(c, "scale is %g", p->scale);
    if (!(p->softcap >= 0 && p->softcap < 1e6)) return BAD(c, "soft-cap is %g", p->softcap);
    if (p->causal != 0 && p->causal != 1) return BAD(c, "is causal or not, not %lld", (long long)p->causal);
    if (p->window < 0 || p->window > INT32_MAX) return BAD(c, "a window of %lld", (long long)p->window);
    TRY(vector(c, 0, p->n_heads));
    if (!p->causal) c->m->whole_sequences = true;
    if (p->layer != c->m->n_layers)
        return BAD(c, "is layer %lld, layer %d is next", (long long)p->layer, c->m->n_layers);
    c->m->layers[c->m->n_layers++] = (pe_layer){(int32_t)p->n_kv_heads, (int32_t)p->head_dim};
    return set_width(c, 0, in_width(c, 0));
}

static pe_status check_function(checker *c, int64_t function, bool gated) {
    if (function < 0 || function >= PE_N_FUNCTIONS) return BAD(c, "no such function: %lld", (long long)function);
    if (function == PE_FUNCTION_SWIGLU_CLAMPED && !gated)
        return BAD(c, "this function has a gate and something to gate");
    return PE_OK;
}

static pe_status check_activation(checker *c) {
    for (int i = 0; i < c->op->n_inputs; i++) TRY(want_width(c, i, c->to->activation.width));
    TRY(check_function(c, c->to->activation.function, c->op->n_inputs == 2));
    return set_width(c, 0, in_width(c, 0));
}

static pe_status check_factor(checker *c, double factor) {
    return fabs(factor) < 1e12 ? PE_OK : BAD(c, "the factor is %g", factor);
}

static pe_status check_add(checker *c) {
    TRY(want_width(c, 0, c->to->add.width));
    TRY(want_width(c, 1, c->to->add.width));
    TRY(check_factor(c, c->to->add.factor));
    return set_width(c, 0, in_width(c, 0));
}

static pe_status check_scale(checker *c) {
    TRY(want_width(c, 0, c->to->scale.width));
    TRY(check_factor(c, c->to->scale.factor));
    return set_width(c, 0, in_width(c, 0));
}

static pe_status check_moe(checker *c) {
    const pe_moe_parameters *p = &c->to->moe;
    const int64_t d_model = in_width(c, 0);
    const pe_tensor *router;
    if (p->n_experts < 1 || p->n_experts > PE_MAX_EXPERTS || p->n_used < 1 || p->n_used > p->n_experts ||
        p->n_used > PE_MAX_EXPERTS_USED)
        return BAD(c, "%lld of %lld experts: at most %d of %d are possible", (long long)p->n_used,
                   (long long)p->n_experts, PE_MAX_EXPERTS_USED, PE_MAX_EXPERTS);
    if (p->d_ff < 1 || p->d_ff > MAX_WIDTH) return BAD(c, "a width of %lld is not possible", (long long)p->d_ff);
    if (p->chosen != 0 && p->chosen != 1) return BAD(c, "chosen is %lld", (long long)p->chosen);
    TRY(check_function(c, p->function, true));
    TRY(matrix(c, 0, d_model, &router));
    if (router->ne[1] != p->n_experts)
        return BAD(c, "tensor '%s' has %lld rows for %lld experts", router->name, (long long)router->ne[1],
                   (long long)p->n_experts);
    TRY(vector(c, 1, p->n_experts));
    for (int i = 2; i < 8; i += 2) {
        const int64_t rows = i == 6 ? d_model : p->d_ff, cols = i == 6 ? p->d_ff : d_model;
        TRY(experts(c, i, p->n_experts, rows, cols));
        TRY(vector(c, i + 1, p->n_experts * rows));
    }
    return set_width(c, 0, d_model);
}

static pe_status check_logits(checker *c) {
    const pe_logits_parameters *p = &c->to->logits;
    const pe_tensor *t;
    TRY(matrix(c, 0, in_width(c, 0), &t));
    TRY(vector(c, 1, t->ne[1]));
    if (t->ne[1] != p->n_vocab || t->ne[1] != c->m->n_vocab)
        return BAD(c, "tensor '%s' has %lld rows, the vocabulary has %lld", t->name, (long long)t->ne[1],
                   (long long)c->m->n_vocab);
    if (!(p->scale > 0 && p->scale < 1e6 && p->softcap >= 0 && p->softcap < 1e6))
        return BAD(c, "scale %g and soft-cap %g are not possible", p->scale, p->softcap);
    c->m->n_outputs = t->ne[1];
    return set_width(c, 0, t->ne[1]);
}

static pe_status check_pool(checker *c) {
    const pe_pool_parameters *p = &c->to->pool;
    TRY(want_width(c, 0, p->width));
    if (p->pooling < PE_POOLING_MEAN || p->pooling > PE_POOLING_LAST)
        return BAD(c, "no such pooling: %lld", (long long)p->pooling);
    if (p->pooling != PE_POOLING_LAST) c->m->whole_sequences = true;
    c->m->n_outputs = p->width;
    return set_width(c, 0, p->width);
}

static pe_status (*const checks[PE_N_OPS])(checker *) = {
#define PE_OP(ID, name, min_in, max_in, min_out, max_out, weights, parameters) check_##name,
#include "ops.def"
#undef PE_OP
};

// ---- what holds for every op -----------------------------------------------------------------------------------------

// Reads the table's weight list: "weight bias? ..." repeats per output.
static bool weight_optional(const pe_op_info *info, int i, int *per_output, bool *repeats) {
    bool optional[PE_MAX_WEIGHTS] = {0};
    int n = 0;
    *repeats = false;
    for (const char *p = info->weights; *p;) {
        while (*p == ' ') p++;
        const char *word = p;
        while (*p && *p != ' ') p++;
        if (p == word) break;
        if (*word == '.') *repeats = true;
        else optional[n++] = p[-1] == '?';
    }
    *per_output = n;
    return n && optional[i % n];
}

static pe_status check_arity(checker *c, const pe_op_info *info) {
    const pe_op *op = c->op;
    int per_output;
    bool repeats;
    weight_optional(info, 0, &per_output, &repeats);
    const int n_weights = per_output * (repeats ? op->n_outputs : 1);
    if (op->n_inputs < info->min_inputs || op->n_inputs > info->max_inputs || op->n_outputs < info->min_outputs ||
        op->n_outputs > info->max_outputs || op->n_weights != n_weights)
        return BAD(c, "%s takes other numbers of inputs, outputs or weights than %d, %d, %d", info->name, op->n_inputs,
                   op->n_outputs, op->n_weights);
    for (int i = 0; i < op->n_weights; i++) {
        const bool optional = weight_optional(info, i, &per_output, &repeats);
        if (op->weights[i] >= pe_gguf_n_tensors(c->g) || op->weights[i] < -1 || (op->weights[i] < 0 && !optional))
            return BAD(c, "weight %d is missing", i);
        c->to->weights[i] = -1;
    }
    for (int i = 0; i < op->n_inputs; i++)
        if (op->inputs[i] < 0 || op->inputs[i] >= c->m->n_values)
            return BAD(c, "input %d is not made by an earlier op", i);
    for (int i = 0; i < op->n_outputs; i++)
        if (op->outputs[i] != c->m->n_values + i)
            return BAD(c, "output %d is value %d, which is not new: values must not alias", i, op->outputs[i]);
    return PE_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(const pe_plan_op *const *)a)->name, (*(const pe_plan_op *const *)b)->name);
}

static pe_status check_unique(const pe_model *m, pe_error *err) {
    const pe_plan_op **sorted = malloc((size_t)m->n_ops * sizeof *sorted);
    if (!sorted) return pe_fail(err, PE_ERR_MEMORY, NULL, "out of memory while checking the plan");
    for (int i = 0; i < m->n_ops; i++) sorted[i] = &m->ops[i];
    qsort(sorted, (size_t)m->n_ops, sizeof *sorted, compare_names);
    pe_status status = PE_OK;
    for (int i = 1; i < m->n_ops && status == PE_OK; i++)
        if (strcmp(sorted[i]->name, sorted[i - 1]->name) == 0)
            status = pe_fail(err, PE_ERR_ARGUMENT, sorted[i]->name, "two ops have this name");
    free(sorted);
    return status;
}

pe_status pe_plan_validate(pe_model *m, const pe_gguf *g, const pe_op *ops, int32_t n_ops, pe_tensor_use *use,
                           pe_error *err) {
    if (n_ops < 1 || n_ops > MAX_OPS)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "a plan of %d ops: 1 to %d are possible", n_ops, MAX_OPS);
    m->ops = calloc((size_t)n_ops, sizeof *m->ops);
    m->widths = calloc((size_t)n_ops * PE_MAX_OUTPUTS, sizeof *m->widths);
    m->layers = calloc((size_t)n_ops, sizeof *m->layers);
    if (!m->ops || !m->widths || !m->layers) return pe_fail(err, PE_ERR_MEMORY, NULL, "out of memory for the plan");
    for (int32_t i = 0; i < n_ops; i++) {
        const pe_op *op = &ops[i];
        if (!op->name || !*op->name || strlen(op->name) >= sizeof m->ops[i].name)
            return pe_fail(err, PE_ERR_ARGUMENT, NULL, "op %d has no name of 1 to 63 bytes", i);
        checker c = {m, g, op, &m->ops[i], use, err};
        if (op->kind < 0 || op->kind >= PE_N_OPS)
            return pe_fail(err, PE_ERR_ARGUMENT, op->name, "no op has kind %d", op->kind);
        m->n_ops = i + 1;
        c.to->kind = (pe_op_kind)op->kind;
        strcpy(c.to->name, op->name);
        TRY(check_arity(&c, &pe_op_infos[op->kind]));
        c.to->n_inputs = op->n_inputs;
        c.to->n_outputs = op->n_outputs;
        memcpy(c.to->inputs, op->inputs, sizeof op->inputs);
        memcpy(c.to->outputs, op->outputs, sizeof op->outputs);
        memcpy(&c.to->embed, op->parameters, sizeof *c.to - offsetof(pe_plan_op, embed));
        TRY(checks[op->kind](&c));
        m->n_values += op->n_outputs;
        if (pe_op_ends(c.to->kind) != (i == n_ops - 1)) return BAD(&c, "a plan ends with its only logits or pool op");
    }
    if (m->n_vocab == 0) return pe_fail(err, PE_ERR_ARGUMENT, NULL, "a plan embeds tokens, and this one does not");
    return check_unique(m, err);
}
