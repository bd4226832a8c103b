// Owns the reading and checking of one GGUF file (v2 and v3, little-endian). Does not own what the metadata mean (Python
// does), how the parts of a split model make one view (gguf.c), nor how blocks are unpacked (formats.c). Format:
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
//
// The file comes from a stranger. Nothing read from it is used before it is checked, and all sums that could overflow
// are done by subtraction from what is left or with __builtin_*_overflow. Memory taken is proportional to what is
// really in the file: a count is believed only if so many of the smallest possible entries fit into the bytes that
// follow. Text from the file reaches a message only through pe_gguf_quote().
//
// Everything before the tensors' data is read into memory of our own, so that another process which changes the file
// meanwhile cannot change what was checked. How much that is shows only in reading: parsing begins with the first
// piece, and when it runs out of bytes it begins again with more.
#include "gguf_file.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF files are read in place, which needs a little-endian processor"
#endif

// Limits, each well above any real model and far below memory.
enum {
    MAX_HEAD = 256 << 20,      // bytes before the tensors' data; some files carry a whole tokenizer.json
    MAX_KV = 1 << 17,          // metadata entries
    MAX_KEY = 65535,           // bytes; the format's own
    MAX_KEYS_BYTES = 4 << 20,  // all keys together
    MAX_ARRAY = 1 << 22,       // elements; the largest vocabularies have 2^18 tokens and 2^19 merges
    MAX_NAME = 64,             // bytes of a tensor's name; the format's own
    MAX_DIMS = 4,
    MAX_ALIGNMENT = 1 << 16,
};

// The fewest bytes that each can take in a file.
enum {
    HEADER_BYTES = 4 + 4 + 8 + 8,            // magic, version, n_tensors, n_kv
    LEAST_KV = (8 + 1) + 4 + 1,              // key, type, value
    LEAST_TENSOR = (8 + 1) + 4 + 8 + 4 + 8,  // name, n_dims, one dimension, type, offset
};

#define DAMAGED "the file is damaged, pull it again"
static const char TRUNCATED[] = "the file ends here; it is damaged or the download incomplete, pull it again";

static const struct {
    const char *name;
    uint8_t bytes;  // 0: of no fixed size
} value_types[] = {
    [PE_GGUF_U8] = {"u8", 1},       [PE_GGUF_I8] = {"i8", 1},     [PE_GGUF_U16] = {"u16", 2},
    [PE_GGUF_I16] = {"i16", 2},     [PE_GGUF_U32] = {"u32", 4},   [PE_GGUF_I32] = {"i32", 4},
    [PE_GGUF_F32] = {"f32", 4},     [PE_GGUF_BOOL] = {"bool", 1}, [PE_GGUF_STRING] = {"string", 0},
    [PE_GGUF_ARRAY] = {"array", 0}, [PE_GGUF_U64] = {"u64", 8},   [PE_GGUF_I64] = {"i64", 8},
    [PE_GGUF_F64] = {"f64", 8},
};

enum { N_VALUE_TYPES = sizeof value_types / sizeof value_types[0] };

// ---- messages -------------------------------------------------------------------------------------------------------

// Where reading stands and what it is reading, for messages.
typedef struct reader {
    pe_gguf_file *f;
    const uint8_t *head;  // [loaded], the beginning of the file
    uint64_t at, loaded;
    uint64_t needed;  // if the bytes loaded do not suffice: how many would
    char where[160];  // "key 'general.alignment'"
    pe_error *err;
} reader;

const char *pe_gguf_quote(char out[96], const void *text, size_t len) {
    size_t n = 0, i = 0;
    for (const uint8_t *s = text; i < len && n < 80; i++) {
        if (s[i] >= 0x20 && s[i] < 0x7F) out[n++] = (char)s[i];
        else n += (size_t)snprintf(out + n, 5, "\\x%02x", s[i]);
    }
    strcpy(out + n, i < len ? "..." : "");
    return out;
}

__attribute__((format(printf, 3, 4))) static pe_status fail(reader *r, pe_status code, const char *format, ...) {
    char reason[300];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return pe_fail_file(r->err, code, r->f->path, NULL, "%s%s%s", r->where, r->where[0] ? ": " : "", reason);
}

#define BAD(r, ...) fail(r, PE_ERR_FILE, __VA_ARGS__)

// ---- reading --------------------------------------------------------------------------------------------------------

static uint64_t left(const reader *r) { return r->f->disk.size - r->at; }

// The next n bytes, or NULL: at the end of the file, or because they are not loaded yet.
static const uint8_t *next(reader *r, uint64_t n) {
    if (n > left(r)) return NULL;
    if (n > r->loaded - r->at) {
        r->needed = r->at + n;
        return NULL;
    }
    const uint8_t *p = r->head + r->at;
    r->at += n;
    return p;
}

// Copies the next n bytes, a number, out.
static bool take(reader *r, void *out, size_t n) {
    const uint8_t *p = next(r, n);
    if (p) memcpy(out, p, n);
    return p != NULL;
}

typedef struct text {
    const char *p;
    uint64_t len;
} text;

// The next string. *out.len is what the file says in any case.
static bool take_text(reader *r, text *out) {
    *out = (text){0};
    if (!take(r, &out->len, sizeof out->len)) return false;
    out->p = (const char *)next(r, out->len);
    return out->p != NULL;
}

// Whether text is UTF-8 without control characters (RFC 3629: no overlong forms, no surrogates). Keys and tensor names
// go to terminals, JSON and Python, so they are held to that; values are not.
static bool is_clean(const char *s, size_t len) {
    for (const uint8_t *p = (const uint8_t *)s, *end = p + len; p < end;) {
        uint32_t c = *p++;
        int more = c < 0x80                ? 0
                   : c >= 0xC2 && c < 0xE0 ? 1
                   : c >= 0xE0 && c < 0xF0 ? 2
                   : c >= 0xF0 && c < 0xF5 ? 3
                                           : -1;
        if (more < 0 || end - p < more) return false;
        static const uint32_t least[] = {0x20, 0xA0, 0x800, 0x10000};  // shorter forms, and controls, are below
        uint32_t code = more == 0 ? c : c & (0x3Fu >> more);
        for (int i = 0; i < more; i++, p++) {
            if ((*p & 0xC0) != 0x80) return false;
            code = code << 6 | (*p & 0x3F);
        }
        if (code < least[more] || code == 0x7F || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF) return false;
    }
    return true;
}

// ---- header ---------------------------------------------------------------------------------------------------------

static pe_status read_header(reader *r, pe_gguf_file *f) {
    const uint8_t *p = r->head;
    const size_t size = (size_t)r->loaded;
    static const uint8_t magic[4] = {'G', 'G', 'U', 'F'}, swapped[4] = {'F', 'U', 'G', 'G'};
    bool reversed = size >= 4 && memcmp(p, swapped, 4) == 0;
    if (memcmp(p, magic, size < 4 ? size : 4) != 0 && !reversed) {
        const char *what = pe_foreign_file(p, size);
        if (what) return BAD(r, "%s", what);
        char shown[96];
        return BAD(r, "not a GGUF file: it begins with '%s', not 'GGUF'; give the path of a .gguf file",
                   pe_gguf_quote(shown, p, size < 4 ? size : 4));
    }
    if (size < HEADER_BYTES)
        return BAD(
            r, "the file has only %zu bytes, less than a GGUF header; the download may be incomplete, pull it again",
            size);

    uint64_t n_tensors = 0, n_kv = 0;
    next(r, sizeof magic);
    take(r, &f->version, sizeof f->version);
    take(r, &n_tensors, sizeof n_tensors);
    take(r, &n_kv, sizeof n_kv);
    uint32_t other = __builtin_bswap32(f->version);
    if (reversed || (other >= 1 && other <= 3))
        return fail(r, PE_ERR_UNSUPPORTED,
                    "this is a big-endian GGUF file, and the byte order of this machine is little-endian; get "
                    "the little-endian file, or convert the model again");
    if (f->version == 1)
        return fail(r, PE_ERR_UNSUPPORTED, "GGUF version 1 is too old; get a newer file of this model");
    if (f->version != 2 && f->version != 3)
        return fail(r, PE_ERR_UNSUPPORTED,
                    "GGUF version %u is unknown (2 and 3 are read); the file is damaged, or needs a newer "
                    "pyedge",
                    f->version);

    if (n_kv > MAX_KV || n_kv > left(r) / LEAST_KV)
        return BAD(r,
                   "the header promises %llu metadata entries, and %llu bytes cannot hold them (limit %d); the file is "
                   "damaged or incomplete, pull it again",
                   (unsigned long long)n_kv, (unsigned long long)left(r), MAX_KV);
    if (n_tensors > PE_GGUF_MAX_TENSORS || n_tensors > (left(r) - n_kv * LEAST_KV) / LEAST_TENSOR)
        return BAD(
            r,
            "the header promises %llu tensors, and %llu bytes cannot hold them (limit %d); the file is damaged or "
            "incomplete, pull it again",
            (unsigned long long)n_tensors, (unsigned long long)left(r), PE_GGUF_MAX_TENSORS);
    f->n_kv = (int64_t)n_kv;
    f->n_tensors = (int64_t)n_tensors;
    return PE_OK;
}

// ---- metadata -------------------------------------------------------------------------------------------------------

static pe_status read_strings(reader *r, pe_kv *kv) {
    if (kv->n > left(r) / sizeof(uint64_t))
        return BAD(r, "an array of %llu strings: %s", (unsigned long long)kv->n, TRUNCATED);
    for (uint64_t i = 0; i < kv->n; i++) {
        text s;
        if (!take_text(r, &s))
            return BAD(r, "string %llu of %llu bytes: %s", (unsigned long long)i, (unsigned long long)s.len, TRUNCATED);
    }
    return PE_OK;
}

static pe_status read_value(reader *r, pe_kv *kv) {
    uint32_t type;
    if (!take(r, &type, sizeof type)) return BAD(r, "%s", TRUNCATED);
    kv->n = 1;
    kv->is_array = type == PE_GGUF_ARRAY;
    if (kv->is_array) {
        if (!take(r, &type, sizeof type) || !take(r, &kv->n, sizeof kv->n)) return BAD(r, "%s", TRUNCATED);
        if (type == PE_GGUF_ARRAY)
            return BAD(r, "an array of arrays, which no known model has; get the file from another source");
        if (kv->n > MAX_ARRAY)
            return BAD(r, "an array of %llu elements (limit %d); " DAMAGED, (unsigned long long)kv->n, MAX_ARRAY);
    }
    if (type >= N_VALUE_TYPES)
        return BAD(r, "value type %u is unknown; the file is damaged, or needs a newer pyedge", type);

    kv->type = (int32_t)type;
    kv->data = r->head + r->at;
    if (type == PE_GGUF_STRING) {
        pe_status status = read_strings(r, kv);
        if (status) return status;
    } else {
        const uint8_t *p = next(r, kv->n * value_types[type].bytes);  // at most 2^25
        if (!p) return BAD(r, "%llu x %s: %s", (unsigned long long)kv->n, value_types[type].name, TRUNCATED);
        for (uint64_t i = 0; type == PE_GGUF_BOOL && i < kv->n; i++)
            if (p[i] > 1) return BAD(r, "a bool of %u, must be 0 or 1; " DAMAGED, p[i]);
    }
    kv->n_bytes = (size_t)(r->head + r->at - (const uint8_t *)kv->data);
    return PE_OK;
}

static pe_status read_kv(reader *r, pe_kv *kv, int64_t i, uint64_t *keys_bytes) {
    char shown[96];
    text key;
    snprintf(r->where, sizeof r->where, "metadata entry %lld", (long long)i);
    if (!take_text(r, &key)) return BAD(r, "a key of %llu bytes: %s", (unsigned long long)key.len, TRUNCATED);
    *keys_bytes += key.len;
    if (key.len == 0) return BAD(r, "an empty key; " DAMAGED);
    if (key.len > MAX_KEY)
        return BAD(r, "a key of %llu bytes (limit %d); " DAMAGED, (unsigned long long)key.len, MAX_KEY);
    if (*keys_bytes > MAX_KEYS_BYTES) return BAD(r, "the keys alone take over %d bytes; " DAMAGED, MAX_KEYS_BYTES);
    pe_gguf_quote(shown, key.p, key.len);
    snprintf(r->where, sizeof r->where, "key '%s'", shown);
    if (!is_clean(key.p, key.len)) return BAD(r, "a key must be UTF-8 without control characters; " DAMAGED);
    *kv = (pe_kv){.key = key.p, .key_len = key.len};
    return read_value(r, kv);
}

static int by_text(const void *a, const void *b) {
    const text *x = a, *y = b;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return memcmp(x->p, y->p, x->len);
}

// Sorts the texts and returns one that stands there twice, or NULL. Sorting, not hashing: a stranger cannot make it
// slow.
static const text *find_twin(text *texts, int64_t n) {
    qsort(texts, (size_t)n, sizeof *texts, by_text);
    for (int64_t i = 1; i < n; i++)
        if (by_text(&texts[i - 1], &texts[i]) == 0) return &texts[i];
    return NULL;
}

const pe_tensor *pe_gguf_find_twin(const pe_tensor *tensors, int64_t n, bool *no_memory) {
    text *names = calloc((size_t)n + 1, sizeof *names);
    *no_memory = !names;
    if (!names) return NULL;
    for (int64_t i = 0; i < n; i++) names[i] = (text){.p = tensors[i].name, .len = strlen(tensors[i].name)};
    const text *twin = find_twin(names, n);
    const pe_tensor *found = NULL;
    for (int64_t i = 0; twin && !found; i++)
        if (strcmp(tensors[i].name, twin->p) == 0) found = &tensors[i];
    free(names);
    return found;
}

static pe_status out_of_memory(reader *r) {
    r->where[0] = '\0';
    return fail(r, PE_ERR_MEMORY, "no memory for an index of %lld metadata entries and %lld tensors",
                (long long)r->f->n_kv, (long long)r->f->n_tensors);
}

static pe_status read_metadata(reader *r, pe_gguf_file *f) {
    if (f->n_kv == 0) return PE_OK;
    f->kv = calloc((size_t)f->n_kv, sizeof *f->kv);
    text *keys = calloc((size_t)f->n_kv, sizeof *keys);
    pe_status status = f->kv && keys ? PE_OK : out_of_memory(r);
    uint64_t keys_bytes = 0;
    for (int64_t i = 0; i < f->n_kv && !status; i++) {
        status = read_kv(r, &f->kv[i], i, &keys_bytes);
        keys[i] = (text){.p = f->kv[i].key, .len = f->kv[i].key_len};
    }
    if (!status) {
        const text *twin = find_twin(keys, f->n_kv);
        char shown[96];
        if (twin) {
            snprintf(r->where, sizeof r->where, "key '%s'", pe_gguf_quote(shown, twin->p, twin->len));
            status = BAD(r, "it stands in the file twice, so its value is unclear; get the file from another source");
        }
    }
    free(keys);
    return status;
}

// Tensor data and their offsets are aligned to this.
static pe_status read_alignment(reader *r, const pe_gguf_file *f, uint32_t *out) {
    static const char key[] = "general.alignment";
    *out = 32;  // the format's default
    const pe_kv *kv = pe_gguf_file_find(f, key);
    if (!kv) return PE_OK;
    snprintf(r->where, sizeof r->where, "key '%s'", key);
    if (kv->is_array || kv->type != PE_GGUF_U32)
        return BAD(r, "it is %s%s, must be u32; the file is damaged or badly written, get it from another source",
                   kv->is_array ? "an array of " : "of type ", value_types[kv->type].name);
    memcpy(out, kv->data, sizeof *out);
    if (*out == 0 || (*out & (*out - 1)) != 0 || *out > MAX_ALIGNMENT)
        return BAD(r,
                   "%u, must be a power of two of at most %d; the file is damaged or badly written, get it from "
                   "another source",
                   *out, MAX_ALIGNMENT);
    return PE_OK;
}

// ---- tensors --------------------------------------------------------------------------------------------------------

static pe_status read_shape(reader *r, pe_tensor *t) {
    uint32_t n_dims;
    if (!take(r, &n_dims, sizeof n_dims)) return BAD(r, "%s", TRUNCATED);
    if (n_dims < 1 || n_dims > MAX_DIMS) return BAD(r, "%u dimensions, must be 1 to %d; " DAMAGED, n_dims, MAX_DIMS);
    t->n_dims = (int32_t)n_dims;
    int64_t n_values = 1;
    for (int d = 0; d < MAX_DIMS; d++) {
        uint64_t ne = 1;
        if (d < t->n_dims && !take(r, &ne, sizeof ne)) return BAD(r, "%s", TRUNCATED);
        if (ne < 1 || ne > INT64_MAX || __builtin_mul_overflow(n_values, (int64_t)ne, &n_values))
            return BAD(r, "dimension %d is %llu, which makes no sound shape; " DAMAGED, d, (unsigned long long)ne);
        t->ne[d] = (int64_t)ne;
    }
    return PE_OK;
}

// The size of the data, from type and shape. The product of the shape is known not to overflow.
static pe_status read_type(reader *r, pe_tensor *t) {
    uint32_t type;
    if (!take(r, &type, sizeof type)) return BAD(r, "%s", TRUNCATED);
    static const struct {
        uint32_t type;
        const char *name, *instead;
    } dropped[] = {
        // from the format
        {4, "Q4_2", "Q4_0"},          {5, "Q4_3", "Q4_1"},          {31, "Q4_0_4_4", "Q4_0"},
        {32, "Q4_0_4_8", "Q4_0"},     {33, "Q4_0_8_8", "Q4_0"},     {36, "IQ4_NL_4_4", "IQ4_NL"},
        {37, "IQ4_NL_4_8", "IQ4_NL"}, {38, "IQ4_NL_8_8", "IQ4_NL"},
    };
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        if (type == dropped[i].type)
            return fail(r, PE_ERR_UNSUPPORTED, "%s is a format that GGUF no longer has; take the %s file of the model",
                        dropped[i].name, dropped[i].instead);
    const pe_format_info *f = type <= INT32_MAX ? pe_format_by_type((int32_t)type) : NULL;
    if (!f)
        return fail(r, PE_ERR_UNSUPPORTED,
                    "type number %u is unknown to this build; take another quantization of the model, or a "
                    "newer pyedge",
                    type);
    t->type = f->type;
    if (t->ne[0] % f->block_values != 0)
        return BAD(r, "a row of %lld values is no multiple of %d, the block of %s; " DAMAGED, (long long)t->ne[0],
                   f->block_values, f->name);
    uint64_t n_blocks =
        (uint64_t)(t->ne[0] / f->block_values) * (uint64_t)t->ne[1] * (uint64_t)t->ne[2] * (uint64_t)t->ne[3];
    if (__builtin_mul_overflow(n_blocks, (uint64_t)f->block_bytes, &t->n_bytes))
        return BAD(r, "%llu blocks of %s are more than any file holds; " DAMAGED, (unsigned long long)n_blocks,
                   f->name);
    return PE_OK;
}

static pe_status read_tensor(reader *r, pe_tensor *t, int64_t i, uint32_t alignment) {
    char shown[96];
    text name;
    snprintf(r->where, sizeof r->where, "tensor number %lld", (long long)i);
    if (!take_text(r, &name)) return BAD(r, "a name of %llu bytes: %s", (unsigned long long)name.len, TRUNCATED);
    if (name.len == 0) return BAD(r, "an empty name; " DAMAGED);
    snprintf(r->where, sizeof r->where, "tensor '%s'", pe_gguf_quote(shown, name.p, name.len));
    if (name.len > MAX_NAME)
        return BAD(r, "its name has %llu bytes (limit %d); " DAMAGED, (unsigned long long)name.len, MAX_NAME);
    if (!is_clean(name.p, name.len)) return BAD(r, "a name must be UTF-8 without control characters; " DAMAGED);
    memcpy(t->name, name.p, name.len);

    pe_status status = read_shape(r, t);
    if (!status) status = read_type(r, t);
    if (status) return status;
    if (!take(r, &t->offset, sizeof t->offset)) return BAD(r, "%s", TRUNCATED);
    if (t->offset % alignment != 0)
        return BAD(r, "its data at %llu are not aligned to %u; " DAMAGED, (unsigned long long)t->offset, alignment);
    return PE_OK;
}

// Turns offsets into the data section into offsets in the file, which all data must lie in.
static pe_status place_tensors(reader *r, pe_gguf_file *f, uint32_t alignment) {
    const uint64_t start = (r->at + alignment - 1) / alignment * alignment;  // at most MAX_HEAD + MAX_ALIGNMENT
    const uint64_t room = f->disk.size > start ? f->disk.size - start : 0;
    for (int64_t i = 0; i < f->n_tensors; i++) {
        pe_tensor *t = &f->tensors[i];
        char shown[96];
        if (t->offset > room || t->n_bytes > room - t->offset) {
            snprintf(r->where, sizeof r->where, "tensor '%s'", pe_gguf_quote(shown, t->name, strlen(t->name)));
            return BAD(
                r,
                "its %llu bytes at %llu reach past the end of the file (%llu bytes of data); the download may be "
                "incomplete, pull it again",
                (unsigned long long)t->n_bytes, (unsigned long long)t->offset, (unsigned long long)room);
        }
        t->offset += start;
    }
    return PE_OK;
}

static int by_offset(const void *a, const void *b) {
    const pe_tensor *x = *(const pe_tensor *const *)a, *y = *(const pe_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static pe_status check_overlap(reader *r, const pe_gguf_file *f) {
    char shown[96], other[96];
    if (f->n_tensors < 2) return PE_OK;
    const pe_tensor **order = calloc((size_t)f->n_tensors, sizeof *order);
    if (!order) return out_of_memory(r);
    for (int64_t i = 0; i < f->n_tensors; i++) order[i] = &f->tensors[i];
    qsort(order, (size_t)f->n_tensors, sizeof *order, by_offset);
    pe_status status = PE_OK;
    for (int64_t i = 1; i < f->n_tensors && !status; i++) {
        const pe_tensor *before = order[i - 1], *t = order[i];
        if (t->offset - before->offset >= before->n_bytes) continue;
        snprintf(r->where, sizeof r->where, "tensor '%s'", pe_gguf_quote(shown, t->name, strlen(t->name)));
        status = BAD(r, "its data overlap those of '%s'; " DAMAGED,
                     pe_gguf_quote(other, before->name, strlen(before->name)));
    }
    free(order);
    return status;
}

static pe_status check_names(reader *r, const pe_gguf_file *f) {
    bool no_memory;
    const pe_tensor *twin = pe_gguf_find_twin(f->tensors, f->n_tensors, &no_memory);
    if (no_memory) return out_of_memory(r);
    if (!twin) return PE_OK;
    char shown[96];
    snprintf(r->where, sizeof r->where, "tensor '%s'", pe_gguf_quote(shown, twin->name, strlen(twin->name)));
    return BAD(r, "it stands in the file twice; get the file from another source");
}

static pe_status read_tensors(reader *r, pe_gguf_file *f, uint32_t alignment) {
    if (f->n_tensors == 0) return PE_OK;
    // The header was checked against the whole file; the metadata have been read since.
    r->where[0] = '\0';
    if ((uint64_t)f->n_tensors > left(r) / LEAST_TENSOR)
        return BAD(r,
                   "the header promises %lld tensors, and the %llu bytes after the metadata cannot hold them; the file "
                   "is damaged or incomplete, pull it again",
                   (long long)f->n_tensors, (unsigned long long)left(r));
    f->tensors = calloc((size_t)f->n_tensors, sizeof *f->tensors);
    pe_status status = f->tensors ? PE_OK : out_of_memory(r);
    for (int64_t i = 0; i < f->n_tensors && !status; i++) status = read_tensor(r, &f->tensors[i], i, alignment);
    if (!status) status = check_names(r, f);
    if (!status) status = place_tensors(r, f, alignment);
    if (!status) status = check_overlap(r, f);
    return status;
}

// ---- the file -------------------------------------------------------------------------------------------------------

static pe_status read_all(reader *r, pe_gguf_file *f) {
    uint32_t alignment = 0;
    pe_status status = read_header(r, f);
    if (!status) status = read_metadata(r, f);
    if (!status) status = read_alignment(r, f, &alignment);
    if (!status) status = read_tensors(r, f, alignment);
    return status;
}

// Gives back what was loaded behind the metadata, and lets `kv` point to what stays.
static void trim_head(pe_gguf_file *f, size_t used) {
    uint8_t *exact = malloc(used);
    if (!exact) return;  // the larger one does as well
    memcpy(exact, f->head, used);
    for (int64_t i = 0; i < f->n_kv; i++) {
        f->kv[i].key = (const char *)exact + (f->kv[i].key - (const char *)f->head);
        f->kv[i].data = exact + ((const uint8_t *)f->kv[i].data - f->head);
    }
    free(f->head);
    f->head = exact;
}

static pe_status read_head(pe_gguf_file *f, pe_error *err) {
    const pe_file *disk = &f->disk;
    enum { FIRST = 2 << 20 };
    uint64_t loaded = 0, wanted = FIRST;
    for (;;) {
        if (wanted > disk->size) wanted = disk->size;
        uint8_t *head = realloc(f->head, (size_t)wanted);
        if (!head) return pe_fail_file(err, PE_ERR_MEMORY, f->path, NULL, "no memory for its metadata");
        f->head = head;
        pe_status status = pe_os_read(disk, f->path, loaded, head + loaded, (size_t)(wanted - loaded), err);
        if (status) return status;
        loaded = wanted;

        reader r = {.f = f, .head = head, .loaded = loaded, .err = err};
        status = read_all(&r, f);
        if (!r.needed) {
            if (!status) trim_head(f, (size_t)r.at);
            return status;
        }
        if (r.needed > MAX_HEAD)
            return BAD(&r, "what comes before the tensors' data takes over %d bytes; " DAMAGED, MAX_HEAD);
        free(f->kv);
        free(f->tensors);
        f->kv = NULL;
        f->tensors = NULL;
        wanted = r.needed > 3 * loaded ? r.needed : 3 * loaded;
        if (wanted > MAX_HEAD) wanted = MAX_HEAD;
    }
}

pe_status pe_gguf_file_open(pe_gguf_file *f, const char *path, pe_error *err) {
    *f = (pe_gguf_file){.path = strdup(path), .disk.fd = -1};
    if (!f->path) return pe_fail_file(err, PE_ERR_MEMORY, path, NULL, "no memory left to open it");
    pe_status status = pe_os_open(path, &f->disk, err);
    if (!status) status = read_head(f, err);
    if (f->n_tensors == 0) pe_os_close(&f->disk);
    return status;
}

void pe_gguf_file_release(pe_gguf_file *f) {
    if (f->path) pe_os_close(&f->disk);
    free(f->tensors);
    free(f->kv);
    free(f->head);
    free(f->path);
    *f = (pe_gguf_file){.disk.fd = -1};
}

const pe_kv *pe_gguf_file_find(const pe_gguf_file *f, const char *key) {
    const size_t len = strlen(key);
    for (int64_t i = 0; i < f->n_kv; i++)
        if (f->kv[i].key_len == len && memcmp(f->kv[i].key, key, len) == 0) return &f->kv[i];
    return NULL;
}
