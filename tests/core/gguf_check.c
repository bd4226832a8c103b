// Reads sound GGUF files and what becomes of them when they are cut anywhere, when any number in them is another one, or
// when bytes change at random: all that the loader lets through is read to its last byte, keys, strings, tensors and their
// decoded numbers. Sound or refused, a file may not make the core touch a byte outside it; a sanitizer watches.
//
//     gguf_check SCRATCH FILE...     SCRATCH is a file to write, FILE are sound ones
#include <fcntl.h>
#include <unistd.h>

#include "check.h"
#include "pyedge.h"

static volatile uint8_t sink;

static void touch(const void *p, size_t n) {
    const uint8_t *bytes = p;
    uint8_t sum = 0;
    for (size_t i = 0; i < n; i++) sum = (uint8_t)(sum + bytes[i]);
    sink = sum;
}

static void read_value(const pe_kv *kv) {
    touch(kv->key, kv->key_len);
    touch(kv->data, kv->n_bytes);
    if (kv->type != PE_GGUF_STRING) return;
    const void *cursor = kv->data;
    for (uint64_t i = 0; i < kv->n; i++) {
        size_t len;
        const char *text = pe_gguf_next_string(&cursor, &len);
        touch(text, len);
    }
    CHECK((const uint8_t *)cursor == (const uint8_t *)kv->data + kv->n_bytes, "strings do not end with their value");
}

static void read_tensor(const pe_gguf *g, int64_t i) {
    const pe_tensor *t = pe_gguf_tensor(g, i);
    CHECK(t->offset + t->n_bytes <= pe_gguf_file_size(g), "tensor %lld lies outside the file", (long long)i);
    CHECK(memchr(t->name, 0, sizeof t->name) != NULL, "the name of tensor %lld does not end", (long long)i);
    touch(t->data, t->n_bytes);
    // At most 32 values a byte in any format, and the data lie inside the file.
    float *values = malloc((size_t)(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]) * sizeof *values);
    pe_error err;
    if (!values) give_up("no memory for a tensor");
    const pe_status status = pe_gguf_dequantize(g, i, values, &err);
    CHECK(status == PE_OK || status == PE_ERR_UNSUPPORTED, "tensor %lld: %s", (long long)i, err.message);
    free(values);
}

// True if it opened.
static bool read_file(const char *path) {
    pe_error err = {.code = -1};
    pe_gguf *g = NULL;
    const pe_status status = pe_gguf_open(path, &g, &err);
    if (status != PE_OK) {
        CHECK(!g && err.code == (int32_t)status, "a refusal of code %d leaves %d", (int)status, (int)err.code);
        CHECK(strncmp(err.message, path, strlen(path)) == 0, "the message does not begin with the path: %s",
              err.message);
        for (const char *c = err.message; *c; c++)
            if ((uint8_t)*c < 0x20 || *c == 0x7f) CHECK(false, "a control character in a message");
        return false;
    }
    for (int64_t i = 0; i < pe_gguf_n_kv(g); i++) {
        pe_kv kv;
        pe_gguf_kv(g, i, &kv);
        read_value(&kv);
    }
    for (int64_t i = 0; i < pe_gguf_n_tensors(g); i++) read_tensor(g, i);
    pe_gguf_retain(g);
    pe_gguf_release(g);
    pe_gguf_release(g);
    return true;
}

// ---- mutations -------------------------------------------------------------------------------------------------------

typedef struct mutant {
    const uint8_t *sound;
    uint8_t *bytes;
    size_t n;
    const char *scratch;
    int fd;
    long opened, refused;
} mutant;

// Writes the first n bytes of the mutant, reads them as a file, and makes the mutant sound again.
static bool try_file(mutant *m, size_t n) {
    if (pwrite(m->fd, m->bytes, n, 0) != (ssize_t)n || ftruncate(m->fd, (off_t)n))
        give_up("cannot write %s", m->scratch);
    const bool open = read_file(m->scratch);
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

static void mutate(const char *path, const char *scratch) {
    FILE *f = fopen(path, "rb");
    enum { LIMIT = 1 << 16 };
    uint8_t *sound = take(LIMIT);
    if (!f) give_up("cannot read %s", path);
    mutant m = {.sound = sound, .n = fread(sound, 1, LIMIT, f), .bytes = take(LIMIT), .scratch = scratch};
    fclose(f);
    if (m.n < 32 || m.n == LIMIT) give_up("%s has %zu bytes: a small file is wanted", path, m.n);
    memcpy(m.bytes, sound, m.n);
    m.fd = open(scratch, O_CREAT | O_TRUNC | O_RDWR, 0600);
    if (m.fd < 0) give_up("cannot write %s", scratch);
    cut_anywhere(&m);
    change_numbers(&m);
    change_bytes(&m, 5000);
    close(m.fd);
    unlink(scratch);
    give_all_back();
    snprintf(check_where, sizeof check_where, "%s", path);
    CHECK(m.opened > 1000 && m.refused > 1000, "%ld open, %ld do not: too few of one kind", m.opened, m.refused);
    printf("%s: %ld mutants opened, %ld refused\n", strrchr(path, '/') ? strrchr(path, '/') + 1 : path, m.opened,
           m.refused);
}

int main(int argc, char **argv) {
    snprintf(check_where, sizeof check_where, "gguf_check");
    if (argc < 3) give_up("usage: gguf_check SCRATCH FILE...");
    for (int i = 2; i < argc; i++) {
        snprintf(check_where, sizeof check_where, "%.150s", argv[i]);
        if (CHECK(read_file(argv[i]), "it does not open")) mutate(argv[i], argv[1]);
    }
    return checks_done();
}
