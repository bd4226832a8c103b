#include "threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "os.h"

// One 64-bit ticket holds everything a claim must be sure of: which job (16 bits), how many threads may take part (8),
// how many items there are (20) and the next one (20). A worker that wakes late fails its exchange instead of touching
// another job; one that wins may read the job's fields, which stay until its item is done.
typedef uint64_t ticket;
enum { NEXT_BITS = 20, ITEM_BITS = 20, WIDTH_BITS = 8, MAX_ITEMS = (1 << ITEM_BITS) - 1 };

static ticket make_ticket(uint32_t job, int width, int64_t n) {
    return (ticket)job << (NEXT_BITS + ITEM_BITS + WIDTH_BITS) | (ticket)width << (NEXT_BITS + ITEM_BITS) |
           (ticket)n << NEXT_BITS;
}
static int64_t ticket_next(ticket t) { return (int64_t)(t & ((1u << NEXT_BITS) - 1)); }
static int64_t ticket_items(ticket t) { return (int64_t)(t >> NEXT_BITS & ((1u << ITEM_BITS) - 1)); }
static int ticket_width(ticket t) { return (int)(t >> (NEXT_BITS + ITEM_BITS) & ((1u << WIDTH_BITS) - 1)); }

static struct pool {
    pthread_mutex_t lock;  // one user at a time
    int n_threads;         // workers, the caller not counted
    pe_task fn;            // the job: written before its ticket is
    void *ctx;
    int64_t first;  // number of the ticket's item 0
    _Alignas(64) _Atomic ticket now;
    _Alignas(64) _Atomic uint32_t pending;  // items not yet done
    _Atomic uint32_t caller_sleeps;
    _Alignas(64) _Atomic uint32_t jobs;  // how many were published: what workers sleep on
    _Atomic uint32_t sleepers;
    int last_width;                       // of the last job
    _Alignas(64) _Atomic uint32_t wider;  // counts jobs wider than the one before: what workers without use sleep on
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

// Where each thread was when it last looked for items.
static struct place {
    _Alignas(64) _Atomic int32_t processor;
} places[PE_MAX_THREADS];

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");  // tens of nanoseconds, as pause is; yield is none
#endif
}

// True if another thread of the job has, or may have, the processor that this one is on.
static bool shares_processor(int thread) {
    const int32_t here = pe_os_processor();
    const int width = ticket_width(atomic_load_explicit(&pool.now, memory_order_relaxed));
    for (int i = 0; i < width; i++)
        if (i != thread && atomic_load_explicit(&places[i].processor, memory_order_relaxed) == here) return true;
    return here < 0;
}

// Spins until *word != value; true if it changed. For 50 microseconds at most, longer than the gaps between two ops of a
// step, where it may keep the very thread it waits for from running. Else ten times that, which covers what a caller does
// between two steps: beside another busy process, who sleeps is woken behind it, often a whole turn (4 ms) late, and
// finds the others' turn over. On two busy processors SmolLM2 writes 11 % faster for it (8 runs each, in turn: 95 to 132
// tokens/s, 101 to 145), on two idle ones 2 %; two threads on one processor, and four on two, lose nothing.
static bool spin(_Atomic uint32_t *word, uint32_t value, int thread) {
    enum { SHORT = 50000, LONG = 500000 };
    const int64_t start = pe_os_now();
    for (int i = 1;; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
        relax();
        if (i % 16) continue;
        const int64_t waited = pe_os_now() - start;
        if (waited > LONG || (waited > SHORT && shares_processor(thread))) return false;
    }
}

static void take_items(int worker) {
    const int32_t here = pe_os_processor();
    if (atomic_load_explicit(&places[worker].processor, memory_order_relaxed) != here)
        atomic_store_explicit(&places[worker].processor, here, memory_order_relaxed);
    for (;;) {
        ticket t = atomic_load_explicit(&pool.now, memory_order_acquire);
        do {
            if (ticket_next(t) >= ticket_items(t) || worker >= ticket_width(t)) return;
        } while (
            !atomic_compare_exchange_weak_explicit(&pool.now, &t, t + 1, memory_order_acq_rel, memory_order_acquire));
        pool.fn(pool.ctx, pool.first + ticket_next(t), worker);
        if (atomic_fetch_sub(&pool.pending, 1) == 1 && atomic_load(&pool.caller_sleeps)) pe_os_wake(&pool.pending, 1);
    }
}

static void *worker_main(void *arg) {
    const int worker = (int)(intptr_t)arg;
    uint32_t seen = 0;
    for (;;) {
        take_items(worker);
        const uint32_t jobs = atomic_load(&pool.jobs);
        if (jobs != seen) {
            seen = jobs;
            continue;
        }
        // A worker that the last job had no use for neither spins nor takes the wake-up of one that is needed.
        const uint32_t wider = atomic_load(&pool.wider);
        if (worker >= ticket_width(atomic_load(&pool.now))) {
            pe_os_wait(&pool.wider, wider);
            continue;
        }
        if (spin(&pool.jobs, seen, worker)) continue;
        atomic_fetch_add(&pool.sleepers, 1);
        pe_os_wait(&pool.jobs, seen);
        atomic_fetch_sub(&pool.sleepers, 1);
    }
    return NULL;
}

// In a forked child no worker exists any more: start afresh, whatever the parent was doing.
static void after_fork(void) {
    pthread_mutex_init(&pool.lock, NULL);
    pool.n_threads = 0;
    atomic_store(&pool.now, 0);
    atomic_store(&pool.pending, 0);
    atomic_store(&pool.caller_sleeps, 0);
    atomic_store(&pool.jobs, 0);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.wider, 0);
    pool.last_width = 0;
}

static void register_fork(void) { pthread_atfork(NULL, NULL, after_fork); }

int pe_pool_lock(int width) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_fork);
    if (width > PE_MAX_THREADS) width = PE_MAX_THREADS;
    pthread_mutex_lock(&pool.lock);
    while (pool.n_threads < width - 1) {
        // Signals belong to the program's own threads: Ctrl-C must reach Python's.
        sigset_t all, old;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        pthread_t thread;
        const int failed = pthread_create(&thread, NULL, worker_main, (void *)(intptr_t)(pool.n_threads + 1));
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (failed) break;
        pthread_detach(thread);
        pool.n_threads++;
    }
    return width < pool.n_threads + 1 ? width : pool.n_threads + 1;
}

void pe_pool_unlock(void) { pthread_mutex_unlock(&pool.lock); }

// Items [first, first + n), as many as a ticket can count.
static void run_job(int width, int64_t first, int64_t n, pe_task fn, void *ctx) {
    pool.fn = fn;
    pool.ctx = ctx;
    pool.first = first;
    atomic_store(&pool.pending, (uint32_t)n);
    const uint32_t job = atomic_load(&pool.jobs) + 1;
    atomic_store(&pool.now, make_ticket(job & 0xffff, width, n));
    atomic_store(&pool.jobs, job);
    // After a wider job, all: those that sleep here without use would take the wake-up of one that is needed.
    if (atomic_load(&pool.sleepers)) pe_os_wake(&pool.jobs, width < pool.last_width ? pool.n_threads : width - 1);
    if (width > pool.last_width) {
        atomic_fetch_add(&pool.wider, 1);
        pe_os_wake(&pool.wider, pool.n_threads);
    }
    pool.last_width = width;
    take_items(0);
    for (;;) {
        const uint32_t left = atomic_load_explicit(&pool.pending, memory_order_acquire);
        if (left == 0) break;
        if (spin(&pool.pending, left, 0)) continue;
        atomic_store(&pool.caller_sleeps, 1);
        pe_os_wait(&pool.pending, left);
        atomic_store(&pool.caller_sleeps, 0);
    }
}

void pe_parallel(int width, int64_t n, pe_task fn, void *ctx) {
    if (width <= 1 || n <= 1) {
        for (int64_t i = 0; i < n; i++) fn(ctx, i, 0);
        return;
    }
    for (int64_t first = 0; first < n; first += MAX_ITEMS)
        run_job(width, first, n - first < MAX_ITEMS ? n - first : MAX_ITEMS, fn, ctx);
}
