// Every system call of the core: files, memory, processors, sleeping and waking. Linux and macOS.
#ifndef PE_OS_H
#define PE_OS_H

#include "error.h"

typedef struct pe_mapping {
    const uint8_t *data;  // [size], read-only
    size_t size;
} pe_mapping;

// Maps a regular file read-only. Errors name the file and the reason (not there, a folder, empty, no permission).
pe_status pe_os_map(const char *path, pe_mapping *out, pe_error *err);
void pe_os_unmap(pe_mapping *m);

// Zeroed, 64-byte aligned (page aligned in fact) memory that takes physical pages only when touched; NULL when refused.
void *pe_os_alloc(size_t bytes);
void pe_os_free(void *p, size_t bytes);

// Sleeps while *word == expected, until pe_os_wake or a spurious wake-up. pe_os_wake wakes up to n sleepers on word.
void pe_os_wait(_Atomic uint32_t *word, uint32_t expected);
void pe_os_wake(_Atomic uint32_t *word, int n);

#endif
