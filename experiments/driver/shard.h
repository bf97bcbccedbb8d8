// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

namespace msa::experiments {

/// A part of a run's units: those whose number modulo `count` is `index`.
struct Shard {
    int64_t index = 0, count = 1;
    std::string text() const { return std::to_string(index) + "/" + std::to_string(count); }
};

/// Parses "1/4", with parts counted from 0, or "slurm": the part of this task of a job array, from
/// the environment variables SLURM_ARRAY_TASK_ID, _MIN, _STEP and _COUNT. InputError naming --shard
/// or the variable, and the rule.
Shard parse_shard(const std::string& value);

}  // namespace msa::experiments
