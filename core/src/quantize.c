// Owns the quantizing of rows by all threads: what is refused, how importances are prepared, and which rows are one item
// of work. Does not own how a block is encoded (cpu/encode.c), nor which format a tensor should have (Python does).
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels.h"
#include "threads.h"

enum { ITEM_VALUES = 1 << 15 };  // of an item, about: they lie in a core's own cache, in three forms at most

typedef struct job {
    const pe_kernels *kernels;
    const pe_format_row *from, *to;
    const pe_gguf *file;  // NULL: the values are at x
    int64_t tensor;
    const float *x;
    int64_t first, rows, cols;  // rows [first, first + rows) of all
    int64_t rows_per_item;
    const float *weights;  // [matrices, cols], or NULL
    int64_t rows_per_matrix;
    size_t from_bytes, to_bytes;  // of a row
    uint8_t *out;
    uint8_t *buffers;  // [workers, buffer_bytes]: an item's rows as floats, and before that as the file has them
    size_t buffer_bytes;
    const char *name;             // of the tensor, for messages
    _Atomic int64_t failed_item;  // no item after it matters any more
    pe_error *errors;             // [workers]
    int64_t *failed_items;        // [workers]: what they are of
} job;

// What a format can hold: an f16 scale and the largest numbers under it; an f16 as minimum.
typedef struct limits {
    float low, high;
} limits;

static limits limits_of(const pe_format_row *f) {
    const float f16 = 65504;
    float most = INFINITY;
    switch (f->scales) {
    case PE_SCALES_NONE:
        most = f->cls == PE_CLASS_F16 ? 65519.0f : f->cls == PE_CLASS_BF16 ? 0x1.fep127f : INFINITY;
        break;
    case PE_SCALES_D: most = f16 * (f->cls == PE_CLASS_U4 ? 7 : f->cls == PE_CLASS_U5 ? 15 : 113); break;
    case PE_SCALES_DM: return (limits){-f16, f16 * (f->cls == PE_CLASS_U4 ? 14 : 30)};
    case PE_SCALES_E8: break;
    case PE_SCALES_K16: most = f16 * 31 * 3; break;
    case PE_SCALES_K32: most = f16 * 31 * 113; break;
    case PE_SCALES_K16M: most = f16 * 15; break;
    case PE_SCALES_K32M: most = f16 * 63; break;
    }
    return (limits){-most, most};
}

// Refuses the first value that cannot be quantized, if there is one.
static pe_status look_for_bad(const job *j, int64_t row, const float *x, int64_t n, pe_error *err) {
    const limits limit = limits_of(j->to);
    int64_t i = 0;
    while (i < n && isfinite(x[i]) && x[i] >= limit.low && x[i] <= limit.high) i++;
    if (i == n) return PE_OK;
    char where[100], says[160];
    const long long at = (long long)(row * j->cols + i);
    if (j->file) snprintf(where, sizeof where, "tensor '%s': value %lld", j->name, at);
    else snprintf(where, sizeof where, "value %lld", at);
    if (isfinite(x[i]))
        snprintf(says, sizeof says, "is %g, more than %s can hold (%g); keep it in %s", (double)x[i], j->to->info.name,
                 (double)(x[i] < 0 ? limit.low : limit.high), j->to->cls == PE_CLASS_BF16 ? "F32" : "BF16");
    else
        snprintf(says, sizeof says,
                 "is %s, and quantized it would spoil the values beside it; get the model from another "
                 "source",
                 isnan(x[i]) ? "NaN" : "infinity");
    return j->file ? pe_fail_file(err, PE_ERR_FILE, pe_gguf_path(j->file), NULL, "%s %s", where, says)
                   : pe_fail(err, PE_ERR_ARGUMENT, NULL, "%s %s", where, says);
}

static pe_status quantize_rows(job *j, int64_t row, int64_t n_rows, uint8_t *buffer, pe_error *err) {
    const int64_t n = n_rows * j->cols;
    const float *x = j->x + (j->file ? 0 : (row - j->first) * j->cols);
    if (j->file) {
        float *values = (float *)buffer;
        uint8_t *source = buffer + (size_t)n * sizeof *values;
        pe_status status = pe_gguf_read(j->file, j->tensor, (uint64_t)row * j->from_bytes, source,
                                        (size_t)n_rows * j->from_bytes, err);
        if (status != PE_OK) return status;
        j->kernels->decode(j->from, source, n, values);
        x = values;
    }
    if (!(j->kernels->largest(x, n) <= -limits_of(j->to).low)) {
        const pe_status status = look_for_bad(j, row, x, n, err);
        if (status != PE_OK) return status;
    }
    uint8_t *out = j->out + (size_t)(row - j->first) * j->to_bytes;
    if (!j->weights) {
        j->kernels->encode(j->to, x, NULL, n, out);
        return PE_OK;
    }
    for (int64_t r = 0; r < n_rows; r++)
        j->kernels->encode(j->to, x + r * j->cols, j->weights + (row + r) / j->rows_per_matrix * j->cols, j->cols,
                           out + (size_t)r * j->to_bytes);
    return PE_OK;
}

static void quantize_item(void *ctx, int64_t item, int worker) {
    job *j = ctx;
    if (item > atomic_load(&j->failed_item)) return;
    const int64_t from = item * j->rows_per_item, left = j->rows - from;
    const int64_t n = left < j->rows_per_item ? left : j->rows_per_item;
    pe_error err;
    if (quantize_rows(j, j->first + from, n, j->buffers + (size_t)worker * j->buffer_bytes, &err) == PE_OK) return;
    // Of several faults the first in the tensor is told, whoever found it.
    if (item < j->failed_items[worker]) {
        j->failed_items[worker] = item;
        j->errors[worker] = err;
    }
    int64_t first = atomic_load(&j->failed_item);
    while (item < first && !atomic_compare_exchange_weak(&j->failed_item, &first, item)) continue;
}

// Importances as weights: of a mean of 1 in each matrix, and none zero, so that a block of unimportant values is encoded
// as if all were the same. NULL with *err filled where that cannot be.
static float *make_weights(const job *j, const float *importance, int64_t n_matrices, pe_error *err) {
    float *weights = malloc((size_t)(n_matrices * j->cols) * sizeof *weights);
    if (!weights) {
        pe_fail(err, PE_ERR_MEMORY, j->name, "no memory for its importances");
        return NULL;
    }
    for (int64_t m = 0; m < n_matrices; m++) {
        const float *from = importance + m * j->cols;
        float *to = weights + m * j->cols;
        double sum = 0;
        for (int64_t i = 0; i < j->cols; i++) {
            if (!(from[i] >= 0 && from[i] <= 0x1p126f)) {
                pe_fail(
                    err, PE_ERR_ARGUMENT, NULL,
                    "the importance of tensor '%s' at %lld is %g, which cannot be; make the importance matrix again",
                    j->name, (long long)(m * j->cols + i), (double)from[i]);
                free(weights);
                return NULL;
            }
            sum += (double)from[i];
        }
        const double per_mean = sum > 0 ? (double)j->cols / sum : 0;
        for (int64_t i = 0; i < j->cols; i++) to[i] = (float)((double)from[i] * per_mean) + 1e-6f;
    }
    return weights;
}

static pe_status run(job *j, const float *importance, int64_t n_matrices, int32_t threads, pe_error *err) {
    float *weights = NULL;
    if (importance && !(weights = make_weights(j, importance, n_matrices, err))) return (pe_status)err->code;
    j->weights = weights;
    j->rows_per_item = (ITEM_VALUES + j->cols - 1) / j->cols;
    if (j->rows_per_item > j->rows) j->rows_per_item = j->rows;
    if (!threads) {  // many small tensors are many calls, and the question costs more than most of them
        pe_machine machine;
        pe_machine_query(&machine);
        threads = machine.default_threads;
    }
    const int width = pe_pool_lock(threads);
    const size_t row = (size_t)j->cols * sizeof(float) + j->from_bytes;
    j->buffer_bytes = j->file ? ((size_t)j->rows_per_item * row + 63) / 64 * 64 : 0;  // workers share no cache line
    j->buffers = malloc((size_t)width * j->buffer_bytes + 1);
    j->errors = malloc((size_t)width * sizeof *j->errors);
    j->failed_items = malloc((size_t)width * sizeof *j->failed_items);
    pe_status status = PE_OK;
    if (!j->buffers || !j->errors || !j->failed_items) {
        status = pe_fail(err, PE_ERR_MEMORY, j->name, "no memory to quantize it");
    } else {
        atomic_init(&j->failed_item, INT64_MAX);
        for (int w = 0; w < width; w++) j->failed_items[w] = INT64_MAX;
        pe_parallel(width, (j->rows + j->rows_per_item - 1) / j->rows_per_item, quantize_item, j);
        const int64_t failed = atomic_load(&j->failed_item);
        for (int w = 0; w < width && failed != INT64_MAX; w++)
            if (j->failed_items[w] == failed) {
                *err = j->errors[w];
                status = (pe_status)err->code;
            }
    }
    pe_pool_unlock();
    free(j->failed_items);
    free(j->errors);
    free(j->buffers);
    free(weights);
    return status;
}

static pe_status check(job *j, int32_t type, int32_t threads, pe_error *err) {
    if (threads < 0 || threads > PE_MAX_THREADS)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "threads is %d: it must be 0 to %d", threads, PE_MAX_THREADS);
    j->to = pe_format_row_by_type(type);
    if (!j->to || !j->to->info.runs)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "tensor '%s': %s is no format that this version can write", j->name,
                       j->to ? j->to->info.name : "this");
    if (j->cols % j->to->info.block_values)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL,
                       "tensor '%s': a row of %lld values is no whole number of blocks of %s", j->name,
                       (long long)j->cols, j->to->info.name);
    j->to_bytes = (size_t)(j->cols / j->to->info.block_values) * (size_t)j->to->info.block_bytes;
    j->kernels = pe_kernels_active(err);
    return j->kernels ? PE_OK : (pe_status)err->code;
}

pe_status pe_quantize(int32_t type, const float *x, int64_t n_rows, int64_t n_cols, const float *importance,
                      int32_t threads, void *out, pe_error *err) {
    pe_error local;
    if (!err) err = &local;
    job j = {.x = x, .rows = n_rows, .cols = n_cols, .rows_per_matrix = n_rows, .out = out, .name = "values"};
    if (n_rows < 0 || n_cols < 0) return pe_fail(err, PE_ERR_ARGUMENT, NULL, "a shape cannot be negative");
    const pe_status status = check(&j, type, threads, err);
    return status != PE_OK || n_rows == 0 || n_cols == 0 ? status : run(&j, importance, 1, threads, err);
}

typedef struct unpacking {
    const pe_format_row *format;
    const uint8_t *rows;
    float *out;
    int64_t n_rows, cols, rows_per_item;
    size_t row_bytes;
} unpacking;

static void unpack_item(void *ctx, int64_t item, int worker) {
    (void)worker;
    const unpacking *u = ctx;
    const int64_t first = item * u->rows_per_item, left = u->n_rows - first;
    const int64_t n = left < u->rows_per_item ? left : u->rows_per_item;
    pe_format_unpack(u->format, u->rows + (size_t)first * u->row_bytes, n * u->cols, u->out + first * u->cols);
}

pe_status pe_dequantize(int32_t type, const void *rows, int64_t n_rows, int64_t n_cols, int32_t threads, float *out,
                        pe_error *err) {
    pe_error local;
    if (!err) err = &local;
    job j = {.cols = n_cols, .name = "values"};  // for its checks
    if (n_rows < 0 || n_cols < 0) return pe_fail(err, PE_ERR_ARGUMENT, NULL, "a shape cannot be negative");
    const pe_status status = check(&j, type, threads, err);
    if (status != PE_OK || n_rows == 0 || n_cols == 0) return status;
    unpacking u = {j.to, rows, out, n_rows, n_cols, (ITEM_VALUES + n_cols - 1) / n_cols, j.to_bytes};
    pe_machine machine;
    if (!threads) pe_machine_query(&machine);
    const int width = pe_pool_lock(threads ? threads : machine.default_threads);
    pe_parallel(width, (n_rows + u.rows_per_item - 1) / u.rows_per_item, unpack_item, &u);
    pe_pool_unlock();
    return PE_OK;
}

pe_status pe_gguf_quantize_rows(const pe_gguf *g, int64_t i, int64_t first, int64_t n, int32_t type,
                                const float *importance, int64_t n_importance, int32_t threads, void *out,
                                pe_error *err) {
    pe_error local;
    if (!err) err = &local;
    const pe_tensor *t = pe_gguf_tensor(g, i);
    const int64_t matrices = t->ne[2] * t->ne[3], rows = t->ne[1] * matrices;
    job j = {.file = g, .tensor = i, .first = first, .rows = n, .cols = t->ne[0], .out = out, .name = t->name};
    j.from = pe_format_row_by_type(t->type);
    if (first < 0 || n < 0 || first > rows || n > rows - first)
        return pe_fail_file(err, PE_ERR_ARGUMENT, pe_gguf_path(g), NULL,
                            "tensor '%s' has %lld rows, not %lld from %lld on", t->name, (long long)rows, (long long)n,
                            (long long)first);
    if (!j.from->info.runs)
        return pe_fail_file(
            err, PE_ERR_UNSUPPORTED, pe_gguf_path(g), NULL,
            "tensor '%s' is %s, which this version cannot unpack; take another quantization of the model", t->name,
            j.from->info.name);
    if (importance && n_importance != t->ne[0] && n_importance != t->ne[0] * matrices)
        return pe_fail_file(
            err, PE_ERR_ARGUMENT, pe_gguf_path(g), NULL,
            "tensor '%s' has %lld columns in each of %lld matrices, and there are %lld importances; the "
            "importance matrix is of another model",
            t->name, (long long)t->ne[0], (long long)matrices, (long long)n_importance);
    const pe_status status = check(&j, type, threads, err);
    if (status != PE_OK || n == 0) return status;
    j.from_bytes = (size_t)(t->n_bytes / (uint64_t)rows);
    const int64_t given = importance ? n_importance / t->ne[0] : 1;
    j.rows_per_matrix = rows / given;
    return run(&j, importance, given, threads, err);
}
