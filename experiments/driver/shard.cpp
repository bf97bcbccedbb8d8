// SPDX-License-Identifier: MIT
#include "experiments/driver/shard.h"

#include <charconv>
#include <cstdlib>
#include <optional>

#include "core/error.h"

namespace msa::experiments {
namespace {

std::optional<int64_t> integer(const std::string& word) {
    int64_t value = 0;
    const char* const end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data(), end, value);
    if (error != std::errc() || at != end) return std::nullopt;
    return value;
}

int64_t slurm(const std::string& what) {
    const std::string name = "SLURM_ARRAY_TASK_" + what;
    const char* const set = std::getenv(name.c_str());
    require(set != nullptr, "--shard is slurm, but ", name,
            " is not set: must run as a task of a job array (sbatch --array)");
    const std::optional<int64_t> value = integer(set);
    require(value.has_value(), name, " is '", set, "', must be an integer");
    return *value;
}

Shard slurm_shard() {
    const int64_t id = slurm("ID"), first = slurm("MIN"), step = slurm("STEP"),
                  count = slurm("COUNT");
    require(step > 0 && (id - first) % step == 0 && id >= first && (id - first) / step < count,
            "--shard is slurm, but SLURM_ARRAY_TASK_ID = ", id, " is none of ", count,
            " numbers from ", first, " in steps of ", step, ": must be a regular --array");
    return {(id - first) / step, count};
}

}  // namespace

Shard parse_shard(const std::string& value) {
    if (value == "slurm") return slurm_shard();
    const size_t slash = value.find('/');
    const std::optional<int64_t> index = integer(value.substr(0, slash));
    const std::optional<int64_t> count =
        integer(slash == std::string::npos ? "" : value.substr(slash + 1));
    require(index && count && 0 <= *index && *index < *count, "--shard is '", value,
            "', must be I/N with I from 0 to N - 1, or slurm");
    return {*index, *count};
}

}  // namespace msa::experiments
