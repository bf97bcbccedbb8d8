// SPDX-License-Identifier: MIT
#include "experiments/pretrain/sweep.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "core/error.h"
#include "experiments/driver/ranks.h"
#include "experiments/driver/write_text.h"
#include "experiments/pretrain/training.h"

namespace msa::experiments::pretrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kNumbers[] = {
    "steps", "parameters", "loss", "bits_per_byte", "tokens_per_second",
    "mfu",   "retrieval",  "rows"};

ordered_json read_json(const fs::path& file) {
    std::ifstream stream(file);
    require(stream.good(), file.string(), ": there is no such file");
    ordered_json json = ordered_json::parse(stream, nullptr, false);
    require(!json.is_discarded(), file.string(), ": is no JSON");
    return json;
}

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

}  // namespace

Sweep read_sweep(const fs::path& file) {
    const ordered_json json = read_json(file);
    const auto rule = [&](bool holds, const std::string& what) {
        require(holds, file.string(), ": ", what);
    };
    rule(json.is_object() && json.contains("seeds") && json["seeds"].is_array() &&
             !json["seeds"].empty(),
         "seeds must be a list of numbers");
    rule(json.contains("arms") && json["arms"].is_object() && !json["arms"].empty(),
         "arms must be an object of lists of words, by name");
    Sweep sweep;
    for (const ordered_json& seed : json["seeds"]) {
        rule(seed.is_number_unsigned(), "seed " + seed.dump() + " must be a number from 0 on");
        sweep.seeds.push_back(seed);
    }
    for (const auto& [arm, words] : json["arms"].items()) {
        rule(is_name(arm), "arm '" + arm + "' must be of letters, digits, - and _");
        const bool list = words.is_array() &&
                          std::all_of(words.begin(), words.end(),
                                      [](const ordered_json& word) { return word.is_string(); });
        rule(list, "arm " + arm + " must be a list of words");
        sweep.arms.emplace_back(arm, words.get<std::vector<std::string>>());
    }
    return sweep;
}

void run_sweep(const PretrainOptions& o, std::span<const std::string> args, Run train,
               std::ostream& out, std::ostream& err) {
    require(!o.overwrite, "--overwrite is not for a sweep, which runs what is missing");
    const Sweep sweep = read_sweep(o.sweep);
    const Ranks& ranks = Ranks::world();
    ordered_json runs = ordered_json::array();
    for (uint64_t seed : sweep.seeds)
        for (const auto& [arm, words] : sweep.arms) {
            const fs::path folder = o.out / arm / text("seed-", seed);
            const fs::path diverged = folder / "diverged.json";
            ordered_json run{{"arm", arm}, {"seed", seed}};
            std::vector<std::string> all(args.begin(), args.end());
            drop_options(all,
                         {"--sweep", "FILE", "--out", "DIR", "--seed", "S", "--resume", "--json"});
            drop_options(all, words);
            for (std::string word : words) {
                replace_all(word, "{seed}", std::to_string(seed));
                replace_all(word, "{out}", o.out.string());
                all.push_back(std::move(word));
            }
            all.insert(all.end(),
                       {"--seed", std::to_string(seed), "--out", folder.string(), "--resume"});
            err << arm << ", seed " << seed << '\n';
            const bool known = ranks.from_first(int64_t{fs::exists(diverged)}) != 0;
            if (!known) {
                std::ostringstream tables;
                try {
                    train(all, tables, err);
                } catch (const Diverged& error) {
                    err << error.what() << '\n';
                    write_text(diverged,
                               ordered_json{{"diverged_after", error.step()}}.dump() + "\n");
                }
            }
            if (!ranks.is_first()) continue;  // the first one has the results
            if (fs::exists(diverged)) {
                run.update(read_json(diverged));
            } else {
                const ordered_json summary = read_json(folder / "summary.json");
                for (const char* name : kNumbers) run[name] = summary.at(name);
            }
            runs.push_back(run);
            write_text(o.out / "sweep.json",
                       ordered_json{{"format", "msa-sweep"}, {"runs", runs}}.dump(2) + "\n");
            out << arm << ", seed " << seed << ": "
                << (run.contains("diverged_after")
                        ? text("diverged after ", run["diverged_after"].dump(), " steps")
                        : text(run["bits_per_byte"].dump(), " bits per byte"))
                << std::endl;
        }
}

}  // namespace msa::experiments::pretrain
