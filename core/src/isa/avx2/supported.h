// Whether this processor runs the set: AVX2, FMA and F16C.
#ifndef PE_SUPPORTED_H
#define PE_SUPPORTED_H

#include <cpuid.h>
#include <stdbool.h>

static bool v_supported(void) {
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
           (c & bit_F16C) != 0;  // clang 14 knows no __builtin_cpu_supports("f16c")
}

#endif
