// Owns every system call of the core, for Linux and macOS. Does not own policy: limits of cgroups are read in
// machine.c, when to sleep is decided by the thread pool.
#if defined(_WIN32)
#error "pyedge does not run on Windows yet"
#elif !defined(__linux__) && !defined(__APPLE__)
#error "pyedge runs on Linux and macOS only"
#endif

#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#else
#include <mach/mach.h>
#include <pthread.h>
#include <sys/sysctl.h>
#endif

// ---- files ----------------------------------------------------------------------------------------------------------

// strerror_r has two incompatible signatures and strerror may share its buffer, so the likely reasons are told here,
// each with what to do.
static pe_status fail_errno(pe_error *err, const char *path, int code) {
    const char *why = NULL;
    switch (code) {
    case ENOENT: why = "no such file; check the path"; break;
    case ENOTDIR: why = "a part of this path is not a folder; check the path"; break;
    case EACCES:
    case EPERM: why = "no permission to read this file; check its owner and mode"; break;
    case ENAMETOOLONG: why = "the path is too long; check the path"; break;
    case ELOOP: why = "too many symbolic links; check the path"; break;
    case ENXIO:
    case ENODEV: why = "not a regular file; give the path of a .gguf file"; break;
    case EMFILE:
    case ENFILE: why = "too many open files; close some, or raise the limit (ulimit -n)"; break;
    case EIO: why = "the disk reports a read error; check the disk, or copy the file again"; break;
    case ENOMEM: return pe_fail_file(err, PE_ERR_MEMORY, path, NULL, "no memory left to read this file");
    default: return pe_fail_file(err, PE_ERR_FILE, path, NULL, "cannot be read (system error %d)", code);
    }
    return pe_fail_file(err, PE_ERR_FILE, path, NULL, "%s", why);
}

static pe_status measure(int fd, const char *path, uint64_t *size, pe_error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0) return fail_errno(err, path, errno);
    if (S_ISDIR(st.st_mode))
        return pe_fail_file(err, PE_ERR_FILE, path, NULL,
                            "this is a folder; give the path of the .gguf file inside it");
    if (!S_ISREG(st.st_mode)) return fail_errno(err, path, ENODEV);
    if (st.st_size <= 0)
        return pe_fail_file(err, PE_ERR_FILE, path, NULL,
                            "the file is empty; the download may have failed, pull it again");
    if ((uintmax_t)st.st_size > SIZE_MAX / 2)
        return pe_fail_file(err, PE_ERR_FILE, path, NULL, "the file is too large for this machine");
    *size = (uint64_t)st.st_size;
    return PE_OK;
}

pe_status pe_os_open(const char *path, pe_file *out, pe_error *err) {
    *out = (pe_file){.fd = -1};
    // O_NONBLOCK: opening a FIFO that nobody writes to must not wait for ever.
    do out->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    while (out->fd < 0 && errno == EINTR);
    if (out->fd < 0) return fail_errno(err, path, errno);
    const pe_status status = measure(out->fd, path, &out->size, err);
    if (status) pe_os_close(out);
    return status;
}

void pe_os_close(pe_file *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

pe_status pe_os_read(const pe_file *f, const char *path, uint64_t offset, void *out, size_t n, pe_error *err) {
    enum { AT_ONCE = 1 << 30 };  // macOS refuses more than INT_MAX
    for (size_t done = 0; done < n;) {
        const size_t rest = n - done;
        const ssize_t got =
            pread(f->fd, (uint8_t *)out + done, rest < AT_ONCE ? rest : AT_ONCE, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno(err, path, errno);
        if (got == 0)
            return pe_fail_file(err, PE_ERR_FILE, path, NULL,
                                "the file became shorter while it was read; another process is changing it, try again "
                                "when that is done");
        done += (size_t)got;
    }
    return PE_OK;
}

bool pe_os_exists(const char *path) { return access(path, F_OK) == 0; }

char *pe_os_read_text(const char *path) {
    enum { LIMIT = 1 << 20 };
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return NULL;
    size_t len = 0, capacity = 4096;
    char *text = malloc(capacity);
    while (text) {
        ssize_t got = read(fd, text + len, capacity - len - 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        len += (size_t)got;
        if (capacity - len > 1) continue;
        if (capacity >= LIMIT) break;
        capacity *= 2;
        char *larger = realloc(text, capacity);
        if (!larger) free(text);
        text = larger;
    }
    close(fd);
    if (text) text[len] = '\0';
    return text;
}

// ---- time ------------------------------------------------------------------------------------------------------------

int64_t pe_os_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int32_t pe_os_processor(void) {
#ifdef __linux__
    return (int32_t)sched_getcpu();  // -1 on failure
#else
    return -1;
#endif
}

// ---- memory ---------------------------------------------------------------------------------------------------------

#ifdef __SANITIZE_ADDRESS__  // which sees the ends of heap blocks, and not those of mappings
void *pe_os_alloc(size_t bytes) {
    void *p;
    return posix_memalign(&p, 4096, bytes ? bytes : 1) ? NULL : memset(p, 0, bytes);
}

void *pe_os_alloc_huge(size_t bytes) { return pe_os_alloc(bytes); }

void pe_os_free(void *p, size_t bytes) {
    (void)bytes;
    free(p);
}
#else
void *pe_os_alloc(size_t bytes) {
    if (bytes == 0) bytes = 1;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void *pe_os_alloc_huge(size_t bytes) {
#ifdef __linux__
    const size_t huge = (size_t)2 << 20;  // of x86-64, and of ARM with pages of 4 KiB
    if (bytes < huge) return pe_os_alloc(bytes);
    // Huge pages begin at multiples of their size: what stands before the first one, and behind the end, is given back.
    uint8_t *p = pe_os_alloc(bytes + huge);
    if (!p) return NULL;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    const size_t before = (huge - (uintptr_t)p % huge) % huge, behind = huge - before;
    if (before) munmap(p, before);
    p += before;
    if (behind) munmap(p + whole, behind);
    madvise(p, whole, MADV_HUGEPAGE);  // refused where the kernel has none: then they are small
    return p;
#else
    return pe_os_alloc(bytes);
#endif
}

void pe_os_free(void *p, size_t bytes) {
    if (p) munmap(p, bytes ? bytes : 1);
}
#endif

// ---- processors and memory of the machine ---------------------------------------------------------------------------

#ifdef __linux__

// The number of the first hardware thread of cpu's core, which stands for the core; cpu itself if the kernel tells
// none.
static long first_sibling(long cpu) {
    static const char *const files[] = {"core_cpus_list", "thread_siblings_list"};  // new name, old name
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[96];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%ld/topology/%s", cpu, files[i]);
        char *text = pe_os_read_text(path);
        if (!text) continue;
        char *end;
        long first = strtol(text, &end, 10);
        bool found = end != text && first >= 0;
        free(text);
        if (found) return first;
    }
    return cpu;
}

static void query_processors(pe_os_hardware *out) {
    // The kernel refuses a mask smaller than its own, so the mask grows until it fits.
    for (int n = 1024; n <= 1 << 20; n *= 4) {
        cpu_set_t *allowed = CPU_ALLOC(n), *cores = CPU_ALLOC(n);
        size_t bytes = CPU_ALLOC_SIZE(n);
        bool done = !allowed || !cores;
        if (!done && sched_getaffinity(0, bytes, allowed) == 0) {
            CPU_ZERO_S(bytes, cores);
            for (int cpu = 0; cpu < n; cpu++) {
                if (!CPU_ISSET_S(cpu, bytes, allowed)) continue;
                long core = first_sibling(cpu);
                if (core < n) CPU_SET_S(core, bytes, cores);
            }
            out->logical_cpus = CPU_COUNT_S(bytes, allowed);
            out->physical_cores = CPU_COUNT_S(bytes, cores);
            done = true;
        } else if (!done) {
            done = errno != EINVAL;
        }
        CPU_FREE(allowed);
        CPU_FREE(cores);
        if (done) return;
    }
}

static uint64_t meminfo(const char *text, const char *label) {
    const char *line = strstr(text, label);
    return line ? strtoull(line + strlen(label), NULL, 10) * 1024 : 0;
}

// What `ulimit -v` leaves of addresses, of which a mapping takes its whole size, used or not.
static uint64_t address_space_left(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
    char *text = pe_os_read_text("/proc/self/statm");
    const uint64_t taken = text ? strtoull(text, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
    free(text);
    return limit.rlim_cur > taken ? limit.rlim_cur - taken : 1;  // 0 would be "not known"
}

static void query_memory(pe_os_hardware *out) {
    char *text = pe_os_read_text("/proc/meminfo");
    if (!text) return;
    out->memory_total = meminfo(text, "MemTotal:");
    out->memory_available = meminfo(text, "MemAvailable:");
    if (!out->memory_available) out->memory_available = meminfo(text, "MemFree:") + meminfo(text, "\nCached:");
    free(text);
    const uint64_t left = address_space_left();
    if (left < out->memory_available) out->memory_available = left;
}

#else  // macOS

static int64_t sysctl_number(const char *name) {
    int64_t value = 0;
    size_t size = sizeof value;
    if (sysctlbyname(name, &value, &size, NULL, 0) != 0) return 0;
    if (size == sizeof(int32_t)) {  // some are 32 bits wide
        int32_t narrow;
        memcpy(&narrow, &value, sizeof narrow);
        return narrow;
    }
    return value;
}

static void query_processors(pe_os_hardware *out) {
    out->logical_cpus = (int32_t)sysctl_number("hw.logicalcpu");
    out->physical_cores = (int32_t)sysctl_number("hw.physicalcpu");
}

static void query_memory(pe_os_hardware *out) {
    out->memory_total = (uint64_t)sysctl_number("hw.memsize");
    vm_statistics64_data_t vm;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&vm, &count) != KERN_SUCCESS) return;
    uint64_t pages = (uint64_t)vm.free_count + vm.inactive_count + vm.purgeable_count;
    out->memory_available = pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

#endif

void pe_os_query(pe_os_hardware *out) {
    *out = (pe_os_hardware){0};
    query_processors(out);
    query_memory(out);
    if (out->logical_cpus < 1) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        out->logical_cpus = online > 0 ? (int32_t)online : 1;
    }
    if (out->physical_cores < 1 || out->physical_cores > out->logical_cpus) out->physical_cores = out->logical_cpus;
}

// ---- sleeping and waking --------------------------------------------------------------------------------------------

#ifdef __linux__

_Static_assert(sizeof(_Atomic uint32_t) == 4, "a futex is 4 bytes");

void pe_os_wait(_Atomic uint32_t *word, uint32_t expected) {
    syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

void pe_os_wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

#else

// A small table of condition variables, shared by the words that hash to them. A waker always wakes all sleepers of its
// slot: words that share one see a spurious wake-up, which pe_os_wait allows.
enum { SLOTS = 16 };
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
} slots[SLOTS];
static pthread_once_t slots_once = PTHREAD_ONCE_INIT;

static void make_slots(void) {
    for (int i = 0; i < SLOTS; i++) {
        pthread_mutex_init(&slots[i].lock, NULL);
        pthread_cond_init(&slots[i].changed, NULL);
    }
}

// A child of fork has none of the parent's sleepers, and a lock may have been held: it starts afresh.
static void make_slots_and_watch_fork(void) {
    make_slots();
    pthread_atfork(NULL, NULL, make_slots);
}

static size_t slot_of(_Atomic uint32_t *word) {
    pthread_once(&slots_once, make_slots_and_watch_fork);
    return ((uintptr_t)word >> 6) % SLOTS;  // words that matter have a cache line of their own
}

void pe_os_wait(_Atomic uint32_t *word, uint32_t expected) {
    size_t i = slot_of(word);
    pthread_mutex_lock(&slots[i].lock);
    // The waker changes the word before it takes the lock, so a change is seen here or wakes us.
    if (atomic_load(word) == expected) pthread_cond_wait(&slots[i].changed, &slots[i].lock);
    pthread_mutex_unlock(&slots[i].lock);
}

void pe_os_wake(_Atomic uint32_t *word, int n) {
    (void)n;
    size_t i = slot_of(word);
    pthread_mutex_lock(&slots[i].lock);
    pthread_cond_broadcast(&slots[i].changed);
    pthread_mutex_unlock(&slots[i].lock);
}

#endif
