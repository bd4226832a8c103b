// Owns what this process may use: the machine's processors and memory (os.c) cut down to its cgroups' limits.
//
// A process is in one cgroup per hierarchy (/proc/self/cgroup); a hierarchy is mounted somewhere
// (/proc/self/mountinfo); a limit may stand at any level above, so each level up to the mount point is read and the
// tightest limit counts. Both versions are read, since machines run them side by side. Where there is no such file,
// there is no limit.
#include "machine.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os.h"

enum { PATH_BYTES = 4096 };

typedef struct limits {
    double cpus;         // quota / period; INT_MAX: unlimited
    uint64_t memory;     // bytes
    uint64_t available;  // bytes left under the tightest limit; page cache counts as free, for it is given up on demand
} limits;

// ---- files of one cgroup --------------------------------------------------------------------------------------------

static char *read_in(const char *folder, const char *file) {
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return pe_os_read_text(path);
}

// A file with one number in it; UINT64_MAX when absent, "max" or -1.
static uint64_t read_number(const char *folder, const char *file) {
    char *text = read_in(folder, file);
    uint64_t value = UINT64_MAX;
    if (text && text[0] >= '0' && text[0] <= '9') value = strtoull(text, NULL, 10);
    free(text);
    return value;
}

// The number after `label` and a space at the start of a line; 0 when absent.
static uint64_t field(const char *text, const char *label) {
    size_t len = strlen(label);
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        if (strncmp(line, label, len) == 0 && line[len] == ' ') return strtoull(line + len, NULL, 10);
    return 0;
}

static void apply_cpu(limits *l, double quota, double period) {
    if (quota > 0 && period > 0 && quota / period < l->cpus) l->cpus = quota / period;
}

static void apply_memory(limits *l, const char *folder, uint64_t limit, const char *usage_file,
                         const char *file_labels[2]) {
    if (limit < l->memory) l->memory = limit;
    if (limit == UINT64_MAX) return;
    uint64_t used = read_number(folder, usage_file);
    if (used == UINT64_MAX) return;
    char *stat = read_in(folder, "memory.stat");
    uint64_t cache = stat ? field(stat, file_labels[0]) + field(stat, file_labels[1]) : 0;
    free(stat);
    used = used > cache ? used - cache : 0;
    uint64_t left = limit > used ? limit - used : 0;
    if (left < l->available) l->available = left;
}

static void read_v2(const char *folder, limits *l) {
    char *text = read_in(folder, "cpu.max");  // "200000 100000" or "max 100000"
    double quota, period;
    if (text && sscanf(text, "%lf %lf", &quota, &period) == 2) apply_cpu(l, quota, period);
    free(text);
    const char *cache[2] = {"inactive_file", "active_file"};
    // Above memory.high the kernel reclaims without end, which is as bad as a refusal.
    uint64_t hard = read_number(folder, "memory.max"), soft = read_number(folder, "memory.high");
    apply_memory(l, folder, hard < soft ? hard : soft, "memory.current", cache);
}

static void read_v1_cpu(const char *folder, limits *l) {
    uint64_t quota = read_number(folder, "cpu.cfs_quota_us"), period = read_number(folder, "cpu.cfs_period_us");
    if (quota != UINT64_MAX && period != UINT64_MAX) apply_cpu(l, (double)quota, (double)period);
}

static void read_v1_memory(const char *folder, limits *l) {
    uint64_t limit = read_number(folder, "memory.limit_in_bytes");
    if (limit >= (uint64_t)INT64_MAX / 2) limit = UINT64_MAX;  // "no limit" is a number near 2^63, rounded to pages
    const char *cache[2] = {"total_inactive_file", "total_active_file"};
    apply_memory(l, folder, limit, "memory.usage_in_bytes", cache);
}

// ---- hierarchies ----------------------------------------------------------------------------------------------------

// Whether `word` is one of the comma-separated words of list[0 .. len).
static bool has_word(const char *list, size_t len, const char *word) {
    size_t n = strlen(word);
    for (const char *p = list, *end = list + len; p < end;) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        size_t here = (size_t)((comma ? comma : end) - p);
        if (here == n && memcmp(p, word, n) == 0) return true;
        p += here + 1;
    }
    return false;
}

// This process's path in the hierarchy of a v1 controller, or of v2 when controller is "". Lines: "4:cpu,cpuacct:/a/b".
static bool cgroup_path(const char *cgroups, const char *controller, char out[PATH_BYTES]) {
    for (const char *line = cgroups; line && *line;) {
        const char *end = line + strcspn(line, "\n"), *list = memchr(line, ':', (size_t)(end - line));
        const char *path = list ? memchr(list + 1, ':', (size_t)(end - list - 1)) : NULL;
        if (path) {
            size_t list_len = (size_t)(path - list - 1), len = (size_t)(end - path - 1);
            bool ours = *controller ? has_word(list + 1, list_len, controller) : list_len == 0;
            if (ours && len < PATH_BYTES) {
                memcpy(out, path + 1, len);
                out[len] = '\0';
                return true;
            }
        }
        line = *end ? end + 1 : NULL;
    }
    return false;
}

typedef struct mount {
    char root[PATH_BYTES];   // the part of the hierarchy that is mounted: "/", or a container's own cgroup
    char point[PATH_BYTES];  // where
} mount;

// Lines: "33 31 0:30 /root /point options - type source super,options".
static bool find_mount(const char *mounts, const char *controller, mount *out) {
    for (const char *line = mounts; line && *line;) {
        size_t len = strcspn(line, "\n");
        char type[16], super[512];
        int at = 0;
        if (sscanf(line, "%*s %*s %*s %4095s %4095s%n", out->root, out->point, &at) == 2 && at > 0) {
            const char *dash = strstr(line + at, " - ");
            if (dash && dash < line + len && sscanf(dash + 3, "%15s %*s %511s", type, super) == 2) {
                bool ours = *controller ? strcmp(type, "cgroup") == 0 && has_word(super, strlen(super), controller)
                                        : strcmp(type, "cgroup2") == 0;
                if (ours) return true;
            }
        }
        line = line[len] ? line + len + 1 : NULL;
    }
    return false;
}

// Reads every level from this process's cgroup up to the mount point.
static void read_hierarchy(const char *root, const char *cgroups, const char *mounts, const char *controller,
                           void (*read)(const char *folder, limits *l), limits *l) {
    char path[PATH_BYTES], folder[2 * PATH_BYTES];
    mount m;
    if (!cgroup_path(cgroups, controller, path) || !find_mount(mounts, controller, &m)) return;
    // Without a cgroup namespace a container sees the host's path, of which only the end lies below its mount.
    const char *below = path;
    size_t n = strlen(m.root);
    if (strcmp(m.root, "/") != 0 && strncmp(path, m.root, n) == 0 && (path[n] == '/' || path[n] == '\0'))
        below = path + n;
    if (strstr(below, "/..")) below = "";  // outside of what this process can see
    int base = snprintf(folder, sizeof folder, "%s%s", root, m.point);
    int len = snprintf(folder, sizeof folder, "%s%s%s", root, m.point, strcmp(below, "/") == 0 ? "" : below);
    if (base < 0 || len < base || len >= PATH_BYTES) return;
    for (;;) {
        read(folder, l);
        char *slash = strrchr(folder + base, '/');
        if (!slash) return;
        *slash = '\0';
    }
}

// ---- the answer -----------------------------------------------------------------------------------------------------

void pe_machine_query_under(const char *root, pe_machine *out) {
    pe_os_hardware hw;
    pe_os_query(&hw);
    limits l = {.cpus = INT_MAX, .memory = UINT64_MAX, .available = UINT64_MAX};
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self", root);
    char *cgroups = read_in(path, "cgroup"), *mounts = read_in(path, "mountinfo");
    if (cgroups && mounts) {
        read_hierarchy(root, cgroups, mounts, "", read_v2, &l);
        read_hierarchy(root, cgroups, mounts, "cpu", read_v1_cpu, &l);
        read_hierarchy(root, cgroups, mounts, "memory", read_v1_memory, &l);
    }
    free(cgroups);
    free(mounts);

    int32_t quota = (int32_t)l.cpus;
    if (quota < l.cpus) quota++;  // 1.5 processors keep two threads busy most of the time
    out->physical_cores = hw.physical_cores;
    out->cpu_limit = quota < hw.logical_cpus ? quota : hw.logical_cpus;
    out->default_threads = out->cpu_limit < out->physical_cores ? out->cpu_limit : out->physical_cores;
    if (out->default_threads > PE_MAX_THREADS) out->default_threads = PE_MAX_THREADS;
    if (hw.memory_total == 0) hw.memory_total = UINT64_MAX;  // not known: no reason to refuse anything
    if (hw.memory_available == 0) hw.memory_available = UINT64_MAX;
    out->memory_total = l.memory < hw.memory_total ? l.memory : hw.memory_total;
    out->memory_available = l.available < hw.memory_available ? l.available : hw.memory_available;
    // A limit without a readable usage is still a limit.
    if (out->memory_available > out->memory_total) out->memory_available = out->memory_total;
}

void pe_machine_query(pe_machine *out) { pe_machine_query_under("", out); }

int32_t pe_abi_version(void) { return PE_ABI_VERSION; }
