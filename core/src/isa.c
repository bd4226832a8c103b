// Which instruction sets this build has, and which one runs here. A model keeps the set it was packed for.
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

// Worst first: the last supported one wins.
extern const pe_kernels pe_kernels_scalar;
#ifdef PE_HAVE_AVX2
extern const pe_kernels pe_kernels_avx2;
#endif
#ifdef PE_HAVE_AVXVNNI
extern const pe_kernels pe_kernels_avxvnni;
#endif
#ifdef PE_HAVE_AVX512
extern const pe_kernels pe_kernels_avx512;
#endif
#ifdef PE_HAVE_AMX
extern const pe_kernels pe_kernels_amx;
#endif
#ifdef PE_HAVE_NEON
extern const pe_kernels pe_kernels_neon;
#endif

static const pe_kernels *const sets[] = {
    &pe_kernels_scalar,
#ifdef PE_HAVE_AVX2
    &pe_kernels_avx2,
#endif
#ifdef PE_HAVE_AVXVNNI
    &pe_kernels_avxvnni,
#endif
#ifdef PE_HAVE_AVX512
    &pe_kernels_avx512,
#endif
#ifdef PE_HAVE_AMX
    &pe_kernels_amx,
#endif
#ifdef PE_HAVE_NEON
    &pe_kernels_neon,
#endif
};
enum { N_SETS = sizeof sets / sizeof sets[0] };

int32_t pe_isa_count(void) { return N_SETS; }

const char *pe_isa_name(int32_t i, bool *supported) {
    if (supported) *supported = sets[i]->supported();
    return sets[i]->name;
}

const pe_kernels *pe_kernels_active(pe_error *err) {
    const char *forced = getenv("PYEDGE_ISA");
    if (forced && *forced) {
        for (int i = 0; i < N_SETS; i++)
            if (strcmp(sets[i]->name, forced) == 0) {
                if (sets[i]->supported()) return sets[i];
                pe_fail(err, PE_ERR_UNSUPPORTED, NULL,
                        "PYEDGE_ISA=%s: this processor does not run it; unset it, or take another", forced);
                return NULL;
            }
        pe_fail(err, PE_ERR_ARGUMENT, NULL,
                "PYEDGE_ISA=%.40s: this build has no such instruction set; unset it, or take another", forced);
        return NULL;
    }
    int best = N_SETS - 1;
    while (!sets[best]->supported()) best--;  // scalar always is
    return sets[best];
}

pe_status pe_isa_active(const char **name, pe_error *err) {
    pe_error local;
    const pe_kernels *k = pe_kernels_active(err ? err : &local);
    if (!k) return err ? err->code : local.code;
    *name = k->name;
    return PE_OK;
}
