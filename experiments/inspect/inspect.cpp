// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <sstream>

#include "core/io/activations.h"
#include "core/io/file_format.h"
#include "core/io/results.h"
#include "core/selection.h"
#include "core/utf8.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/option_table.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/inspect/ids.h"
#include "experiments/inspect/kept_layers.h"
#include "experiments/programs.h"
#include "experiments/report/text.h"

namespace msa::experiments::inspect {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kWindowTokens = 1024;
constexpr const char* kWindow = "sliding_window";

const About kAbout{
    .program = kProgram,
    .does =
        "For activations and results. Files of other formats become activations, and these become "
        "safetensors, by msalab convert (python/README.md).",
    .usage = "FILE... [options]",
    .examples = {"msa-inspect data/sample.h5 --stats",
                 "msa-inspect results/demo/results.h5 --json"},
    .writes = "",
};

/// Minimum, maximum, mean and standard deviation of values that come in pieces.
class Moments {
public:
    void add(double value) {
        if (std::isnan(value)) {
            ++nan_;
            return;
        }
        ++count_;
        min_ = std::min(min_, value);
        max_ = std::max(max_, value);
        const double from_mean = value - mean_;  // Welford's update
        mean_ += from_mean / static_cast<double>(count_);
        squares_ += from_mean * (value - mean_);
    }
    /// Infinities as text, and null where there is no value: JSON has no number for them.
    ordered_json json() const {
        const auto known = [&](double value) -> ordered_json {
            if (count_ == 0) return nullptr;
            if (std::isfinite(value)) return value;
            return number_text(value);
        };
        return {{"values", count_ + nan_},
                {"nan", nan_},
                {"min", known(min_)},
                {"max", known(max_)},
                {"mean", known(mean_)},
                {"std",
                 known(std::sqrt(squares_ / static_cast<double>(std::max<int64_t>(1, count_))))}};
    }
    double mean() const { return mean_; }
    double max() const { return max_; }

private:
    int64_t count_ = 0, nan_ = 0;
    double min_ = std::numeric_limits<double>::infinity(), max_ = -min_, mean_ = 0, squares_ = 0;
};

/// Reads a whole dataset, which also checks it: the reader refuses NaN, Inf and damage.
ordered_json field_stats(const io::ActivationsReader& file, const io::LayerInfo& layer,
                         io::Field field, Progress& progress) {
    const auto heads = static_cast<size_t>(layer.heads(field));
    Moments all;
    std::vector<Moments> norms(heads);
    const int64_t rows = file.info().rows(layer, field);
    for (int64_t begin = 0; begin < rows; begin += kWindowTokens) {
        if (stop_requested()) throw Interrupted("interrupted");
        const int64_t end = std::min(begin + kWindowTokens, rows);
        const Tensor<float, 3> window = file.read(layer.layer, field, {begin, end});
        const float* value = window.data();
        for (int64_t t = begin; t < end; ++t)
            for (Moments& norm : norms) {
                double squares = 0;
                for (int64_t c = 0; c < layer.channels(field); ++c, ++value) {
                    all.add(*value);
                    squares += double{*value} * double{*value};
                }
                norm.add(std::sqrt(squares));
            }
        progress.advance(end - begin);
    }
    ordered_json stats = all.json();
    for (const Moments& norm : norms) {
        stats["norm_mean"].push_back(norm.mean());
        stats["norm_max"].push_back(norm.max());
    }
    return stats;
}

/// What a model's own indexers are made of.
void add_indexers(ordered_json& row, const LearnedSizes& of) {
    if (of.dsa_heads > 0) {
        row["dsa_heads"] = of.dsa_heads;
        row["dsa_dim"] = of.dsa_dim;
    }
    if (of.gate_dim > 0)
        row.update({{"gate_dim", of.gate_dim}, {"gate_block_size", of.gate_block_size}});
    if (of.qsa_heads > 0)
        row.update({{"qsa_heads", of.qsa_heads},
                    {"qsa_dim", of.qsa_dim},
                    {"qsa_compress", of.qsa_compress}});
}

ordered_json describe_activations(const std::string& path, bool stats, std::ostream& err) {
    const io::ActivationsReader file(path);
    const io::ActivationsInfo& info = file.info();
    ordered_json about{{"file", valid_utf8(path)},
                       {"format", "msa-activations"},
                       {"format_version", 1},
                       {"model_id", valid_utf8(info.model_id)},
                       {"producer", valid_utf8(info.producer)},
                       {"tokens", info.tokens()},
                       {"sequences", info.cu_seqlens.size() - 1},
                       {"token_ids", info.has_tokens},
                       {"without_attention", named_layers(without_attention(info))}};
    if (info.has_tokens) file.tokens();
    for (const io::LayerInfo& layer : info.layers) {
        ordered_json row{{"layer", layer.layer},
                         {"query_heads", layer.query_heads},
                         {"kv_heads", layer.kv_heads},
                         {"head_dim", layer.head_dim},
                         {"index_dim", layer.index_dim},
                         {"model_dim", layer.model_dim},
                         {"element", to_string(layer.element)},
                         {"q_state", to_string(layer.q_state)},
                         {"k_state", to_string(layer.k_state)},
                         {"softmax_scale", layer.softmax_scale}};
        add_indexers(row, layer.learned);
        if (layer.rotary_dim) row["rotary_dim"] = *layer.rotary_dim;
        if (layer.rope_theta) row["rope_theta"] = *layer.rope_theta;
        if (!layer.rope_scaling.empty()) row["rope_scaling"] = valid_utf8(layer.rope_scaling);
        if (!layer.rope_inv_freq.empty()) row["rope_inv_freq"] = layer.rope_inv_freq;
        if (layer.rope_attention_factor)
            row["rope_attention_factor"] = *layer.rope_attention_factor;
        if (layer.rope_interleaved) row["rope_layout"] = "interleaved";
        if (layer.own_sparse) row["own_attention"] = "sparse";
        if (layer.own_block_size) row["own_block_size"] = *layer.own_block_size;
        if (layer.own_top_k) row["own_top_k"] = *layer.own_top_k;
        if (layer.learned.source) row["index_source"] = *layer.learned.source;
        for (const auto& [name, values] : layer.own_attention)
            row[name] = values.size() == 1 ? ordered_json(values[0]) : ordered_json(values);
        warn_of_own_attention(file, layer.layer, Computed::with_window_cap_and_sinks, err);
        if (stats) {
            int64_t rows = 0;
            for (io::Field of : io::kFields) rows += layer.has(of) ? info.rows(layer, of) : 0;
            Progress progress(err, concat(printable(path), " layer ", layer.layer), rows, "tokens");
            for (io::Field field : io::kFields)
                if (layer.has(field))
                    row["stats"][to_string(field)] = field_stats(file, layer, field, progress);
        }
        about["layers"].push_back(std::move(row));
    }
    return about;
}

std::vector<std::string> valid_texts(std::vector<std::string> list) {
    for (std::string& words : list) words = valid_utf8(words);
    return list;
}

ordered_json describe_results(const std::string& path, bool stats) {
    const io::ResultsReader file(path);
    const io::RunRecord& run = file.run();
    ordered_json about{{"file", valid_utf8(path)},
                       {"format", "msa-results"},
                       {"format_version", file.version()},
                       {"program", valid_utf8(run.program)},
                       {"argv", run.argv},  // read from JSON, and so is `inputs`
                       {"commit", valid_utf8(run.commit)},
                       {"host", valid_utf8(run.host)},
                       {"device", valid_utf8(run.device)},
                       {"started", valid_utf8(run.started)},
                       {"finished", valid_utf8(run.finished)},
                       {"seed", run.seed},
                       {"inputs", run.inputs},
                       {"done", valid_texts(file.done())}};
    const auto list = [&](const char* group) {
        return file.has(group) ? valid_texts(file.list(group)) : std::vector<std::string>();
    };
    about["layers"] = list(file.has("/fit") ? "/fit" : "/layers");
    about["selectors"] = list("/select");
    about["datasets"] = ordered_json::array();
    for (const io::DatasetInfo& dataset : file.datasets("/")) {
        const std::filesystem::path place = dataset.path;
        if (place.filename() == "ids" && dataset.path.rfind("/select/", 0) == 0)
            check_ids(file, path, dataset, place.parent_path().filename(), kWindowTokens);
        ordered_json row{{"path", valid_utf8(dataset.path)},
                         {"type", dataset.type},
                         {"shape", dataset.shape},
                         {"axes", valid_utf8(dataset.describe.axes)},
                         {"unit", valid_utf8(dataset.describe.unit)},
                         {"description", valid_utf8(dataset.describe.description)}};
        if (stats && dataset.numeric()) {
            Moments moments;
            file.visit(dataset, [&](std::span<const double> values) {
                if (stop_requested()) throw Interrupted("interrupted");
                for (double value : values) moments.add(value);
            });
            row["stats"] = moments.json();
        }
        about["datasets"].push_back(std::move(row));
    }
    return about;
}

/// A JSON value as a cell: numbers short, null as "-".
std::string cell(const ordered_json& value) {
    if (value.is_null()) return "-";
    if (value.is_string()) return printable(value.get<std::string>());
    if (value.is_number_float()) return number_text(value.get<double>());
    return value.dump();
}

/// The named members of an object as cells.
std::vector<std::string> cells(const ordered_json& object, std::vector<std::string> names) {
    for (std::string& name : names) name = object.contains(name) ? cell(object[name]) : "-";
    return names;
}

const std::vector<std::string> kStatsColumns{"min", "max", "mean", "std", "nan"};

void append(std::vector<std::string>& to, const std::vector<std::string>& more) {
    to.insert(to.end(), more.begin(), more.end());
}

void print_activations(const ordered_json& about, bool stats, std::ostream& out) {
    out << "  model     " << cell(about["model_id"]) << "\n  producer  " << cell(about["producer"])
        << "\n  tokens    " << about["tokens"] << " in "
        << count_text(about["sequences"].get<int64_t>(), "sequence")
        << (about["token_ids"] == true ? ", with token ids" : "") << "\n\n";
    std::vector<std::string> headings{"layer",   "Hq",     "Hkv",     "dh",      "didx",
                                      "d_model", "stored", "q_state", "k_state", "softmax_scale"},
        keys{"layer",     "query_heads", "kv_heads", "head_dim", "index_dim",
             "model_dim", "element",     "q_state",  "k_state",  "softmax_scale"};
    std::vector<std::string> full;
    for (const ordered_json& layer : about["layers"])
        if (!layer.contains(kWindow)) full.push_back(cell(layer["layer"]));
    const bool windowed = full.size() < about["layers"].size();
    if (windowed) {
        headings.emplace_back("window");
        keys.emplace_back(kWindow);
    }
    report::AlignedColumns sizes(headings);
    for (const ordered_json& layer : about["layers"]) sizes.add(cells(layer, keys));
    sizes.print(out, "  ");
    if (windowed) print_windowed(full, out);
    print_without_attention(about["without_attention"], out);
    for (const ordered_json& layer : about["layers"]) {
        if (layer.contains("dsa_heads"))
            out << "  layer " << layer["layer"] << " has DSA's indexer: " << layer["dsa_heads"]
                << " heads of " << layer["dsa_dim"] << " channels\n";
        if (layer.contains("gate_dim"))
            out << "  layer " << layer["layer"] << " has SeerAttention's gate of "
                << layer["gate_dim"] << " channels for blocks of " << layer["gate_block_size"]
                << " tokens\n";
        if (layer.contains("qsa_heads"))
            out << "  layer " << layer["layer"] << " has QSA's indexer: " << layer["qsa_heads"]
                << " heads of " << layer["qsa_dim"] << " channels, keys of "
                << layer["qsa_compress"] << " tokens\n";
    }
    if (!stats) {
        out << "\n  Sizes and attributes are valid; --stats reads and checks the values too.\n";
        return;
    }
    std::vector<std::string> header{"layer", "dataset"};
    append(header, kStatsColumns);
    append(header, {"norm per head: mean"});
    report::AlignedColumns table(header);
    for (const ordered_json& layer : about["layers"])
        for (const auto& [name, of] : layer["stats"].items()) {
            std::vector<std::string> row{cell(layer["layer"]), name};
            append(row, cells(of, kStatsColumns));
            std::string norms;
            for (const ordered_json& norm : of["norm_mean"])
                add_item(norms, " ", number_text(norm.get<double>(), 3));
            append(row, {norms});
            table.add(row);
        }
    out << '\n';
    table.print(out, "  ");
}

std::string joined(const ordered_json& list) {
    std::string text;
    for (const ordered_json& item : list) add_item(text, ", ", cell(item));
    return text;
}

/// "/select/oracle/3/ids" -> "/select/<selector>/<layer>/ids"; shapes are alike but for the sizes
/// of the layers.
std::string pattern(const std::string& path, const ordered_json& about) {
    std::istringstream parts(path.substr(1));
    std::string folded;
    const auto among = [](const ordered_json& names, const std::string& name) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    for (std::string part; std::getline(parts, part, '/');) {
        if (among(about["selectors"], part)) part = "<selector>";
        if (among(about["layers"], part)) part = "<layer>";
        folded += "/" + part;
    }
    return folded;
}

void print_results(const ordered_json& about, bool stats, std::ostream& out) {
    std::string arguments;
    for (const ordered_json& argument : about["argv"]) arguments += " " + cell(argument);
    out << "  run       " << cell(about["program"]) << arguments << '\n';
    for (const char* name : {"commit", "host", "device", "started", "finished", "seed"})
        if (about[name].is_number() || !about[name].get<std::string>().empty())
            out << "  " << name << std::string(10 - std::string(name).size(), ' ')
                << cell(about[name]) << '\n';
    for (const auto& [name, digest] : about["inputs"].items())
        out << "  input     " << printable(name) << " sha256 " << cell(digest) << '\n';
    out << "  layers    " << joined(about["layers"]) << "\n  selectors "
        << joined(about["selectors"]) << "\n\n";
    std::vector<std::string> columns{"path", "type", "shape", "axes", "unit"};
    std::vector<std::string> header = columns;
    header[0] = "dataset";
    if (stats) append(header, kStatsColumns);
    report::AlignedColumns table(header);
    std::set<std::string> shown;
    for (ordered_json dataset : about["datasets"]) {
        if (!stats) dataset["path"] = pattern(dataset["path"], about);
        if (!shown.insert(dataset["path"]).second) continue;
        std::vector<std::string> row = cells(dataset, columns);
        if (stats)
            append(row, cells(dataset.contains("stats") ? dataset["stats"] : ordered_json::object(),
                              kStatsColumns));
        table.add(row);
    }
    table.print(out, "  ");
    if (!stats) out << "\n  --stats lists every dataset and reads its values.\n";
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    std::vector<std::filesystem::path> files;
    bool stats = false, json = false;
    OptionTable options(kAbout);
    options
        .paths("file", "FILE", files, "activations or results to look at (positional); one or more")
        .without_flag()
        .required("no file: name one or more to look at");
    options.flag("stats", stats,
                 "read all values: minimum, maximum, mean, standard deviation, norm per head");
    options.flag("json", json, "print a JSON list, one object per file");
    if (!options.parse(args, out)) return 0;

    ordered_json all = ordered_json::array();
    for (const std::filesystem::path& file : files) {
        const std::string path = file.string();
        io::verify_checksum(path);
        const bool activations = io::file_format(path) == io::FileFormat::activations;
        ordered_json about =
            activations ? describe_activations(path, stats, err) : describe_results(path, stats);
        if (!json) {
            out << printable(path) << ": valid " << cell(about["format"]) << " version "
                << about["format_version"] << '\n';
            (activations ? print_activations : print_results)(about, stats, out);
        }
        all.push_back(std::move(about));
    }
    constexpr bool kOnlyAscii = true;  // a terminal obeys some characters beyond
    if (json) out << all.dump(2, ' ', kOnlyAscii) << '\n';
    return 0;
}

}  // namespace msa::experiments::inspect
