// The libFuzzer target, of one kind of input: -DKIND=fuzz_whole, fuzz_split or fuzz_plan. `run.py` builds and runs it.
#include "inputs.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    (void)fuzz_whole;
    (void)fuzz_split;
    (void)fuzz_plan;
    KIND(bytes, n);
    if (checks_failed) __builtin_trap();
    return 0;
}
