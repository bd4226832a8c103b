// Whether this processor runs the set: what AVX2's needs, and AVX-VNNI.
#ifndef PE_SUPPORTED_H
#define PE_SUPPORTED_H

#include <cpuid.h>
#include <stdbool.h>

static bool v_supported(void) {
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_F16C) == 0) return false;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1) != 0;  // not every compiler names this bit
}

#endif
