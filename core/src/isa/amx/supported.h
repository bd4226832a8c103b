// Whether this processor runs the set: what AVX-512's needs, tiles of int8, and an operating system that lets a process
// have them, which Linux must be asked for.
#ifndef PE_SUPPORTED_H
#define PE_SUPPORTED_H

#include <cpuid.h>
#include <stdbool.h>

#ifdef __linux__
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool v_may_use_tiles(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };  // ARCH_REQ_XCOMP_PERM of arch_prctl(2)
    enum { UNKNOWN, NO, YES };
    static _Atomic int answer;  // for all threads, and for good: asked again later, the kernel may think otherwise
    if (atomic_load(&answer) == UNKNOWN) {
        int unknown = UNKNOWN;
        const int found = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 ? YES : NO;
        atomic_compare_exchange_strong(&answer, &unknown, found);
    }
    return atomic_load(&answer) == YES;
}
#else
static bool v_may_use_tiles(void) { return false; }
#endif

static bool v_supported(void) {
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512vnni"))
        return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    return (d >> 24 & 1) != 0 && (d >> 25 & 1) != 0 && v_may_use_tiles();  // AMX-TILE, AMX-INT8
}

#endif
