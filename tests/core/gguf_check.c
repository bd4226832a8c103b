// Reads sound GGUF files and what becomes of them when they are cut anywhere, when any number in them is another one, or
// when bytes change at random: a fuzzer's short run that is the same everywhere. What an input is, and what must hold of
// it, is in fuzz/inputs.h.
//
//     gguf_check KIND FILE ...     KIND: whole or split
#include "fuzz/inputs.h"

// ---- mutations -------------------------------------------------------------------------------------------------------

typedef struct mutant {
    bool (*try)(const uint8_t *bytes, size_t n);
    const uint8_t *sound;
    uint8_t *bytes;
    size_t n;
    long opened, refused;
} mutant;

// Tries the first n bytes of the mutant, and makes it sound again.
static bool try_file(mutant *m, size_t n) {
    const bool open = m->try(m->bytes, n);
    *(open ? &m->opened : &m->refused) += 1;
    memcpy(m->bytes, m->sound, m->n);
    return open;
}

static void cut_anywhere(mutant *m) {
    for (size_t n = 0; n < m->n; n += n < 64 ? 1 : 3) {
        snprintf(check_where, sizeof check_where, "cut to %zu bytes", n);
        CHECK(!try_file(m, n), "it opens");
    }
}

// Every 8 and every 4 bytes, aligned to nothing as in the file, become numbers that readers trip over.
static void change_numbers(mutant *m) {
    static const uint64_t numbers[] = {
        0,          1,        2,          31,         33,         255,       1u << 16,
        INT32_MAX,  1u << 31, UINT32_MAX, 1ull << 32, 1ull << 62, INT64_MAX, UINT64_MAX - 31,
        UINT64_MAX,
    };
    for (size_t at = 4; at + 8 <= m->n; at++)
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
            const size_t width = numbers[i] > UINT32_MAX || i % 2 ? 8 : 4;
            snprintf(check_where, sizeof check_where, "%zu bytes at %zu made %#llx", width, at,
                     (unsigned long long)numbers[i]);
            memcpy(m->bytes + at, &numbers[i], width);
            try_file(m, m->n);
        }
}

static void change_bytes(mutant *m, int times) {
    for (int i = 0; i < times; i++) {
        snprintf(check_where, sizeof check_where, "random change %d", i);
        for (uint32_t n = 1 + random_below(4); n > 0; n--) {
            const size_t at = random_below((uint32_t)m->n);
            switch (random_below(3)) {
            case 0: m->bytes[at] ^= (uint8_t)(1u << random_below(8)); break;
            case 1: m->bytes[at] = (uint8_t)random_below(256); break;
            default: {  // a piece of the file over another one
                const size_t from = random_below((uint32_t)m->n), room = m->n - (at > from ? at : from);
                memmove(m->bytes + at, m->bytes + from, random_below((uint32_t)(room < 40 ? room : 40) + 1));
            }
            }
        }
        try_file(m, m->n);
    }
}

static void mutate(const char *path, bool (*try)(const uint8_t *, size_t)) {
    FILE *f = fopen(path, "rb");
    enum { LIMIT = 1 << 16 };
    uint8_t *sound = take(LIMIT);
    if (!f) give_up("cannot read %s", path);
    mutant m = {.try = try, .sound = sound, .n = fread(sound, 1, LIMIT, f), .bytes = take(LIMIT)};
    fclose(f);
    if (m.n < 32 || m.n == LIMIT) give_up("%s has %zu bytes: a small file is wanted", path, m.n);
    memcpy(m.bytes, sound, m.n);
    snprintf(check_where, sizeof check_where, "%.150s", path);
    if (!CHECK(try(m.bytes, m.n), "it does not open")) return;
    cut_anywhere(&m);
    change_numbers(&m);
    change_bytes(&m, 5000);
    give_all_back();
    snprintf(check_where, sizeof check_where, "%.150s", path);
    CHECK(m.opened > 1000 && m.refused > 1000, "%ld open, %ld do not: too few of one kind", m.opened, m.refused);
    printf("%s: %ld mutants opened, %ld refused\n", strrchr(path, '/') ? strrchr(path, '/') + 1 : path, m.opened,
           m.refused);
}

int main(int argc, char **argv) {
    snprintf(check_where, sizeof check_where, "gguf_check");
    (void)fuzz_plan;  // plan_check's
    for (int i = 1; i + 1 < argc; i += 2) mutate(argv[i + 1], strcmp(argv[i], "split") == 0 ? fuzz_split : fuzz_whole);
    return checks_done();
}
