// SPDX-License-Identifier: MIT
#include "experiments/fit/data.h"

#include <algorithm>

#include "core/cu_seqlens.h"
#include "core/error.h"
#include "core/indexer/gate_kl.h"
#include "core/indexer/projection.h"
#include "experiments/driver/operands.h"
#include "experiments/fit/rope.h"

namespace msa::experiments::fit {
namespace {

using io::Field;

bool overlap(const std::vector<QueryRange>& some, const std::vector<QueryRange>& others) {
    for (const QueryRange& a : some)
        for (const QueryRange& b : others)
            if (a.begin < b.end && b.begin < a.end) return true;
    return false;
}

/// "0:100,200:300"
std::string text_of(const std::vector<QueryRange>& ranges) {
    std::string all;
    for (const QueryRange& range : ranges)
        all += concat(all.empty() ? "" : ",", range.begin, ":", range.end);
    return all;
}

/// What a gate is made of: q before RoPE, and the pooled keys of each sequence's blocks.
void read_gate_inputs(const io::ActivationsReader& file, TrainingLayer& data) {
    const auto before_rope = [&](Field field) {
        Tensor<float, 3> rows = file.read(data.info.layer, field, {0, file.info().tokens()});
        undo_rope(rows, data.positions, {data.rope, data.info.rope_interleaved});
        return rows;
    };
    const Tensor<float, 3> q = before_rope(Field::q), k = before_rope(Field::k);
    data.x = Tensor<float, 3>({q.extent(0), 1, q.extent(1) * q.extent(2)}, Fill::nothing);
    std::copy_n(q.data(), q.size(), data.x.data());
    const std::vector<int64_t> starts = block_starts(data.problem);
    const std::vector<int64_t>& cu = file.info().cu_seqlens;
    data.pooled =
        Tensor<float, 2>({starts.back(), k.extent(1) * kGatePools * k.extent(2)}, Fill::nothing);
    for (size_t s = 0; s + 1 < cu.size(); ++s) {
        const Tensor<float, 2> of_sequence =
            pool_keys(k.view().slice(cu[s], cu[s + 1] - cu[s]), data.problem.block_size);
        std::copy_n(of_sequence.data(), of_sequence.size(), &data.pooled(starts[s], 0));
    }
    data.block_positions = block_positions(data.problem);
}

}  // namespace

void check_layer(const io::ActivationsReader& file, int64_t layer, Architecture architecture) {
    require(architecture == Architecture::seerattention || file.layer(layer).has(Field::x),
            file.name(), ": /layers/", layer,
            " has no x, the input of the projections, which an Index Branch is fitted to");
    io::require_post_rope(file, layer);
}

TrainingLayer read_layer(const io::ActivationsReader& file, int64_t layer, const FitOptions& o) {
    TrainingLayer data;
    data.info = file.layer(layer);
    data.problem = io::layer_problem(file.info(), data.info, o.block_size);
    data.problem.index_dim = o.index_dim;
    const bool dsa = o.architecture == Architecture::dsa;
    data.learned.dsa_heads = dsa ? o.index_heads.value_or(data.info.kv_heads) : 0;
    data.learned.dsa_dim = dsa ? o.index_dim : 0;
    const bool gate = o.architecture == Architecture::seerattention;
    data.learned.gate_dim = gate ? o.index_dim : 0;
    data.problem.validate();
    for (const KeyRange& seen : visible_keys(data.problem))
        data.positions.push_back(seen.count - 1);
    data.rope = model_frequencies(o, file, layer);
    const LayerReader reader(file, data.info, float_elements(data.info, o.element));
    if (gate)
        read_gate_inputs(file, data);
    else
        data.x = reader.all(Field::x);
    data.q = reader.all(Field::q);
    data.k = reader.all(Field::k);
    data.v = reader.all(Field::v);
    return data;
}

Split split_queries(const FitOptions& o, const std::vector<int64_t>& cu) {
    const auto sequences = std::ssize(cu) - 1;
    constexpr const char* kCounted[] = {"positions", "sequences", "tokens"};
    const char* const what = kCounted[static_cast<size_t>(o.split)];
    const bool by_sequence = o.split == SplitBy::sequence;
    require(!by_sequence || sequences >= 2,
            "--split is sequence, must be position: there is one sequence");
    const int64_t available = by_sequence                 ? sequences
                              : o.split == SplitBy::token ? cu.back()
                                                          : longest_sequence(cu);
    const std::string of_what = concat("of ", what);
    const int64_t cut = std::max<int64_t>(1, available * 3 / 4);
    const std::vector<QueryRange> train =
        o.train.empty() ? std::vector<QueryRange>{{0, cut}}
                        : resolve_ranges("train", o.train, available, of_what);
    int64_t end = 0;
    for (const QueryRange& range : train) end = std::max(end, range.end);
    const std::vector<Range> rest{{end, std::nullopt}};
    const std::vector<QueryRange> held_out =
        resolve_ranges("eval", o.held_out.empty() ? rest : o.held_out, available, of_what);
    require(!overlap(held_out, train), "--eval is ", text_of(held_out),
            ", must share no query with --train = ", text_of(train));

    Split split;
    split.text = concat("trained on ", what, " ", text_of(train), ", held out ", text_of(held_out),
                        ", of ", sequences, " sequence", sequences == 1 ? "" : "s");
    for (int64_t s = 0; s < sequences; ++s)
        for (int64_t i = cu[static_cast<size_t>(s)]; i < cu[static_cast<size_t>(s) + 1]; ++i) {
            const int64_t at = by_sequence                 ? s
                               : o.split == SplitBy::token ? i
                                                           : i - cu[static_cast<size_t>(s)];
            if (within(train, at)) split.train.push_back(i);
            if (within(held_out, at)) split.held_out.push_back(i);
        }
    return split;
}

}  // namespace msa::experiments::fit
