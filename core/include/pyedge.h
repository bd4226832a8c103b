// pyedge: the whole public C API of the core. Python's binding and C programs use nothing else.
//
// Conventions
//   A call that makes a handle sets it to NULL when it fails.
//   Every call that can fail returns a pe_status and takes a caller-owned pe_error, which is written only on failure
//   (it may be NULL). Nothing prints, aborts or keeps a thread-local error. Handles are reference-counted: the creator
//   holds one reference, `_retain` adds one, `_release` drops one (NULL is allowed). A model may outlive the file it
//   came from; an engine keeps its model, a sampler keeps nothing. An engine has one caller at a time, except for
//   pe_engine_cancel, which any thread (or a signal handler) may call.
//   Shapes are row-major, slowest axis first, in comments behind each pointer.
#ifndef PYEDGE_H
#define PYEDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PE_API __attribute__((visibility("default")))
#define PE_ABI_VERSION 1

typedef enum pe_status {
    PE_OK = 0,
    PE_ERR_ARGUMENT = 1,     // the caller's arguments are wrong
    PE_ERR_FILE = 2,         // a file cannot be read, or what it holds is not a sound model
    PE_ERR_UNSUPPORTED = 3,  // a sound model that this build cannot run
    PE_ERR_MEMORY = 4,       // not enough memory; the message has both numbers
    PE_ERR_NUMERIC = 5,      // NaN or infinity in the logits; `op` names the first op that made one
    PE_ERR_CANCELLED = 6,    // pe_engine_cancel was called
} pe_status;

typedef struct pe_error {
    int32_t code;       // a pe_status
    char op[64];        // the op at fault (`blk.3.attn_q`), or empty
    char message[512];  // all that a person needs, the op included, in one line
} pe_error;

PE_API int32_t pe_abi_version(void);

// ---- machine ---------------------------------------------------------------------------------------------------------

typedef struct pe_machine {
    int32_t physical_cores;     // of those this process may run on
    int32_t cpu_limit;          // logical processors allowed by affinity and the cgroup's quota, rounded up
    int32_t default_threads;    // the smaller of the two
    uint64_t memory_total;      // bytes, cgroup limit respected; UINT64_MAX: not known
    uint64_t memory_available;  // bytes that can be taken without swapping, likewise
} pe_machine;

PE_API void pe_machine_query(pe_machine *out);

enum { PE_MAX_THREADS = 255 };

// Instruction sets of this build, best last; `supported` says whether this processor runs them. 0 <= i < count. For AMX the
// kernel is asked, once, and then every stack for signals in this process must have room for its registers.
PE_API int32_t pe_isa_count(void);
PE_API const char *pe_isa_name(int32_t i, bool *supported);
// The set that kernels use: the best supported one, or the one PYEDGE_ISA names. Fails if that one cannot run here.
PE_API pe_status pe_isa_active(const char **name, pe_error *err);

// What this machine was measured to do at best, with the active instruction set.
typedef struct pe_limits {
    const char *isa;
    int32_t threads;       // that took part
    int32_t read_streams;  // per thread, that read fastest: 1, 2, 4 or 8
    double read_gb_s;      // 1e9 bytes of memory read per second
    double int8_gmac_s;    // 1e9 multiply-adds of int8 per second
    double f32_gmac_s;     // and of float32
} pe_limits;

// Takes about half a second, and up to 256 MiB meanwhile. threads: 0 is the machine's default.
PE_API pe_status pe_probe(int32_t threads, pe_limits *out, pe_error *err);

// ---- formats ---------------------------------------------------------------------------------------------------------

typedef struct pe_format_info {
    const char *name;      // "Q4_0"
    int32_t type;          // its number in a GGUF file
    int32_t block_values;  // values per block
    int32_t block_bytes;   // bytes per block
    bool runs;             // this build has kernels for it
} pe_format_info;

PE_API int32_t pe_format_count(void);
PE_API void pe_format(int32_t i, pe_format_info *out);  // 0 <= i < count

// ---- GGUF files ------------------------------------------------------------------------------------------------------
// A read-only view of a GGUF v2 or v3 file, or of a split model by its first part (NAME-00001-of-00003.gguf): its metadata
// are the first part's, its tensors those of all parts. Everything is validated on open: counts, lengths, offsets,
// alignment, types, names, that each tensor lies inside its file and overlaps no other, and that the parts belong together.

typedef struct pe_gguf pe_gguf;

typedef enum pe_gguf_type {
    PE_GGUF_U8 = 0,
    PE_GGUF_I8,
    PE_GGUF_U16,
    PE_GGUF_I16,
    PE_GGUF_U32,
    PE_GGUF_I32,
    PE_GGUF_F32,
    PE_GGUF_BOOL,
    PE_GGUF_STRING,
    PE_GGUF_ARRAY,
    PE_GGUF_U64,
    PE_GGUF_I64,
    PE_GGUF_F64,
} pe_gguf_type;  // the numbers a file has them by

typedef struct pe_kv {
    const char *key;  // not terminated
    size_t key_len;
    int32_t type;      // pe_gguf_type of a value, or of each element when is_array
    bool is_array;     // arrays of arrays are refused on open
    uint64_t n;        // elements (1 for a value)
    const void *data;  // little-endian, unaligned. Strings: n times (u64 length, bytes), see pe_gguf_next_string
    size_t n_bytes;    // of data
} pe_kv;

typedef struct pe_tensor {
    char name[65];    // terminated
    int32_t type;     // format number
    int32_t n_dims;   // 1 to 4
    int64_t ne[4];    // the file's order: ne[0] is the contiguous axis (columns), ne[1] rows; unused are 1
    int32_t file;     // the file it lies in: 0, but for a split model
    uint64_t offset;  // of data in that file
    uint64_t n_bytes;
} pe_tensor;

PE_API pe_status pe_gguf_open(const char *path, pe_gguf **out, pe_error *err);
PE_API void pe_gguf_retain(pe_gguf *g);
PE_API void pe_gguf_release(pe_gguf *g);
PE_API const char *pe_gguf_path(const pe_gguf *g);
PE_API uint32_t pe_gguf_version(const pe_gguf *g);
PE_API uint64_t pe_gguf_file_size(const pe_gguf *g);                // bytes, of all parts
PE_API int32_t pe_gguf_n_files(const pe_gguf *g);                   // 1, or the number of parts
PE_API const char *pe_gguf_file_path(const pe_gguf *g, int32_t i);  // 0 <= i < n_files
PE_API int64_t pe_gguf_n_kv(const pe_gguf *g);
PE_API int64_t pe_gguf_n_tensors(const pe_gguf *g);
PE_API void pe_gguf_kv(const pe_gguf *g, int64_t i, pe_kv *out);      // 0 <= i < n_kv
PE_API const pe_tensor *pe_gguf_tensor(const pe_gguf *g, int64_t i);  // 0 <= i < n_tensors
// Copies n bytes of a tensor's data, from byte `first` on. Nothing of them is kept in memory; a file that another process
// has shortened meanwhile is an error.
PE_API pe_status pe_gguf_read(const pe_gguf *g, int64_t i, uint64_t first, void *out, size_t n, pe_error *err);
// Steps through a string array (or a single string): *cursor starts as kv->data; returns the string's bytes.
PE_API const char *pe_gguf_next_string(const void **cursor, size_t *len);
// Unpacks one tensor to float32. out: [n elements]
PE_API pe_status pe_gguf_dequantize(const pe_gguf *g, int64_t i, float *out, pe_error *err);
// The same for n rows from `first` on; axes above two are folded into rows. out: [n, ne[0]]
PE_API pe_status pe_gguf_dequantize_rows(const pe_gguf *g, int64_t i, int64_t first, int64_t n, float *out,
                                         pe_error *err);

// ---- quantizing ------------------------------------------------------------------------------------------------------
// Values to blocks of a format that runs, each block's scales searched for the least sum of importance * (error squared).
// importance: how much each column's errors matter, not negative (of a linear layer, its inputs' mean squares); NULL: all
// the same. The bytes depend on the values and the instruction set alone, not on the number of threads (0: the machine's
// default). A value that is NaN, infinite or more than the format can hold is an error that names its place.

// x: [n_rows, n_cols]; importance: [n_cols] or NULL; out: the rows' blocks, one row behind the other
PE_API pe_status pe_quantize(int32_t type, const float *x, int64_t n_rows, int64_t n_cols, const float *importance,
                             int32_t threads, void *out, pe_error *err);
// And back. rows: [n_rows, blocks of n_cols values]; out: [n_rows, n_cols]
PE_API pe_status pe_dequantize(int32_t type, const void *rows, int64_t n_rows, int64_t n_cols, int32_t threads,
                               float *out, pe_error *err);
// n rows from `first` on of a tensor; axes above two are folded into rows. They are read in pieces, a few hundred kilobytes
// per thread. importance: [n_importance], which is ne[0], or ne[0] for each matrix of the tensor.
PE_API pe_status pe_gguf_quantize_rows(const pe_gguf *g, int64_t i, int64_t first, int64_t n, int32_t type,
                                       const float *importance, int64_t n_importance, int32_t threads, void *out,
                                       pe_error *err);

// ---- tokenizers ------------------------------------------------------------------------------------------------------
// The bytes of a SentencePiece model, for the library that reads text with it.

typedef struct pe_sentencepiece {
    const char *text;  // UTF-8, not terminated; a space is U+2581
    size_t len;
    float score;
    int32_t type;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte: as a GGUF has them
} pe_sentencepiece;

typedef struct pe_sentencepiece_options {
    bool unigram;        // else byte-pair encoding
    bool byte_fallback;  // there is a piece of type byte for each byte
    bool add_space_prefix;
    bool remove_extra_whitespaces;
    const void *charsmap;  // compiled rules of normalization; they are checked
    size_t charsmap_len;   // 0: none, the text is taken as it is
} pe_sentencepiece_options;

// out: [*n_bytes], or NULL to learn how many there are. Fails for a score that is no finite number and for unsound rules.
PE_API pe_status pe_sentencepiece_write(const pe_sentencepiece *pieces, int64_t n,
                                        const pe_sentencepiece_options *options, uint8_t *out, uint64_t *n_bytes,
                                        pe_error *err);

// ---- ops and plans ---------------------------------------------------------------------------------------------------

typedef struct pe_op_info {  // one row of ops.def
    const char *name;
    int32_t min_inputs, max_inputs, min_outputs, max_outputs;
    const char *weights;     // "weight bias? ..."
    const char *parameters;  // "i:n_heads f:scale "
} pe_op_info;

PE_API int32_t pe_op_count(void);
PE_API void pe_op_describe(int32_t kind, pe_op_info *out);  // 0 <= kind < count

enum { PE_MAX_INPUTS = 4, PE_MAX_OUTPUTS = 3, PE_MAX_WEIGHTS = 8, PE_MAX_PARAMETERS = 8 };

// Values of parameters in ops.def.
typedef enum pe_embed_by { PE_EMBED_TOKEN = 0, PE_EMBED_POSITION = 1, PE_EMBED_ZERO = 2 } pe_embed_by;
typedef enum pe_pairing {
    PE_PAIRING_INTERLEAVED = 0,  // dims (2i, 2i + 1)
    PE_PAIRING_HALVES = 1,       // (i, i + n_rot / 2)
} pe_pairing;
typedef enum pe_function {
    PE_FUNCTION_SILU = 0,       // x * sigmoid(x)
    PE_FUNCTION_GELU_TANH = 1,  // x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
    PE_FUNCTION_GELU = 2,       // x / 2 * (1 + erf(x / sqrt(2)))
    PE_FUNCTION_RELU = 3,
    // Of gpt-oss, only with a second input: with gate <= 7 and |up| <= 7, gate * sigmoid(1.702 gate) * (up + 1)
    PE_FUNCTION_SWIGLU_CLAMPED = 4,
    PE_N_FUNCTIONS
} pe_function;
typedef enum pe_pooling { PE_POOLING_MEAN = 0, PE_POOLING_FIRST = 1, PE_POOLING_LAST = 2 } pe_pooling;

typedef union pe_parameter {
    int64_t i;
    double f;
} pe_parameter;

typedef struct pe_op {
    int32_t kind;      // row of ops.def
    const char *name;  // unique in the plan; at most 63 bytes; copied
    int32_t n_inputs, n_outputs, n_weights;
    int32_t inputs[PE_MAX_INPUTS];    // values made by earlier ops
    int32_t outputs[PE_MAX_OUTPUTS];  // new values, numbered 0, 1, 2, ... in order of appearance
    int32_t weights[PE_MAX_WEIGHTS];  // tensor numbers in the GGUF, -1: absent
    pe_parameter parameters[PE_MAX_PARAMETERS];
} pe_op;

// ---- model: a validated plan with its weights packed for this machine ------------------------------------------------

typedef struct pe_model pe_model;

typedef enum pe_precision {
    PE_PRECISION_FAST = 0,  // int8 activations for quantized weights
    PE_PRECISION_F32 = 1,   // float activations everywhere: the reference path
} pe_precision;

typedef struct pe_model_options {
    int32_t precision;  // pe_precision
    int32_t threads;    // used to pack, at most PE_MAX_THREADS; 0: the machine's default
} pe_model_options;

// Validates the plan against the file's tensors and packs every weight it uses. The file is not referred to afterwards.
PE_API pe_status pe_model_create(const pe_gguf *g, const pe_op *ops, int32_t n_ops, const pe_model_options *options,
                                 pe_model **out, pe_error *err);
// Gives one matrix of a model other values, for measuring what they cost: weight `slot` of op `op`, in whatever other ops
// it serves too. rows: the whole tensor as a file of its own format would have it, n_bytes of `type`, which must be packed
// as the tensor's own is. No step may run meanwhile.
PE_API pe_status pe_model_replace(pe_model *m, int32_t op, int32_t slot, int32_t type, const void *rows,
                                  uint64_t n_bytes, int32_t threads, pe_error *err);
PE_API void pe_model_retain(pe_model *m);
PE_API void pe_model_release(pe_model *m);
PE_API int32_t pe_model_n_ops(const pe_model *m);
PE_API int32_t pe_model_n_vocab(const pe_model *m);
PE_API int32_t pe_model_n_outputs(const pe_model *m);      // width of what a step makes: n_vocab, or of an embedding
PE_API int32_t pe_model_n_layers(const pe_model *m);       // attention layers, each with its KV pages
PE_API uint64_t pe_model_weight_bytes(const pe_model *m);  // packed, resident
PE_API const char *pe_model_isa(const pe_model *m);

// ---- engine: KV pages, scratch memory and one step at a time ---------------------------------------------------------

typedef struct pe_engine pe_engine;

typedef enum pe_kv_type {
    PE_KV_F32 = 0,
    PE_KV_F16 = 1,
    PE_KV_Q8_0 = 2,  // 32 numbers of a head under an f16 scale, as in the weights of that name
    PE_KV_Q4_0 = 3,
    PE_N_KV_TYPES
} pe_kv_type;

typedef struct pe_engine_options {
    int32_t page_size;      // tokens per page: 8, 16 or 32
    int32_t n_pages;        // pages in the pool; each holds page_size tokens of every layer
    int32_t max_tokens;     // per step
    int32_t max_pieces;     // per step
    int32_t max_rows;       // logits rows per step
    int32_t max_sequences;  // rows of the block table
    int32_t max_pages_per_sequence;
    int32_t kv_type;  // pe_kv_type
    int32_t threads;  // at most PE_MAX_THREADS; 0: the machine's default
} pe_engine_options;

// One part of a sequence in a step: the tokens at positions [start, end) of the sequence whose block table is `slot`.
// A decode is a piece of length 1. Pages for [0, end) must be set, and [0, start) computed by earlier steps or pieces
// of shared pages. A model whose tokens see later ones, or that pools over all of them, takes a sequence as one piece.
typedef struct pe_piece {
    int32_t slot;
    int32_t start;
    int32_t end;
} pe_piece;

// Bytes of one page, over all layers.
PE_API uint64_t pe_engine_page_bytes(const pe_model *m, int32_t page_size, int32_t kv_type);
PE_API pe_status pe_engine_create(pe_model *m, const pe_engine_options *options, pe_engine **out, pe_error *err);
PE_API void pe_engine_retain(pe_engine *e);
PE_API void pe_engine_release(pe_engine *e);

// Writes block-table entries [first, first + n) of a slot.
PE_API pe_status pe_engine_set_pages(pe_engine *e, int32_t slot, int32_t first, const int32_t *pages, int32_t n,
                                     pe_error *err);
// Runs the plan over a ragged batch. tokens: [sum of piece lengths], in piece order; rows: [n_rows], ascending indices
// into tokens whose logits are wanted (of a model that embeds: in whose pieces' embeddings). They stay in the engine until
// the next step.
PE_API pe_status pe_engine_step(pe_engine *e, const pe_piece *pieces, int32_t n_pieces, const int32_t *tokens,
                                const int32_t *rows, int32_t n_rows, pe_error *err);
PE_API const float *pe_engine_logits(const pe_engine *e);  // [n_rows of the last step, n_outputs]
// When logits row `row` of the last step is not finite: runs that step again and names, in *err, the first op that made
// such a number. Returns PE_ERR_NUMERIC. The block tables must be as the step had them: pe_engine_set_pages ends this.
PE_API pe_status pe_engine_explain(pe_engine *e, int32_t row, pe_error *err);
// Stops the running step before its next op (it returns PE_ERR_CANCELLED). Cleared when a step begins.
PE_API void pe_engine_cancel(pe_engine *e);
// Called between ops of a step, on the caller's thread; true cancels. NULL removes it.
PE_API void pe_engine_on_poll(pe_engine *e, bool (*poll)(void *ctx), void *ctx);
// Shows what an op makes: called after the op named `op` with each of its outputs. rows: [n_rows, width].
typedef void (*pe_tap)(void *ctx, const char *op, int32_t output, const float *data, int64_t n_rows, int64_t width);
PE_API pe_status pe_engine_on_tap(pe_engine *e, const char *op, pe_tap tap, void *ctx, pe_error *err);  // NULL op: none
// Counts, from now on, the time that each op of the plan takes, from zero; or no longer. A step allocates nothing either
// way.
PE_API pe_status pe_engine_profile(pe_engine *e, bool on, pe_error *err);
PE_API const int64_t *pe_engine_op_times(const pe_engine *e);  // nanoseconds, [pe_model_n_ops]; NULL: not counted
// Sums, from now on and from zero, the squares of what each matrix is multiplied with; or no longer. A step allocates
// nothing either way.
PE_API pe_status pe_engine_collect(pe_engine *e, bool on, pe_error *err);
// Of one weight of an op: a matrix, or as many as there are experts. Valid until pe_engine_collect.
typedef struct pe_collected {
    const double *sums;   // [n, columns]
    const int64_t *rows;  // [n]: how many were summed
    int32_t n;
    int64_t columns;
} pe_collected;
PE_API pe_status pe_engine_collected(const pe_engine *e, int32_t op, int32_t slot, pe_collected *out, pe_error *err);
// Copies a page of every layer onto another one: before one of two sequences that share it writes to it.
PE_API pe_status pe_engine_copy_page(pe_engine *e, int32_t from, int32_t to, pe_error *err);
// Fills a page of every layer with one value: tests put NaN where nothing may be read.
PE_API pe_status pe_engine_fill_page(pe_engine *e, int32_t page, float value, pe_error *err);

// ---- sampling --------------------------------------------------------------------------------------------------------

typedef struct pe_sampler pe_sampler;

typedef struct pe_sampling {
    float temperature;        // 0: greedy
    int32_t top_k;            // 0: off
    float top_p;              // 1: off; at least one token is always kept
    float min_p;              // 0: off; relative to the most likely token
    float repeat_penalty;     // 1: off; divides positive logits, multiplies negative ones      arXiv:1909.05858
    float presence_penalty;   // 0: off; subtracted once from a token that was generated
    float frequency_penalty;  // 0: off; subtracted once per occurrence in the generated text
    int32_t repeat_last_n;    // how many last tokens (prompt included) repeat_penalty looks at; -1: all
    uint64_t seed;
    int32_t n_logprobs;  // most likely tokens to report, at most 64; -1: no log-probabilities at all
    bool masked;         // draws will come with a mask
} pe_sampling;

typedef struct pe_sampled {
    int32_t token;
    float logprob;  // natural log, from the model's own distribution, before any sampling rule
    int32_t n_top;
    int32_t top_tokens[64];  // most likely first
    float top_logprobs[64];
} pe_sampled;

// bias_tokens, bias_values: [n_bias], added to those logits before anything else.
PE_API pe_status pe_sampler_create(const pe_sampling *p, int32_t n_vocab, const int32_t *bias_tokens,
                                   const float *bias_values, int32_t n_bias, pe_sampler **out, pe_error *err);
PE_API void pe_sampler_retain(pe_sampler *s);
PE_API void pe_sampler_release(pe_sampler *s);
// Tells the sampler of tokens in the sequence, oldest first: the prompt (generated = false) or output.
PE_API void pe_sampler_accept(pe_sampler *s, const int32_t *tokens, int32_t n, bool generated);
// Draws the token at `position` of the sequence from logits [n_vocab]. The draw is a function of (logits, settings,
// accepted tokens, seed, position, mask) alone. Does not accept the token. NaN logits: PE_ERR_NUMERIC.
// mask: [(n_vocab + 31) / 32], read during the call only: token t may be drawn if bit t % 32 of word t / 32 is set; it
// comes before every other rule. NULL: all may; else the settings must say `masked`.
PE_API pe_status pe_sampler_sample(pe_sampler *s, const float *logits, int64_t position, const uint32_t *mask,
                                   pe_sampled *out, pe_error *err);
// Reports on a token that is there already, as pe_sampler_sample does on one that it draws: a prompt's log-probabilities.
// No rule of the settings matters but n_logprobs, which must be 0 or more.
PE_API pe_status pe_sampler_score(pe_sampler *s, const float *logits, int32_t token, pe_sampled *out, pe_error *err);

#ifdef __cplusplus
}
#endif
#endif
