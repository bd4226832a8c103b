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

// Fills err with "WHERE: OP: REASON", of which WHERE and OP may be absent.
static pe_status fail(pe_error *err, pe_status code, const char *where, const char *op, const char *format,
                      va_list args) {
    enum { SHOWN = 200 };  // of a path: leaves room for the reason
    if (!err) return code;
    err->code = code;
    snprintf(err->op, sizeof err->op, "%s", op ? op : "");
    const size_t len = where ? strlen(where) : 0;
    const char *tail = len > SHOWN ? where + len - SHOWN : where;
    while (tail > where && ((uint8_t)*tail & 0xC0) == 0x80) tail++;
    int at = 0;
    if (where) at = snprintf(err->message, sizeof err->message, "%s%s: ", tail > where ? "..." : "", tail);
    if (op && at >= 0) at += snprintf(err->message + at, sizeof err->message - (size_t)at, "%.63s: ", op);
    const size_t room = sizeof err->message - (size_t)at;
    const int written = vsnprintf(err->message + at, room, format, args);
    if (written < 0) err->message[at] = '\0';
    if (written >= (int)room) drop_partial_character(err->message, strlen(err->message));
    // One line, and nothing that drives a terminal: a path or a name may hold anything.
    for (char *c = err->message; *c; c++)
        if ((uint8_t)*c < 0x20 || *c == 0x7F) *c = '?';
    return code;
}

pe_status pe_fail(pe_error *err, pe_status code, const char *op, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fail(err, code, NULL, op, format, args);
    va_end(args);
    return code;
}

pe_status pe_fail_file(pe_error *err, pe_status code, const char *path, const char *op, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fail(err, code, path, op, format, args);
    va_end(args);
    return code;
}
