// SPDX-License-Identifier: MIT
#include "experiments/measure/checks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <ostream>
#include <stdexcept>

#include "analysis/output_error.h"
#include "analysis/recall.h"
#include "core/number/convert.h"

namespace msa::experiments::measure {
namespace {

/// Most that two outputs of the same keys may differ by, relative to their norm. Each rounds its
/// weights to the operands' element and itself to the element of outputs, which is no coarser than
/// bfloat16; kernels sum in float.
constexpr double output_rounding(Element operands) {
    constexpr double kSums = 1e-3;  // 2^14 roundings of 2^-24; those of more keys do not all add up
    const double weights = storage_roundoff(operands);
    return kSums + 2 * (weights + std::min(weights, storage_roundoff(Element::bf16)));
}

}  // namespace

void SelfChecks::begin(const CheckedRows& chunk, std::span<const int64_t> tokens) {
    const Problem& p = chunk.problem;
    chunk_.emplace(chunk);
    largest_bound_ = std::max(largest_bound_, chunk.mass_bound);
    best_ = Tensor<double, 3>({p.queries(), p.kv_heads, p.blocks() + 1});
#pragma omp parallel for
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            double* best = &best_(i, r, 0);
            std::copy_n(chunk.mass[i][r].data(), p.blocks(), best + 1);
            std::sort(best + 1, best + 1 + p.blocks(), std::greater<>());
            for (int64_t n = 1; n <= p.blocks(); ++n) best[n] += best[n - 1];
        }
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const View<const float, 1> mass = chunk.mass[i][r];
            if (std::isfinite(std::accumulate(mass.data(), mass.data() + mass.size(), 0.0)))
                continue;
            if (undefined_++ > 0) continue;
            first_token_ = tokens[static_cast<size_t>(i)];
            first_group_ = r;
        }
}

void SelfChecks::warn(const std::string& unit, std::ostream& err) const {
    if (undefined_ == 0) return;
    err << "warning: " << unit << ": attention is undefined, NaN or an overflow in its "
        << "logits, in " << undefined_ << " rows; the first is token " << first_token_ << ", group "
        << first_group_ << ". Averages over them are undefined too\n";
}

void SelfChecks::check_mass(const std::string& choice, int64_t query, int64_t group, int64_t blocks,
                            double mass) {
    const double most = best_(query, group, blocks), bound = chunk_->mass_bound;
    if (mass > most + bound || mass > 1 + bound)
        throw std::logic_error(concat(choice, " keeps ", mass, " of the mass of query ", query,
                                      ", group ", group, "; the best ", blocks, " blocks keep ",
                                      most));
    ++rows_;
}

void SelfChecks::check_rows(const std::string& choice, const CheckedRows& rows, int64_t first,
                            View<const int32_t, 3> ids, View<const double, 2> differences) {
    const Problem& p = rows.problem;
    const std::vector<KeyRange>& visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const std::span<const int32_t> kept = selected(ids, i, r);
            check_mass(choice, first + i, r, std::ssize(kept),
                       analysis::mass_of(rows.mass[i][r], kept));
            const int64_t count = visible[static_cast<size_t>(i)].count;
            if (std::ssize(kept) != visible_blocks(count, p.block_size)) continue;
            ++full_rows_;
            const double off = differences(i, r), norm = rows.norm(i, r);
            const double difference = norm > 0 ? std::sqrt(off / norm) : std::sqrt(off);
            difference_ = std::max(difference_, difference);
            if (difference > output_rounding(rows.element))
                throw std::logic_error(
                    concat(choice, " keeps all blocks of query ", first + i, ", group ", r,
                           ", but its output differs from dense by ", difference));
        }
}

void SelfChecks::check(const std::string& choice, View<const int32_t, 3> ids,
                       View<const double, 2> differences) {
    check_rows(choice, *chunk_, 0, ids, differences);
}

void SelfChecks::check_all_blocks(const MeasuredChunk& chunk, int64_t first, int64_t count) {
    const ChunkView& of = chunk.queries;
    const Problem p = chunk.problem.with_queries({first, first + count});
    const Tensor<int32_t, 3> ids = all_visible_blocks(p);
    const Operand<3> q(of.backend(), host_view(of.host_q).slice(first, count), of.element());
    AttentionInput input = of.input();
    input.q = q.view();
    const Tensor<float, 3> sparse = attend_selected(of.backend(), p, input, ids).out;
    check_rows("the full budget",
               {p, chunk.mass.slice(first, count), chunk.norm.view().slice(first, count),
                chunk.mass_bound, of.element()},
               first, ids,
               analysis::squared_differences(sparse, host_view(chunk.dense.out).slice(first, count),
                                             p.kv_heads));
}

analysis::State SelfChecks::state() const {
    return {{largest_bound_, difference_}, {rows_, full_rows_, undefined_}};
}

void SelfChecks::join(const analysis::State& state) {
    analysis::require_state("checks", state, 2, 3);
    largest_bound_ = std::max(largest_bound_, state.sums[0]);
    difference_ = std::max(difference_, state.sums[1]);
    rows_ += state.counts[0];
    full_rows_ += state.counts[1];
    undefined_ += state.counts[2];
}

void SelfChecks::write(io::UnitWriter& to, const std::string& layer) const {
    const std::string group = "/checks/" + layer;
    to.attribute(group, "rows", rows_);
    to.attribute(group, "rows_undefined", undefined_);
    to.attribute(group, "largest_mass_bound", largest_bound_);
    to.attribute(group, "rows_with_all_blocks", full_rows_);
    to.attribute(group, "largest_difference_from_dense", difference_);
}

}  // namespace msa::experiments::measure
