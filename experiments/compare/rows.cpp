// SPDX-License-Identifier: MIT
#include "experiments/compare/rows.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/select/token_selector.h"
#include "experiments/driver/full_layers.h"
#include "experiments/driver/options.h"
#include "experiments/driver/run.h"
#include "experiments/measure/drawn.h"
#include "experiments/report/text.h"

namespace msa::experiments::compare {
namespace {

Row read_row(const io::ResultsReader& results, const std::string& layer, const std::string& key) {
    Row row{.layer = layer, .key = key, .selector = "", .setting = "", .family = "", .kind = ""};
    for (const auto& [name, to] : {std::pair{"selector", &row.selector},
                                   {"setting", &row.setting},
                                   {"family", &row.family},
                                   {"kind", &row.kind}})
        *to = results.text(row.group(), name);
    for (const char* name : kSizes)
        row.sizes[name] = static_cast<int64_t>(results.number(row.group(), name));
    for (const char* name : kMeasures) row.measures[name] = results.number(row.group(), name);
    return row;
}

/// The numbers with intervals of a layer's rows.
void estimate(const io::ResultsReader& results, std::vector<Row>& rows) {
    const measure::LayerNumbers of(results, rows.front().layer);
    std::map<std::string, size_t> best;  // by setting, the candidate of the highest mass kept
    for (size_t n = 0; n < rows.size(); ++n) {
        Row& row = rows[n];
        row.kept = measure::NumbersByMetric(of, row.key);
        if (!row.is_candidate()) continue;
        const auto [at, is_new] = best.try_emplace(row.compared_setting(), n);
        if (!is_new && row.mass_kept() > rows[at->second].mass_kept()) at->second = n;
    }
    const auto draws = [&](size_t n) { return rows[n].kept.numbers("mass_kept").draws; };
    for (size_t n = 0; n < rows.size(); ++n) {
        const auto at = best.find(rows[n].compared_setting());
        if (at == best.end()) continue;
        rows[n].best = rows[at->second].selector;
        rows[n].behind = analysis::with_interval(rows[at->second].mass_kept() - rows[n].mass_kept(),
                                                 measure::differences(draws(at->second), draws(n)));
    }
}

/// Of a selector's first row on a layer.
void add_notes(const io::ResultsReader& results, const Row& row, std::vector<std::string>& to) {
    const std::unique_ptr<Policy> policy = make_policy(row.selector);
    if (row.kind == "tokens")
        to.push_back(concat(policy->name(), ": every query reads the same number of tokens, ",
                            "the mean over all queries of the phase of what the blocks of the ",
                            "budget hold"));
    if (!policy->note().empty()) to.push_back(concat(row.selector, ": ", policy->note()));
    if (!policy->needs().previous_layer) return;
    const auto previous =
        static_cast<int64_t>(results.number("/layers/" + row.layer, "previous_layer"));
    const int64_t before = std::stoll(row.layer) - 1;
    if (previous != before)
        to.push_back(concat(row.selector, ": layer ", before, " is not in the file, layer ",
                            previous, " stands in for it"));
}

/// Where some selectors of blocks keep the first block at a setting and others do not: nothing
/// where that is named in the setting.
std::string unlike_note(const std::vector<Row>& rows) {
    std::set<std::string> with;
    bool without = false;
    for (const Row& row : rows) {
        if (row.kind == "tokens" || row.family == "oracle" ||
            row.setting.find("first=") != std::string::npos)
            continue;
        if (row.sizes.at("forced_first") > 0)
            with.insert(row.selector);
        else
            without = true;
    }
    if (with.empty() || !without) return "";
    return concat("not like for like: ", join(with), with.size() == 1 ? " keeps" : " keep",
                  " the first block in any case, the others do not; --forced-first 0,1 has rows of "
                  "both");
}

std::vector<std::string> read_notes(const io::ResultsReader& results,
                                    const std::vector<Row>& rows) {
    std::vector<std::string> notes;
    if (const std::string unlike = unlike_note(rows); !unlike.empty()) notes.push_back(unlike);
    std::string last;
    for (const Row& row : rows) {
        if (!row.over_budget() || row.selector == last) continue;
        last = row.selector;
        notes.push_back(
            concat(row.selector,
                   ": reads more tokens than its budget, compare it at the tokens that it reads"));
    }
    last.clear();
    for (const Row& row : rows) {
        if (row.selector != last) add_notes(results, row, notes);
        last = row.selector;
    }
    return notes;
}

/// What is of the layer itself.
void read_layer(const io::ResultsReader& results, LayerRows& of) {
    const std::string layer = "/layers/" + of.layer, checks = "/checks/" + of.layer;
    const auto count = [&](const std::string& group, const char* name) {
        return static_cast<int64_t>(results.number(group, name));
    };
    const measure::DrawnBlocks from(results, "/query_blocks/" + of.layer);
    of.notes = read_notes(results, of.rows);
    of.window = recorded_window(results, layer);
    of.tokens = count(layer, "tokens");
    of.queries = count(layer, "queries");
    of.largest_budget = count(layer, "largest_budget");
    of.blocks = from.blocks();
    of.sequences = from.sequences();
    of.rows_checked = count(checks, "rows");
    of.rows_with_all_blocks = count(checks, "rows_with_all_blocks");
    of.rows_undefined = count(checks, "rows_undefined");
    of.difference = results.number(checks, "largest_difference_from_dense");
    of.mass_bound = results.number(checks, "largest_mass_bound");
}

}  // namespace

std::string Row::variant() const {
    const size_t comma = setting.find(',');
    return comma == std::string::npos ? "" : setting.substr(comma + 1);
}

std::string Row::compared_setting() const {
    return variant() == "equal=budget" ? setting.substr(0, setting.find(',')) : setting;
}

bool Row::over_budget() const {
    return measures.at("tokens_read") > static_cast<double>(sizes.at("tokens_allowed"));
}

bool Row::is_candidate() const {
    return family != "oracle" && !over_budget() && variant() != "equal=FLOPs" &&
           !std::isnan(mass_kept());
}

std::optional<std::string> Row::standing() const {
    if (!is_candidate()) return std::nullopt;
    if (selector == best) return "best";
    return behind.low <= 0 && behind.high >= 0 ? std::optional("=") : std::nullopt;
}

std::optional<std::string> Row::best_selector() const {
    return best.empty() ? std::nullopt : std::optional(best);
}

std::vector<LayerRows> read_rows(const io::ResultsReader& results) {
    const std::vector<std::string> order = list_policies();
    std::vector<LayerRows> all;
    for (const std::string& layer : results.list("/layers")) {
        std::vector<Row> rows;
        for (const std::string& key : results.list("/metrics"))
            if (results.has("/metrics/" + key + "/" + layer))
                rows.push_back(read_row(results, layer, key));
        if (rows.empty()) continue;
        std::ranges::stable_sort(rows, {}, [&](const Row& row) {
            return std::tuple(std::ranges::find(order, name_of_label(row.selector)) - order.begin(),
                              row.selector, row.budget());
        });
        estimate(results, rows);
        all.push_back({layer, std::move(rows)});
        read_layer(results, all.back());
    }
    std::ranges::stable_sort(all, {}, [](const LayerRows& of) { return std::stoll(of.layer); });
    return all;
}

}  // namespace msa::experiments::compare
