// Runs the thread pool of core/src/threads.c: every item is done once, by a worker the job may have, and what it wrote is
// seen by the caller; with workers awake and asleep, two callers, a fork, and signals. Built with the thread sanitizer
// too: what jobs share is plain memory on purpose. An alarm ends a run that hangs.
//
//     threads_check [JOBS]
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "threads.h"

enum { MAX_ITEMS = (1 << 21) + 5, JOB_ALIVE = 0x70b };  // more items than one ticket counts

typedef struct job {
    int alive;  // a worker that comes late with another job's context finds it gone
    int width;
    int64_t n;
    int8_t *done;  // [n], plain: each item has one writer
    atomic_int wrong;
    void (*extra)(int64_t item);
} job;

static void do_item(void *ctx, int64_t item, int worker) {
    job *j = ctx;
    if (j->alive != JOB_ALIVE || worker < 0 || worker >= j->width || item < 0 || item >= j->n) {
        atomic_fetch_add(&j->wrong, 1);
        return;
    }
    j->done[item]++;
    if (j->extra) j->extra(item);
}

static int8_t done_by_main[MAX_ITEMS];

// One job of n items; true if each was done once.
static bool run_job(int width, int64_t n, int8_t *done, void (*extra)(int64_t)) {
    job j = {.alive = JOB_ALIVE, .width = width > 1 ? width : 1, .n = n, .done = done, .extra = extra};
    memset(done, 0, (size_t)n * sizeof *done);
    pe_parallel(width, n, do_item, &j);
    j.alive = 0;
    bool right = atomic_load(&j.wrong) == 0;
    for (int64_t i = 0; i < n; i++) right = right && done[i] == 1;
    return right;
}

static void pause_us(long us) {
    const struct timespec t = {0, us * 1000};
    nanosleep(&t, NULL);
}

static void linger(int64_t item) {
    if (item == 1) pause_us(5000);
}

static void check_sizes(void) {
    static const int64_t sizes[] = {0, 1, 2, 3, 7, 64, 1000, MAX_ITEMS};
    snprintf(check_where, sizeof check_where, "sizes and widths");
    for (int width = 0; width <= 8; width++) {
        const int got = pe_pool_lock(width);
        CHECK(got <= width && (got == width || got >= 1), "asked for %d threads, got %d", width, got);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            CHECK(run_job(got, sizes[i], done_by_main, NULL), "%lld items on %d", (long long)sizes[i], got);
        pe_pool_unlock();
    }
}

// Jobs so small that workers come late to most of them, with widths below and above the pool's.
static void check_many(int jobs) {
    snprintf(check_where, sizeof check_where, "many small jobs");
    int wrong = 0;
    for (int round = 0; round < 4; round++) {
        const int width = pe_pool_lock(2 + round);
        for (int i = 0; i < jobs / 4; i++)
            wrong += !run_job(1 + i % width, 1 + (int64_t)random_below(6), done_by_main, NULL);
        pe_pool_unlock();
    }
    CHECK(wrong == 0, "%d of %d jobs went wrong", wrong, jobs);
}

// Pauses longer than anybody spins: workers must be woken, and the caller must wake from its own sleep.
static void check_sleep(void) {
    snprintf(check_where, sizeof check_where, "sleeping and waking");
    int wrong = 0;
    const int width = pe_pool_lock(4);
    for (int i = 0; i < 60; i++) {
        wrong += !run_job(width, 8, done_by_main, i % 3 ? NULL : linger);
        pause_us(i % 2 ? 800 : 20);
    }
    pe_pool_unlock();
    CHECK(wrong == 0, "%d jobs went wrong", wrong);
}

static atomic_int by_first;

static void tell_worker(void *ctx, int64_t item, int worker) {
    (void)ctx;
    (void)item;
    if (worker == 1) atomic_fetch_add(&by_first, 1);
    pause_us(3000);
}

// A job narrower than the pool must wake the workers it may have, not others that sleep beside them.
static void check_narrow(void) {
    snprintf(check_where, sizeof check_where, "narrow jobs in a wide pool");
    run_job(pe_pool_lock(16), 64, done_by_main, NULL);
    pe_pool_unlock();
    const int width = pe_pool_lock(2);
    atomic_store(&by_first, 0);
    for (int i = 0; i < 40; i++) {
        pause_us(1000);  // all are asleep
        pe_parallel(width, 2, tell_worker, NULL);
    }
    pe_pool_unlock();
    CHECK(atomic_load(&by_first) >= 10, "of 40 jobs, the one other worker took part in %d", atomic_load(&by_first));
}

static long under_lock;  // plain: the lock alone guards it

static void *contend(void *arg) {
    int8_t done[64];
    int *wrong = arg;
    for (int i = 0; i < 300; i++) {
        const int width = pe_pool_lock(1 + i % 3);
        const long before = ++under_lock;
        *wrong += !run_job(width, 1 + i % 64, done, NULL);
        *wrong += under_lock != before;
        pe_pool_unlock();
    }
    return NULL;
}

static void check_callers(void) {
    snprintf(check_where, sizeof check_where, "two callers");
    pthread_t threads[2];
    int wrong[2] = {0, 0};
    under_lock = 0;
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, contend, &wrong[i])) give_up("no thread");
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    CHECK(wrong[0] == 0 && wrong[1] == 0, "%d and %d jobs went wrong", wrong[0], wrong[1]);
    CHECK(under_lock == 600, "the lock was taken %ld times, not 600", under_lock);
}

#ifndef __SANITIZE_THREAD__  // that sanitizer does not follow threads made after a fork
static atomic_bool hold, held;

static void *hold_pool(void *arg) {
    int8_t *done = arg;
    const int width = pe_pool_lock(3);
    run_job(width, 8, done, NULL);
    atomic_store(&held, true);
    while (atomic_load(&hold)) pause_us(200);
    pe_pool_unlock();
    return NULL;
}

static int in_child(void) {
    int wrong = 0;
    for (int i = 0; i < 50; i++) {
        const int width = pe_pool_lock(1 + i % 4);
        wrong += !run_job(width, 20, done_by_main, NULL);
        pe_pool_unlock();
    }
    return wrong;
}

static void check_fork(bool while_held) {
    snprintf(check_where, sizeof check_where, "fork%s", while_held ? " while another thread has the pool" : "");
    static int8_t done[8];
    pthread_t holder;
    atomic_store(&held, false);
    atomic_store(&hold, true);
    if (while_held) {
        if (pthread_create(&holder, NULL, hold_pool, done)) give_up("no thread");
        while (!atomic_load(&held)) pause_us(200);
    }
    const pid_t child = fork();
    if (child < 0) give_up("no fork");
    if (child == 0) {
        alarm(60);
        _exit(in_child() ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ends with status %#x", (unsigned)status);
    atomic_store(&hold, false);
    if (while_held) pthread_join(holder, NULL);
    CHECK(in_child() == 0, "the parent's own jobs go wrong afterwards");
}
#endif

static pthread_t main_thread;
static volatile sig_atomic_t on_main, elsewhere;

static void note_signal(int number) {
    (void)number;
    if (pthread_equal(pthread_self(), main_thread)) on_main++;
    else elsewhere++;
}

static void check_signals(void) {
    snprintf(check_where, sizeof check_where, "signals");
    main_thread = pthread_self();
    struct sigaction action = {.sa_handler = note_signal}, old;
    sigaction(SIGUSR1, &action, &old);
    const int width = pe_pool_lock(4);
    for (int i = 0; i < 50; i++) {
        kill(getpid(), SIGUSR1);
        run_job(width, 16, done_by_main, NULL);
    }
    pe_pool_unlock();
    sigaction(SIGUSR1, &old, NULL);
    CHECK(on_main > 0 && elsewhere == 0, "%d reached the caller, %d a worker", (int)on_main, (int)elsewhere);
}

int main(int argc, char **argv) {
    alarm(200);
    const int jobs = argc > 1 ? atoi(argv[1]) : 20000;
    check_sizes();
    check_many(jobs);
    check_sleep();
    check_narrow();
    check_callers();
#ifndef __SANITIZE_THREAD__
    check_fork(false);
    check_fork(true);
#endif
    check_signals();
    return checks_done();
}
