// The process's one thread pool. A job is a number of items claimed one by one from an atomic counter; waiters spin
// briefly, then sleep, so that sharing a processor costs a fraction of the speed and not all of it.
#ifndef PE_THREADS_H
#define PE_THREADS_H

#include <stdint.h>

typedef void (*pe_task)(void *ctx, int64_t item, int worker);  // 0 <= worker < width

// Takes the pool for a run of jobs by up to `width` threads, the caller included; others wait. Returns the width there
// is, which is less when threads cannot be made.
int pe_pool_lock(int width);
void pe_pool_unlock(void);

// Runs fn for every item in [0, n) and returns when all are done. The caller holds the pool.
// Whatever one item writes is visible to the caller afterwards.
void pe_parallel(int width, int64_t n, pe_task fn, void *ctx);

#endif
