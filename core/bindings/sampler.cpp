// Python's Sampler and Sampled. Owns argument conversion; every rule and every message about a setting is the core's.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "bindings.hpp"

namespace py = pybind11;

namespace {

// A Python int may be wider than a token; what fits is checked by the core, with the same words.
std::int32_t token_of(std::int64_t value, std::int32_t n_vocab, const char *what) {
    if (value < 0 || value >= n_vocab)
        throw py::value_error(std::string(what) + ": token " + std::to_string(value) +
                              " is not in the vocabulary (0 to " + std::to_string(n_vocab - 1) + ")");
    return static_cast<std::int32_t>(value);
}

std::optional<float> logprob(const pe_sampled &s) {
    return std::isnan(s.logprob) ? std::nullopt : std::optional<float>(s.logprob);
}

std::vector<std::pair<std::int32_t, float>> top(const pe_sampled &s) {
    std::vector<std::pair<std::int32_t, float>> pairs;
    for (std::int32_t i = 0; i < s.n_top; i++) pairs.emplace_back(s.top_tokens[i], s.top_logprobs[i]);
    return pairs;
}

std::unique_ptr<Sampler> make_sampler(std::int32_t n_vocab, float temperature, std::int32_t top_k, float top_p,
                                      float min_p, float repeat_penalty, float presence_penalty,
                                      float frequency_penalty, std::int32_t repeat_last_n, const py::int_ &seed,
                                      std::int32_t n_logprobs,
                                      const std::optional<std::map<std::int64_t, float>> &logit_bias, bool masked) {
    pe_sampling settings{};
    settings.temperature = temperature;
    settings.top_k = top_k;
    settings.top_p = top_p;
    settings.min_p = min_p;
    settings.repeat_penalty = repeat_penalty;
    settings.presence_penalty = presence_penalty;
    settings.frequency_penalty = frequency_penalty;
    settings.repeat_last_n = repeat_last_n;
    settings.seed = PyLong_AsUnsignedLongLongMask(seed.ptr());
    settings.n_logprobs = n_logprobs;
    settings.masked = masked;
    return std::make_unique<Sampler>(settings, n_vocab, logit_bias.value_or(std::map<std::int64_t, float>{}));
}

using Logits = py::array_t<float, py::array::c_style | py::array::forcecast>;

pe_sampled sample_array(Sampler &sampler, const Logits &logits, std::int64_t position,
                        const std::optional<py::buffer> &mask) {
    if (logits.ndim() != 1 || logits.shape(0) != sampler.n_vocab())
        throw py::value_error("logits must be one row of " + std::to_string(sampler.n_vocab()) + " numbers");
    return sampler.sample(logits.data(), position, Mask(mask, sampler.n_vocab()).words());
}

}  // namespace

Sampler::Sampler(const pe_sampling &settings, std::int32_t n_vocab, const std::map<std::int64_t, float> &logit_bias)
    : n_vocab_(n_vocab) {
    std::vector<std::int32_t> tokens;
    std::vector<float> values;
    for (const auto &[token, value] : logit_bias) {
        tokens.push_back(token_of(token, n_vocab, "logit_bias"));
        values.push_back(value);
    }
    pe_sampler *handle = nullptr;
    pe_error err;
    check(pe_sampler_create(&settings, n_vocab, tokens.data(), values.data(), static_cast<std::int32_t>(tokens.size()),
                            &handle, &err),
          err);
    handle_.reset(handle);
}

Mask::Mask(const std::optional<py::buffer> &mask, std::int32_t n_vocab) {
    if (!mask) return;
    view_ = mask->request();
    const auto want = (std::int64_t{n_vocab} + 31) / 32 * static_cast<std::int64_t>(sizeof(std::uint32_t));
    const bool dense = view_->ndim == 1 && (view_->size < 2 || view_->strides[0] == view_->itemsize);
    const bool aligned = reinterpret_cast<std::uintptr_t>(view_->ptr) % alignof(std::uint32_t) == 0;
    if (!dense || !aligned || view_->size * view_->itemsize != want)
        throw py::value_error("a mask must be one dense, aligned row of " + std::to_string(want) +
                              " bytes, a bit for each token");
}

void Sampler::accept(const std::vector<std::int64_t> &tokens, bool generated) {
    std::vector<std::int32_t> narrow;
    narrow.reserve(tokens.size());
    for (std::int64_t token : tokens) narrow.push_back(token_of(token, n_vocab_, "accept"));
    const py::gil_scoped_release released;
    const std::lock_guard<std::mutex> lock(mutex_);
    pe_sampler_accept(handle_.get(), narrow.data(), static_cast<std::int32_t>(narrow.size()), generated);
}

pe_status Sampler::try_sample(const float *logits, std::int64_t position, const std::uint32_t *mask, pe_sampled &out,
                              pe_error &err) {
    const py::gil_scoped_release released;
    const std::lock_guard<std::mutex> lock(mutex_);
    return pe_sampler_sample(handle_.get(), logits, position, mask, &out, &err);
}

pe_status Sampler::try_score(const float *logits, const std::vector<std::int32_t> &tokens, std::vector<pe_sampled> &out,
                             std::size_t &failed, pe_error &err) {
    out.resize(tokens.size());
    const std::lock_guard<std::mutex> lock(mutex_);
    for (failed = 0; failed < tokens.size(); failed++) {
        const float *row = logits + static_cast<std::int64_t>(failed) * n_vocab_;
        const pe_status status = pe_sampler_score(handle_.get(), row, tokens[failed], &out[failed], &err);
        if (status != PE_OK) return status;
    }
    return PE_OK;
}

pe_sampled Sampler::sample(const float *logits, std::int64_t position, const std::uint32_t *mask) {
    pe_sampled out;
    pe_error err{};
    check(try_sample(logits, position, mask, out, err), err);
    return out;
}

void bind_sampler(py::module_ &m) {
    py::class_<pe_sampled>(m, "Sampled", "A drawn token. Log-probabilities are the model's own, before any rule.")
        .def_readonly("token", &pe_sampled::token)
        .def_property_readonly("logprob", &logprob, "Natural log; None when the sampler's n_logprobs is -1.")
        .def_property_readonly("top", &top, "[(token, logprob)], most likely first.")
        .def("__repr__", [](const py::object &s) {
            return py::str("Sampled(token={}, logprob={}, top={})")
                .format(s.attr("token"), s.attr("logprob"), s.attr("top"));
        });
    py::class_<Sampler>(m, "Sampler",
                        "One request's sampling rules and history. A draw is a function of (logits, settings, accepted "
                        "tokens, seed, position) alone. `seed` counts modulo 2**64.")
        .def(py::init(&make_sampler), py::arg("n_vocab"), py::kw_only(), py::arg("temperature") = 1.0f,
             py::arg("top_k") = 0, py::arg("top_p") = 1.0f, py::arg("min_p") = 0.0f, py::arg("repeat_penalty") = 1.0f,
             py::arg("presence_penalty") = 0.0f, py::arg("frequency_penalty") = 0.0f, py::arg("repeat_last_n") = 64,
             py::arg("seed") = 0, py::arg("n_logprobs") = -1, py::arg("logit_bias") = py::none(),
             py::arg("masked") = false)
        .def_property_readonly("n_vocab", &Sampler::n_vocab)
        .def("accept", &Sampler::accept, py::arg("tokens"), py::arg("generated") = true,
             "Tells of tokens in the sequence, oldest first: the prompt (generated=False) or output.")
        .def(
            "sample", &sample_array, py::arg("logits"), py::arg("position"), py::arg("mask") = py::none(),
            "Draws the token at `position` from a row of logits. Does not accept it. mask: uint32 words with a bit for "
            "each token that may be drawn, if the sampler is made with masked=True.");
}
