// SPDX-License-Identifier: MIT
#include "gpu/plan/cudnn_graph.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace msa::cuda {
namespace {

/// Sequences of one size at one distance?
bool is_regular(const std::vector<Span>& spans) {
    for (size_t s = 1; s < spans.size(); ++s) {
        const Span &a = spans[s - 1], &b = spans[s];
        if (a.queries != b.queries || a.keys != b.keys ||
            b.query - a.query != spans[1].query - spans[0].query ||
            b.key - a.key != spans[1].key - spans[0].key)
            return false;
    }
    return true;
}

int64_t longest(const std::vector<Span>& spans, int64_t Span::*count) {
    int64_t most = 0;
    for (const Span& span : spans) most = std::max(most, span.*count);
    return most;
}

/// Describes the graph.
class Builder {
public:
    Builder(const Sizes& sizes, fe::graph::Graph& graph) : s_(sizes), graph_(graph) {}

    void describe() {
        using enum fe::DataType_t;
        graph_.set_io_data_type(s_.element == Element::f16 ? HALF : BFLOAT16)
            .set_intermediate_data_type(FLOAT)
            .set_compute_data_type(FLOAT);
        if (s_.ragged) {
            q_at_ = list(kQAt, "q_at", INT64, s_.sequences + 1);
            kv_at_ = list(kKvAt, "kv_at", INT64, s_.sequences + 1);
            lse_at_ = list(kLseAt, "lse_at", INT64, s_.sequences + 1);
        }
        s_.is_gradient() ? describe_gradient() : describe_attention();
    }

private:
    using Attributes = std::shared_ptr<fe::graph::Tensor_attributes>;

    void describe_attention() {
        auto options =
            fe::graph::SDPA_attributes().set_name("dense_attention").set_generate_stats(true);
        set_up(options);
        const auto q = graph_.tensor(queries(kQ, "q", s_.head_dim, q_at_));
        const auto k = graph_.tensor(keys(kK, "k")), v = graph_.tensor(keys(kV, "v"));
        const auto [out, lse] = graph_.sdpa(q, k, v, options);
        *out = queries(kOut, "out", s_.head_dim, q_at_);
        *lse = queries(kLse, "lse", 1, lse_at_);
        out->set_output(true);
        lse->set_output(true).set_data_type(fe::DataType_t::FLOAT);
    }
    void describe_gradient() {
        auto options = fe::graph::SDPA_backward_attributes()
                           .set_name("dense_attention_grad")
                           .set_deterministic_algorithm(s_.direction == Direction::gradient);
        set_up(options);
        if (s_.ragged)
            options.set_max_total_seq_len_q(s_.all_queries).set_max_total_seq_len_kv(s_.all_keys);
        const auto of_queries = [&](TensorId id, const char* name) {
            return graph_.tensor(queries(id, name, s_.head_dim, q_at_));
        };
        const auto q = of_queries(kQ, "q"), out = of_queries(kOut, "out"),
                   d_out = of_queries(kDOut, "d_out");
        const auto k = graph_.tensor(keys(kK, "k")), v = graph_.tensor(keys(kV, "v"));
        const auto lse =
            graph_.tensor(queries(kLse, "lse", 1, lse_at_).set_data_type(fe::DataType_t::FLOAT));
        const auto [d_q, d_k, d_v] = graph_.sdpa_backward(q, k, v, out, d_out, lse, options);
        *d_q = queries(kDQ, "d_q", s_.head_dim, q_at_);
        *d_k = keys(kDK, "d_k");
        *d_v = keys(kDV, "d_v");
        for (const auto& result : {d_q, d_k, d_v}) result->set_output(true);
    }
    /// What both directions ask of the scores.
    template <typename Options>
    void set_up(Options& options) {
        options.set_attn_scale(static_cast<float>(s_.scale));
        if (s_.ragged)
            options.set_padding_mask(true)
                .set_seq_len_q(list(kQueries, "queries", fe::DataType_t::INT32, s_.sequences))
                .set_seq_len_kv(list(kKeys, "keys", fe::DataType_t::INT32, s_.sequences));
        if (s_.mask == Mask::causal) options.set_causal_mask(true);
        if (s_.mask == Mask::causal_bottom_right) options.set_causal_mask_bottom_right(true);
    }
    fe::graph::Tensor_attributes queries(TensorId id, const char* name, int64_t width,
                                         const Attributes& at) const {
        return tokens(id, name, s_.queries, s_.query_step, s_.query_heads, width, at);
    }
    fe::graph::Tensor_attributes keys(TensorId id, const char* name) const {
        return tokens(id, name, s_.keys, s_.key_step, s_.kv_heads, s_.head_dim, kv_at_);
    }

    /// [sequences, heads, count, width], token axis first in memory.
    fe::graph::Tensor_attributes tokens(TensorId id, const char* name, int64_t count, int64_t step,
                                        int64_t heads, int64_t width, const Attributes& at) const {
        fe::graph::Tensor_attributes tensor;
        tensor.set_uid(id)
            .set_name(name)
            .set_dim({s_.sequences, heads, count, width})
            .set_stride({step * heads * width, width, heads * width, 1});
        if (at) tensor.set_ragged_offset(at);
        return tensor;
    }
    Attributes list(TensorId id, const char* name, fe::DataType_t type, int64_t count) {
        return graph_.tensor(fe::graph::Tensor_attributes()
                                 .set_uid(id)
                                 .set_name(name)
                                 .set_dim({count, 1, 1, 1})
                                 .set_stride({1, 1, 1, 1})
                                 .set_data_type(type));
    }

    const Sizes& s_;
    fe::graph::Graph& graph_;
    Attributes q_at_, kv_at_, lse_at_;  // where ragged sequences are
};

}  // namespace

std::vector<Span> spans_of(const Problem& p, const std::vector<KeyRange>& visible) {
    std::vector<Span> spans;
    for (size_t s = 0; s + 1 < p.batch.cu_seqlens_q().size(); ++s) {
        const int64_t begin = p.batch.cu_seqlens_q()[s], end = p.batch.cu_seqlens_q()[s + 1];
        if (begin == end) continue;
        const KeyRange first = visible[static_cast<size_t>(begin)];
        if (first.count == 0) return {};
        for (int64_t i = begin; i < end && !p.batch.query_positions().empty(); ++i)
            if (visible[static_cast<size_t>(i)].count != first.count + i - begin) return {};
        spans.push_back({begin, end - begin, first.first, first.count + end - begin - 1});
    }
    return spans;
}

Sizes::Sizes(const Problem& p, const std::vector<Span>& spans, Direction of, Element type)
    : direction(of),
      ragged(!is_regular(spans) || !p.batch.query_positions().empty() ||
             (is_gradient() && !spans.empty() && spans.front().keys % 128 != 0)),
      sequences(std::ssize(spans)),
      queries(longest(spans, &Span::queries)),
      keys(longest(spans, &Span::keys)),
      query_heads(p.query_heads),
      kv_heads(p.kv_heads),
      head_dim(p.head_dim),
      scale(p.softmax_scale()),
      element(type) {
    const auto all = [&](auto rule) { return std::all_of(spans.begin(), spans.end(), rule); };
    if (all([](const Span& s) { return s.queries == s.keys; }))
        mask = Mask::causal;
    else if (!all([](const Span& s) { return s.queries == 1; }))
        mask = Mask::causal_bottom_right;
    const auto round_up = [](int64_t count) {
        return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
    };
    if (ragged) {
        // With room for one query, 9.19 writes the lse of only an eighth of the heads.
        queries = std::max<int64_t>(is_gradient() ? 1 : 2, round_up(queries));
        keys = round_up(keys);
        if (is_gradient()) {
            all_queries = round_up(p.queries());
            all_keys = round_up(p.keys());
        }
    }
    const bool plain = !ragged && sequences > 1;
    query_step = plain ? spans[1].query - spans[0].query : queries;
    key_step = plain ? spans[1].key - spans[0].key : keys;
}

Placement::Placement(const Call& call, const Sizes& sizes, std::vector<Span> of)
    : spans(std::move(of)), all_keys(call.problem.keys()) {
    constexpr int64_t kTile = 256;  // keys, at most
    std::vector<KeyRange> ranges;
    for (const Span& span : spans) {
        const int64_t end = span.key + span.keys;
        // Ragged sequences may share tiles with the keys behind them, whosever those are.
        if (sizes.ragged)
            ranges.push_back({span.key, std::min(end + kTile, all_keys) - span.key});
        else
            ranges.push_back({end - span.queries + 1, span.queries - 1});
        most_hidden = std::max(most_hidden, ranges.back().count);
    }
    hidden = upload_to_keep(call.owner, ranges);
    if (sizes.ragged) place_ragged(call, sizes);
}

void Placement::place_ragged(const Call& call, const Sizes& sizes) {
    std::vector<int32_t> query_counts, key_counts;
    std::vector<int64_t> query_rows, key_rows;
    for (const Span& span : spans) {
        query_counts.push_back(static_cast<int32_t>(span.queries));
        key_counts.push_back(static_cast<int32_t>(span.keys));
        query_rows.push_back(span.query);
        key_rows.push_back(span.key);
    }
    query_rows.push_back(spans.back().query + spans.back().queries);
    key_rows.push_back(spans.back().key + spans.back().keys);
    const auto elements = [&](std::vector<int64_t> rows, int64_t row) {
        for (int64_t& at : rows) at *= row;
        return upload_to_keep(call.owner, rows);
    };
    queries = upload_to_keep(call.owner, query_counts);
    keys = upload_to_keep(call.owner, key_counts);
    q_at = elements(query_rows, sizes.query_heads * sizes.head_dim);
    kv_at = elements(key_rows, sizes.kv_heads * sizes.head_dim);
    lse_at = elements(query_rows, sizes.query_heads);
}

void Placement::add_to(std::unordered_map<int64_t, void*>& pointers) {
    pointers.insert({{kQueries, queries.data()},
                     {kKeys, keys.data()},
                     {kQAt, q_at.data()},
                     {kKvAt, kv_at.data()},
                     {kLseAt, lse_at.data()}});
}

Plan::Plan(const Sizes& of, cudnnHandle_t handle) : sizes(of) {
    refusal = guarded([&]() -> std::string {
        Builder(sizes, graph).describe();
        fe::error_t error = graph.build(handle, {fe::HeurMode_t::A});
        if (error.is_good()) error = graph.get_workspace_size(workspace);
        return error.is_bad() ? error.get_message() : "";
    });
}

}  // namespace msa::cuda
