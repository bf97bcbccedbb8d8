// SPDX-License-Identifier: MIT
#include "gpu/kernels/dense_attention_cudnn.h"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "gpu/kernels/hidden_values.h"
#include "gpu/kernels/kernels.h"
#include "gpu/layout.h"

void* cudnn_frontend::cudnn_dlhandle = nullptr;  // where the frontend looks for the library

namespace msa::cuda {
namespace {

namespace fe = cudnn_frontend;

constexpr size_t kMostPlans = 32;

/// A sequence of a call: consecutive queries on consecutive keys, the last query on the last key.
struct Span {
    int64_t query = 0, queries = 0, key = 0, keys = 0;
    bool operator==(const Span&) const = default;
};

/// What a plan depends on.
struct Sizes {
    std::vector<Span> spans;
    int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
    double scale = 0;
    bool operator==(const Sizes&) const = default;

    /// Sequences of one size at one distance: plain tensors do.
    bool regular() const {
        for (size_t s = 1; s < spans.size(); ++s) {
            const Span &a = spans[s - 1], &b = spans[s];
            if (a.queries != b.queries || a.keys != b.keys ||
                b.query - a.query != spans[1].query - spans[0].query ||
                b.key - a.key != spans[1].key - spans[0].key)
                return false;
        }
        return true;
    }
    template <typename Rule>
    bool all(Rule rule) const {
        return std::all_of(spans.begin(), spans.end(), rule);
    }
    int64_t most(int64_t Span::*count) const {
        int64_t most = 0;
        for (const Span& span : spans) most = std::max(most, span.*count);
        return most;
    }
};

/// The sequences that have queries; nothing where a query sees no key or positions have gaps.
std::vector<Span> spans_of(const Problem& p, const std::vector<KeyRange>& visible) {
    std::vector<Span> spans;
    for (size_t s = 0; s + 1 < p.cu_seqlens_q.size(); ++s) {
        const int64_t begin = p.cu_seqlens_q[s], end = p.cu_seqlens_q[s + 1];
        if (begin == end) continue;
        const KeyRange first = visible[static_cast<size_t>(begin)];
        if (first.count == 0) return {};
        for (int64_t i = begin; i < end && !p.query_positions.empty(); ++i)
            if (visible[static_cast<size_t>(i)].count != first.count + i - begin) return {};
        spans.push_back({begin, end - begin, first.first, first.count + end - begin - 1});
    }
    return spans;
}

/// Names of the graph's tensors.
enum Id : int64_t { kQ = 1, kK, kV, kOut, kLse, kQueries, kKeys, kQAt, kKvAt, kLseAt };

struct Plan {
    Sizes sizes;
    fe::graph::Graph graph;
    std::string refusal;  // empty: it can be run
    int64_t workspace = 0;
    // Of sequences of several sizes: how long they are, and where, in elements.
    Tensor<int32_t, 1> queries, keys;
    Tensor<int64_t, 1> q_at, kv_at, lse_at;
    Tensor<KeyRange, 1> hidden;  // keys whose values must be finite
    int64_t most_hidden = 0;     // of one sequence
};

class Builder {
public:
    Builder(const Call& call, Plan& plan) : call_(call), plan_(plan), sizes_(plan.sizes) {}

    void build(cudnnHandle_t handle) {
        describe();
        fe::error_t error = plan_.graph.build(handle, {fe::HeurMode_t::A});
        if (error.is_good()) error = plan_.graph.get_workspace_size(plan_.workspace);
        if (error.is_bad()) plan_.refusal = error.get_message();
        std::vector<KeyRange> hidden;
        for (const Span& span : sizes_.spans) {
            // Sequences of several sizes share tiles with their neighbours.
            const int64_t seen = ragged_ ? 0 : span.keys - span.queries + 1;
            hidden.push_back({span.key + seen, span.keys - seen});
            plan_.most_hidden = std::max(plan_.most_hidden, hidden.back().count);
        }
        plan_.hidden = call_.upload(hidden);
    }

private:
    using Attributes = std::shared_ptr<fe::graph::Tensor_attributes>;

    void describe() {
        using enum fe::DataType_t;
        const int64_t heads = sizes_.query_heads, width = sizes_.head_dim;
        plan_.graph.set_io_data_type(BFLOAT16)
            .set_intermediate_data_type(FLOAT)
            .set_compute_data_type(FLOAT);
        auto options = fe::graph::SDPA_attributes()
                           .set_name("dense_attention")
                           .set_generate_stats(true)
                           .set_attn_scale(static_cast<float>(sizes_.scale));
        if (ragged_) {
            plan_.queries = call_.upload(each<int32_t>(&Span::queries, 1, 0));
            plan_.keys = call_.upload(each<int32_t>(&Span::keys, 1, 0));
            plan_.q_at = call_.upload(each<int64_t>(&Span::query, heads * width, 1));
            plan_.kv_at = call_.upload(each<int64_t>(&Span::key, sizes_.kv_heads * width, 1));
            plan_.lse_at = call_.upload(each<int64_t>(&Span::query, heads, 1));
            q_at_ = list(kQAt, "q_at", INT64, 1);
            kv_at_ = list(kKvAt, "kv_at", INT64, 1);
            lse_at_ = list(kLseAt, "lse_at", INT64, 1);
            options.set_padding_mask(true)
                .set_seq_len_q(list(kQueries, "queries", INT32, 0))
                .set_seq_len_kv(list(kKeys, "keys", INT32, 0));
        }
        if (sizes_.all([](const Span& s) { return s.queries == s.keys; }))
            options.set_causal_mask(true);
        else if (!sizes_.all([](const Span& s) { return s.queries == 1; }))
            options.set_causal_mask_bottom_right(true);

        const auto q = plan_.graph.tensor(tokens(kQ, "q", &Span::queries, heads, width, q_at_));
        const auto k =
            plan_.graph.tensor(tokens(kK, "k", &Span::keys, sizes_.kv_heads, width, kv_at_));
        const auto v =
            plan_.graph.tensor(tokens(kV, "v", &Span::keys, sizes_.kv_heads, width, kv_at_));
        const auto [out, lse] = plan_.graph.sdpa(q, k, v, options);
        *out = tokens(kOut, "out", &Span::queries, heads, width, q_at_);
        *lse = tokens(kLse, "lse", &Span::queries, heads, 1, lse_at_);
        out->set_output(true);
        lse->set_output(true).set_data_type(FLOAT);
    }

    /// [sequences, heads, tokens, width], token axis first in memory.
    fe::graph::Tensor_attributes tokens(Id id, const char* name, int64_t Span::*count,
                                        int64_t heads, int64_t width, const Attributes& at) const {
        const std::vector<Span>& spans = sizes_.spans;
        const int64_t most = sizes_.most(count);
        const auto start = count == &Span::queries ? &Span::query : &Span::key;
        const int64_t step =
            ragged_ || spans.size() == 1 ? most : spans[1].*start - spans[0].*start;
        fe::graph::Tensor_attributes tensor;
        tensor.set_uid(id)
            .set_name(name)
            .set_dim({sequences(), heads, most, width})
            .set_stride({step * heads * width, width, heads * width, 1});
        if (at) tensor.set_ragged_offset(at);
        return tensor;
    }
    Attributes list(Id id, const char* name, fe::DataType_t type, int64_t more) {
        return plan_.graph.tensor(fe::graph::Tensor_attributes()
                                      .set_uid(id)
                                      .set_name(name)
                                      .set_dim({sequences() + more, 1, 1, 1})
                                      .set_stride({1, 1, 1, 1})
                                      .set_data_type(type));
    }
    /// factor * member of each span; with `ends`, and where the last one ends.
    template <typename T>
    std::vector<T> each(int64_t Span::*member, int64_t factor, int ends) const {
        std::vector<T> values;
        for (const Span& span : sizes_.spans)
            values.push_back(static_cast<T>(factor * (span.*member)));
        const Span& last = sizes_.spans.back();
        if (ends != 0)
            values.push_back(
                static_cast<T>(factor * (member == &Span::query ? last.query + last.queries
                                                                : last.key + last.keys)));
        return values;
    }
    int64_t sequences() const { return std::ssize(sizes_.spans); }

    const Call& call_;
    Plan& plan_;
    const Sizes& sizes_;
    const bool ragged_ = !sizes_.regular();
    Attributes q_at_, kv_at_, lse_at_;
};

/// Why cuDNN cannot answer, whatever the layout; empty: it can.
std::string misfit(const Problem& p, const AttentionInput& in, const AttentionOutput& to) {
    const auto fits = [](const auto& view) {
        return view.element() == Element::bf16 &&
               reinterpret_cast<uintptr_t>(view.data()) % 16 == 0;
    };
    if (!fits(in.q) || !fits(in.k) || !fits(in.v) || !fits(to.out))
        return "it takes bf16 operands and outputs at multiples of 16 bytes";
    if (p.main_scale() <= 0 || p.head_dim % 8 != 0)
        return "it takes a positive scale and a head dim of multiples of 8";
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
    std::vector<std::unique_ptr<Plan>> plans;

    Library() {
        if (fe::detail::create_handle(&handle) != CUDNN_STATUS_SUCCESS)
            throw SystemError("cuDNN: it does not start");
    }
    ~Library() {
        try {
            fe::detail::destroy_handle(handle);
        } catch (const std::exception&) {  // the library has no such function
        }
    }
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    Plan& plan_of(const Call& call, Sizes sizes) {
        for (const auto& plan : plans)
            if (plan->sizes == sizes) return *plan;
        if (plans.size() == kMostPlans) plans.erase(plans.begin());
        Plan& plan = *plans.emplace_back(std::make_unique<Plan>());
        plan.sizes = std::move(sizes);
        try {
            Builder(call, plan).build(handle);
        } catch (const std::exception& error) {  // of the frontend: a library that it cannot open
            plan.refusal = error.what();
        }
        return plan;
    }

    void execute(const Call& call, Plan& plan, const AttentionInput& in,
                 const AttentionOutput& to) const {
        // Sequences of several sizes have their own offsets, from the start.
        const bool ragged = !plan.sizes.regular();
        const Span first = ragged ? Span{} : plan.sizes.spans.front();
        std::unordered_map<int64_t, void*> pointers{
            {kQ, row(in.q, first.query)},       {kK, row(in.k, first.key)},
            {kV, row(in.v, first.key)},         {kOut, row(to.out, first.query)},
            {kLse, to.lse[first.query].data()},
        };
        if (ragged)
            pointers.insert({{kQueries, plan.queries.data()},
                             {kKeys, plan.keys.data()},
                             {kQAt, plan.q_at.data()},
                             {kKvAt, plan.kv_at.data()},
                             {kLseAt, plan.lse_at.data()}});
        auto workspace = call.scratch<char, 1>({plan.workspace});
        if (fe::detail::set_stream(handle, call.stream()) != CUDNN_STATUS_SUCCESS)
            throw SystemError("cuDNN: choosing the stream");
        fe::error_t error = plan.graph.execute(handle, pointers, workspace.data());
        if (error.is_bad())
            throw SystemError(text("cuDNN: dense_attention: ", error.get_message()));
    }
};

DenseAttentionCudnn::DenseAttentionCudnn() {
    if (fe::cudnn_dlhandle == nullptr) fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW);
    if (fe::cudnn_dlhandle == nullptr) why_not_ = dlerror();
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
    why_not_ = misfit(p, in, to);
    if (!why_not_.empty()) return false;
    Sizes sizes{spans_of(p, call.layout->visible_host()), p.query_heads, p.kv_heads, p.head_dim,
                p.main_scale()};
    if (sizes.spans.empty()) {
        why_not_ = "it takes queries at consecutive positions that all see a key";
        return false;
    }
    if (!library_) library_ = std::make_unique<Library>();
    Plan& plan = library_->plan_of(call, std::move(sizes));
    why_not_ = plan.refusal;
    if (!why_not_.empty()) return false;

    const auto found = call.scratch<int32_t, 1>({1});
    if (plan.most_hidden > 0)
        look_for_not_finite(call, in.v, plan.hidden, plan.most_hidden,
                            const_cast<int32_t*>(found.data()));
    library_->execute(call, plan, in, to);
    if (plan.most_hidden > 0) dense_attention_any(call, in, to, found.data());
    return true;
}

}  // namespace msa::cuda
