// SPDX-License-Identifier: MIT
#include "experiments/driver/shard.h"

#include <cstdlib>
#include <optional>

#include "experiments/driver/options.h"

namespace msa::experiments {
namespace {

int64_t slurm(const std::string& what) {
    const std::string name = "SLURM_ARRAY_TASK_" + what;
    const char* const set = std::getenv(name.c_str());
    require(set != nullptr, "--shard is slurm, but ", name,
            " is not set: must run as a task of a job array (sbatch --array)");
    const std::optional<int64_t> value = number_of<int64_t>(set);
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
    const std::optional<int64_t> index = number_of<int64_t>(value.substr(0, slash));
    const std::optional<int64_t> count =
        number_of<int64_t>(slash == std::string::npos ? "" : value.substr(slash + 1));
    require(index && count && 0 <= *index && *index < *count, "--shard is '", value,
            "', must be I/N with I from 0 to N - 1, or slurm");
    return {*index, *count};
}

}  // namespace msa::experiments
