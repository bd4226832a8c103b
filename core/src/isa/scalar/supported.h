// Whether this processor runs the set: all do.
#ifndef PE_SUPPORTED_H
#define PE_SUPPORTED_H

#include <stdbool.h>

static bool v_supported(void) { return true; }

#endif
