// How the core reports an error: a status by value and a message in the caller's pe_error.
#ifndef PE_ERROR_H
#define PE_ERROR_H

#include "pyedge.h"

// Fills *err (if not NULL) and returns `code`, so that a failing function can end with `return pe_fail(...)`.
// op: the op at fault, or NULL; the message begins with it. The message is cut to fit; it holds no newline.
pe_status pe_fail(pe_error *err, pe_status code, const char *op, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// The same for a fault of a file: the message begins with its path, of which a long one keeps its end only.
pe_status pe_fail_file(pe_error *err, pe_status code, const char *path, const char *op, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

#endif
