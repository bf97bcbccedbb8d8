// SPDX-License-Identifier: MIT
#include "core/select/selector.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/select/token_selector.h"

namespace msa {

const char* to_string(Family family) {
    constexpr std::array kNames{"oracle", "index branch", "keys", "queries", "position"};
    return kNames[static_cast<size_t>(family)];
}

SelectorChunk::SelectorChunk(const SelectorLayer& layer, const Problem& queries,
                             std::span<const int64_t> packed, Mirror<3> rows, Mirror<3> index_rows,
                             bool with_logits, std::function<Mirror<3>()> previous)
    : problem(queries),
      tokens(packed),
      q(std::move(rows)),
      index_q(std::move(index_rows)),
      backend_(layer.backend),
      k_(layer.k),
      sinks_(layer.sinks),
      with_logits_(with_logits),
      make_previous_(std::move(previous)) {}

void SelectorChunk::compute(bool logits) const {
    const Shape<3> shape{problem.queries(), problem.kv_heads, problem.blocks()};
    auto mass = backend_.make<float, 3>(shape);
    auto top = logits ? backend_.make<float, 3>(shape) : Tensor<float, 3>();
    backend_.block_mass(problem, {q.operand(), k_.operand(), sinks_}, {mass, top});
    mass_ = {backend_, std::move(mass)};
    if (logits) max_logit_ = {backend_, std::move(top)};
}

const Mirror<3>& SelectorChunk::mass() const {
    if (!mass_) compute(with_logits_);
    return mass_;
}

const Mirror<3>& SelectorChunk::max_logit() const {
    if (!max_logit_) compute(true);
    return max_logit_;
}

const Mirror<3>& SelectorChunk::previous_mass() const {
    if (!previous_ && make_previous_) previous_ = make_previous_();
    return previous_;
}

Tensor<int32_t, 3> Selector::select(const SelectorLayer& layer, const SelectorChunk& chunk,
                                    const SelectionRule& rule) {
    const Problem& p = chunk.problem;
    const Mirror<3> scores = score(layer, chunk);
    auto ids = layer.backend.make<int32_t, 3>({p.queries(), p.kv_heads, rule.top_k});
    layer.backend.select_blocks(p, rule, scores.floats(), ids);
    return ids;
}

SelectionRule Selector::adjust(SelectionRule asked, int64_t /*prompt*/) const { return asked; }

SelectionRule force(SelectionRule asked, int64_t first, int64_t local) {
    const int64_t room = std::max<int64_t>(1, asked.top_k - 1);
    asked.forced_first = std::max(asked.forced_first, std::min(first, room - asked.forced_local));
    asked.forced_local = std::max(asked.forced_local, std::min(local, room - asked.forced_first));
    return asked;
}

SelectionRule force_share(SelectionRule asked, int64_t first, int64_t local, int64_t of) {
    const int64_t all = first + local;
    const int64_t share = (2 * asked.top_k * all + of) / (2 * of);  // rounded
    const int64_t room = std::clamp<int64_t>(share, 1, all);
    const int64_t firsts = std::min(first, room - 1);
    return force(asked, firsts, room - firsts);
}

int64_t readable_tokens(int64_t top_k, int64_t block_size, int64_t visible) {
    if (visible == 0) return 0;
    const int64_t own = (visible - 1) % block_size + 1;
    return std::min(visible, (top_k - 1) * block_size + own);
}

}  // namespace msa
