// Everything but products of many tokens is AVX-512's: see slice.h.
#include "../avx512/dot.h"
