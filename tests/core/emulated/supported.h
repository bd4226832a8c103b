// In place of a set's own supported.h where its instructions are emulated: every processor runs it.
#ifndef PE_SUPPORTED_H
#define PE_SUPPORTED_H

#include <stdbool.h>

static bool v_supported(void) { return true; }

#endif
