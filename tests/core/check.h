// What the core's stand-alone test programs share: counting checks, naming those that fail, and memory that ends exactly
// where its content does, so that a sanitizer sees the first byte read or written too far.
#ifndef CHECK_H
#define CHECK_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long checks_passed, checks_failed;
static char check_where[160];  // what is being checked, for messages

__attribute__((format(printf, 4, 5))) static inline bool check_that(bool holds, const char *file, int line,
                                                                    const char *format, ...) {
    if (holds) {
        checks_passed++;
        return true;
    }
    checks_failed++;
    if (checks_failed <= 40) {
        char reason[400];
        va_list args;
        va_start(args, format);
        vsnprintf(reason, sizeof reason, format, args);
        va_end(args);
        printf("%s:%d: %s: %s\n", file, line, check_where, reason);
        fflush(stdout);
    }
    return false;
}

// CHECK(condition, message, ...): counts it, and prints the message if it does not hold.
#define CHECK(condition, ...) check_that(condition, __FILE__, __LINE__, __VA_ARGS__)

// Ends the program when its input or the machine, not the core, is at fault.
__attribute__((noreturn, format(printf, 1, 2))) static inline void give_up(const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("%s: ", check_where);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    exit(2);
}

// The closing line; the exit status.
static inline int checks_done(void) {
    printf("%ld passed, %ld failed\n", checks_passed, checks_failed);
    return checks_failed || !checks_passed;
}

// ---- memory that lives until the case is done ------------------------------------------------------------------------

static void *taken[256];
static int n_taken;

// 64-byte aligned and filled with 0xff, which is NaN in every float type.
static inline void *take(size_t bytes) {
    void *p = NULL;
    if (n_taken == 256 || posix_memalign(&p, 64, bytes ? bytes : 1)) give_up("no memory for %zu bytes", bytes);
    memset(p, 0xff, bytes);
    return taken[n_taken++] = p;
}

static inline void give_all_back(void) {
    while (n_taken) free(taken[--n_taken]);
}

// A small generator (xorshift64*, Vigna 2016, arXiv:1402.6246), the same on every machine.
static uint64_t random_state = 88172645463325252u;
static inline uint32_t random_below(uint32_t n) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (uint32_t)((random_state * 2685821657736338717u >> 33) % n);
}

#endif
