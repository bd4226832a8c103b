// What the files of core/bindings share: one `bind_*` per part of the C API, errors, and the handle classes that parts
// pass to each other.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pyedge.h"

// Raises what a failed call reports: ValueError for wrong arguments, MemoryError, pyedge.ModelError for what lies in
// the file or the model, pyedge.errors.CancelledError for a cancelled step. Needs the GIL.
void check(pe_status status, const pe_error &err);

void bind_gguf(pybind11::module_ &m);
void bind_tokenizers(pybind11::module_ &m);
void bind_sampler(pybind11::module_ &m);
void bind_engine(pybind11::module_ &m);

// An open GGUF file. close() lets go of it at once; a call that is under way keeps it a little longer.
class Gguf {
  public:
    explicit Gguf(const pybind11::object &path);

    pe_gguf *handle() const;  // ValueError when closed
    void close();
    bool closed() const { return !handle_; }
    const std::string &path() const { return path_; }        // as given, in the file system's encoding
    bool find(std::string_view key, pe_kv *out) const;       // false: no such key
    std::int64_t tensor_index(std::string_view name) const;  // -1: no such tensor

  private:
    std::string path_;
    struct Release {
        void operator()(pe_gguf *g) const { pe_gguf_release(g); }
    };
    std::unique_ptr<pe_gguf, Release> handle_;
    // Ordered, not hashed: the names are a stranger's, who could make them collide. The keys point into the file.
    std::map<std::string_view, std::int64_t> keys_, tensors_;
};

// A bit for each token that may be drawn, in memory of Python's that it holds on to.
class Mask {
  public:
    // ValueError unless the memory has the form that pe_sampler_sample wants.
    Mask(const std::optional<pybind11::buffer> &mask, std::int32_t n_vocab);
    const std::uint32_t *words() const { return view_ ? static_cast<const std::uint32_t *>(view_->ptr) : nullptr; }

  private:
    std::optional<pybind11::buffer_info> view_;
};

// ValueError for a name that no format has.
pe_format_info format_or_raise(const std::string &name);

// One request's sampling rules and history.
class Sampler {
  public:
    // ValueError for a setting that is out of range.
    Sampler(const pe_sampling &settings, std::int32_t n_vocab, const std::map<std::int64_t, float> &logit_bias);

    std::int32_t n_vocab() const { return n_vocab_; }
    void accept(const std::vector<std::int64_t> &tokens, bool generated);
    // logits: [n_vocab]; mask: NULL, or Mask::words. Called with the GIL, which it releases meanwhile; a second caller waits for
    // the first.
    pe_sampled sample(const float *logits, std::int64_t position, const std::uint32_t *mask);
    // The same without an exception.
    pe_status try_sample(const float *logits, std::int64_t position, const std::uint32_t *mask, pe_sampled &out,
                         pe_error &err);
    // What is reported of each of these tokens, in logits [n, n_vocab]. Called without the GIL. failed: the row of an error.
    pe_status try_score(const float *logits, const std::vector<std::int32_t> &tokens, std::vector<pe_sampled> &out,
                        std::size_t &failed, pe_error &err);

  private:
    struct Release {
        void operator()(pe_sampler *s) const { pe_sampler_release(s); }
    };
    std::unique_ptr<pe_sampler, Release> handle_;
    std::int32_t n_vocab_;
    std::mutex mutex_;  // the handle has one scratch memory and one history
};
