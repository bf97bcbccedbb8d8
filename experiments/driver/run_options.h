// SPDX-License-Identifier: MIT
// Groups of options that programs share, each with rows for the option table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/registry.h"
#include "core/selection.h"
#include "experiments/driver/operands.h"
#include "experiments/driver/option_table.h"

namespace msa::experiments {

/// Inputs and output of a run, and what happens to existing results.
struct RunOptions {
    std::vector<std::filesystem::path> files;  // activations, one data set
    std::filesystem::path out;
    std::vector<int64_t> layers;  // empty: all
    bool resume = false;          // only of a run that no other process joins (run.h)
    bool overwrite = false, json = false;
    uint64_t seed = 0;
};
/// Positional inputs and --out. `with`: what files need besides q, k and v: ", with x".
void add_files(OptionTable&, RunOptions&, const std::string& with = "");
/// --out alone.
void add_output(OptionTable&, RunOptions&);
/// --overwrite, --json.
void add_existing(OptionTable&, RunOptions&);
/// --resume.
void add_resume(OptionTable&, RunOptions&);

/// Device and element types of the computation.
struct ComputeOptions {
    std::string backend = "cpu";
    BackendOptions backend_options;
    std::vector<int64_t> devices;  // GPUs that share the work; empty: backend_options.device alone
    ElementChoice element;

    int count_devices() const { return devices.empty() ? 1 : static_cast<int>(devices.size()); }
};
/// The names of all backends, usable here or not.
extern const std::vector<std::string> kBackends;
/// --backend, --threads.
void add_backend(OptionTable&, ComputeOptions&);
/// --devices, with a help text; the first of them is the backend's. InputError for several
/// devices with several ranks.
void add_devices(OptionTable&, ComputeOptions&, const std::string& help);
/// --backend, --threads and --element.
void add_compute(OptionTable&, ComputeOptions&);
/// --index-element.
void add_index_element(OptionTable&, ComputeOptions&);

/// Blocks, and how many of them a query keeps.
struct SizeOptions {
    int64_t block_size = 128;
    SelectionRule rule;
};
/// --block-size, --top-k, --forced-local, --forced-first. If `forced_first` is given,
/// --forced-first takes several values, and they go there.
void add_sizes(OptionTable&, SizeOptions&, std::vector<int64_t>* forced_first = nullptr);
/// --forced-first with several values.
void add_forced_first(OptionTable&, std::vector<int64_t>&);
/// Ascending, each once.
void sort_sizes(std::vector<int64_t>&);

/// If all layers name the same block size of their Index Branch, it becomes the default of
/// --block-size; a message goes to `err`.
void take_own_block_size(int64_t& block_size, std::span<const std::string> args,
                         std::span<const io::LayerInfo> layers, std::ostream& err);
/// The same for block size and k.
void take_own_sizes(SizeOptions&, std::span<const std::string> args,
                    std::span<const io::LayerInfo> layers, std::ostream& err);
/// The same. If neither the user nor the file gives a block size, it becomes one that leaves at
/// least 4k blocks in the longest sequence; if k is not given either, k may become smaller for
/// that. Limits k to the blocks of the longest sequence (but not below the forced blocks). Returns
/// a sentence about a changed k, which also goes to `err`; empty if k is unchanged.
std::string resolve_sizes(SizeOptions&, std::span<const std::string> args,
                          std::span<const io::LayerInfo> layers,
                          const std::vector<int64_t>& cu_seqlens, std::ostream& err);

/// Policy::label() of a selector given by the user. InputError naming `option` if it is unknown.
std::string label_of(const std::string& option, const std::string& name);

/// The selectors' options and defaults, for an option's help.
std::string options_help(const std::vector<std::string>& selectors);

/// --selectors: labels of some of `offered`, by any of their names; empty: all that can run.
void add_selectors(OptionTable&, std::vector<std::string>& to,
                   const std::vector<std::string>& offered);

/// The label of a selector that uses only a query and its keys, as sampled queries need. InputError
/// naming `option` if `name` is not one.
std::string pointwise_selector(const std::string& option, const std::string& name);

/// How I* is chosen, and which rows averages count.
struct OracleOptions {
    bool oracle_by_logit = false;
    bool oracle_without_local = false;
    bool all_rows = false;
};
/// --oracle, --oracle-local, --all-rows.
void add_oracle(OptionTable&, OracleOptions&);
/// --all-rows alone.
void add_all_rows(OptionTable&, OracleOptions&);

/// The measured queries: packed tokens, positions in every sequence, or those that a fit held out;
/// default: all.
struct QueryOptions {
    std::vector<Range> queries, positions;
    std::filesystem::path held_out;  // results.h5 of a fit
    int64_t sample_queries = 0;      // 0: all
};
/// --queries, --positions, --held-out, --sample-queries.
void add_queries(OptionTable&, QueryOptions&);
/// How a layer is cut into units (query_units in run.h).
struct UnitOptions {
    int64_t unit_queries = 0;  // 0: a unit is a layer
};
/// --unit-queries.
void add_unit_queries(OptionTable&, UnitOptions&);

/// The input files that decide the results: activations, and the fit of --held-out.
std::vector<std::filesystem::path> inputs_of(const RunOptions&, const QueryOptions&);

/// The ranges with explicit ends; 0:available if there are none. InputError naming the option if
/// one is empty or exceeds 0:available.
std::vector<QueryRange> resolve_ranges(const std::string& option, const std::vector<Range>& asked,
                                       int64_t available, const std::string& of_what = "");
/// Whether `value` is in one of them.
bool within(const std::vector<QueryRange>& ranges, int64_t value);

/// The packed tokens of the queries that the options name, ascending, without sampling.
std::vector<int64_t> chosen_queries(const QueryOptions&, const std::vector<int64_t>& cu_seqlens,
                                    int64_t layer);

/// A stratified sample of --sample-queries of them, from those after the first `prompt` tokens of
/// their sequence: one draw in each of as many equal parts.
std::vector<int64_t> sampled_queries(const QueryOptions&, const std::vector<int64_t>& cu_seqlens,
                                     int64_t layer, uint64_t seed, int64_t prompt = 0);

}  // namespace msa::experiments
