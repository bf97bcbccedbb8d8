// SPDX-License-Identifier: MIT
// The problems of the last calls by their arguments, so that a call like one before finds its
// problem without being checked again: the host's time counts where the GPU's work is short. A call
// of sparse_attention takes 24 us of a core with it, 28 without.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "core/problem.h"

namespace msa {

/// The arguments from which operations.py makes a problem, as the caller gave them.
struct ProblemArguments {
    nanobind::handle layout, cu_seqlens_q, cu_seqlens_k;
    std::array<nanobind::handle, 4> arrays;   // q, k, index_q, index_k; None where absent
    std::array<nanobind::handle, 2> counts;   // block_size, window
    std::array<nanobind::handle, 3> numbers;  // softmax_scale, index_scale, softcap
};

/// Needs the GIL. Arguments that are of other kinds than None, int, float, lists and tuples of int,
/// layouts, and arrays of at most three axes are neither kept nor found.
class KnownProblems {
public:
    std::optional<Problem> find(const ProblemArguments&);
    void keep(const ProblemArguments&, const Problem&);

private:
    struct Key {
        std::optional<PackedBatch> layout;
        std::array<std::vector<int64_t>, 2> cu_seqlens;
        std::array<std::array<int64_t, 4>, 4> arrays{};  // axes and extents
        std::array<std::optional<int64_t>, 2> counts;
        std::array<std::optional<double>, 3> numbers;
        bool operator==(const Key&) const = default;
    };
    static constexpr size_t kMost = 32;

    static bool read(const ProblemArguments&, Key& to);

    std::list<std::pair<Key, Problem>> known_;  // the last found first
};

}  // namespace msa
