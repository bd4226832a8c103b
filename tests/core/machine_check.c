// The limits that a process reads off its cgroups (machine.c), over made-up files of /proc and /sys/fs/cgroup.
//
//   machine_check FOLDER    made, and filled with one folder per case
//
// Owns what the files look like. The hardware underneath is this machine's own, so limits in the cases are given as parts
// of it: what is beyond it must not show.
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "machine.h"
#include "os.h"

static char root[2048];  // of the case at hand
static pe_os_hardware hw;

// ---- made-up files --------------------------------------------------------------------------------------------------

static void make_folders(char *path) {
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        if (mkdir(path, 0700) != 0 && errno != EEXIST) give_up("%s: %s", path, strerror(errno));
        *slash = '/';
    }
}

// A file under the case's root with that text; no NUL is written.
__attribute__((format(printf, 2, 3))) static void put(const char *path, const char *format, ...) {
    char full[8192];
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full) give_up("%s: too long", path);
    make_folders(full);
    FILE *f = fopen(full, "w");
    if (!f) give_up("%s: %s", full, strerror(errno));
    va_list args;
    va_start(args, format);
    if (vfprintf(f, format, args) < 0) give_up("%s: not written", full);
    va_end(args);
    if (fclose(f) != 0) give_up("%s: %s", full, strerror(errno));
}

static char base[1024];

static void begin(const char *name) {
    snprintf(check_where, sizeof check_where, "%s", name);
    snprintf(root, sizeof root, "%s/%s", base, name);
}

static void mounts_and_cgroups(const char *mounts, const char *cgroups) {
    put("/proc/self/mountinfo", "%s", mounts);
    put("/proc/self/cgroup", "%s", cgroups);
}

#define ROOTFS "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
#define V2 ROOTFS "30 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_CPU "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
#define V1_MEMORY "34 31 0:31 / /sys/fs/cgroup/memory rw,nosuid shared:10 - cgroup cgroup rw,memory\n"
#define V1_OTHER "35 31 0:32 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
#define V1 ROOTFS V1_OTHER V1_CPU V1_MEMORY

// ---- what is expected -----------------------------------------------------------------------------------------------

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

enum { NO_LIMIT = INT32_MAX };

// cpus, memory, available: the limits; NO_LIMIT and UINT64_MAX where there is none. What is available of the hardware's
// memory changes from one look to the next, so a bound above it is only known to be one.
static void expect(int32_t cpus, uint64_t memory, uint64_t available) {
    pe_machine m;
    pe_machine_query_under(root, &m);
    CHECK(m.physical_cores == hw.physical_cores, "%d cores, not %d", m.physical_cores, hw.physical_cores);
    CHECK(m.cpu_limit == smaller(cpus, hw.logical_cpus), "limit of %d processors, not %d", m.cpu_limit,
          smaller(cpus, hw.logical_cpus));
    CHECK(m.default_threads == smaller(smaller(m.cpu_limit, hw.physical_cores), PE_MAX_THREADS),
          "%d threads by default, with a limit of %d and %d cores", m.default_threads, m.cpu_limit, hw.physical_cores);
    CHECK(m.memory_total == least(memory, hw.memory_total), "%llu bytes of memory, not %llu",
          (unsigned long long)m.memory_total, (unsigned long long)least(memory, hw.memory_total));
    if (available == UINT64_MAX)
        CHECK(m.memory_available > 0 && m.memory_available <= m.memory_total, "%llu bytes available",
              (unsigned long long)m.memory_available);
    else
        CHECK(m.memory_available == available, "%llu bytes available, not %llu", (unsigned long long)m.memory_available,
              (unsigned long long)available);
}

static void expect_none(void) { expect(NO_LIMIT, UINT64_MAX, UINT64_MAX); }

// ---- version 2 ------------------------------------------------------------------------------------------------------

static void check_nothing(void) {
    begin("no-files");
    expect_none();
    begin("no-mounts");
    put("/proc/self/cgroup", "0::/\n");
    expect_none();
    begin("empty-files");
    mounts_and_cgroups("", "");
    expect_none();
    begin("no-cgroup-mounted");
    mounts_and_cgroups(ROOTFS, "0::/\n");
    put("/cpu.max", "10000 100000\n");
    expect_none();
    begin("v2-without-limits");
    mounts_and_cgroups(V2, "0::/a\n");
    put("/sys/fs/cgroup/a/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/a/memory.max", "max\n");
    put("/sys/fs/cgroup/a/memory.high", "max\n");
    put("/sys/fs/cgroup/a/memory.current", "1000000\n");
    expect_none();
}

static void check_quotas(void) {
    static const struct {
        const char *name, *quota;
        int32_t cpus;
    } cases[] = {
        {"a-hundredth", "1000 100000\n", 1},    {"half", "50000 100000", 1},
        {"one", "100000 100000\n", 1},          {"a-little-more", "100001 100000\n", 2},
        {"one-and-a-half", "15000 10000\n", 2}, {"two", "200000 100000\n", 2},
        {"two-and-a-bit", "201000 100000", 3},  {"many", "9223372036854775807 1000\n", NO_LIMIT},
        {"nothing", "0 100000\n", NO_LIMIT},    {"no-period", "100000\n", NO_LIMIT},
        {"period-0", "100000 0\n", NO_LIMIT},   {"words", "one two\n", NO_LIMIT},
        {"negative", "-1 100000\n", NO_LIMIT},  {"empty", "", NO_LIMIT},
        {"nan", "nan nan\n", NO_LIMIT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64];
        snprintf(name, sizeof name, "quota-%s", cases[i].name);
        begin(name);
        mounts_and_cgroups(V2, "0::/\n");
        put("/sys/fs/cgroup/cpu.max", "%s", cases[i].quota);
        expect(cases[i].cpus, UINT64_MAX, UINT64_MAX);
    }
}

static void check_memory(void) {
    const uint64_t limit = 64 << 20, used = 48 << 20;  // below what any machine has free that runs this
    const unsigned long long l = limit, u = used;
    begin("memory-max");
    mounts_and_cgroups(V2, "0::/\n");
    put("/sys/fs/cgroup/memory.max", "%llu\n", l);
    put("/sys/fs/cgroup/memory.current", "%llu\n", u);
    expect(NO_LIMIT, limit, limit - used);
    put("/sys/fs/cgroup/memory.stat", "anon 1\nfile 99\nkernel 5\ninactive_file %d\nactive_file %d", 3 << 20, 2 << 20);
    expect(NO_LIMIT, limit, limit - used + (5 << 20));
    put("/sys/fs/cgroup/memory.stat", "inactive_file_x 77\nactive_file\nnot_active_file 7\n");
    expect(NO_LIMIT, limit, limit - used);
    put("/sys/fs/cgroup/memory.stat", "inactive_file %llu\n", 2 * u);  // more than all: read at another moment
    expect(NO_LIMIT, limit, limit);
    begin("memory-overdrawn");
    mounts_and_cgroups(V2, "0::/\n");
    put("/sys/fs/cgroup/memory.max", "%llu\n", l);
    put("/sys/fs/cgroup/memory.current", "%llu\n", l + 4096);
    expect(NO_LIMIT, limit, 0);
    begin("memory-high");
    mounts_and_cgroups(V2, "0::/\n");
    put("/sys/fs/cgroup/memory.max", "max\n");
    put("/sys/fs/cgroup/memory.high", "%llu\n", l);
    put("/sys/fs/cgroup/memory.current", "%llu\n", u);
    expect(NO_LIMIT, limit, limit - used);
    put("/sys/fs/cgroup/memory.max", "%llu\n", l / 2);
    put("/sys/fs/cgroup/memory.current", "4096\n");
    expect(NO_LIMIT, limit / 2, limit / 2 - 4096);
    begin("memory-beyond-the-machine");
    mounts_and_cgroups(V2, "0::/\n");
    put("/sys/fs/cgroup/memory.max", "9000000000000000000\n");
    put("/sys/fs/cgroup/memory.current", "%llu\n", u);
    expect_none();
    begin("memory-usage-unknown");
    mounts_and_cgroups(V2, "0::/\n");
    put("/sys/fs/cgroup/memory.max", "%llu\n", l);
    expect(NO_LIMIT, limit, UINT64_MAX);
}

static void check_levels(void) {
    begin("levels");  // the tightest counts, wherever it stands
    mounts_and_cgroups(V2, "0::/user.slice/user@1000.service/app.scope\n");
    put("/sys/fs/cgroup/user.slice/cpu.max", "100000 100000\n");
    put("/sys/fs/cgroup/user.slice/user@1000.service/app.scope/cpu.max", "200000 100000\n");
    put("/sys/fs/cgroup/user.slice/user@1000.service/memory.max", "%d\n", 32 << 20);
    put("/sys/fs/cgroup/user.slice/user@1000.service/memory.current", "4096\n");
    put("/sys/fs/cgroup/user.slice/memory.max", "%d\n", 64 << 20);
    put("/sys/fs/cgroup/user.slice/memory.current", "%d\n", 60 << 20);  // nearer to its limit than the level below
    put("/sys/fs/cgroup/memory.max", "%d\n", 128 << 20);
    put("/sys/fs/cgroup/memory.current", "4096\n");
    put("/sys/fs/cgroup/user.slice/other.scope/cpu.max", "1000 100000\n");
    put("/sys/fs/cgroup/user.slice/other.scope/memory.max", "4096\n");
    put("/sys/fs/memory.max", "4096\n");  // above the mount
    expect(1, 32 << 20, 4 << 20);
    begin("levels-at-the-mount");
    mounts_and_cgroups(V2, "0::/a/b\n");
    put("/sys/fs/cgroup/cpu.max", "100000 100000\n");
    expect(1, UINT64_MAX, UINT64_MAX);
    begin("levels-outside");  // what the kernel shows of a process that was moved out of its namespace
    mounts_and_cgroups(V2, "0::/../other\n");
    put("/sys/fs/cgroup/cpu.max", "100000 100000\n");
    put("/sys/fs/other/cpu.max", "1000 100000\n");
    put("/sys/fs/other/memory.max", "4096\n");
    expect(1, UINT64_MAX, UINT64_MAX);
    begin("levels-in-a-container");  // which mounts its own cgroup, and may see the host's path
    mounts_and_cgroups(ROOTFS "30 24 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "0::/docker/abc/x\n");
    put("/sys/fs/cgroup/x/cpu.max", "100000 100000\n");
    put("/sys/fs/cgroup/memory.max", "%d\n", 32 << 20);
    expect(1, 32 << 20, UINT64_MAX);
    put("/proc/self/cgroup", "0::/docker/abcdef\n");  // not below it: another one's name begins alike
    put("/sys/fs/cgroup/def/cpu.max", "1000 100000\n");
    put("/sys/fs/cgroup/x/cpu.max", "max 100000\n");
    expect(NO_LIMIT, 32 << 20, UINT64_MAX);
    put("/proc/self/cgroup", "0::/docker/abc\n");
    put("/sys/fs/cgroup/cpu.max", "100000 100000\n");
    expect(1, 32 << 20, UINT64_MAX);
}

// ---- version 1, and both --------------------------------------------------------------------------------------------

#define CGROUPS_V1(path) \
    "12:cpuset:/\n5:memory:" path "\n4:cpu,cpuacct:" path "\n1:name=systemd:" path "\n0::" path "\n"

static void check_v1(void) {
    begin("v1");
    mounts_and_cgroups(V1, CGROUPS_V1("/a/b"));
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpuset/a/b/cpu.cfs_quota_us", "1\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "123456789\n");
    put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "%d\n", 64 << 20);
    put("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "%d\n", 48 << 20);
    put("/sys/fs/cgroup/memory/a/b/memory.stat",
        "inactive_file 9\nactive_file 9\ntotal_inactive_file %d\n"
        "total_active_file %d\n",
        3 << 20, 1 << 20);  // those of the levels below count
    expect(1, 64 << 20, 20 << 20);
    begin("v1-without-limits");
    mounts_and_cgroups(V1, CGROUPS_V1("/"));
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "123456789\n");
    expect_none();
    begin("v1-rounds-up");
    mounts_and_cgroups(V1, CGROUPS_V1("/"));
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "110000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    expect(2, UINT64_MAX, UINT64_MAX);
    begin("v1-period-0");
    mounts_and_cgroups(V1, CGROUPS_V1("/"));
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "110000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "0\n");
    expect_none();
    begin("v1-in-a-container");
    mounts_and_cgroups(ROOTFS "33 31 0:30 /docker/abc /sys/fs/cgroup/cpu ro master:9 - cgroup cpu rw,cpu\n",
                       CGROUPS_V1("/docker/abc"));
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    expect(1, UINT64_MAX, UINT64_MAX);
    begin("both-versions");  // the memory of one, the processors of the other
    mounts_and_cgroups(ROOTFS V1_MEMORY "36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
                       "5:memory:/m\n0::/u\n");
    put("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "%d\n", 64 << 20);
    put("/sys/fs/cgroup/unified/u/cpu.max", "100000 100000\n");
    put("/sys/fs/cgroup/unified/u/memory.max", "%d\n", 32 << 20);
    expect(1, 32 << 20, UINT64_MAX);
}

// ---- files that nobody should have ----------------------------------------------------------------------------------

static void check_oddities(void) {
    static const char *const mounts[] = {
        "\n\n\n",
        "30\n",
        "30 24 0:26 /",
        "30 24 0:26 / /sys/fs/cgroup rw - ",
        "30 24 0:26 / /sys/fs/cgroup rw cgroup2\n",
        "- - - - - - -\n",
        "30 24 0:26 / /sys/fs/cgroup rw - cgroup2\n",
    };
    static const char *const cgroups[] = {"\n\n", ":", "::", "0:", "0::", "0:cpu\n", ":::::::::\n", "0::no-slash\n"};
    const int n_mounts = (int)(sizeof mounts / sizeof *mounts), n_cgroups = (int)(sizeof cgroups / sizeof *cgroups);
    for (int i = 0; i <= n_mounts; i++) {
        for (int j = 0; j <= n_cgroups; j++) {
            if (i == n_mounts && j == n_cgroups) break;  // both are sound
            char name[64];
            snprintf(name, sizeof name, "odd-%d-%d", i, j);
            begin(name);
            mounts_and_cgroups(i < n_mounts ? mounts[i] : V2, j < n_cgroups ? cgroups[j] : "0::/a\n");
            put("/sys/fs/cgroup/a/cpu.max", "1000 100000\n");
            expect_none();
        }
    }
    begin("odd-line-first");  // it must not take its type from the next one
    mounts_and_cgroups("29 24 0:26 / /wrong rw\n30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/a\n");
    put("/sys/fs/cgroup/a/cpu.max", "100000 100000\n");
    expect(1, UINT64_MAX, UINT64_MAX);
    char *path = take(20000);
    memset(path, 'x', 19999);
    path[0] = '/';
    path[19999] = '\0';
    static const int lengths[] = {4000, 4080, 4094, 4095, 4096, 4097, 8191, 8192, 19999};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char name[64];
        snprintf(name, sizeof name, "long-%d", lengths[i]);
        begin(name);
        put("/proc/self/mountinfo", "%s", V2);
        put("/proc/self/cgroup", "0::%.*s\n", lengths[i], path);
        expect_none();
        put("/proc/self/mountinfo", "30 24 0:26 %.*s %.*s rw - cgroup2 cgroup2 rw\n", lengths[i], path, lengths[i],
            path);
        expect_none();
        put("/proc/self/mountinfo", "30 24 0:26 / /m rw - cgroup cgroup rw,%.*s,cpu\n", lengths[i], path);
        put("/proc/self/cgroup", "4:%.*s,cpu:/\n", lengths[i], path);
        expect_none();
    }
    give_all_back();
}

int main(int argc, char **argv) {
    if (argc != 2) give_up("usage: machine_check FOLDER");
    if (snprintf(base, sizeof base, "%s", argv[1]) >= (int)sizeof base) give_up("%s: too long", argv[1]);
    pe_os_query(&hw);
    if (hw.memory_total == 0) hw.memory_total = UINT64_MAX;
    check_nothing();
    check_quotas();
    check_memory();
    check_levels();
    check_v1();
    check_oddities();
    return checks_done();
}
