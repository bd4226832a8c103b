// Whether this processor runs the set: NEON is in every 64-bit ARM, the dot products of ARMv8.2 are not.
#ifndef PE_SUPPORTED_H
#define PE_SUPPORTED_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __APPLE__
#include <sys/sysctl.h>

static bool v_supported(void) {
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, NULL, 0) == 0 && has != 0;
}
#else
#include <asm/hwcap.h>
#include <sys/auxv.h>

static bool v_supported(void) { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#endif

#endif
