// Owns `pyedge._core.sentencepiece_model`: Python's sequences as the C API's arrays.
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bindings.hpp"

namespace py = pybind11;

namespace {

// The item of a list or tuple, borrowed. Sequences of other kinds are made into lists before.
class Items {
  public:
    explicit Items(const py::sequence &from)
        : fast_(py::reinterpret_steal<py::object>(PySequence_Fast(from.ptr(), "must be a sequence"))) {
        if (!fast_) throw py::error_already_set();
    }
    std::size_t size() const { return static_cast<std::size_t>(PySequence_Fast_GET_SIZE(fast_.ptr())); }
    PyObject *operator[](std::size_t i) const { return PySequence_Fast_GET_ITEM(fast_.ptr(), i); }

  private:
    py::object fast_;
};

py::bytes sentencepiece_model(const py::sequence &texts, const py::sequence &scores, const py::sequence &types,
                              bool unigram, bool byte_fallback, bool add_space_prefix, bool remove_extra_whitespaces,
                              const py::bytes &charsmap) {
    const Items text(texts), score(scores), type(types);
    if (score.size() != text.size() || type.size() != text.size())
        throw py::value_error("sentencepiece_model: " + std::to_string(text.size()) + " pieces, " +
                              std::to_string(score.size()) + " scores and " + std::to_string(type.size()) +
                              " types; there must be as many of each");
    std::vector<pe_sentencepiece> pieces(text.size());
    std::string utf8;  // of all pieces. PyUnicode_AsUTF8AndSize would leave a copy with each str while it lives.
    for (std::size_t i = 0; i < pieces.size(); i++) {
        if (PyUnicode_Check(text[i]) && PyUnicode_IS_COMPACT_ASCII(text[i])) {  // which is UTF-8 already
            pieces[i].len = static_cast<std::size_t>(PyUnicode_GET_LENGTH(text[i]));
            utf8.append(static_cast<const char *>(PyUnicode_DATA(text[i])), pieces[i].len);
        } else {
            const auto one = py::reinterpret_steal<py::object>(PyUnicode_AsUTF8String(text[i]));
            if (!one) throw py::error_already_set();
            pieces[i].len = static_cast<std::size_t>(PyBytes_GET_SIZE(one.ptr()));
            utf8.append(PyBytes_AS_STRING(one.ptr()), pieces[i].len);
        }
        pieces[i].score = static_cast<float>(PyFloat_AsDouble(score[i]));
        const long number = PyLong_AsLong(type[i]);
        if (PyErr_Occurred()) throw py::error_already_set();
        if (number < 1 || number > 6)
            throw py::value_error("sentencepiece_model: type " + std::to_string(number) + "; must be 1 to 6");
        pieces[i].type = static_cast<std::int32_t>(number);
    }
    const char *at = utf8.data();
    for (pe_sentencepiece &piece : pieces) {
        piece.text = at;
        at += piece.len;
    }
    const std::string_view rules = charsmap;
    const pe_sentencepiece_options options{unigram,      byte_fallback, add_space_prefix, remove_extra_whitespaces,
                                           rules.data(), rules.size()};
    const auto n = static_cast<std::int64_t>(pieces.size());
    pe_error err{};
    std::uint64_t n_bytes = 0;
    check(pe_sentencepiece_write(pieces.data(), n, &options, nullptr, &n_bytes, &err), err);
    auto out = py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(n_bytes)));
    if (!out) throw py::error_already_set();
    auto *bytes = reinterpret_cast<std::uint8_t *>(PyBytes_AS_STRING(out.ptr()));
    check(pe_sentencepiece_write(pieces.data(), n, &options, bytes, &n_bytes, &err), err);
    return out;
}

}  // namespace

void bind_tokenizers(py::module_ &m) {
    m.def("sentencepiece_model", &sentencepiece_model, py::arg("pieces"), py::arg("scores"), py::arg("types"),
          py::kw_only(), py::arg("unigram"), py::arg("byte_fallback"), py::arg("add_space_prefix"),
          py::arg("remove_extra_whitespaces"), py::arg("charsmap") = py::bytes(),
          "The bytes of a SentencePiece model. ModelError for a score that is not finite, or unsound rules.");
}
