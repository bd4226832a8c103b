// Owns the view of a model's GGUF: one file, or the parts of a split one as a whole, with the metadata of the first part
// and the tensors of all. Does not own how a file is read and checked (gguf_file.c).
//
// A split model lies in files NAME-00001-of-00003.gguf and so on. Each is a sound GGUF file of its own, with its own
// alignment, and says in `split.*` which part of how many it is. That is as untrusted as the rest.
#include "pyedge.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "gguf_file.h"

enum { MAX_PARTS = 512 };  // each an open file; the largest models come in under 200

struct pe_gguf {
    atomic_int references;
    int32_t n_parts;
    pe_gguf_file *parts;  // [n_parts]; of the later ones only the open file is kept
    int64_t n_tensors;
    pe_tensor *tensors;  // [n_tensors], of all parts in turn
};

#define BAD(part, ...) pe_fail_file(err, PE_ERR_FILE, (part)->path, NULL, __VA_ARGS__)

// ---- parts ----------------------------------------------------------------------------------------------------------

// What a file says about itself.
typedef struct split {
    int64_t number;     // from 0
    int64_t count;      // 1: it is not split
    int64_t n_tensors;  // of all parts; -1: not said
} split;

// The whole number of a key, or `absent`. Writers differ in its type.
static pe_status read_number(const pe_gguf_file *f, const char *key, int64_t absent, int64_t *out, pe_error *err) {
    const pe_kv *kv = pe_gguf_file_find(f, key);
    *out = absent;
    if (!kv) return PE_OK;
    uint64_t bits = 0;
    if (!kv->is_array && kv->n_bytes <= sizeof bits) memcpy(&bits, kv->data, kv->n_bytes);
    switch (kv->is_array ? PE_GGUF_ARRAY : kv->type) {
    case PE_GGUF_U8:
    case PE_GGUF_U16:
    case PE_GGUF_U32: *out = (int64_t)bits; return PE_OK;
    case PE_GGUF_I8: *out = (int8_t)bits; break;
    case PE_GGUF_I16: *out = (int16_t)bits; break;
    case PE_GGUF_I32: *out = (int32_t)bits; break;
    case PE_GGUF_U64:
    case PE_GGUF_I64: *out = (int64_t)bits; break;
    default:
        return BAD(
            f, "key '%s': it must be a whole number; the file is damaged or badly written, get it from another source",
            key);
    }
    if (*out < 0)
        return BAD(f, "key '%s': %" PRId64 " is no sound value; the file is damaged, pull it again", key, *out);
    return PE_OK;
}

static pe_status read_split(const pe_gguf_file *f, split *out, pe_error *err) {
    pe_status status = read_number(f, "split.no", 0, &out->number, err);
    if (!status) status = read_number(f, "split.count", 1, &out->count, err);
    if (!status) status = read_number(f, "split.tensors.count", -1, &out->n_tensors, err);
    if (status) return status;
    if (out->count < 1 || out->count > MAX_PARTS)
        return BAD(f, "key 'split.count': %" PRId64 " parts, must be 1 to %d; the file is damaged, pull it again",
                   out->count, MAX_PARTS);
    if (out->number >= out->count)
        return BAD(
            f, "key 'split.no': %" PRId64 ", but there are only %" PRId64 " parts; the file is damaged, pull it again",
            out->number, out->count);
    return PE_OK;
}

static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// The path of part `number` (from 0), given that of another part; NULL with an error if that one is named otherwise.
static char *part_path(const pe_gguf_file *f, int64_t number, const split *s, pe_error *err) {
    char ending[32];
    const int len = snprintf(ending, sizeof ending, "-%05d-of-%05d.gguf", (int)s->number + 1, (int)s->count);
    const size_t path_len = strlen(f->path);
    if (strlen(file_name(f->path)) <= (size_t)len || strcmp(f->path + path_len - len, ending) != 0) {
        BAD(f,
            "this is part %d of a model in %d parts, and only a name that ends in '%s' tells where the others are; "
            "rename all parts so",
            (int)s->number + 1, (int)s->count, ending);
        return NULL;
    }
    char *path = strdup(f->path);
    if (path) {
        snprintf(ending, sizeof ending, "%05d", (int)number + 1);
        memcpy(path + path_len - len + 1, ending, 5);
    } else {
        pe_fail_file(err, PE_ERR_MEMORY, f->path, NULL, "no memory left to open its parts");
    }
    return path;
}

static pe_status refuse_later_part(const pe_gguf_file *f, const split *s, pe_error *err) {
    char *first = part_path(f, 0, s, NULL);
    char shown[96];
    const pe_status status =
        first ? BAD(f, "this is part %d of a model in %d parts; give the path of the first, '%s'", (int)s->number + 1,
                    (int)s->count, pe_gguf_quote(shown, file_name(first), strlen(file_name(first))))
              : BAD(f, "this is part %d of a model in %d parts; give the path of the first", (int)s->number + 1,
                    (int)s->count);
    free(first);
    return status;
}

// ---- one view -------------------------------------------------------------------------------------------------------

static bool same_value(const pe_kv *a, const pe_kv *b) {
    return a->type == b->type && a->is_array == b->is_array && a->n_bytes == b->n_bytes &&
           memcmp(a->data, b->data, a->n_bytes) == 0;
}

// A part that belongs to another model would give wrong answers, or none. Some writers repeat the metadata in every part.
static pe_status check_part(const pe_gguf *g, const pe_gguf_file *part, int64_t number, const split *whole,
                            pe_error *err) {
    split s;
    pe_status status = read_split(part, &s, err);
    if (status) return status;
    if (!pe_gguf_file_find(part, "split.count"))
        return BAD(part, "it does not say that it is a part of a model; get all parts from one source");
    if (s.count != whole->count || s.number != number)
        return BAD(part,
                   "it says that it is part %d of %d, and it is used as part %d of %d; get all parts from one source",
                   (int)s.number + 1, (int)s.count, (int)number + 1, (int)whole->count);
    if (s.n_tensors >= 0 && whole->n_tensors >= 0 && s.n_tensors != whole->n_tensors)
        return BAD(part,
                   "key 'split.tensors.count': %" PRId64 ", and %" PRId64
                   " in the first part: these are parts of different models; get all parts from one source",
                   s.n_tensors, whole->n_tensors);
    static const char *const marks[] = {"general.architecture", "general.name",     "general.basename",
                                        "general.size_label",   "general.finetune", "general.version"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const pe_kv *own = pe_gguf_file_find(part, marks[i]), *other = pe_gguf_file_find(&g->parts[0], marks[i]);
        if (own && other && !same_value(own, other))
            return BAD(part,
                       "key '%s': another value than in the first part: these are parts of different models; get all "
                       "parts from one source",
                       marks[i]);
    }
    return PE_OK;
}

static pe_status open_part(pe_gguf *g, int64_t number, const split *whole, pe_error *err) {
    const pe_gguf_file *first = &g->parts[0];
    pe_gguf_file *part = &g->parts[number];
    char *path = part_path(first, number, whole, err);
    if (!path) return PE_ERR_FILE;
    char shown[96];
    pe_status status;
    if (pe_os_exists(path)) {
        g->n_parts = (int32_t)number + 1;
        status = pe_gguf_file_open(part, path, err);
        if (!status) status = check_part(g, part, number, whole, err);
    } else {
        status = pe_fail_file(
            err, PE_ERR_FILE, path, NULL, "part %d of %d of this model is missing; put it beside '%s'", (int)number + 1,
            (int)whole->count, pe_gguf_quote(shown, file_name(first->path), strlen(file_name(first->path))));
    }
    free(path);
    free(part->kv);
    free(part->head);
    part->kv = NULL;
    part->head = NULL;
    part->n_kv = 0;
    return status;
}

static pe_status gather_tensors(pe_gguf *g, const split *whole, pe_error *err) {
    const pe_gguf_file *first = &g->parts[0];
    for (int32_t p = 0; p < g->n_parts; p++) g->n_tensors += g->parts[p].n_tensors;
    if (g->n_tensors > PE_GGUF_MAX_TENSORS)
        return BAD(first, "its parts hold %" PRId64 " tensors in all (limit %d); get all parts from one source",
                   g->n_tensors, PE_GGUF_MAX_TENSORS);
    if (g->n_parts > 1 && whole->n_tensors >= 0 && whole->n_tensors != g->n_tensors)
        return BAD(first,
                   "key 'split.tensors.count': %" PRId64 ", but its parts hold %" PRId64
                   " tensors; get all parts from one source",
                   whole->n_tensors, g->n_tensors);
    if (g->n_tensors == 0) return PE_OK;
    g->tensors = calloc((size_t)g->n_tensors, sizeof *g->tensors);
    if (!g->tensors) return pe_fail_file(err, PE_ERR_MEMORY, first->path, NULL, "no memory for its tensors' names");
    pe_tensor *to = g->tensors;
    for (int32_t p = 0; p < g->n_parts; p++) {
        pe_gguf_file *part = &g->parts[p];
        for (int64_t i = 0; i < part->n_tensors; i++) {
            *to = part->tensors[i];
            to++->file = p;
        }
        free(part->tensors);
        part->tensors = NULL;
    }
    if (g->n_parts == 1) return PE_OK;  // checked by itself
    bool no_memory;
    const pe_tensor *twin = pe_gguf_find_twin(g->tensors, g->n_tensors, &no_memory);
    char shown[96];
    if (no_memory) return pe_fail_file(err, PE_ERR_MEMORY, first->path, NULL, "no memory for its tensors' names");
    if (twin)
        return BAD(first, "tensor '%s': it stands in two parts; get all parts from one source",
                   pe_gguf_quote(shown, twin->name, strlen(twin->name)));
    return PE_OK;
}

static pe_status open_all(pe_gguf *g, const char *path, pe_error *err) {
    split whole;
    g->n_parts = 1;
    pe_status status = pe_gguf_file_open(&g->parts[0], path, err);
    if (!status) status = read_split(&g->parts[0], &whole, err);
    if (status) return status;
    if (whole.number > 0) return refuse_later_part(&g->parts[0], &whole, err);
    if (whole.count > 1) {
        pe_gguf_file *parts = realloc(g->parts, (size_t)whole.count * sizeof *parts);
        if (!parts) return pe_fail_file(err, PE_ERR_MEMORY, path, NULL, "no memory left to open its parts");
        memset(parts + 1, 0, (size_t)(whole.count - 1) * sizeof *parts);
        g->parts = parts;
    }
    for (int64_t i = 1; i < whole.count && !status; i++) status = open_part(g, i, &whole, err);
    return status ? status : gather_tensors(g, &whole, err);
}

// ---- the public calls -----------------------------------------------------------------------------------------------

pe_status pe_gguf_open(const char *path, pe_gguf **out, pe_error *err) {
    *out = NULL;
    pe_gguf *g = calloc(1, sizeof *g);
    if (g) g->parts = calloc(1, sizeof *g->parts);
    if (!g || !g->parts) {
        free(g);
        return pe_fail_file(err, PE_ERR_MEMORY, path, NULL, "no memory left to open it");
    }
    atomic_init(&g->references, 1);
    const pe_status status = open_all(g, path, err);
    if (status) pe_gguf_release(g);
    else *out = g;
    return status;
}

void pe_gguf_retain(pe_gguf *g) { atomic_fetch_add(&g->references, 1); }

void pe_gguf_release(pe_gguf *g) {
    if (!g || atomic_fetch_sub(&g->references, 1) != 1) return;
    for (int32_t i = 0; i < g->n_parts; i++) pe_gguf_file_release(&g->parts[i]);
    free(g->parts);
    free(g->tensors);
    free(g);
}

const char *pe_gguf_path(const pe_gguf *g) { return g->parts[0].path; }
uint32_t pe_gguf_version(const pe_gguf *g) { return g->parts[0].version; }
int32_t pe_gguf_n_files(const pe_gguf *g) { return g->n_parts; }
const char *pe_gguf_file_path(const pe_gguf *g, int32_t i) { return g->parts[i].path; }
int64_t pe_gguf_n_kv(const pe_gguf *g) { return g->parts[0].n_kv; }
int64_t pe_gguf_n_tensors(const pe_gguf *g) { return g->n_tensors; }
void pe_gguf_kv(const pe_gguf *g, int64_t i, pe_kv *out) { *out = g->parts[0].kv[i]; }
const pe_tensor *pe_gguf_tensor(const pe_gguf *g, int64_t i) { return &g->tensors[i]; }

uint64_t pe_gguf_file_size(const pe_gguf *g) {
    uint64_t size = 0;
    for (int32_t i = 0; i < g->n_parts; i++) size += g->parts[i].disk.size;
    return size;
}

pe_status pe_gguf_read(const pe_gguf *g, int64_t i, uint64_t first, void *out, size_t n, pe_error *err) {
    const pe_tensor *t = &g->tensors[i];
    const pe_gguf_file *part = &g->parts[t->file];
    if (first > t->n_bytes || n > t->n_bytes - first)
        return pe_fail_file(err, PE_ERR_ARGUMENT, part->path, NULL,
                            "tensor '%s' has %" PRIu64 " bytes, not %zu from %" PRIu64 " on", t->name, t->n_bytes, n,
                            first);
    return pe_os_read(&part->disk, part->path, t->offset + first, out, n, err);
}

const char *pe_gguf_next_string(const void **cursor, size_t *len) {
    const char *at = *cursor;
    uint64_t n;
    memcpy(&n, at, sizeof n);
    *len = (size_t)n;
    *cursor = at + sizeof n + n;
    return at + sizeof n;
}
