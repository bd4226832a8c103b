// What a fuzzer's bytes are taken for: a whole file, the parts of a split one, or a plan and its file. Each goes through the
// public API alone. All that the loader lets through is read to its last byte: keys, strings, tensors and their decoded
// numbers. Sound or refused, a file may not make the core touch a byte that is not its own; a sanitizer watches.
#ifndef INPUTS_H
#define INPUTS_H

#include <fcntl.h>
#include <unistd.h>

#include "../check.h"
#include "pyedge.h"

// ---- files on disk ---------------------------------------------------------------------------------------------------

static char scratch[128];  // a folder of this process

typedef struct scratch_file {
    char path[192];
    int fd;
} scratch_file;
static scratch_file scratch_files[64];
static int n_scratch_files;

static void remove_scratch(void) {
    for (int i = 0; i < n_scratch_files; i++) unlink(scratch_files[i].path);
    if (scratch[0]) rmdir(scratch);
}

static const scratch_file *open_scratch(const char *name) {
    if (!scratch[0]) {
        const char *where = getenv("TMPDIR");
        snprintf(scratch, sizeof scratch, "%.80s/pyedge-fuzz-XXXXXX", where && *where ? where : "/tmp");
        if (!mkdtemp(scratch)) give_up("cannot make a folder %s", scratch);
        atexit(remove_scratch);
    }
    char path[192];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    for (int i = 0; i < n_scratch_files; i++)
        if (strcmp(scratch_files[i].path, path) == 0) return &scratch_files[i];
    if (n_scratch_files == 64) give_up("too many files");
    scratch_file *f = &scratch_files[n_scratch_files++];
    strcpy(f->path, path);
    f->fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    if (f->fd < 0) give_up("cannot write %s", path);
    return f;
}

// Writes a file of that name in the scratch folder, over what was there, and returns its path.
static const char *write_scratch(const char *name, const void *bytes, size_t n) {
    const scratch_file *f = open_scratch(name);
    if (pwrite(f->fd, bytes, n, 0) != (ssize_t)n || ftruncate(f->fd, (off_t)n)) give_up("cannot write %s", f->path);
    return f->path;
}

// ---- reading all that a file lets us ---------------------------------------------------------------------------------

static volatile uint8_t sink;

static void touch(const void *p, size_t n) {
    const uint8_t *bytes = p;
    uint8_t sum = 0;
    for (size_t i = 0; i < n; i++) sum = (uint8_t)(sum + bytes[i]);
    sink = sum;
}

static void read_value(const pe_kv *kv) {
    touch(kv->key, kv->key_len);
    touch(kv->data, kv->n_bytes);
    if (kv->type != PE_GGUF_STRING) return;
    const void *cursor = kv->data;
    for (uint64_t i = 0; i < kv->n; i++) {
        size_t len;
        const char *text = pe_gguf_next_string(&cursor, &len);
        touch(text, len);
    }
    CHECK((const uint8_t *)cursor == (const uint8_t *)kv->data + kv->n_bytes, "strings do not end with their value");
}

static void read_tensor(const pe_gguf *g, int64_t i) {
    const pe_tensor *t = pe_gguf_tensor(g, i);
    CHECK(t->file >= 0 && t->file < pe_gguf_n_files(g), "tensor %lld lies in no file", (long long)i);
    CHECK(t->offset + t->n_bytes <= pe_gguf_file_size(g), "tensor %lld lies outside the file", (long long)i);
    CHECK(memchr(t->name, 0, sizeof t->name) != NULL, "the name of tensor %lld does not end", (long long)i);
    pe_error err;
    uint8_t *raw = malloc(t->n_bytes);
    if (!raw) give_up("no memory for a tensor");
    CHECK(pe_gguf_read(g, i, 0, raw, t->n_bytes, &err) == PE_OK, "tensor %lld cannot be read", (long long)i);
    CHECK(pe_gguf_read(g, i, 1, raw, t->n_bytes, &err) == PE_ERR_ARGUMENT, "tensor %lld goes on", (long long)i);
    touch(raw, t->n_bytes);
    free(raw);
    // At most 32 values a byte in any format, and the data lie inside the file.
    float *values = malloc((size_t)(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]) * sizeof *values);
    if (!values) give_up("no memory for a tensor");
    const pe_status status = pe_gguf_dequantize(g, i, values, &err);
    CHECK(status == PE_OK || status == PE_ERR_UNSUPPORTED, "tensor %lld: %s", (long long)i, err.message);
    free(values);
}

static void check_refusal(pe_status status, const pe_error *err, const char *path_start) {
    CHECK(err->code == (int32_t)status, "a refusal of code %d leaves %d", (int)status, (int)err->code);
    CHECK(strncmp(err->message, path_start, strlen(path_start)) == 0, "the message does not begin with the path: %s",
          err->message);
    CHECK(strlen(err->message) > strlen(path_start) + 10, "the message says nothing: %s", err->message);
    for (const char *c = err->message; *c; c++)
        if ((uint8_t)*c < 0x20 || *c == 0x7f) CHECK(false, "a control character in a message");
}

// Opens a file and reads it through; a refusal must begin with path_start. NULL if it does not open.
static pe_gguf *read_gguf(const char *path, const char *path_start) {
    pe_error err = {.code = -1};
    pe_gguf *g = NULL;
    const pe_status status = pe_gguf_open(path, &g, &err);
    if (status != PE_OK) {
        CHECK(!g, "a refusal leaves a handle");
        check_refusal(status, &err, path_start);
        return NULL;
    }
    for (int64_t i = 0; i < pe_gguf_n_kv(g); i++) {
        pe_kv kv;
        pe_gguf_kv(g, i, &kv);
        read_value(&kv);
    }
    for (int64_t i = 0; i < pe_gguf_n_tensors(g); i++) read_tensor(g, i);
    for (int32_t i = 0; i < pe_gguf_n_files(g); i++) touch(pe_gguf_file_path(g, i), strlen(pe_gguf_file_path(g, i)));
    return g;
}

// ---- three kinds of input; true if the file opens (and the model is made) --------------------------------------------

static bool fuzz_whole(const uint8_t *bytes, size_t n) {
    const char *path = write_scratch("whole.gguf", bytes, n);
    pe_gguf *g = read_gguf(path, path);
    pe_gguf_release(g);
    return g != NULL;
}

// Every "GGUF" in the bytes begins a part, as in parts written one behind the other.
static bool fuzz_split(const uint8_t *bytes, size_t n) {
    enum { MOST = 8 };
    size_t starts[MOST + 1] = {0};
    int parts = 1;
    for (size_t i = 1; i + 4 <= n && parts < MOST; i++)
        if (memcmp(bytes + i, "GGUF", 4) == 0) starts[parts++] = i;
    starts[parts] = n;
    for (int i = 0; i < parts; i++) {
        char name[32];
        snprintf(name, sizeof name, "m-%05d-of-%05d.gguf", i + 1, parts);
        write_scratch(name, bytes + starts[i], starts[i + 1] - starts[i]);
    }
    char first[192];
    snprintf(first, sizeof first, "%s/m-00001-of-%05d.gguf", scratch, parts);
    pe_gguf *g = read_gguf(first, scratch);
    pe_gguf_release(g);
    return g != NULL;
}

typedef struct bytes_reader {
    const uint8_t *at, *end;
} bytes_reader;

static uint8_t next_byte(bytes_reader *r) { return r->at < r->end ? *r->at++ : 0; }

// A count, of which at most `room` numbers follow.
static int32_t next_numbers(bytes_reader *r, int32_t *out, int room) {
    const int32_t n = (int8_t)next_byte(r);
    for (int i = 0; i < n && i < room; i++) {
        out[i] = next_byte(r);
        out[i] = (int16_t)(out[i] | next_byte(r) << 8);
    }
    return n;
}

static pe_parameter next_parameter(bytes_reader *r) {
    pe_parameter p = {0};
    const uint8_t kind = next_byte(r);
    uint8_t raw[8] = {0};
    for (int i = 0; i < (kind < 2 ? 4 : 8); i++) raw[i] = next_byte(r);
    int32_t integer;
    float real;
    memcpy(&integer, raw, sizeof integer);
    memcpy(&real, raw, sizeof real);
    if (kind == 0) p.i = integer;
    else if (kind == 1) p.f = real;
    else memcpy(&p, raw, sizeof p);
    return p;
}

// u16: bytes of the plan; the plan, op by op: kind, inputs, outputs, weights, parameters; then the file.
static bool fuzz_plan(const uint8_t *bytes, size_t n) {
    enum { MOST = 128 };
    static pe_op ops[MOST];
    static char names[MOST][16];
    if (n < 2) return false;
    size_t size = (size_t)(bytes[0] | bytes[1] << 8);
    if (size > n - 2) size = n - 2;
    bytes_reader r = {bytes + 2, bytes + 2 + size};
    int32_t n_ops = 0;
    for (; n_ops < MOST && r.at < r.end; n_ops++) {
        pe_op *op = &ops[n_ops];
        snprintf(names[n_ops], sizeof names[0], "op%d", n_ops);
        *op = (pe_op){.kind = (int8_t)next_byte(&r), .name = names[n_ops]};
        op->n_inputs = next_numbers(&r, op->inputs, PE_MAX_INPUTS);
        op->n_outputs = next_numbers(&r, op->outputs, PE_MAX_OUTPUTS);
        op->n_weights = next_numbers(&r, op->weights, PE_MAX_WEIGHTS);
        const int parameters = next_byte(&r);
        for (int i = 0; i < parameters && i < PE_MAX_PARAMETERS; i++) op->parameters[i] = next_parameter(&r);
    }
    const char *path = write_scratch("whole.gguf", r.end, n - 2 - size);
    pe_gguf *g = read_gguf(path, path);
    if (!g) return false;
    pe_model *model = NULL;
    pe_error err = {.code = -1};
    const pe_model_options options = {.precision = PE_PRECISION_FAST, .threads = 1};
    const pe_status status = pe_model_create(g, ops, n_ops, &options, &model, &err);
    CHECK((status == PE_OK) == (model != NULL), "status %d with%s a model", (int)status, model ? "" : "out");
    if (status != PE_OK) check_refusal(status, &err, "");
    pe_gguf_release(g);
    pe_model_release(model);
    return model != NULL;
}

#endif
