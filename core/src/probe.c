// What this machine can do at best, measured: the limits that an op's time is held against. Owns what is run, how long and
// on how much memory; the loops themselves are cpu/probe.c's. Others run on the same machine, so the best of several short
// runs counts, and all of it takes about half a second.
#include "kernels.h"
#include "os.h"
#include "threads.h"

enum {
    BLOCK = 1 << 20,      // bytes that one thread reads as one item
    MAX_BLOCKS = 256,     // 256 MiB: beyond the last-level cache of most processors
    MIN_BLOCKS = 16,      // with less than that free, caches are what is measured
    MEMORY_SHARE = 8,     // of the free memory, one part of so many
    PASSES = 3,           // over the memory, for each number of streams
    WINDOWS = 4,          // of a pass, timed each by itself
    RUNS = 8,             // of arithmetic
    RUN_NS = 8 * 1000000  // and how long each takes
};

typedef struct job {
    const pe_kernels *k;
    uint8_t *data;  // [blocks, BLOCK]
    int64_t first;  // block of a window
    int32_t streams;
    int64_t rounds;
    _Atomic uint32_t sink;  // what the loops return, so that they must compute it
} job;

static void fill_item(void *ctx, int64_t item, int worker) {
    (void)worker;
    memset(((job *)ctx)->data + (size_t)item * BLOCK, 1, BLOCK);  // memory never written is one page of zeros
}

static void read_item(void *ctx, int64_t item, int worker) {
    (void)worker;
    job *j = ctx;
    j->sink += (uint32_t)j->k->probe_read(j->data + (size_t)(j->first + item) * BLOCK, BLOCK, j->streams);
}

static void int8_item(void *ctx, int64_t item, int worker) {
    (void)item, (void)worker;
    job *j = ctx;
    j->sink += (uint32_t)j->k->probe_int8(j->rounds);
}

static void f32_item(void *ctx, int64_t item, int worker) {
    (void)item, (void)worker;
    job *j = ctx;
    j->sink += j->k->probe_f32(j->rounds) > 0;
}

static int64_t time_of(int width, int64_t items, pe_task task, job *j) {
    const int64_t start = pe_os_now();
    pe_parallel(width, items, task, j);
    const int64_t taken = pe_os_now() - start;
    return taken > 0 ? taken : 1;
}

// Rounds per nanosecond of all threads together.
static double arithmetic(int width, pe_task task, job *j) {
    j->rounds = 256;
    int64_t alone = 0;
    while ((alone = time_of(1, 1, task, j)) < RUN_NS / 16 && j->rounds < INT64_C(1) << 40) j->rounds *= 2;
    j->rounds = (int64_t)((double)j->rounds * RUN_NS / 4 / (double)alone) + 1;
    const int64_t items = 4 * (int64_t)width;  // claimed: a thread that is held up takes fewer
    double best = 0;
    for (int i = 0; i < RUNS; i++) {
        const double speed = (double)items * (double)j->rounds / (double)time_of(width, items, task, j);
        if (speed > best) best = speed;
    }
    return best;
}

pe_status pe_probe(int32_t threads, pe_limits *out, pe_error *err) {
    if (threads < 0 || threads > PE_MAX_THREADS)
        return pe_fail(err, PE_ERR_ARGUMENT, NULL, "threads is %d: it must be 0 to %d", threads, PE_MAX_THREADS);
    pe_error local;
    const pe_kernels *kernels = pe_kernels_active(err ? err : &local);
    if (!kernels) return (pe_status)(err ? err : &local)->code;
    pe_machine machine;
    pe_machine_query(&machine);
    uint64_t blocks = machine.memory_available / MEMORY_SHARE / BLOCK;
    if (blocks > MAX_BLOCKS) blocks = MAX_BLOCKS;
    job j = {.k = kernels, .data = blocks < MIN_BLOCKS ? NULL : pe_os_alloc((size_t)blocks * BLOCK)};
    if (!j.data)
        return pe_fail(err, PE_ERR_MEMORY, NULL,
                       "%.2f GB of memory are free, too little to measure how fast it is read; close other programs",
                       (double)machine.memory_available / 1e9);

    *out = (pe_limits){.isa = kernels->name};
    out->threads = pe_pool_lock(threads ? threads : machine.default_threads);
    pe_parallel(out->threads, (int64_t)blocks, fill_item, &j);
    const int64_t window = (int64_t)blocks / WINDOWS;
    for (j.streams = 1; j.streams <= PE_PROBE_STREAMS; j.streams *= 2)
        for (int i = 0; i < PASSES * WINDOWS; i++) {
            j.first = i % WINDOWS * window;
            const double speed = (double)window * BLOCK / (double)time_of(out->threads, window, read_item, &j);
            if (speed <= out->read_gb_s) continue;  // bytes per nanosecond
            out->read_gb_s = speed;
            out->read_streams = j.streams;
        }
    out->int8_gmac_s = arithmetic(out->threads, int8_item, &j) * PE_PROBE_INT8 * kernels->lanes;
    out->f32_gmac_s = arithmetic(out->threads, f32_item, &j) * PE_PROBE_F32 * kernels->lanes;
    pe_pool_unlock();
    pe_os_free(j.data, (size_t)blocks * BLOCK);
    return PE_OK;
}
