// Owns `pyedge._core.Gguf` and how errors of the C API are raised in Python. Does not check files: src/gguf.c has done
// so.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <vector>

#include "bindings.hpp"

namespace py = pybind11;

// ---- errors ---------------------------------------------------------------------------------------------------------

static py::str to_str(std::string_view bytes, const char *errors) {
    PyObject *s = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), errors);
    if (!s) throw py::error_already_set();
    return py::reinterpret_steal<py::str>(s);
}

[[noreturn]] static void raise(const py::handle &type, const std::string &message) {
    PyErr_SetObject(type.ptr(), to_str(message, "backslashreplace").ptr());
    throw py::error_already_set();
}

[[noreturn]] static void raise_named(const char *name, const std::string &message) {
    raise(py::module_::import("pyedge.errors").attr(name), message);
}

[[noreturn]] static void raise_model_error(const std::string &message) { raise_named("ModelError", message); }

void check(pe_status status, const pe_error &err) {
    if (status == PE_OK) return;
    const std::string message = err.message;
    switch (status) {
    case PE_ERR_ARGUMENT: raise(PyExc_ValueError, message);
    case PE_ERR_MEMORY: raise(PyExc_MemoryError, message);
    case PE_ERR_CANCELLED: raise_named("CancelledError", message);
    default: raise_model_error(message);
    }
}

// ---- the file -------------------------------------------------------------------------------------------------------

Gguf::Gguf(const py::object &path) {
    PyObject *bytes = nullptr;  // accepts str, bytes and os.PathLike; refuses NUL
    if (!PyUnicode_FSConverter(path.ptr(), &bytes)) throw py::error_already_set();
    path_ = py::reinterpret_steal<py::bytes>(bytes);
    pe_error err{};
    pe_status status;
    pe_gguf *g = nullptr;
    {
        py::gil_scoped_release release;
        status = pe_gguf_open(path_.c_str(), &g, &err);
    }
    check(status, err);
    handle_.reset(g);
    for (std::int64_t i = 0; i < pe_gguf_n_kv(g); i++) {
        pe_kv kv;
        pe_gguf_kv(g, i, &kv);
        keys_.emplace(std::string_view(kv.key, kv.key_len), i);
    }
    for (std::int64_t i = 0; i < pe_gguf_n_tensors(g); i++) tensors_.emplace(pe_gguf_tensor(g, i)->name, i);
}

pe_gguf *Gguf::handle() const {
    if (!handle_) raise(PyExc_ValueError, path_ + ": this Gguf is closed; open the file again");
    return handle_.get();
}

void Gguf::close() {
    keys_.clear();
    tensors_.clear();
    handle_.reset();
}

bool Gguf::find(std::string_view key, pe_kv *out) const {
    const pe_gguf *g = handle();
    const auto found = keys_.find(key);
    if (found == keys_.end()) return false;
    pe_gguf_kv(g, found->second, out);
    return true;
}

std::int64_t Gguf::tensor_index(std::string_view name) const {
    handle();
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? -1 : found->second;
}

// ---- values ---------------------------------------------------------------------------------------------------------

template <typename T> static T load(const void *data, std::uint64_t i) {
    T value;
    std::memcpy(&value, static_cast<const char *>(data) + i * sizeof value, sizeof value);
    return value;
}

// Element i of a value that is no string.
static PyObject *number(const pe_kv &kv, std::uint64_t i) {
    switch (kv.type) {
    case PE_GGUF_U8: return PyLong_FromUnsignedLong(load<std::uint8_t>(kv.data, i));
    case PE_GGUF_I8: return PyLong_FromLong(load<std::int8_t>(kv.data, i));
    case PE_GGUF_U16: return PyLong_FromUnsignedLong(load<std::uint16_t>(kv.data, i));
    case PE_GGUF_I16: return PyLong_FromLong(load<std::int16_t>(kv.data, i));
    case PE_GGUF_U32: return PyLong_FromUnsignedLong(load<std::uint32_t>(kv.data, i));
    case PE_GGUF_I32: return PyLong_FromLong(load<std::int32_t>(kv.data, i));
    case PE_GGUF_U64: return PyLong_FromUnsignedLongLong(load<std::uint64_t>(kv.data, i));
    case PE_GGUF_I64: return PyLong_FromLongLong(load<std::int64_t>(kv.data, i));
    case PE_GGUF_F32: return PyFloat_FromDouble(load<float>(kv.data, i));
    case PE_GGUF_F64: return PyFloat_FromDouble(load<double>(kv.data, i));
    default: return PyBool_FromLong(load<std::uint8_t>(kv.data, i));
    }
}

// The elements of kv, strings as str or bytes.
static py::list elements(const pe_kv &kv, bool as_bytes) {
    py::list out(static_cast<std::size_t>(kv.n));
    const void *cursor = kv.data;
    for (std::uint64_t i = 0; i < kv.n; i++) {
        PyObject *item;
        if (kv.type == PE_GGUF_STRING) {
            std::size_t len;
            const char *s = pe_gguf_next_string(&cursor, &len);
            const auto n = static_cast<Py_ssize_t>(len);
            item = as_bytes ? PyBytes_FromStringAndSize(s, n) : PyUnicode_DecodeUTF8(s, n, "replace");
        } else {
            item = number(kv, i);
        }
        if (!item) throw py::error_already_set();
        PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), item);
    }
    return out;
}

static py::object get(const Gguf &g, std::string_view key, py::object fallback) {
    pe_kv kv;
    if (!g.find(key, &kv)) return fallback;
    py::list values = elements(kv, false);
    return kv.is_array ? py::object(std::move(values)) : py::object(values[0]);
}

static pe_kv find_or_raise(const Gguf &g, std::string_view key) {
    pe_kv kv;
    if (!g.find(key, &kv))
        raise_model_error(g.path() + ": key '" + std::string(key) + "' is missing; get a complete file");
    return kv;
}

static py::list get_bytes(const Gguf &g, std::string_view key) {
    const pe_kv kv = find_or_raise(g, key);
    if (kv.type != PE_GGUF_STRING)
        raise_model_error(g.path() + ": key '" + std::string(key) +
                          "' must hold strings; the file is badly written, convert the model again");
    return elements(kv, true);
}

// The strings of an array, and by index the bytes of those that are not UTF-8.
static std::pair<py::list, py::dict> get_texts(const Gguf &g, std::string_view key) {
    const pe_kv kv = find_or_raise(g, key);
    if (kv.type != PE_GGUF_STRING || !kv.is_array)
        raise_model_error(g.path() + ": " + std::string(key) + ": not an array of strings; convert the model again");
    py::list out(static_cast<std::size_t>(kv.n));
    py::dict raw;
    const void *cursor = kv.data;
    for (std::uint64_t i = 0; i < kv.n; i++) {
        std::size_t len;
        const char *s = pe_gguf_next_string(&cursor, &len);
        const auto n = static_cast<Py_ssize_t>(len);
        PyObject *item = PyUnicode_DecodeUTF8(s, n, nullptr);
        if (!item && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            PyErr_Clear();
            item = PyUnicode_DecodeUTF8(s, n, "replace");
            raw[py::int_(i)] = py::bytes(s, len);
        }
        if (!item) throw py::error_already_set();
        PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), item);
    }
    return {std::move(out), std::move(raw)};
}

static py::bytes packed(const Gguf &g, std::string_view key) {
    const pe_kv kv = find_or_raise(g, key);
    std::string out;
    const auto put = [&out](auto number) { out.append(reinterpret_cast<const char *>(&number), sizeof number); };
    if (kv.is_array) {
        put(static_cast<std::uint32_t>(PE_GGUF_ARRAY));
        put(static_cast<std::uint32_t>(kv.type));
        put(kv.n);
    } else {
        put(static_cast<std::uint32_t>(kv.type));
    }
    out.append(static_cast<const char *>(kv.data), kv.n_bytes);
    return out;
}

static py::str path_str(const char *path) {
    PyObject *s = PyUnicode_DecodeFSDefault(path);
    if (!s) throw py::error_already_set();
    return py::reinterpret_steal<py::str>(s);
}

static py::list files(const Gguf &g) {
    py::list out;
    for (std::int32_t i = 0; i < pe_gguf_n_files(g.handle()); i++)
        out.append(path_str(pe_gguf_file_path(g.handle(), i)));
    return out;
}

static py::list keys(const Gguf &g) {
    const pe_gguf *file = g.handle();
    py::list out;
    for (std::int64_t i = 0; i < pe_gguf_n_kv(file); i++) {
        pe_kv kv;
        pe_gguf_kv(file, i, &kv);
        out.append(to_str({kv.key, kv.key_len}, "strict"));
    }
    return out;
}

// ---- tensors --------------------------------------------------------------------------------------------------------

struct TensorInfo {
    std::string name, type;
    std::vector<std::int64_t> shape;  // the file's order: columns first
    std::uint64_t n_bytes, offset;
    std::int32_t file;
};

static const char *format_name(std::int32_t type) {
    for (std::int32_t i = 0; i < pe_format_count(); i++) {
        pe_format_info f;
        pe_format(i, &f);
        if (f.type == type) return f.name;
    }
    return "?";  // refused on open
}

static std::vector<TensorInfo> tensors(const Gguf &g) {
    const pe_gguf *file = g.handle();
    std::vector<TensorInfo> out;
    out.reserve(static_cast<std::size_t>(pe_gguf_n_tensors(file)));
    for (std::int64_t i = 0; i < pe_gguf_n_tensors(file); i++) {
        const pe_tensor *t = pe_gguf_tensor(file, i);
        out.push_back({t->name, format_name(t->type), {t->ne, t->ne + t->n_dims}, t->n_bytes, t->offset, t->file});
    }
    return out;
}

static std::int64_t tensor_or_raise(const Gguf &g, std::string_view name) {
    const std::int64_t i = g.tensor_index(name);
    if (i < 0) raise_model_error(g.path() + ": tensor '" + std::string(name) + "' is missing; get a complete file");
    return i;
}

static py::bytes read_tensor(const Gguf &g, std::string_view name, std::uint64_t first,
                             std::optional<std::uint64_t> n) {
    const std::int64_t i = tensor_or_raise(g, name);
    pe_gguf *file = g.handle();
    const std::uint64_t size = pe_gguf_tensor(file, i)->n_bytes;
    const std::uint64_t count = n ? *n : first < size ? size - first : 0;
    const bool sound = first <= size && count <= size - first;  // the core says what is wrong
    py::bytes out(nullptr, sound ? static_cast<std::size_t>(count) : 0);
    char *data = PyBytes_AS_STRING(out.ptr());
    pe_error err{};
    pe_status status;
    pe_gguf_retain(file);  // another thread may close it meanwhile
    {
        py::gil_scoped_release release;
        status = pe_gguf_read(file, i, first, data, static_cast<std::size_t>(count), &err);
        pe_gguf_release(file);
    }
    check(status, err);
    return out;
}

static py::array_t<float> dequantize(const Gguf &g, std::string_view name, std::int64_t first,
                                     std::optional<std::int64_t> n) {
    const std::int64_t i = tensor_or_raise(g, name);
    pe_gguf *file = g.handle();
    const pe_tensor *t = pe_gguf_tensor(file, i);
    const std::int64_t rows = t->ne[1] * t->ne[2] * t->ne[3];
    const std::int64_t count = n ? *n : rows - first;
    const bool sound = first >= 0 && count >= 0 && count <= rows;  // the core says what is wrong
    py::array_t<float> out({sound ? count : 0, t->ne[0]});
    float *data = out.mutable_data();
    pe_error err{};
    pe_status status;
    pe_gguf_retain(file);  // another thread may close it meanwhile
    {
        py::gil_scoped_release release;
        status = pe_gguf_dequantize_rows(file, i, first, count, data, &err);
        pe_gguf_release(file);
    }
    check(status, err);
    return out;
}

// ---- quantizing -----------------------------------------------------------------------------------------------------

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Bytes = py::array_t<std::uint8_t, py::array::c_style>;

pe_format_info format_or_raise(const std::string &name) {
    for (std::int32_t i = 0; i < pe_format_count(); i++) {
        pe_format_info f;
        pe_format(i, &f);
        if (name == f.name) return f;
    }
    raise(PyExc_ValueError, "'" + name + "' is no format; the formats are those of _core.formats()");
}

// What rows of so many values take; 0 where they are no whole number of blocks, as the core will say.
static std::int64_t row_bytes(const pe_format_info &f, std::int64_t columns) {
    return columns % f.block_values ? 0 : columns / f.block_values * f.block_bytes;
}

static py::array_t<std::uint8_t> quantize(const Floats &values, const std::string &type,
                                          const std::optional<Floats> &importance, std::int32_t threads) {
    const pe_format_info f = format_or_raise(type);
    if (values.ndim() < 1) raise(PyExc_ValueError, "values: an array of rows is needed, not one number");
    const std::int64_t columns = values.shape(values.ndim() - 1), rows = columns ? values.size() / columns : 0;
    if (importance && importance->size() != columns)
        raise(PyExc_ValueError, "importance: " + std::to_string(importance->size()) + " numbers for " +
                                    std::to_string(columns) + " columns");
    py::array_t<std::uint8_t> out({rows, row_bytes(f, columns)});
    std::uint8_t *data = out.mutable_data();
    pe_error err{};
    pe_status status;
    {
        py::gil_scoped_release release;
        status = pe_quantize(f.type, values.data(), rows, columns, importance ? importance->data() : nullptr, threads,
                             data, &err);
    }
    check(status, err);
    return out;
}

static py::array_t<float> dequantize_values(const Bytes &rows, const std::string &type, std::int32_t threads) {
    const pe_format_info f = format_or_raise(type);
    if (rows.ndim() != 2 || rows.shape(1) % f.block_bytes)
        raise(PyExc_ValueError, "rows: an array of [rows, whole blocks of " + type + "] is needed");
    const std::int64_t n = rows.shape(0), columns = rows.shape(1) / f.block_bytes * f.block_values;
    py::array_t<float> out({n, columns});
    float *data = out.mutable_data();
    pe_error err{};
    pe_status status;
    {
        py::gil_scoped_release release;
        status = pe_dequantize(f.type, rows.data(), n, columns, threads, data, &err);
    }
    check(status, err);
    return out;
}

static py::array_t<std::uint8_t> quantize_rows(const Gguf &g, std::string_view name, const std::string &type,
                                               std::int64_t first, std::optional<std::int64_t> n,
                                               const std::optional<Floats> &importance, std::int32_t threads) {
    const pe_format_info f = format_or_raise(type);
    const std::int64_t i = tensor_or_raise(g, name);
    pe_gguf *file = g.handle();
    const pe_tensor *t = pe_gguf_tensor(file, i);
    const std::int64_t rows = t->ne[1] * t->ne[2] * t->ne[3], count = n ? *n : rows - first;
    const bool sound = first >= 0 && count >= 0 && count <= rows;  // the core says what is wrong
    py::array_t<std::uint8_t> out({sound ? count : 0, row_bytes(f, t->ne[0])});
    std::uint8_t *data = out.mutable_data();
    pe_error err{};
    pe_status status;
    pe_gguf_retain(file);  // another thread may close it meanwhile
    {
        py::gil_scoped_release release;
        status = pe_gguf_quantize_rows(file, i, first, count, f.type, importance ? importance->data() : nullptr,
                                       importance ? importance->size() : 0, threads, data, &err);
        pe_gguf_release(file);
    }
    check(status, err);
    return out;
}

// ---- the module's part ----------------------------------------------------------------------------------------------

void bind_gguf(py::module_ &m) {
    py::class_<TensorInfo>(m, "TensorInfo", "One tensor of a GGUF file.")
        .def_readonly("name", &TensorInfo::name)
        .def_readonly("type", &TensorInfo::type, "the format's name: 'Q4_0'")
        .def_property_readonly(
            "shape", [](const TensorInfo &t) { return py::tuple(py::cast(t.shape)); },
            "the file's order: columns first")
        .def_readonly("n_bytes", &TensorInfo::n_bytes)
        .def_readonly("offset", &TensorInfo::offset, "of the data in its file")
        .def_readonly("file", &TensorInfo::file, "its file's place in Gguf.files")
        .def("__repr__", [](const TensorInfo &t) {
            return py::str("TensorInfo(name={!r}, type={!r}, shape={})")
                .format(t.name, t.type, py::tuple(py::cast(t.shape)));
        });

    py::class_<Gguf>(m, "Gguf", "A GGUF file, checked on opening and read from a mapping. Raises ModelError.")
        .def(py::init<const py::object &>(), py::arg("path"))
        .def("close", &Gguf::close, "Lets go of the file; every later access raises ValueError.")
        .def("__enter__",
             [](py::object self) {
                 self.cast<const Gguf &>().handle();
                 return self;
             })
        .def("__exit__", [](Gguf &g, const py::args &) { g.close(); })
        .def("__repr__",
             [](const Gguf &g) {
                 return py::str("<Gguf {!r}{}>")
                     .format(to_str(g.path(), "backslashreplace"), g.closed() ? ", closed" : "");
             })
        .def_property_readonly("path", [](const Gguf &g) { return path_str(g.path().c_str()); })
        .def_property_readonly("version", [](const Gguf &g) { return pe_gguf_version(g.handle()); })
        .def_property_readonly(
            "file_size", [](const Gguf &g) { return pe_gguf_file_size(g.handle()); }, "bytes, of all parts")
        .def_property_readonly("files", &files, "The path, or those of all parts of a split model.")
        .def("keys", &keys, "In the file's order.")
        .def("get", &get, py::arg("key"), py::arg("default") = py::none(),
             "The value as int, float, bool, str or a list of these; bytes that are not UTF-8 become U+FFFD.")
        .def("bytes", &get_bytes, py::arg("key"), "The strings of an array (or the one of a value) as they are.")
        .def("texts", &get_texts, py::arg("key"),
             "The strings of an array, and by index the bytes of those that are not UTF-8.")
        .def("packed", &packed, py::arg("key"), "The value as the file has it, to the byte, its type in front.")
        .def(
            "length", [](const Gguf &g, std::string_view key) { return find_or_raise(g, key).n; }, py::arg("key"),
            "The number of elements of an array, 1 for a value that is none; no element is made.")
        .def("__contains__",
             [](const Gguf &g, std::string_view key) {
                 pe_kv kv;
                 return g.find(key, &kv);
             })
        .def_property_readonly("tensors", &tensors, "In the file's order.")
        .def("tensor_index", &Gguf::tensor_index, py::arg("name"), "Its place in `tensors`; -1 if there is none.")
        .def("read", &read_tensor, py::arg("name"), py::arg("first") = 0, py::arg("n") = py::none(),
             "A tensor's bytes as the file has them, `n` from `first` on; None: the rest.")
        .def("dequantize", &dequantize, py::arg("name"), py::arg("first") = 0, py::arg("n") = py::none(),
             "float32 [rows, columns]; axes above two are folded into rows. `n` rows from `first` on; None: the rest.")
        .def(
            "quantize", &quantize_rows, py::arg("name"), py::arg("type"), py::arg("first") = 0,
            py::arg("n") = py::none(), py::kw_only(), py::arg("importance") = py::none(), py::arg("threads") = 0,
            "Rows of a tensor as blocks of a format, uint8 [rows, bytes of a row]. importance: a number per column, or "
            "per column of each matrix.");
    m.def("quantize", &quantize, py::arg("values"), py::arg("type"), py::kw_only(), py::arg("importance") = py::none(),
          py::arg("threads") = 0, "Rows of floats as blocks of a format, uint8 [rows, bytes of a row].");
    m.def("dequantize", &dequantize_values, py::arg("rows"), py::arg("type"), py::kw_only(), py::arg("threads") = 0,
          "And back: float32 [rows, columns] of uint8 [rows, bytes of a row].");
}
