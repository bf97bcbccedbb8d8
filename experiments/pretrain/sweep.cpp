// SPDX-License-Identifier: MIT
#include "experiments/pretrain/sweep.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/io/file_format.h"
#include "experiments/driver/program.h"
#include "experiments/driver/run.h"

namespace msa::experiments::pretrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

bool is_name(const std::string& arm) {
    return !arm.empty() && std::all_of(arm.begin(), arm.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '-' || c == '_';
    });
}

/// The option that a word of a command line names; empty for a value.
std::string option_of(const std::string& word) {
    return word.starts_with("--") ? word.substr(0, word.find('=')) : "";
}

/// Takes the options that `others` name out of `words`. Whether one has a value behind it shows in
/// `others`.
void drop_options(std::vector<std::string>& words, const std::vector<std::string>& others) {
    for (size_t n = 0; n < others.size(); ++n) {
        const std::string option = option_of(others[n]);
        if (option.empty()) continue;
        const bool valued = n + 1 < others.size() && option_of(others[n + 1]).empty();
        for (size_t at = 0; at < words.size();) {
            if (option_of(words[at]) != option) {
                ++at;
                continue;
            }
            const size_t count = valued && words[at] == option && at + 1 < words.size() ? 2 : 1;
            const auto first = words.begin() + static_cast<std::ptrdiff_t>(at);
            words.erase(first, first + static_cast<std::ptrdiff_t>(count));
        }
    }
}

void replace_all(std::string& in, const std::string& name, const std::string& value) {
    for (size_t at = 0; (at = in.find(name, at)) != std::string::npos; at += value.size())
        in.replace(at, name.size(), value);
}

/// The words of a run: those of the sweep but for what is of all runs, and those of its arm.
std::vector<std::string> command_line(const SweepRun& run, const Sweep& sweep,
                                      const std::vector<std::string>& of_arm,
                                      const PretrainOptions& o, std::span<const std::string> args) {
    std::vector<std::string> all(args.begin(), args.end());
    drop_options(all, sweep.words);
    all.insert(all.end(), sweep.words.begin(), sweep.words.end());
    drop_options(all, {"--sweep", "FILE", "--out", "DIR", "--seed", "S", "--together", "--resume",
                       "--json"});
    drop_options(all, of_arm);
    for (std::string word : of_arm) {
        replace_all(word, "{seed}", std::to_string(run.seed));
        replace_all(word, "{out}", o.out.string());
        all.push_back(std::move(word));
    }
    all.insert(all.end(),
               {"--seed", std::to_string(run.seed), "--out", run.folder.string(), "--resume"});
    return all;
}

/// What the words of a run say.
PretrainOptions options_of(const SweepRun& run, const std::vector<std::string>& of_arm,
                           const PretrainOptions& o) {
    for (const char* option : {"devices", "device"})
        require(o.together || !given(of_arm, option), o.sweep.string(), ": arm ", run.arm,
                " has --", option,
                ", which says for the whole sweep where runs are done; with "
                "--together each run has devices of its own");
    try {
        Silence help;
        std::optional<PretrainOptions> own = parse_pretrain_options(run.words, help);
        require(own.has_value() && own->sweep.empty(), "must be the words of one run");
        return *std::move(own);
    } catch (const InputError& error) {
        throw InputError(concat(o.sweep.string(), ": arm ", run.arm, ": ", error.what()));
    }
}

/// Which runs have files that run `n` reads.
std::vector<size_t> runs_read_by(size_t n, const std::vector<SweepRun>& runs,
                                 const PretrainOptions& o) {
    std::vector<size_t> numbers;
    for (const fs::path& input : runs[n].options.inputs()) {
        if (!lies_in(input, o.out)) continue;
        for (size_t other = 0; other < runs.size(); ++other) {
            if (!lies_in(input, runs[other].folder)) continue;
            require(other < n, o.sweep.string(), ": arm ", runs[n].arm, " reads ", input.string(),
                    ", of ", runs[other].name(), ", which must come before it");
            numbers.push_back(other);
        }
    }
    return numbers;
}

}  // namespace

Sweep read_sweep(const fs::path& file) {
    const auto rule = [&](bool holds, const std::string& what) {
        require(holds, file.string(), ": ", what);
    };
    io::require_file(file);
    std::ifstream stream(file);
    rule(stream.good(), "cannot be read");
    const ordered_json json = ordered_json::parse(stream, nullptr, false);
    rule(!json.is_discarded(), "is no JSON");
    rule(json.is_object() && json.contains("seeds") && json["seeds"].is_array() &&
             !json["seeds"].empty(),
         "seeds must be a list of numbers");
    rule(json.contains("arms") && json["arms"].is_object() && !json["arms"].empty(),
         "arms must be an object of lists of words, by name");
    const auto is_list = [](const ordered_json& words) {
        return words.is_array() &&
               std::all_of(words.begin(), words.end(),
                           [](const ordered_json& word) { return word.is_string(); });
    };
    const ordered_json common = json.value("words", ordered_json::array());
    rule(is_list(common), "words must be a list of words");
    Sweep sweep{.words = common.get<std::vector<std::string>>(), .seeds = {}, .arms = {}};
    for (const ordered_json& seed : json["seeds"]) {
        rule(seed.is_number_unsigned(), "seed " + seed.dump() + " must be a number from 0 on");
        sweep.seeds.push_back(seed);
    }
    for (const auto& [arm, words] : json["arms"].items()) {
        rule(is_name(arm), "arm '" + arm + "' must be of letters, digits, - and _");
        rule(is_list(words), "arm " + arm + " must be a list of words");
        sweep.arms.emplace_back(arm, words.get<std::vector<std::string>>());
    }
    return sweep;
}

std::vector<SweepRun> runs_of(const Sweep& sweep, const PretrainOptions& o,
                              std::span<const std::string> args) {
    std::vector<SweepRun> runs;
    for (uint64_t seed : sweep.seeds)
        for (const auto& [arm, words] : sweep.arms) {
            SweepRun run{.arm = arm, .seed = seed, .folder = o.out / arm / concat("seed-", seed)};
            run.words = command_line(run, sweep, words, o, args);
            run.options = options_of(run, words, o);
            runs.push_back(std::move(run));
        }
    for (size_t n = 0; n < runs.size(); ++n) runs[n].reads = runs_read_by(n, runs, o);
    return runs;
}

}  // namespace msa::experiments::pretrain
