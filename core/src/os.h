// Every system call of the core: files, memory, processors, sleeping and waking. Linux and macOS.
#ifndef PE_OS_H
#define PE_OS_H

#include "error.h"

// An open regular file.
typedef struct pe_file {
    int fd;
    uint64_t size;  // when it was opened; another process may change it at any time
} pe_file;

// Opens a regular file to be read. Errors name the file and the reason (not there, a folder, empty, no permission).
pe_status pe_os_open(const char *path, pe_file *out, pe_error *err);
void pe_os_close(pe_file *f);  // its size stays
// Copies n bytes at offset out. Fails where the file has become shorter meanwhile: a mapping would raise SIGBUS there.
pe_status pe_os_read(const pe_file *f, const char *path, uint64_t offset, void *out, size_t n, pe_error *err);

bool pe_os_exists(const char *path);

// The whole of a small text file (at most 1 MiB), terminated, to be freed by the caller; NULL if it cannot be read.
char *pe_os_read_text(const char *path);

// Zeroed, 64-byte aligned (page aligned in fact) memory that takes physical pages only when touched; NULL when refused.
void *pe_os_alloc(size_t bytes);
// The same for memory that will be touched from end to end, as weights are, or from the front on, as a KV pool is: in huge
// pages where the system has them, each resident as a whole. They spare a fault per 4 KiB and most of the misses in the
// tables of pages: with its weights there, a token of llama-1b takes 63 ms of one thread's time in place of 82. Freed alike.
void *pe_os_alloc_huge(size_t bytes);
void pe_os_free(void *p, size_t bytes);

// What the system itself says, before any limit of a cgroup (machine.c applies those).
typedef struct pe_os_hardware {
    int32_t logical_cpus;       // that this process may run on
    int32_t physical_cores;     // behind those
    uint64_t memory_total;      // bytes; 0: not known
    uint64_t memory_available;  // bytes that can be taken without swapping; 0: not known
} pe_os_hardware;

void pe_os_query(pe_os_hardware *out);

// Nanoseconds since some moment: never goes back.
int64_t pe_os_now(void);

// The number of the processor that this thread is on at the moment; -1 where the system does not tell.
int32_t pe_os_processor(void);

// Sleeps while *word == expected, until pe_os_wake or a spurious wake-up. pe_os_wake wakes up to n sleepers on word.
void pe_os_wait(_Atomic uint32_t *word, uint32_t expected);
void pe_os_wake(_Atomic uint32_t *word, int n);

#endif
