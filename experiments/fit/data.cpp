// SPDX-License-Identifier: MIT
#include "experiments/fit/data.h"

#include <algorithm>

#include "core/cu_seqlens.h"
#include "core/error.h"
#include "experiments/fit/rope.h"

namespace msa::experiments::fit {
namespace {

using io::Field;

Tensor<float, 3> read_field(std::span<const io::ActivationsReader> files, int64_t layer,
                            Field field, std::optional<Element> asked, int64_t tokens) {
    const io::LayerInfo& info = files.front().layer(layer);
    Tensor<float, 3> all({tokens, info.heads(field), info.channels(field)});
    int64_t first = 0;
    for (const io::ActivationsReader& file : files) {
        const int64_t n = file.info().tokens();
        const View<float, 3> part = all.view().slice(first, n);
        file.read(layer, field, {0, n}, 0, part);
        if (asked && *asked != file.layer(layer).element)
            round_field(file, layer, field, *asked, part);
        first += n;
    }
    return all;
}

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
        all += text(all.empty() ? "" : ",", range.begin, ":", range.end);
    return all;
}

}  // namespace

std::vector<int64_t> all_sequences(std::span<const io::ActivationsReader> files) {
    std::vector<int64_t> all{0};
    for (const io::ActivationsReader& file : files) {
        const int64_t first = all.back();
        for (size_t s = 1; s < file.info().cu_seqlens.size(); ++s)
            all.push_back(first + file.info().cu_seqlens[s]);
    }
    return all;
}

void check_layer(std::span<const io::ActivationsReader> files, int64_t layer) {
    const io::LayerInfo& first = files.front().layer(layer);
    for (const io::ActivationsReader& file : files) {
        const io::LayerInfo& info = file.layer(layer);
        const std::string at = text(file.path().string(), ": /layers/", layer);
        require(info.has(Field::x), at,
                " has no x, the input of the projections, which an Index Branch is fitted to");
        io::require_post_rope(file, layer);
        const auto same = [&](const char* what, const auto& value, const auto& wanted) {
            require(value == wanted, at, " has ", what, " ", value, ", ",
                    files.front().path().string(), " has ", wanted, "; they must agree");
        };
        same("query heads", info.query_heads, first.query_heads);
        same("key-value heads", info.kv_heads, first.kv_heads);
        same("head dim", info.head_dim, first.head_dim);
        same("d_model", info.model_dim, first.model_dim);
        same("softmax_scale", info.softmax_scale, first.softmax_scale);
        same("rotary_dim", info.rotary_dim.value_or(0), first.rotary_dim.value_or(0));
        same("rope_theta", info.rope_theta.value_or(0), first.rope_theta.value_or(0));
        same("rope_layout", info.rope_interleaved ? "interleaved" : "half-split",
             first.rope_interleaved ? "interleaved" : "half-split");
        require(info.own_attention == first.own_attention, at,
                " has another window, chunk, soft cap or sinks than ",
                files.front().path().string(), "; they must agree");
        require(info.rope_inv_freq == first.rope_inv_freq, at, " has other rope_inv_freq than ",
                files.front().path().string(), "; they must agree");
    }
}

TrainingLayer read_layer(std::span<const io::ActivationsReader> files, int64_t layer,
                         const FitOptions& o) {
    TrainingLayer data;
    data.info = files.front().layer(layer);
    io::ActivationsInfo all;
    all.cu_seqlens = all_sequences(files);
    data.problem = io::layer_problem(all, data.info, o.block_size);
    data.problem.index_dim = o.index_dim;
    const bool dsa = o.architecture == Architecture::dsa;
    data.problem.dsa_heads = dsa ? o.index_heads.value_or(data.info.kv_heads) : 0;
    data.problem.dsa_dim = dsa ? o.index_dim : 0;
    data.problem.validate();
    for (const KeyRange& seen : visible_keys(data.problem))
        data.positions.push_back(seen.count - 1);
    const int64_t tokens = all.tokens();
    data.rope = model_frequencies(o, files.front(), layer);
    data.x = read_field(files, layer, Field::x, o.element.main, tokens);
    data.q = read_field(files, layer, Field::q, o.element.main, tokens);
    data.k = read_field(files, layer, Field::k, o.element.main, tokens);
    data.v = read_field(files, layer, Field::v, o.element.main, tokens);
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
    const std::string of_what = text("of ", what);
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
    split.text = text("trained on ", what, " ", text_of(train), ", held out ", text_of(held_out),
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
