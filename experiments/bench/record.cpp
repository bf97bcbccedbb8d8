// SPDX-License-Identifier: MIT
#include "experiments/bench/record.h"

#include <cmath>
#include <ostream>

#include "experiments/driver/completed.h"
#include "experiments/driver/presets.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/table.h"
#include "experiments/driver/version.h"
#include "experiments/programs.h"

namespace msa::experiments::bench {
namespace {

constexpr int kRecordVersion = 2;  // data/FORMAT.md

using nlohmann::ordered_json;

std::string time_text(double microseconds) {
    const bool milli = microseconds >= 10000;
    return number_text(milli ? microseconds / 1000 : microseconds) + (milli ? " ms" : " us");
}

std::string words_of(const ordered_json& m) {
    std::string words = m["stage"];
    for (const char* part : {"selection", "order", "index_element", "support"})
        if (m.contains(part)) words += " " + m[part].get<std::string>();
    if (m.contains("page_size")) words += concat(" pages of ", m["page_size"].get<int64_t>());
    if (m.contains("capacity")) words += concat(" up to ", m["capacity"].get<int64_t>());
    return words;
}

double value_or_nan(const ordered_json& m, const char* key) {
    return m.contains(key) ? m[key].get<double>() : NAN;
}

ordered_json sizes_json(const analysis::LayerSizes& s) {
    return {{"query_heads", s.query_heads},   {"kv_heads", s.kv_heads},
            {"head_dim", s.head_dim},         {"index_dim", s.index_dim},
            {"block_size", s.block_size},     {"top_k", s.top_k},
            {"element", to_string(s.element)}};
}

}  // namespace

ordered_json begin_record(const char* format, int version, const io::RunRecord& run) {
    return {{"format", format},         {"format_version", version}, {"complete", false},
            {"argv", run.argv},         {"version", kVersion},       {"commit", run.commit},
            {"compiler", run.compiler}, {"started", run.started}};
}

Record::Record(const BenchOptions& o, std::span<const std::string> args, const Backend& backend,
               Ceilings ceilings)
    : options_(o), ceilings_(std::move(ceilings)) {
    const io::RunRecord run =
        start_record(kProgram.name, args,
                     o.captured ? o.captured->inputs() : std::vector<std::filesystem::path>());
    json_ = begin_record("msa-bench", kRecordVersion, run);
    json_.update(ordered_json{{"backend", backend.name()},
                              {"device", backend.device()},
                              {"model", o.model},
                              {"sizes", sizes_json(o.sizes)},
                              {"seed", o.seed},
                              {"copy_bytes_per_second", ceilings_.copy_rate()},
                              {"copy_samples", ceilings_.copy_rates},
                              {"gemm_source", ceilings_.gemm_source}});
    for (const auto& [element, rate] : ceilings_.gemm_rates)
        json_["gemm_flops_per_second"][to_string(element)] = rate;
    if (o.captured) json_["inputs"] = run.inputs;
    json_["measurements"] = ordered_json::array();
}

void Record::add(const Case& c, const Measurement& m) {
    const Problem& p = c.problem;
    ordered_json json{{"case", c.name},
                      {"kind", c.kind},
                      {"queries", p.queries()},
                      {"keys", p.keys()},
                      {"sequences", p.sequences()},
                      {"blocks", p.blocks()},
                      {"top_k", c.top_k},
                      {"stage", m.stage}};
    if (!m.selection.empty()) json["selection"] = m.selection;
    if (!m.order.empty()) json["order"] = m.order;
    if (!m.index_element.empty()) json["index_element"] = m.index_element;
    if (!m.support.empty()) json["support"] = m.support;
    if (m.page_size > 0) json["page_size"] = m.page_size;
    if (m.capacity > 0) json["capacity"] = m.capacity;
    if (m.rows > 0) json["rows"] = m.rows;
    if (!m.skipped.empty()) {
        json["skipped"] = m.skipped;
    } else {
        const double us = median(m.timing.samples_us), seconds = us * kMicro;
        if (m.union_of_8) json["union_of_8"] = *m.union_of_8;
        json["checked_rows"] = m.checked_rows;
        json["answered_by"] = m.answered_by;
        json["flops"] = m.flops;
        json["bytes"] = m.bytes;
        json["calls_per_sample"] = m.timing.calls;
        json["captured"] = m.timing.captured;
        json["median_us"] = us;
        json["flops_per_second"] = m.flops / seconds;
        json["share_of_copy"] = m.bytes / seconds / ceilings_.copy_rate();
        if (const auto gemm = ceilings_.gemm_rates.find(m.element);
            gemm != ceilings_.gemm_rates.end() && m.flops > 0)
            json["share_of_gemm"] = m.flops / seconds / gemm->second;
        if (const double dense = dense_microseconds(c, m.stage); dense > 0)
            json["speed_up"] = dense / us;
        json["samples_us"] = m.timing.samples_us;
    }
    json_["measurements"].push_back(json);
}

double Record::dense_microseconds(const Case& c, const std::string& stage) const {
    std::vector<std::string> dense;
    if (stage == "layer") dense = {"dense_attention"};
    if (stage == "layer_grad") dense = {"dense_attention", "dense_attention_grad"};
    double sum = 0;
    for (const std::string& part : dense) {
        double own = 0;
        for (const ordered_json& other : json_["measurements"])
            if (other["case"] == c.name && other["stage"] == part && other.contains("median_us"))
                own = other["median_us"];
        if (own == 0) return 0;
        sum += own;
    }
    return sum;
}

std::string Record::dumped() const {
    return json_.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

void Record::save(bool complete) {
    json_["complete"] = complete;
    if (!options_.out.empty()) write_text(options_.out, dumped() + "\n");
}

std::string Record::last_line() const {
    const ordered_json& m = json_["measurements"].back();
    const std::string what = m["case"].get<std::string>() + ": " + words_of(m) + ": ";
    if (m.contains("skipped")) return what + "skipped: " + m["skipped"].get<std::string>();
    return what + time_text(m["median_us"]);
}

void Record::print(std::ostream& out) const {
    if (options_.json) {
        out << dumped() << '\n';
        return;
    }
    const analysis::LayerSizes& s = options_.sizes;
    out << json_["device"].get<std::string>() << "; copy "
        << number_text(ceilings_.copy_rate() / kTera) << " TB/s\n"
        << sizes_text(s) << ", " << to_string(s.element) << "\n\n";
    Table table({"case", "stage", "union\nof 8", "us", "spread", "TFLOP/s", "of\ngemm",
                 "of copy\nrate", "over\ndense"});
    for (const ordered_json& m : json_["measurements"]) {
        if (m.contains("skipped")) continue;
        const std::vector<double> samples = m["samples_us"];
        const auto [least, most] = std::minmax_element(samples.begin(), samples.end());
        const double us = m["median_us"], flops = m["flops_per_second"];
        table.add({m["case"], words_of(m), fixed_text(value_or_nan(m, "union_of_8"), 1),
                   fixed_text(us, 1), fixed_text((*most - *least) / us, 3),
                   flops > 0 ? number_text(flops / kTera) : "-",
                   fixed_text(value_or_nan(m, "share_of_gemm"), 3),
                   fixed_text(m["share_of_copy"], 3), fixed_text(value_or_nan(m, "speed_up"), 2)});
    }
    if (!table.empty()) {
        table.print(out);
        out << "\nunion of 8: blocks that 8 neighbouring queries select, mean; spread: slowest "
               "less\n"
               "fastest sample, over the median; of gemm: FLOP/s over a matrix product's ("
            << ceilings_.gemm_source
            << ");\nof copy rate: bytes a second over a copy's; over dense: time of dense "
               "attention,\nwith its gradient where this stage has one, over this one\n";
    }
    for (const ordered_json& m : json_["measurements"])
        if (m.contains("skipped"))
            out << "skipped: " << m["case"].get<std::string>() << ", " << words_of(m) << ": "
                << m["skipped"].get<std::string>() << '\n';
}

}  // namespace msa::experiments::bench
