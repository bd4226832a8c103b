// The extension module: the core's tables and the machine; handles are bound by the other files of this folder.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <utility>

#include "bindings.hpp"

namespace py = pybind11;

namespace {

template <typename Info, typename Get> std::vector<Info> table(std::int32_t n, Get get) {
    std::vector<Info> rows(static_cast<std::size_t>(n));
    for (std::int32_t i = 0; i < n; i++) get(i, &rows[static_cast<std::size_t>(i)]);
    return rows;
}

py::dict machine() {
    pe_machine m;
    pe_machine_query(&m);
    py::dict d;
    d["physical_cores"] = m.physical_cores;
    d["cpu_limit"] = m.cpu_limit;
    d["default_threads"] = m.default_threads;
    d["memory_total"] = m.memory_total;
    d["memory_available"] = m.memory_available;
    return d;
}

py::dict probe(std::int32_t threads) {
    pe_limits limits{};
    pe_error err{};
    pe_status status;
    {
        const py::gil_scoped_release released;
        status = pe_probe(threads, &limits, &err);
    }
    check(status, err);
    py::dict d;
    d["isa"] = limits.isa;
    d["threads"] = limits.threads;
    d["read_streams"] = limits.read_streams;
    d["read_gb_s"] = limits.read_gb_s;
    d["int8_gmac_s"] = limits.int8_gmac_s;
    d["f32_gmac_s"] = limits.f32_gmac_s;
    return d;
}

std::vector<std::pair<std::string, bool>> isas() {
    std::vector<std::pair<std::string, bool>> out;
    for (std::int32_t i = 0; i < pe_isa_count(); i++) {
        bool supported = false;
        const char *name = pe_isa_name(i, &supported);
        out.emplace_back(name, supported);
    }
    return out;
}

std::string active_isa() {
    const char *name = nullptr;
    pe_error err{};
    check(pe_isa_active(&name, &err), err);
    return name;
}

}  // namespace

PYBIND11_MODULE(_core, m) {
    m.doc() = "The compiled core: GGUF files, plans, kernels, KV pages and sampling.";
    m.attr("ABI_VERSION") = pe_abi_version();
    m.attr("MAX_THREADS") = static_cast<int>(PE_MAX_THREADS);

    py::class_<pe_op_info>(m, "OpInfo", "One row of the op table, core/src/ops.def.")
        .def_readonly("name", &pe_op_info::name)
        .def_readonly("min_inputs", &pe_op_info::min_inputs)
        .def_readonly("max_inputs", &pe_op_info::max_inputs)
        .def_readonly("min_outputs", &pe_op_info::min_outputs)
        .def_readonly("max_outputs", &pe_op_info::max_outputs)
        .def_readonly("weights", &pe_op_info::weights)
        .def_readonly("parameters", &pe_op_info::parameters);
    py::class_<pe_format_info>(m, "FormatInfo", "One row of the format table, core/src/formats/formats.def.")
        .def_readonly("name", &pe_format_info::name)
        .def_readonly("type", &pe_format_info::type)
        .def_readonly("block_values", &pe_format_info::block_values)
        .def_readonly("block_bytes", &pe_format_info::block_bytes)
        .def_readonly("runs", &pe_format_info::runs);

    m.def("ops", [] { return table<pe_op_info>(pe_op_count(), pe_op_describe); });
    m.def("formats", [] { return table<pe_format_info>(pe_format_count(), pe_format); });
    m.def("machine", &machine, "Processors and memory this process may use, its cgroup's limits respected.");
    m.def("probe", &probe, py::arg("threads") = 0,
          "Measures what this machine does at best: reading memory, and multiply-adds of int8 and of float32.");
    m.def("isas", &isas, "[(name, supported)] of this build's instruction sets, worst first.");
    m.def("active_isa", &active_isa, "The instruction set that kernels use; PYEDGE_ISA forces one.");

    bind_gguf(m);
    bind_tokenizers(m);
    bind_sampler(m);
    bind_engine(m);
}
