// One GGUF file as it lies on disk: a whole model, or one part of a split one. gguf.c makes the view of a model from it.
#ifndef PE_GGUF_FILE_H
#define PE_GGUF_FILE_H

#include "os.h"

enum { PE_GGUF_MAX_TENSORS = 1 << 17 };  // of a model

typedef struct pe_gguf_file {
    char *path;
    pe_file disk;  // open for the tensors' data; closed (but its size is kept) where there are none
    uint32_t version;
    uint8_t *head;  // a copy of what comes before the tensors' data
    int64_t n_kv;
    pe_kv *kv;  // [n_kv], pointing into head
    int64_t n_tensors;
    pe_tensor *tensors;  // [n_tensors]
} pe_gguf_file;

// Reads and checks a file by itself. Whether it succeeds or not, the caller releases what is in *f.
pe_status pe_gguf_file_open(pe_gguf_file *f, const char *path, pe_error *err);
void pe_gguf_file_release(pe_gguf_file *f);

const pe_kv *pe_gguf_file_find(const pe_gguf_file *f, const char *key);  // NULL: not there

// A tensor of `tensors` [n] whose name another one has, or NULL; *no_memory is set when it cannot be known. Takes
// n log n steps whatever the names are.
const pe_tensor *pe_gguf_find_twin(const pe_tensor *tensors, int64_t n, bool *no_memory);

// Text from a file, made fit for a message: printable ASCII, the rest as \xNN, cut to about 80 characters.
const char *pe_gguf_quote(char out[96], const void *text, size_t len);

// What a file that is no GGUF file is, and what to do about it; NULL if that cannot be told from its first bytes.
const char *pe_foreign_file(const uint8_t *bytes, size_t n);

#endif
