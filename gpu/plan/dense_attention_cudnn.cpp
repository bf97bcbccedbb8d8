// SPDX-License-Identifier: MIT
#include "gpu/plan/dense_attention_cudnn.h"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "gpu/kernels/hidden_values.h"
#include "gpu/kernels/kernels.h"
#include "gpu/layout.h"
#include "gpu/plan/limits.h"
#include "gpu/recent.h"

void* cudnn_frontend::cudnn_dlhandle = nullptr;  // where the frontend looks for the library

namespace msa::cuda {
namespace {

namespace fe = cudnn_frontend;

/// A sequence of a call: consecutive queries on consecutive keys, the last query on the last key.
struct Span {
    int64_t query = 0, queries = 0, key = 0, keys = 0;
    bool operator==(const Span&) const = default;
};

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
    return spans.empty() ? 0 : std::ranges::max(spans, {}, count).*count;
}

/// The sequences that have queries; nothing where a query sees no key or positions have gaps.
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

enum class Mask : uint8_t { none, causal, causal_bottom_right };

/// What a plan depends on. Regular sequences are plain tensors. Others, and pieces of a sequence,
/// whose keys are more from piece to piece, are ragged: where they are is said at run time, and the
/// longest is rounded up, so that one plan serves many.
struct Sizes {
    bool ragged = false;
    Mask mask = Mask::none;
    int64_t sequences = 0, queries = 0, keys = 0;  // of the longest
    int64_t query_step = 0, key_step = 0;          // rows from sequence to sequence
    int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
    double scale = 0;
    bool operator==(const Sizes&) const = default;

    Sizes(const Problem& p, const std::vector<Span>& spans)
        : ragged(!is_regular(spans) || !p.batch.query_positions().empty()),
          sequences(std::ssize(spans)),
          queries(longest(spans, &Span::queries)),
          keys(longest(spans, &Span::keys)),
          query_heads(p.query_heads),
          kv_heads(p.kv_heads),
          head_dim(p.head_dim),
          scale(p.softmax_scale()) {
        const auto all = [&](auto rule) { return std::all_of(spans.begin(), spans.end(), rule); };
        if (all([](const Span& s) { return s.queries == s.keys; }))
            mask = Mask::causal;
        else if (!all([](const Span& s) { return s.queries == 1; }))
            mask = Mask::causal_bottom_right;
        const auto round_up = [](int64_t count) {
            return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
        };
        if (ragged) {
            queries = round_up(queries);
            keys = round_up(keys);
        }
        const bool plain = !ragged && sequences > 1;
        query_step = plain ? spans[1].query - spans[0].query : queries;
        key_step = plain ? spans[1].key - spans[0].key : keys;
    }
};

/// Names of the graph's tensors.
enum Id : int64_t { kQ = 1, kK, kV, kOut, kLse, kQueries, kKeys, kQAt, kKvAt, kLseAt };

/// Describes the graph.
class Builder {
public:
    Builder(const Sizes& sizes, fe::graph::Graph& graph) : s_(sizes), graph_(graph) {}

    void describe() {
        using enum fe::DataType_t;
        graph_.set_io_data_type(BFLOAT16).set_intermediate_data_type(FLOAT).set_compute_data_type(
            FLOAT);
        auto options = fe::graph::SDPA_attributes()
                           .set_name("dense_attention")
                           .set_generate_stats(true)
                           .set_attn_scale(static_cast<float>(s_.scale));
        Attributes q_at, kv_at, lse_at;
        if (s_.ragged) {
            q_at = list(kQAt, "q_at", INT64, s_.sequences + 1);
            kv_at = list(kKvAt, "kv_at", INT64, s_.sequences + 1);
            lse_at = list(kLseAt, "lse_at", INT64, s_.sequences + 1);
            options.set_padding_mask(true)
                .set_seq_len_q(list(kQueries, "queries", INT32, s_.sequences))
                .set_seq_len_kv(list(kKeys, "keys", INT32, s_.sequences));
        }
        if (s_.mask == Mask::causal) options.set_causal_mask(true);
        if (s_.mask == Mask::causal_bottom_right) options.set_causal_mask_bottom_right(true);

        const auto queries = [&](Id id, const char* name, int64_t width, const Attributes& at) {
            return tokens(id, name, s_.queries, s_.query_step, s_.query_heads, width, at);
        };
        const auto keys = [&](Id id, const char* name) {
            return graph_.tensor(
                tokens(id, name, s_.keys, s_.key_step, s_.kv_heads, s_.head_dim, kv_at));
        };
        const auto q = graph_.tensor(queries(kQ, "q", s_.head_dim, q_at));
        const auto k = keys(kK, "k"), v = keys(kV, "v");
        const auto [out, lse] = graph_.sdpa(q, k, v, options);
        *out = queries(kOut, "out", s_.head_dim, q_at);
        *lse = queries(kLse, "lse", 1, lse_at);
        out->set_output(true);
        lse->set_output(true).set_data_type(FLOAT);
    }

private:
    using Attributes = std::shared_ptr<fe::graph::Tensor_attributes>;

    /// [sequences, heads, count, width], token axis first in memory.
    fe::graph::Tensor_attributes tokens(Id id, const char* name, int64_t count, int64_t step,
                                        int64_t heads, int64_t width, const Attributes& at) const {
        fe::graph::Tensor_attributes tensor;
        tensor.set_uid(id)
            .set_name(name)
            .set_dim({s_.sequences, heads, count, width})
            .set_stride({step * heads * width, width, heads * width, 1});
        if (at) tensor.set_ragged_offset(at);
        return tensor;
    }
    Attributes list(Id id, const char* name, fe::DataType_t type, int64_t count) {
        return graph_.tensor(fe::graph::Tensor_attributes()
                                 .set_uid(id)
                                 .set_name(name)
                                 .set_dim({count, 1, 1, 1})
                                 .set_stride({1, 1, 1, 1})
                                 .set_data_type(type));
    }

    const Sizes& s_;
    fe::graph::Graph& graph_;
};

/// The sequences of a call, on the device.
struct Placement {
    std::vector<Span> spans;
    int64_t all_keys = 0;
    Tensor<KeyRange, 1> hidden;  // keys whose values must be finite
    int64_t most_hidden = 0;     // of one sequence
    // Ragged: how long they are; where, in elements, and where the last one ends.
    Tensor<int32_t, 1> queries, keys;
    Tensor<int64_t, 1> q_at, kv_at, lse_at;

    Placement(const Call& call, const Sizes& sizes, std::vector<Span> of)
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
        hidden = call.upload(ranges);
        if (sizes.ragged) place_ragged(call, sizes);
    }

private:
    void place_ragged(const Call& call, const Sizes& sizes) {
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
            return call.upload(rows);
        };
        queries = call.upload(query_counts);
        keys = call.upload(key_counts);
        q_at = elements(query_rows, sizes.query_heads * sizes.head_dim);
        kv_at = elements(key_rows, sizes.kv_heads * sizes.head_dim);
        lse_at = elements(query_rows, sizes.query_heads);
    }
};

/// Runs `call` of the frontend, which returns what is wrong, or nothing. Where the library lacks a
/// function, the frontend throws.
template <typename Body>
std::string guarded(Body call) {
    try {
        return call();
    } catch (const std::exception& error) {
        return error.what();
    }
}

// Outside a graph, decoding makes a plan for every number of keys.
constexpr size_t kMostPlans = 32, kMostPlacements = 8;

struct Plan {
    Sizes sizes;
    fe::graph::Graph graph;
    std::string refusal;  // empty: it can be run
    int64_t workspace = 0;
    Recent<Placement, kMostPlacements> placements;

    Plan(const Sizes& of, cudnnHandle_t handle) : sizes(of) {
        refusal = guarded([&]() -> std::string {
            Builder(sizes, graph).describe();
            fe::error_t error = graph.build(handle, {fe::HeurMode_t::A});
            if (error.is_good()) error = graph.get_workspace_size(workspace);
            return error.is_bad() ? error.get_message() : "";
        });
    }

    std::shared_ptr<Placement> place(const Call& call, const std::vector<Span>& spans) {
        return placements.get(
            [&](const Placement& known) {
                return known.all_keys == call.problem.keys() && known.spans == spans;
            },
            [&] { return std::make_shared<Placement>(call, sizes, spans); });
    }
};

/// Can cuDNN answer, as far as that does not depend on the plan? `spans`: those of spans_of.
Support takes(const Problem& p, const AttentionInput& in, const AttentionOutput& to,
              const std::vector<Span>& spans) {
    const auto fits = [](const auto& view) {
        return view.element() == Element::bf16 &&
               reinterpret_cast<uintptr_t>(view.data()) % 16 == 0;
    };
    if (!fits(in.q) || !fits(in.k) || !fits(in.v) || !fits(to.out))
        return Support::no("it takes bf16 operands and outputs at multiples of 16 bytes");
    if (p.window || p.softcap) return not_plain(p);
    if (p.softmax_scale() <= 0 || p.head_dim % 8 != 0)
        return Support::no("it takes a positive scale and a head dim of multiples of 8");
    if (spans.empty())
        return Support::no("it takes queries at consecutive positions that all see a key");
    return {};
}

/// Opens the library, or says why that cannot be. Before 9.12 it writes the lse of plain tensors
/// head by head, whatever the strides that it is given.
std::string open_library() {
    constexpr size_t kOldest = 91200;
    void* const opened = dlopen("libcudnn.so.9", RTLD_NOW);
    if (opened == nullptr) return dlerror();
    const auto version = reinterpret_cast<size_t (*)()>(dlsym(opened, "cudnnGetVersion"));
    if (version == nullptr || version() < kOldest) {
        dlclose(opened);
        return "libcudnn.so.9 is older than 9.12";
    }
    fe::cudnn_dlhandle = opened;
    return "";
}

/// Row `i` of the first axis.
template <typename View>
void* row(const View& view, int64_t i) {
    const int64_t bytes = view.shape()[1] * view.shape()[2] * element_bytes(view.element());
    return static_cast<char*>(const_cast<void*>(view.data())) + i * bytes;
}

}  // namespace

struct DenseAttentionCudnn::Library {
    cudnnHandle_t handle = nullptr;
    std::string failure;  // empty: it has started
    Recent<Plan, kMostPlans> plans;

    Library() {
        failure = guarded([&]() -> std::string {
            if (fe::detail::create_handle(&handle) != CUDNN_STATUS_SUCCESS)
                return "it does not start";
            return "";
        });
    }
    ~Library() {
        guarded([&]() -> std::string {
            if (handle != nullptr) fe::detail::destroy_handle(handle);
            return "";
        });
    }
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    std::shared_ptr<Plan> plan_of(const Call& call, const Sizes& sizes) {
        return plans.get([&](const Plan& plan) { return plan.sizes == sizes; },
                         [&] {
                             require_host_copies(*call.owner);
                             // The kernels of the plan that goes may be running.
                             if (plans.is_full())
                                 check(cudaStreamSynchronize(call.stream()), "dense_attention");
                             return std::make_shared<Plan>(sizes, handle);
                         });
    }

    /// What is wrong; empty: it is queued.
    std::string execute(const Call& call, const Plan& plan, Placement& at, const AttentionInput& in,
                        const AttentionOutput& to) const {
        // Ragged sequences have their own offsets, from the start.
        const bool ragged = plan.sizes.ragged;
        const Span first = ragged ? Span{} : at.spans.front();
        std::unordered_map<int64_t, void*> pointers{
            {kQ, row(in.q, first.query)},       {kK, row(in.k, first.key)},
            {kV, row(in.v, first.key)},         {kOut, row(to.out, first.query)},
            {kLse, to.lse[first.query].data()},
        };
        if (ragged)
            pointers.insert({{kQueries, at.queries.data()},
                             {kKeys, at.keys.data()},
                             {kQAt, at.q_at.data()},
                             {kKvAt, at.kv_at.data()},
                             {kLseAt, at.lse_at.data()}});
        auto workspace = call.scratch<char, 1>({plan.workspace});
        return guarded([&]() -> std::string {
            if (fe::detail::set_stream(handle, call.stream()) != CUDNN_STATUS_SUCCESS)
                return "it does not take the stream";
            fe::error_t error = plan.graph.execute(handle, pointers, workspace.data());
            return error.is_bad() ? error.get_message() : "";
        });
    }
};

DenseAttentionCudnn::DenseAttentionCudnn() {
    static const std::string failure = open_library();  // once for all threads
    why_not_ = failure;
}

DenseAttentionCudnn::~DenseAttentionCudnn() = default;

std::string DenseAttentionCudnn::version() const {
    if (fe::cudnn_dlhandle == nullptr) return "";
    return "cuDNN " + fe::detail::get_backend_version_string();
}

bool DenseAttentionCudnn::run(const Call& call, const AttentionInput& in,
                              const AttentionOutput& to) {
    if (fe::cudnn_dlhandle == nullptr) return false;  // why_not_ is what the constructor found
    const Problem& p = call.problem;
    const std::vector<Span> spans = spans_of(p, call.layout->visible_host());
    why_not_ = takes(p, in, to, spans).why_not;
    if (!why_not_.empty()) return false;
    if (!library_) library_ = std::make_unique<Library>();
    why_not_ = library_->failure;
    if (!why_not_.empty()) return false;
    const std::shared_ptr<Plan> plan = library_->plan_of(call, Sizes(p, spans));
    why_not_ = plan->refusal;
    if (!why_not_.empty()) return false;
    const std::shared_ptr<Placement> at = plan->place(call, spans);
    auto found = call.scratch<int32_t, 1>({1});
    if (at->most_hidden > 0)
        look_for_not_finite(call, in.v, at->hidden, at->most_hidden, found.data());
    why_not_ = library_->execute(call, *plan, *at, in, to);
    if (!why_not_.empty()) {
        cudaGetLastError();  // of a launch that failed
        return false;
    }
    call.keep_for_graph(plan);
    call.keep_for_graph(at);
    if (at->most_hidden > 0) dense_attention_any(call, in, to, found.data());
    return true;
}

}  // namespace msa::cuda
