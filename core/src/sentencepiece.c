// Owns the bytes of a SentencePiece model: the protobuf message `ModelProto` of sentencepiece_model.proto, written from
// a vocabulary. What the pieces are called, and which of them take part, is the caller's; reading text is the library's.
//
// A message is a list of fields: a varint with the field's number and its wire type (0: a varint, 2: a length and as
// many bytes, 5: four bytes), then the value. https://protobuf.dev/programming-guides/encoding
#include <math.h>
#include <string.h>

#include "error.h"

typedef struct sink {
    uint8_t *out;  // NULL: only count
    uint64_t n;
} sink;

static void put(sink *s, const void *bytes, size_t n) {
    if (s->out && n > 0) memcpy(s->out + s->n, bytes, n);
    s->n += n;
}

static void put_varint(sink *s, uint64_t value) {
    uint8_t bytes[10];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7) bytes[n++] = (uint8_t)(value | 0x80);
    bytes[n++] = (uint8_t)value;
    put(s, bytes, n);
}

static uint64_t varint_size(uint64_t value) {
    sink s = {NULL, 0};
    put_varint(&s, value);
    return s.n;
}

static void put_number(sink *s, uint32_t field, uint64_t value) {
    put_varint(s, (uint64_t)field << 3);
    put_varint(s, value);
}

static void put_length(sink *s, uint32_t field, uint64_t n) {
    put_varint(s, (uint64_t)field << 3 | 2);
    put_varint(s, n);
}

static void put_bytes(sink *s, uint32_t field, const void *bytes, size_t n) {
    put_length(s, field, n);
    put(s, bytes, n);
}

static void put_piece(sink *s, const pe_sentencepiece *p) {
    uint32_t bits;
    memcpy(&bits, &p->score, sizeof bits);
    const uint8_t score[4] = {(uint8_t)bits, (uint8_t)(bits >> 8), (uint8_t)(bits >> 16), (uint8_t)(bits >> 24)};
    put_length(s, 1, 1 + varint_size(p->len) + p->len + 1 + sizeof score + 2);
    put_bytes(s, 1, p->text, p->len);
    put_varint(s, 2 << 3 | 5);
    put(s, score, sizeof score);
    put_number(s, 3, (uint64_t)p->type);
}

static void put_trainer(sink *s, const pe_sentencepiece_options *o) {
    put_number(s, 3, o->unigram ? 1 : 2);  // model_type
    put_number(s, 35, o->byte_fallback);
}

static void put_normalizer(sink *s, const pe_sentencepiece_options *o) {
    put_bytes(s, 2, o->charsmap, o->charsmap_len);
    put_number(s, 3, o->add_space_prefix);
    put_number(s, 4, o->remove_extra_whitespaces);
    put_number(s, 5, 1);  // a space is U+2581 in pieces
}

// One message inside another: its size must be known before its bytes.
static void put_message(sink *s, uint32_t field, void (*write)(sink *, const pe_sentencepiece_options *),
                        const pe_sentencepiece_options *o) {
    sink inner = {NULL, 0};
    write(&inner, o);
    put_length(s, field, inner.n);
    write(s, o);
}

static uint32_t unit_at(const uint8_t *units, uint32_t i) {
    const uint8_t *b = units + 4 * (size_t)i;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

// Bytes. The longest of NFKC has 33, and a megabyte for each letter would be a bomb.
enum { LONGEST_REPLACEMENT = 255 };

// A charsmap is a length, a double-array trie of that many bytes, and the texts that its leaves point to. The library
// follows its links unchecked, so all that can be reached must lie inside: from node i it goes to i ^ offset(i) ^ byte.
// https://github.com/s-yata/darts-clone has the layout of a unit.
static pe_status check_charsmap(const uint8_t *map, size_t len, pe_error *err) {
    static const char damaged[] =
        "tokenizer.ggml.precompiled_charsmap: the normalization rules are damaged; convert the model again";
    if (len == 0) return PE_OK;
    if (len < 4) return pe_fail(err, PE_ERR_FILE, NULL, damaged);
    const uint32_t trie = unit_at(map, 0);
    // Some units, and at least one text behind them that ends.
    if (trie < 1024 || trie % 4 != 0 || trie >= len - 4 || map[len - 1] != 0)
        return pe_fail(err, PE_ERR_FILE, NULL, damaged);
    const uint8_t *units = map + 4;
    const uint32_t n = trie / 4;
    const size_t texts = len - 4 - trie;
    for (size_t i = 4 + trie, run = 0; i < len; i++) {
        run = map[i] ? run + 1 : 0;
        if (run > LONGEST_REPLACEMENT) return pe_fail(err, PE_ERR_FILE, NULL, damaged);
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t unit = unit_at(units, i);
        if (unit >> 31) continue;  // a leaf: a place among the texts, checked where something points to it
        const uint32_t first = i ^ ((unit >> 10) << ((unit & (1u << 9)) >> 6));
        if ((first | 0xFF) >= n) return pe_fail(err, PE_ERR_FILE, NULL, damaged);
        if ((unit >> 8 & 1) && (unit_at(units, first) & 0x7FFFFFFF) >= texts)
            return pe_fail(err, PE_ERR_FILE, NULL, damaged);
    }
    return PE_OK;
}

pe_status pe_sentencepiece_write(const pe_sentencepiece *pieces, int64_t n, const pe_sentencepiece_options *options,
                                 uint8_t *out, uint64_t *n_bytes, pe_error *err) {
    *n_bytes = 0;
    const pe_status status = check_charsmap(options->charsmap, options->charsmap_len, err);
    if (status) return status;
    sink s = {out, 0};
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(pieces[i].score))
            return pe_fail(err, PE_ERR_FILE, NULL,
                           "tokenizer.ggml.scores: the score of token %lld is no finite number; the file is damaged, "
                           "convert the model again",
                           (long long)i);
        put_piece(&s, &pieces[i]);
    }
    put_message(&s, 2, put_trainer, options);
    put_message(&s, 3, put_normalizer, options);
    *n_bytes = s.n;
    return PE_OK;
}
