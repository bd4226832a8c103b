// Whether this processor runs the set: AVX-512 F, BW, DQ, VL and VNNI.
#ifndef PE_SUPPORTED_H
#define PE_SUPPORTED_H

#include <stdbool.h>

static bool v_supported(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

#endif
