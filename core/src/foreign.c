// Knows files that people give in place of a GGUF file, by their first bytes, and what to do about each.
#include <ctype.h>
#include <string.h>

#include "gguf_file.h"

static const char OLD_GGML[] = "this is a GGML file of before August 2023, not GGUF; get a GGUF file of this model";
static const char ARCHIVE[] = "this is a compressed archive; unpack it, and give the .gguf file in it";
static const char PICKLE[] =
    "this is a Python pickle (an old PyTorch checkpoint), not GGUF; get a GGUF file of this model";
static const char PROGRAM[] = "this is a program, not a model; give the path of a .gguf file";
static const char ANSWER[] = "this is a server's error message, not a model; check the address and pull it again";
static const char IMAGE[] = "this is a picture or a document, not a model; give the path of a .gguf file";

static const struct {
    int at;
    const char *magic, *what;
} known[] = {
    {0, "PK\x03\x04",
     "this is a zip archive (a wheel or a PyTorch checkpoint), not GGUF; unpack a .gguf file that is in it, or get a "
     "GGUF file of this model"},
    {0, "\x1f\x8b", ARCHIVE},
    {0, "\xfd\x37zXZ", ARCHIVE},
    {0, "\x28\xb5\x2f\xfd", ARCHIVE},
    {0, "BZh", ARCHIVE},
    {0, "7z\xbc\xaf\x27\x1c", ARCHIVE},
    {0, "Rar!", ARCHIVE},
    {257, "ustar", ARCHIVE},
    {0, "ggml", OLD_GGML},
    {0, "lmgg", OLD_GGML},
    {0, "fmgg", OLD_GGML},
    {0, "tjgg", OLD_GGML},
    {0, "algg", "this is a LoRA adapter in the old GGML format, not a model; give a GGUF model"},
    {0, "\x80\x02", PICKLE},
    {0, "\x80\x03", PICKLE},
    {0, "\x80\x04", PICKLE},
    {0, "\x80\x05", PICKLE},
    {0, "MZqFpD",
     "this is a llamafile (a program with a model inside), not a GGUF file; get the .gguf file of this model"},
    {0, "MZ", PROGRAM},
    {0, "\x7f\x45LF", PROGRAM},
    {0, "#!", PROGRAM},
    {0, "\x89PNG", IMAGE},
    {0, "\xff\xd8\xff", IMAGE},
    {0, "%PDF", IMAGE},
    {0, "\x89HDF", "this is an HDF5 file (Keras), not GGUF; get a GGUF file of this model"},
    {0, "\x93NUMPY", "this is a numpy array, not a model; give the path of a .gguf file"},
    {4, "TFL3", "this is a TensorFlow Lite file, not GGUF; get a GGUF file of this model"},
    {0, "SQLite format 3", "this is a database, not a model; give the path of a .gguf file"},
    {0, "version https://git-lfs", "this is a Git LFS pointer, not the model itself; run `git lfs pull` in its folder"},
    {0, "# xet version", "this is a Xet pointer, not the model itself; download the file it stands for"},
    // What a server answered, kept as if it were the model.
    {0, "Entry not found", ANSWER},
    {0, "Not Found", ANSWER},
    {0, "Repository not found", ANSWER},
    {0, "Access to model",
     "this is a server's error message, not a model: it wants you to log in or accept a licence; do that and pull it "
     "again"},
    {0, "Invalid ", ANSWER},
};

static bool stands(const uint8_t *bytes, size_t n, size_t at, const char *magic) {
    const size_t len = strlen(magic);
    return n >= at + len && memcmp(bytes + at, magic, len) == 0;
}

// The first byte that is neither white space nor a byte-order mark, or 0.
static int first_letter(const uint8_t *bytes, size_t n) {
    size_t i = stands(bytes, n, 0, "\xef\xbb\xbf") ? 3 : 0;
    while (i < n && i < 4096 && isspace(bytes[i])) i++;
    return i < n ? bytes[i] : 0;
}

static bool all_zero(const uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n && i < 64; i++)
        if (bytes[i]) return false;
    return n > 0;
}

const char *pe_foreign_file(const uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (stands(bytes, n, (size_t)known[i].at, known[i].magic)) return known[i].what;
    if (n > 10 && bytes[8] == '{' && bytes[9] == '"')
        return "this is a safetensors file, not GGUF; get a GGUF file of this model";
    if (first_letter(bytes, n) == '<') return "this is a web page, not a model; the download went wrong, pull it again";
    if (first_letter(bytes, n) == '{')
        return "this is JSON (a settings file, or a server's error message), not a model; give the path of a .gguf "
               "file";
    if (n >= 64 && all_zero(bytes, n))
        return "it begins with zeros, as a download does that has not got that far; pull it again";
    return NULL;
}
