// SPDX-License-Identifier: MIT
#include "experiments/driver/help.h"

#include <algorithm>
#include <map>
#include <ostream>
#include <utility>

#include "experiments/report/text.h"

namespace msa::experiments {
namespace {

using Words = std::vector<std::string>;

/// Boost writes a description from here on at the latest.
constexpr unsigned kDescriptions = 30;

const std::map<std::string, Words, std::less<>> kUsual{
    {"msa-advise",
     {"input", "out", "keep", "error", "budgets", "context", "hardware", "selectors", "block-size",
      "top-k"}},
    {"msa-analyze",
     {"input", "out", "layers", "selectors", "block-size", "top-k", "forced-first", "queries",
      "backend", "overwrite"}},
    {"msa-bench",
     {"out", "backend", "cases", "stages", "tokens", "selection", "preset", "block-size", "top-k",
      "index-element"}},
    {"msa-cache", {"input", "out", "time-per-token", "link", "prefetch", "layers", "selectors"}},
    {"msa-compare",
     {"input", "out", "layers", "selectors", "budgets", "ablation", "block-size", "phase",
      "queries", "overwrite"}},
    {"msa-cost",
     {"preset", "context", "hardware", "results", "block-size", "top-k", "gpus", "json"}},
    {"msa-fit-indexer",
     {"input", "out", "layers", "block-size", "top-k", "steps", "train", "eval", "backend",
      "overwrite"}},
    {"msa-precision",
     {"input", "out", "indexer", "formats", "scales", "keep", "error", "layers", "block-size",
      "top-k"}},
    {"msa-pretrain",
     {"input", "out", "preset", "attention", "block-size", "top-k", "steps", "held-out-text",
      "backend", "resume"}},
    {"msa-reuse",
     {"input", "out", "lose", "keep", "every", "layers", "selectors", "block-size", "top-k",
      "overwrite"}},
};

const std::vector<std::pair<std::string, Words>> kGroups{
    {"The model and its Index Branch",
     {"preset",     "layers",       "model-dim",    "hidden-dim", "query-heads", "kv-heads",
      "head-dim",   "rotary-dim",   "rope-theta",   "index-dim",  "index-heads", "index-rotary",
      "index-norm", "rope-pairs",   "architecture", "attention",  "signals",     "sink",
      "context",    "model-layers", "indexer"}},
    {"What is selected",
     {"selectors", "block-size", "top-k", "budgets", "forced-first", "forced-local", "forced",
      "share", "every", "groups"}},
    {"What is measured, and on what",
     {"input",          "stages",       "sizes",          "queries",       "positions",
      "sample-queries", "held-out",     "held-out-share", "held-out-text", "all-rows",
      "oracle",         "oracle-local", "sink-tokens",    "phase",         "prompt",
      "error",          "keep",         "lose",           "hardware",      "ceilings",
      "eval",           "eval-every",   "eval-queries",   "probe-every",   "eval-sequences",
      "eval-exercises", "eval-lengths", "log-every",      "capture",       "dump"}},
    {"Training", {"steps",        "warmup-steps",
                  "lr",           "lr-warmup",
                  "weight-decay", "beta2",
                  "clip",         "clip-index",
                  "kl-weight",    "kl-teacher",
                  "kl-support",   "detach",
                  "detach-lm",    "attach-from",
                  "attach-until", "freeze-index",
                  "sequences",    "queries-per-step",
                  "train",        "split",
                  "init",         "teacher",
                  "taught-by",    "keep-x",
                  "start-from",   "fork",
                  "until",        "save-every",
                  "tasks",        "exercises",
                  "pairs",        "questions",
                  "hops",         "short-documents",
                  "begin",        "bos",
                  "sweep"}},
    {"Numbers and backend",
     {"rotations", "backend", "threads", "element", "index-element", "seed"}},
    {"The run", {"resume", "overwrite", "unit-queries", "json", "samples", "capacity", "support"}},
    {"Many machines", {"devices", "together", "gpus", "union-blocks"}},
};

using Option = boost::shared_ptr<po::option_description>;
using Group = std::pair<std::string, std::vector<Option>>;

bool holds(const Words& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

/// Groups that have an option, the usual ones first, others that no group names last; options in
/// the program's order.
std::vector<Group> grouped(const About& about, const po::options_description& options) {
    const Words& usual = usual_options(about.program.name);
    std::vector<Group> groups{{"Usual options", {}}};
    for (const auto& [name, words] : kGroups) groups.emplace_back(name, std::vector<Option>{});
    groups.emplace_back("More", std::vector<Option>{});
    for (const Option& option : options.options()) {
        const std::string& name = option->long_name();
        const auto of = std::find_if(kGroups.begin(), kGroups.end(),
                                     [&](const auto& group) { return holds(group.second, name); });
        const bool first = usual.empty() || holds(usual, name);
        groups[first ? 0 : static_cast<size_t>(of - kGroups.begin()) + 1].second.push_back(option);
    }
    std::erase_if(groups, [](const Group& group) { return group.second.empty(); });
    return groups;
}

void print_group(const Group& group, std::ostream& out) {
    po::options_description shown(group.first, kLineWidth, kLineWidth - kDescriptions);
    for (const Option& option : group.second) shown.add(option);
    out << shown << '\n';
}

std::string question(const About& about) {
    return about.does.empty() ? about.program.question
                              : concat(about.program.question, ' ', about.does);
}

/// "22 more in the groups: Training; The run", or nothing.
std::string left_out(const std::vector<Group>& groups) {
    size_t count = 0;
    Words names;
    for (size_t at = 1; at < groups.size(); ++at) {
        count += groups[at].second.size();
        names.push_back(groups[at].first);
    }
    return names.empty() ? "" : concat(" and ", count, " more: ", join(names, "; "));
}

}  // namespace

const std::vector<std::string>& usual_options(std::string_view program) {
    static const Words none;
    const auto found = kUsual.find(program);
    return found == kUsual.end() ? none : found->second;
}

void print_help(const About& about, const po::options_description& options, Length length,
                std::ostream& out) {
    out << about.program.name << ": " << question(about) << "\n\nusage: " << about.program.name
        << ' ' << about.usage << "\n\n";
    const std::vector<Group> groups = grouped(about, options);
    for (const Group& group : groups)
        if (length == Length::all || &group == groups.data()) print_group(group, out);
    po::options_description help("Help", kLineWidth, kLineWidth - kDescriptions);
    help.add_options()("help,h", "print the usual options")(
        "help-all", concat("print them", left_out(groups)).c_str());
    if (length == Length::all)
        help.add_options()("help-markdown", "print the help as Markdown")(
            "version", "print version and commit");
    out << help << "\nCounts take the suffixes K = 2^10 and M = 2^20. Ranges are half open.\n";
    if (!about.writes.empty()) out << "\nWrites " << about.writes << '\n';
    out << "\nExamples:\n";
    for (const std::string& example : about.examples) out << "  " << example << '\n';
}

void print_markdown(const About& about, const po::options_description& options, std::ostream& out) {
    out << "## " << about.program.name << "\n\n"
        << question(about) << "\n\n    " << about.program.name << ' ' << about.usage << '\n';
    for (const auto& [name, of_group] : grouped(about, options)) {
        out << "\n| " << name << " | meaning |\n|---|---|\n";
        for (const Option& option : of_group) {
            const std::string parameter = option->format_parameter();
            out << "| `--" << option->long_name() << (parameter.empty() ? "" : " ") << parameter
                << "` | " << option->description() << " |\n";
        }
    }
    if (!about.writes.empty()) out << "\nWrites " << about.writes << '\n';
    out << "\n```\n";
    for (const std::string& example : about.examples) out << example << '\n';
    out << "```\n";
}

}  // namespace msa::experiments
