// Owns how a failure becomes a pe_error. Does not own any message: each is written where the fault is seen.
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// Drops the last UTF-8 character when snprintf cut it in the middle.
static void drop_partial_character(char *text, size_t len) {
    size_t start = len;
    while (start > 0 && len - start < 3 && ((uint8_t)text[start - 1] & 0xC0) == 0x80) start--;
    if (start == 0) return;
    uint8_t lead = (uint8_t)text[start - 1];
    size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (want > len - start + 1) text[start - 1] = '\0';
}

pe_status pe_fail(pe_error *err, pe_status code, const char *op, const char *format, ...) {
    if (!err) return code;
    err->code = code;
    snprintf(err->op, sizeof err->op, "%s", op ? op : "");
    va_list args;
    va_start(args, format);
    int written = vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    if (written < 0) err->message[0] = '\0';
    if (written >= (int)sizeof err->message) drop_partial_character(err->message, strlen(err->message));
    // One line, and nothing that drives a terminal: a path or a name may hold anything.
    for (char *c = err->message; *c; c++)
        if ((uint8_t)*c < 0x20 || *c == 0x7F) *c = '?';
    return code;
}

pe_status pe_fail_file(pe_error *err, pe_status code, const char *path, const char *format, ...) {
    enum { SHOWN = 200 };  // leaves room for the reason
    char reason[sizeof err->message];
    va_list args;
    va_start(args, format);
    if (vsnprintf(reason, sizeof reason, format, args) < 0) reason[0] = '\0';
    va_end(args);
    size_t len = strlen(path);
    const char *tail = len > SHOWN ? path + len - SHOWN : path;
    while (tail > path && ((uint8_t)*tail & 0xC0) == 0x80) tail++;
    return pe_fail(err, code, NULL, "%s%s: %s", tail > path ? "..." : "", tail, reason);
}
