// SPDX-License-Identifier: MIT
#include "experiments/driver/run_options.h"

#include <algorithm>
#include <ostream>

#include "core/cu_seqlens.h"
#include "core/io/results.h"
#include "core/select/selector.h"
#include "core/select/token_selector.h"
#include "core/threads.h"
#include "experiments/driver/ranks.h"
#include "experiments/driver/sample.h"
#include "experiments/report/text.h"

namespace msa::experiments {

const std::vector<std::string> kBackends{"reference",      "cpu",       "cpu-avx2", "cuda",
                                         "cuda-unordered", "cuda-sm80", "cuda-sm86"};

void add_files(OptionTable& table, RunOptions& o, const std::string& with) {
    table
        .paths("input", "FILE", o.files,
               "activations to read" + with +
                   " (positional, repeatable); several captures form one data set, with their "
                   "sequences in the given order")
        .without_flag()
        .as("files")
        .required("no input: name an activations file; --help shows how");
    add_output(table, o);
}

void add_output(OptionTable& table, RunOptions& o) {
    table.path("out", "DIR", o.out, "directory for the results")
        .unrecorded()
        .required("no output: name a directory with --out");
}

void add_existing(OptionTable& table, RunOptions& o) {
    table.flag("overwrite", o.overwrite, "replace existing results").unrecorded().check = [&o] {
        require(!(o.resume && o.overwrite), "--resume and --overwrite exclude each other");
    };
    table.flag("json", o.json, "print summary.json instead of the table").unrecorded();
}

void add_resume(OptionTable& table, RunOptions& o) {
    table.flag("resume", o.resume, "continue an unfinished run with these options").unrecorded();
}

void add_backend(OptionTable& table, ComputeOptions& o) {
    table.text("backend", "NAME", o.backend, join(kBackends)).offers(kBackends);
    table
        .count("threads", "N", o.backend_options.threads,
               "CPU threads; 0: OMP_NUM_THREADS, else all", between(0, most_threads()))
        .unrecorded();
}

void add_devices(OptionTable& table, ComputeOptions& o, const std::string& help) {
    OptionRow& row = table.numbers("devices", "N,...", o.devices, help, between(0, 1023))
                         .unrecorded()
                         .shown_as("0");
    row.check = [&o, bounds = row.check] {
        bounds();
        if (o.devices.empty()) return;
        const int ranks = o.devices.size() > 1 ? Ranks::world().size() : 1;
        require(ranks == 1, "--devices names ", o.devices.size(), " GPUs, and there are ", ranks,
                " ranks: one of the two spreads a run");
        o.backend_options.device = static_cast<int>(o.devices.front());
    };
}

void add_compute(OptionTable& table, ComputeOptions& o) {
    add_backend(table, o);
    table.element("element", o.element.main, {Element::f32, Element::bf16, Element::f16},
                  "round q, k and v to f32, bf16 or f16; default: as the file stores them");
}

void add_index_element(OptionTable& table, ComputeOptions& o) {
    table.element("index-element", o.element.index,
                  {Element::f32, Element::bf16, Element::f16, Element::e4m3},
                  "round index_q and index_k to f32, bf16, f16 or e4m3; default: as the file "
                  "stores them");
}

void add_forced_first(OptionTable& table, std::vector<int64_t>& forced_first) {
    table.counts(
        "forced-first", "BLOCKS,...", forced_first,
        "oldest blocks always kept; of several, each selector runs with each, but for those "
        "that keep some in any case",
        block_count(0));
}

void sort_sizes(std::vector<int64_t>& sizes) {
    std::ranges::sort(sizes);
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
}

void add_sizes(OptionTable& table, SizeOptions& o, std::vector<int64_t>* forced_first) {
    table.count("block-size", "TOKENS", o.block_size, "Bk, tokens of a key block",
                between(kMinBlockSize, kMaxBlockSize));
    table.count("top-k", "BLOCKS", o.rule.top_k,
                "k, blocks kept per query and group, forced ones included", at_least(1));
    table.count("forced-local", "BLOCKS", o.rule.forced_local,
                "newest blocks always kept, the query's own among them", block_count(1));
    if (forced_first != nullptr)
        add_forced_first(table, *forced_first);
    else
        table.count("forced-first", "BLOCKS", o.rule.forced_first, "oldest blocks always kept",
                    block_count(0));
}

namespace {

/// Whether all layers say the same of their Index Branch.
bool alike(std::optional<int64_t> io::LayerInfo::*own, std::span<const io::LayerInfo> layers) {
    return !layers.empty() && std::ranges::all_of(layers, [&](const auto& layer) {
        return layer.*own && layer.*own == layers.front().*own;
    });
}

void take_own(const char* option, std::optional<int64_t> io::LayerInfo::*own, int64_t& to,
              std::span<const std::string> args, std::span<const io::LayerInfo> layers,
              std::ostream& err) {
    if (!alike(own, layers) || given(args, option) || to == *(layers.front().*own)) return;
    to = *(layers.front().*own);
    err << "note: --" << option << " is " << to << ", as the file says of its Index Branch\n";
}

/// What neither the user nor the file says becomes small enough for the longest sequence: a
/// selection of most of its blocks would be no selection.
void fit_defaults(SizeOptions& o, std::span<const std::string> args,
                  std::span<const io::LayerInfo> layers, int64_t longest, std::ostream& err) {
    constexpr int64_t kBlocksOfK = 4;  // so many times k blocks, at least
    const auto said = [&](const char* option, std::optional<int64_t> io::LayerInfo::*own) {
        return given(args, option) || alike(own, layers);
    };
    const auto few = [&] { return ceil_div(longest, o.block_size) < kBlocksOfK * o.rule.top_k; };
    const auto note = [&](const char* option, int64_t value) {
        err << "note: --" << option << " is " << value << " for a longest sequence of " << longest
            << " tokens, " << ceil_div(longest, o.block_size) << " blocks\n";
    };
    if (said("block-size", &io::LayerInfo::own_block_size) || !few()) return;
    while (few() && o.block_size > kMinBlockSize) o.block_size /= 2;
    note("block-size", o.block_size);
    if (said("top-k", &io::LayerInfo::own_top_k) || !few()) return;
    o.rule.top_k = std::max({int64_t{1}, ceil_div(longest, o.block_size) / kBlocksOfK,
                             o.rule.forced_local + o.rule.forced_first});
    note("top-k", o.rule.top_k);
}

}  // namespace

void take_own_block_size(int64_t& block_size, std::span<const std::string> args,
                         std::span<const io::LayerInfo> layers, std::ostream& err) {
    take_own("block-size", &io::LayerInfo::own_block_size, block_size, args, layers, err);
    check_option("block-size", block_size, kMinBlockSize, kMaxBlockSize);
}

void take_own_sizes(SizeOptions& o, std::span<const std::string> args,
                    std::span<const io::LayerInfo> layers, std::ostream& err) {
    take_own_block_size(o.block_size, args, layers, err);
    take_own("top-k", &io::LayerInfo::own_top_k, o.rule.top_k, args, layers, err);
    o.rule.validate();
}

std::string resolve_sizes(SizeOptions& o, std::span<const std::string> args,
                          std::span<const io::LayerInfo> layers,
                          const std::vector<int64_t>& cu_seqlens, std::ostream& err) {
    take_own_sizes(o, args, layers, err);
    fit_defaults(o, args, layers, longest_sequence(cu_seqlens), err);
    const int64_t blocks = ceil_div(longest_sequence(cu_seqlens), o.block_size);
    const int64_t most = std::max({int64_t{1}, blocks, o.rule.forced_local + o.rule.forced_first});
    if (o.rule.top_k <= most) return "";
    std::string note = concat("--top-k is ", o.rule.top_k, ", more than the ", blocks,
                              " blocks of the longest sequence; ", most, " are used");
    err << "note: " << note << '\n';
    o.rule.top_k = most;
    return note;
}

std::string label_of(const std::string& option, const std::string& name) {
    try {
        return make_policy(name)->label();
    } catch (const InputError& fault) {
        throw InputError(concat("--", option, ": ", fault.what()));
    }
}

std::string options_help(const std::vector<std::string>& offered) {
    std::string all;
    for (const std::string& name : offered)
        if (const std::string own = options_text(*make_policy(name)); !own.empty())
            add_item(all, "; ", name, ": ", own);
    return "; options are given as NAME:OPTION=VALUE:...; options and defaults: " + all;
}

/// InputError where a policy is not among those that a program offers.
void require_offered(const std::string& option, const std::string& name,
                     const std::vector<std::string>& offered) {
    const auto among = [&](const std::vector<std::string>& names) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    require(among(offered) || !among(list_policies()), "--", option, " has ", name,
            ", which does not choose blocks for each query alone (msa-compare has it); there are: ",
            join(offered));
}

void add_selectors(OptionTable& table, std::vector<std::string>& to,
                   const std::vector<std::string>& offered) {
    const std::string all = "all";
    const auto known = [=](const std::string& name) {
        if (name == all) return std::string(all);
        std::string base(name_of_label(name));
        for (const std::string& own : offered) {
            const std::vector<std::string_view> others = make_policy(own)->other_names();
            if (std::find(others.begin(), others.end(), base) != others.end()) base = own;
        }
        require_offered("selectors", base, offered);
        choice("selectors", base, offered);
        return label_of("selectors", name);
    };
    OptionRow& row = table.names(
        "selectors", "NAME,...", to, known,
        "all that the file has operands for, or some of: " + join(offered) + options_help(offered));
    row.shown_as(all).offers(offered).offered.push_back(all);
    row.check = [=, &to] {
        const bool has_all = std::find(to.begin(), to.end(), all) != to.end();
        require(!has_all || to.size() == 1, "--selectors has all beside others");
        if (has_all) to.clear();
    };
}

std::string pointwise_selector(const std::string& option, const std::string& name) {
    std::string label = label_of(option, name);
    require_offered(option, std::string(name_of_label(label)), list_pointwise_selectors());
    require(!make_selector(label)->needs().rule, "--", option, " has ", name,
            ", which spends its budget unevenly; msa-compare alone takes it");
    return label;
}

void add_oracle(OptionTable& table, OracleOptions& o) {
    table.choice("oracle", "RANK", o.oracle_by_logit, {"mass", "max-logit"},
                 "how I* ranks blocks: mass (probability) or max-logit");
    table.choice("oracle-local", "WHETHER", o.oracle_without_local, {"included", "excluded"},
                 "the query's own block in I*: included or excluded");
    add_all_rows(table, o);
}
void add_all_rows(OptionTable& table, OracleOptions& o) {
    table.flag("all-rows", o.all_rows, "also count queries whose visible blocks all fit into k");
}

void add_queries(OptionTable& table, QueryOptions& o) {
    table.ranges("queries", o.queries, "only the queries of these packed tokens");
    table.ranges("positions", o.positions, "only the queries at these positions of every sequence");
    table.path("held-out", "FILE", o.held_out,
               "the queries that a fit held out and evaluated: results.h5 of msa-fit-indexer");
    table.count("sample-queries", "N", o.sample_queries,
                "N of the queries, evenly spread, drawn with --seed; 0: all", at_least(0));
}

void add_unit_queries(OptionTable& table, UnitOptions& o) {
    table.count("unit-queries", "N", o.unit_queries,
                "size of the units that processes share: whole blocks of 128 "
                "positions with at least N of a layer's queries; 0: the whole layer",
                at_least(0));
}

std::vector<std::filesystem::path> inputs_of(const RunOptions& o, const QueryOptions& asked) {
    std::vector<std::filesystem::path> inputs = o.files;
    if (!asked.held_out.empty()) inputs.push_back(asked.held_out);
    return inputs;
}

std::vector<QueryRange> resolve_ranges(const std::string& option, const std::vector<Range>& asked,
                                       int64_t available, const std::string& of_what) {
    if (asked.empty()) return {{0, available}};
    std::vector<QueryRange> ranges;
    for (const Range& range : asked) {
        const QueryRange r{range.begin.value_or(0), range.end.value_or(available)};
        require(0 <= r.begin && r.begin < r.end && r.end <= available, "--", option, " is ", range,
                ", must be a non-empty range ", of_what, of_what.empty() ? "" : " ",
                "within 0:", available);
        ranges.push_back(r);
    }
    return ranges;
}

bool within(const std::vector<QueryRange>& ranges, int64_t value) {
    return std::any_of(ranges.begin(), ranges.end(), [value](const QueryRange& range) {
        return range.begin <= value && value < range.end;
    });
}

namespace {

/// What a fit evaluated, of a capture with as many tokens.
std::vector<int64_t> held_out_queries(const std::filesystem::path& file, int64_t layer,
                                      int64_t tokens) {
    const io::ResultsReader fit(file);
    const std::string dataset = concat("/queries/", layer, "/token");
    require(fit.run().program == "msa-fit-indexer" && fit.has(dataset), "--held-out is ",
            file.string(), ", which has no ", dataset,
            " of msa-fit-indexer: must be the results.h5 of a fit of layer ", layer);
    const Tensor<int64_t, 1> stored = fit.read<int64_t, 1>(dataset);
    std::vector<int64_t> queries(stored.data(), stored.data() + stored.size());
    const bool fits = !queries.empty() && std::is_sorted(queries.begin(), queries.end()) &&
                      queries.front() >= 0 && queries.back() < tokens;
    require(fits, "--held-out is ", file.string(), ", whose ", dataset,
            " must be ascending tokens within 0:", tokens, ", those of this capture");
    return queries;
}

}  // namespace

std::vector<int64_t> chosen_queries(const QueryOptions& o, const std::vector<int64_t>& cu,
                                    int64_t layer) {
    const int ways = int{!o.queries.empty()} + int{!o.positions.empty()} + int{!o.held_out.empty()};
    require(ways <= 1, "--queries, --positions and --held-out exclude each other");
    if (!o.held_out.empty()) return held_out_queries(o.held_out, layer, cu.back());
    const std::vector<QueryRange> queries = resolve_ranges("queries", o.queries, cu.back()),
                                  positions = resolve_ranges("positions", o.positions,
                                                             longest_sequence(cu));
    std::vector<int64_t> chosen;
    for (size_t s = 1; s < cu.size(); ++s)
        for (int64_t token = cu[s - 1]; token < cu[s]; ++token)
            if (within(queries, token) && within(positions, token - cu[s - 1]))
                chosen.push_back(token);
    return chosen;
}

std::vector<int64_t> sampled_queries(const QueryOptions& o, const std::vector<int64_t>& cu_seqlens,
                                     int64_t layer, uint64_t seed, int64_t prompt) {
    std::vector<int64_t> all = chosen_queries(o, cu_seqlens, layer), chosen;
    std::erase_if(all, [&](int64_t token) {
        return token - *(std::upper_bound(cu_seqlens.begin(), cu_seqlens.end(), token) - 1) <
               prompt;
    });
    for (int64_t n : stratified_sample(std::ssize(all), o.sample_queries, seed))
        chosen.push_back(all[static_cast<size_t>(n)]);
    return chosen;
}

}  // namespace msa::experiments
