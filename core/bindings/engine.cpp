// Python's Model and Engine: conversion of plans, steps and logits; the GIL is released while the core works, and
// Python's signal handlers run between ops, so that Ctrl-C acts within one op of a long prefill.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <optional>
#include <tuple>
#include <variant>

#include "bindings.hpp"

namespace py = pybind11;

namespace {

// Names of the C API's enums, in their order.
const std::vector<std::string> PRECISIONS = {"fast", "f32"};               // pe_precision
const std::vector<std::string> KV_TYPES = {"f32", "f16", "q8_0", "q4_0"};  // pe_kv_type

std::int32_t index_of(const std::vector<std::string> &names, const std::string &name, const char *what) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) return static_cast<std::int32_t>(found - names.begin());
    std::string all;
    for (const auto &n : names) all += (all.empty() ? "'" : ", '") + n + "'";
    throw py::value_error(std::string(what) + " '" + name + "' is not known; choose from " + all);
}

using OpTuple = std::tuple<std::int32_t, std::string, std::vector<std::int32_t>, std::vector<std::int32_t>,
                           std::vector<std::int32_t>, std::vector<std::variant<std::int64_t, double>>>;

// The integer or the float of each parameter, as the op's row in ops.def has it.
void fill_parameters(pe_op &op, const std::string &name,
                     const std::vector<std::variant<std::int64_t, double>> &values) {
    pe_op_info info;
    pe_op_describe(op.kind, &info);
    std::size_t i = 0;
    for (const char *p = info.parameters; *p; p++) {
        if (p[1] != ':' || (p != info.parameters && p[-1] != ' ')) continue;
        if (i >= values.size()) throw py::value_error(name + ": " + info.name + " takes more parameters");
        const auto *whole = std::get_if<std::int64_t>(&values[i]);
        if (*p == 'i') {
            if (!whole) throw py::value_error(name + ": parameter " + std::to_string(i) + " must be an int");
            op.parameters[i].i = *whole;
        } else {
            op.parameters[i].f = whole ? static_cast<double>(*whole) : std::get<double>(values[i]);
        }
        i++;
    }
    if (i != values.size())
        throw py::value_error(name + ": " + info.name + " takes " + std::to_string(i) + " parameters");
}

void fill(std::int32_t *to, std::int32_t &n, std::size_t most, const std::vector<std::int32_t> &from,
          const std::string &name) {
    if (from.size() > most) throw py::value_error(name + ": too many inputs, outputs or weights");
    n = static_cast<std::int32_t>(from.size());
    std::copy(from.begin(), from.end(), to);
}

class Model {
  public:
    Model(const Gguf &gguf, const std::vector<OpTuple> &plan, const std::string &precision, std::int32_t threads) {
        std::vector<pe_op> ops;
        for (const auto &[kind, name, inputs, outputs, weights, parameters] : plan) {
            pe_op op{};
            op.kind = kind;
            op.name = name.c_str();
            if (kind < 0 || kind >= pe_op_count())
                throw py::value_error(name + ": no op has kind " + std::to_string(kind));
            fill(op.inputs, op.n_inputs, PE_MAX_INPUTS, inputs, name);
            fill(op.outputs, op.n_outputs, PE_MAX_OUTPUTS, outputs, name);
            fill(op.weights, op.n_weights, PE_MAX_WEIGHTS, weights, name);
            fill_parameters(op, name, parameters);
            ops.push_back(op);
        }
        pe_model_options options{};
        options.precision = index_of(PRECISIONS, precision, "precision");
        options.threads = threads;
        pe_gguf *file = gguf.handle();
        pe_gguf_retain(file);  // another thread may close it meanwhile
        pe_model *handle = nullptr;
        pe_error err{};
        pe_status status;
        {
            const py::gil_scoped_release released;
            status = pe_model_create(file, ops.data(), static_cast<std::int32_t>(ops.size()), &options, &handle, &err);
            pe_gguf_release(file);
        }
        check(status, err);
        handle_.reset(handle);
    }
    pe_model *handle() const { return handle_.get(); }

    void replace(std::int32_t op, std::int32_t slot, const std::string &type,
                 const py::array_t<std::uint8_t, py::array::c_style> &rows, std::int32_t threads) {
        const pe_format_info f = format_or_raise(type);
        pe_error err{};
        pe_status status;
        {
            const py::gil_scoped_release released;
            status = pe_model_replace(handle(), op, slot, f.type, rows.data(), static_cast<std::uint64_t>(rows.size()),
                                      threads, &err);
        }
        check(status, err);
    }

  private:
    struct Release {
        void operator()(pe_model *m) const { pe_model_release(m); }
    };
    std::unique_ptr<pe_model, Release> handle_;
};

class Engine {
  public:
    Engine(const Model &model, std::int32_t page_size, std::int32_t n_pages, std::int32_t max_tokens,
           std::int32_t max_pieces, std::int32_t max_rows, std::int32_t max_sequences,
           std::int32_t max_pages_per_sequence, const std::string &kv_type, std::int32_t threads)
        : n_ops_(pe_model_n_ops(model.handle())), n_outputs_(pe_model_n_outputs(model.handle())) {
        pe_engine_options o{};
        o.page_size = page_size;
        o.n_pages = n_pages;
        o.max_tokens = max_tokens;
        o.max_pieces = max_pieces;
        o.max_rows = max_rows;
        o.max_sequences = max_sequences;
        o.max_pages_per_sequence = max_pages_per_sequence;
        o.kv_type = index_of(KV_TYPES, kv_type, "kv_type");
        o.threads = threads;
        pe_engine *handle = nullptr;
        pe_error err{};
        check(pe_engine_create(model.handle(), &o, &handle, &err), err);
        handle_.reset(handle);
        pe_engine_on_poll(handle, &Engine::poll, this);
    }

    void set_pages(std::int32_t slot, std::int32_t first, const std::vector<std::int32_t> &pages) {
        const Lock lock(*this);
        pe_error err{};
        check(pe_engine_set_pages(handle_.get(), slot, first, pages.data(), static_cast<std::int32_t>(pages.size()),
                                  &err),
              err);
    }

    void step(const std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t>> &pieces,
              const std::vector<std::int32_t> &tokens, const std::vector<std::int32_t> &rows) {
        const Lock lock(*this);
        std::vector<pe_piece> list;
        std::int64_t n_tokens = 0;
        for (const auto &[slot, start, end] : pieces) {
            list.push_back({slot, start, end});
            n_tokens += std::max<std::int64_t>(std::int64_t{end} - start, 0);
        }
        if (n_tokens != static_cast<std::int64_t>(tokens.size()))
            throw py::value_error("the pieces hold " + std::to_string(n_tokens) + " tokens, " +
                                  std::to_string(tokens.size()) + " are given");
        raised_ = nullptr;
        n_rows_ = 0;
        last_poll_ = std::chrono::steady_clock::now();
        pe_error err{};
        pe_status status;
        {
            const py::gil_scoped_release released;
            status = pe_engine_step(handle_.get(), list.data(), static_cast<std::int32_t>(list.size()), tokens.data(),
                                    rows.data(), static_cast<std::int32_t>(rows.size()), &err);
        }
        if (raised_) std::rethrow_exception(raised_);  // what a signal handler or a tap raised
        check(status, err);
        n_rows_ = static_cast<std::int64_t>(rows.size());
    }

    py::array_t<float> logits(std::int64_t first, std::optional<std::int64_t> n) {
        const Lock lock(*this);
        const std::int64_t count = n.value_or(n_rows_ - first);
        if (first < 0 || count < 0 || first > n_rows_ - count)
            throw py::value_error("rows [" + std::to_string(first) + ", " + std::to_string(first + count) +
                                  "): the last step made " + std::to_string(n_rows_));
        py::array_t<float> out({count, std::int64_t{n_outputs_}});
        const float *from = pe_engine_logits(handle_.get()) + first * n_outputs_;
        std::copy(from, from + count * n_outputs_, out.mutable_data());
        return out;
    }

    pe_sampled sample(std::int64_t row, Sampler &sampler, std::int64_t position,
                      const std::optional<py::buffer> &mask) {
        const Lock lock(*this);
        const float *logits = rows_for(sampler, row, 1);
        const Mask words(mask, n_outputs_);
        pe_sampled out;
        pe_error err{};
        const pe_status status = sampler.try_sample(logits, position, words.words(), out, err);
        check_row(status, row, err);
        return out;
    }

    std::vector<pe_sampled> score(std::int64_t row, Sampler &sampler, const std::vector<std::int32_t> &tokens) {
        const Lock lock(*this);
        const float *logits = rows_for(sampler, row, static_cast<std::int64_t>(tokens.size()));
        std::vector<pe_sampled> out;
        std::size_t failed = 0;
        pe_error err{};
        pe_status status;
        {
            const py::gil_scoped_release released;
            status = sampler.try_score(logits, tokens, out, failed, err);
        }
        check_row(status, row + static_cast<std::int64_t>(failed), err);
        return out;
    }

    void cancel() { pe_engine_cancel(handle_.get()); }

    void tap(const std::optional<std::string> &op, py::object callback) {
        const Lock lock(*this);
        pe_error err{};
        check(pe_engine_on_tap(handle_.get(), op ? op->c_str() : nullptr, &Engine::on_tap, this, &err), err);
        callback_ = std::move(callback);
    }

    void profile(bool on) {
        const Lock lock(*this);
        pe_error err{};
        check(pe_engine_profile(handle_.get(), on, &err), err);
    }

    std::vector<std::int64_t> op_times() {
        const Lock lock(*this);
        const std::int64_t *times = pe_engine_op_times(handle_.get());
        if (!times) throw py::value_error("the times of ops are not counted; call profile(True) first");
        return {times, times + n_ops_};
    }

    void collect(bool on) {
        const Lock lock(*this);
        pe_error err{};
        check(pe_engine_collect(handle_.get(), on, &err), err);
    }

    py::tuple collected(std::int32_t op, std::int32_t slot) {
        const Lock lock(*this);
        pe_error err{};
        pe_collected c{};
        check(pe_engine_collected(handle_.get(), op, slot, &c, &err), err);
        py::array_t<double> sums({static_cast<py::ssize_t>(c.n), static_cast<py::ssize_t>(c.columns)});
        std::copy(c.sums, c.sums + c.n * c.columns, sums.mutable_data());
        py::array_t<std::int64_t> rows(static_cast<py::ssize_t>(c.n));
        std::copy(c.rows, c.rows + c.n, rows.mutable_data());
        return py::make_tuple(sums, rows);
    }

    void copy_page(std::int32_t from, std::int32_t to) {
        const Lock lock(*this);
        pe_error err{};
        check(pe_engine_copy_page(handle_.get(), from, to, &err), err);
    }

    void fill_page(std::int32_t page, float value) {
        const Lock lock(*this);
        pe_error err{};
        check(pe_engine_fill_page(handle_.get(), page, value, &err), err);
    }

  private:
    // One caller at a time; a second one is told rather than made to wait with the GIL in its hand.
    class Lock {
      public:
        explicit Lock(Engine &e) : e_(e) {
            if (e.busy_) throw std::runtime_error("this engine is running a step in another thread");
            e.busy_ = true;
        }
        ~Lock() { e_.busy_ = false; }
        Lock(const Lock &) = delete;

      private:
        Engine &e_;
    };

    // The last step's rows [first, first + n) of logits, which this sampler reads.
    const float *rows_for(const Sampler &sampler, std::int64_t first, std::int64_t n) const {
        if (first < 0 || n > n_rows_ || first > n_rows_ - n)
            throw py::value_error("row " + std::to_string(n > 1 ? first + n - 1 : first) + ": the last step made " +
                                  std::to_string(n_rows_));
        if (sampler.n_vocab() != n_outputs_)
            throw py::value_error("the sampler is for a vocabulary of " + std::to_string(sampler.n_vocab()) +
                                  ", the model has " + std::to_string(n_outputs_));
        return pe_engine_logits(handle_.get()) + first * n_outputs_;
    }

    // Raises what a sampler said of a row; for one that is not finite, what the op at fault is.
    void check_row(pe_status status, std::int64_t row, pe_error &err) {
        if (status == PE_ERR_NUMERIC) {
            const float *logits = pe_engine_logits(handle_.get()) + row * n_outputs_;
            if (!std::all_of(logits, logits + n_outputs_, [](float x) { return std::isfinite(x); })) {
                const py::gil_scoped_release released;
                status = pe_engine_explain(handle_.get(), static_cast<std::int32_t>(row), &err);
            }
        }
        if (raised_) std::rethrow_exception(raised_);
        check(status, err);
    }

    static bool poll(void *ctx) {
        auto *self = static_cast<Engine *>(ctx);
        const auto now = std::chrono::steady_clock::now();
        if (self->raised_) return true;
        if (now - self->last_poll_ < std::chrono::milliseconds(20)) return false;
        self->last_poll_ = now;
        const py::gil_scoped_acquire held;
        if (PyErr_CheckSignals() == 0) return false;
        try {
            throw py::error_already_set();
        } catch (...) {
            self->raised_ = std::current_exception();
        }
        return true;
    }

    static void on_tap(void *ctx, const char *op, std::int32_t output, const float *data, std::int64_t rows,
                       std::int64_t width) {
        auto *self = static_cast<Engine *>(ctx);
        const py::gil_scoped_acquire held;
        try {
            py::array_t<float> copy({rows, width});
            std::copy(data, data + rows * width, copy.mutable_data());
            self->callback_(op, output, copy);
        } catch (...) {
            self->raised_ = std::current_exception();
        }
    }

    struct Release {
        void operator()(pe_engine *e) const { pe_engine_release(e); }
    };
    std::unique_ptr<pe_engine, Release> handle_;
    std::int32_t n_ops_, n_outputs_;
    std::int64_t n_rows_ = 0;
    bool busy_ = false;  // read and written with the GIL
    std::exception_ptr raised_;
    std::chrono::steady_clock::time_point last_poll_;
    py::object callback_;
};

}  // namespace

void bind_engine(py::module_ &m) {
    m.attr("PRECISIONS") = py::tuple(py::cast(PRECISIONS));
    m.attr("KV_TYPES") = py::tuple(py::cast(KV_TYPES));

    py::class_<Model>(m, "Model", "A validated plan with its weights packed for this machine. Independent of the file.")
        .def(py::init<const Gguf &, const std::vector<OpTuple> &, const std::string &, std::int32_t>(), py::arg("gguf"),
             py::arg("ops"), py::arg("precision") = "fast", py::arg("threads") = 0)
        .def(
            "replace", &Model::replace, py::arg("op"), py::arg("slot"), py::arg("type"), py::arg("rows"), py::kw_only(),
            py::arg("threads") = 0,
            "Gives the matrix that is weight `slot` of the plan's op other values, a whole tensor's blocks in a format "
            "that is packed as its own is. No step may run meanwhile.")
        .def_property_readonly("n_vocab", [](const Model &self) { return pe_model_n_vocab(self.handle()); })
        .def_property_readonly("n_outputs", [](const Model &self) { return pe_model_n_outputs(self.handle()); })
        .def_property_readonly("n_layers", [](const Model &self) { return pe_model_n_layers(self.handle()); })
        .def_property_readonly("weight_bytes", [](const Model &self) { return pe_model_weight_bytes(self.handle()); })
        .def_property_readonly("isa", [](const Model &self) { return pe_model_isa(self.handle()); });

    py::class_<Engine>(m, "Engine",
                       "KV pages, scratch memory, and one step at a time. One caller at a time, but for cancel().")
        .def(py::init<const Model &, std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t,
                      std::int32_t, const std::string &, std::int32_t>(),
             py::arg("model"), py::kw_only(), py::arg("page_size"), py::arg("n_pages"), py::arg("max_tokens"),
             py::arg("max_pieces"), py::arg("max_rows"), py::arg("max_sequences"), py::arg("max_pages_per_sequence"),
             py::arg("kv_type"), py::arg("threads") = 0)
        .def("set_pages", &Engine::set_pages, py::arg("slot"), py::arg("first"), py::arg("pages"),
             "Writes block-table entries [first, first + len(pages)) of a slot.")
        .def("step", &Engine::step, py::arg("pieces"), py::arg("tokens"), py::arg("rows"),
             "Runs the plan. pieces: [(slot, start, end)], tokens of all pieces in order, rows: ascending indices into "
             "tokens.")
        .def("logits", &Engine::logits, py::arg("first") = 0, py::arg("n") = py::none(),
             "A copy: float32 [n, n_outputs].")
        .def("sample", &Engine::sample, py::arg("row"), py::arg("sampler"), py::arg("position"),
             py::arg("mask") = py::none(),
             "Draws from one row of the last step; mask: as of Sampler.sample. ModelError naming the op at fault when "
             "the row is not finite.")
        .def(
            "score", &Engine::score, py::arg("row"), py::arg("sampler"), py::arg("tokens"),
            "What `sample` would report of each of these tokens, had it drawn them from the rows of the last step from "
            "`row` on. The sampler's n_logprobs must be set. ModelError as in `sample`.")
        .def("cancel", &Engine::cancel, "Stops the running step before its next op. Any thread may call this.")
        .def("tap", &Engine::tap, py::arg("op"), py::arg("callback") = py::none(),
             "Calls callback(op, output, float32 [rows, width]) after each run of the op of this name; None: of no op.")
        .def("profile", &Engine::profile, py::arg("on"),
             "Counts the time of each op from now on, from zero; or no longer.")
        .def("op_times", &Engine::op_times, "Nanoseconds that each op of the plan has taken since profile(True).")
        .def("collect", &Engine::collect, py::arg("on"),
             "Sums the squares of what each matrix is multiplied with, from now on, from zero; or no longer.")
        .def("collected", &Engine::collected, py::arg("op"), py::arg("slot"),
             "Of the weight `slot` of the plan's op: sums [n, columns], float64, and rows [n], int64, n experts or 1.")
        .def("copy_page", &Engine::copy_page, py::arg("source"), py::arg("target"),
             "Copies a page of every layer onto another one.")
        .def("fill_page", &Engine::fill_page, py::arg("page"), py::arg("value"),
             "Fills a page of every layer (tests).");

    m.def(
        "page_bytes",
        [](const Model &model, std::int32_t page_size, const std::string &kv_type) {
            return pe_engine_page_bytes(model.handle(), page_size, index_of(KV_TYPES, kv_type, "kv_type"));
        },
        py::arg("model"), py::arg("page_size"), py::arg("kv_type"), "Bytes of one KV page over all layers.");
}
