// SPDX-License-Identifier: MIT
#include "core/backend.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>

#include "core/cpu/cpu_backend.h"
#include "core/error.h"
#include "core/reference/reference_backend.h"

namespace msa {
namespace {

/// The checks that every public call makes of its operands.
class Checker {
public:
    Checker(const Backend& backend, const Problem& problem) : backend_(backend), p_(problem) {
        problem.validate();
    }

    template <typename AnyViewOrView, size_t Rank>
    void operand(const char* name, const AnyViewOrView& view, const char* axes,
                 const std::array<int64_t, Rank>& expected) const {
        require(static_cast<bool>(view), name, " is absent, must be ", axes, " = ",
                to_string(expected));
        require(view.shape() == expected, name, " has shape ", to_string(view.shape()),
                ", must be ", axes, " = ", to_string(expected));
        require(view.space() == backend_.space(), name, " is in ", to_string(view.space()),
                " memory, backend ", backend_.name(), " works in ", to_string(backend_.space()),
                " memory");
    }

    void same_element(const char* name, Element element, Element first) const {
        require(element == first, name, " is ", to_string(element), ", must be ", to_string(first),
                " like the operand before it");
    }

    /// A result is f32, or stored like the operands.
    void result_element(const char* name, Element element, Element operands) const {
        require(element == Element::f32 || element == operands, name, " is ", to_string(element),
                ", must be f32", operands == Element::f32 ? "" : " or like q");
    }

    void q(const In<3>& q) const {
        operand("q", q, "[Nq, Hq, dh]", Shape<3>{p_.queries(), p_.query_heads, p_.head_dim});
    }
    void k(const In<3>& k, const char* name = "k") const {
        operand(name, k, "[Nk, Hkv, dh]", Shape<3>{p_.keys(), p_.kv_heads, p_.head_dim});
    }
    void input(const AttentionInput& in) const {
        q(in.q);
        k(in.k);
        k(in.v, "v");
        same_element("k", in.k.element(), in.q.element());
        same_element("v", in.v.element(), in.q.element());
    }
    void lse(const View<const float, 2>& lse) const {
        operand("lse", lse, "[Nq, Hq]", Shape<2>{p_.queries(), p_.query_heads});
    }
    void output(const AttentionOutput& to, Element operands) const {
        result_element("out", to.out.element(), operands);
        operand("out", to.out, "[Nq, Hq, dh]", Shape<3>{p_.queries(), p_.query_heads, p_.head_dim});
        lse(to.lse);
    }
    void gradient(const AttentionSaved& saved, const AttentionGradient& to) const {
        const Shape<3> like_q{p_.queries(), p_.query_heads, p_.head_dim};
        operand("saved out", saved.out, "[Nq, Hq, dh]", like_q);
        lse(saved.lse);
        operand("d_out", saved.d_out, "[Nq, Hq, dh]", like_q);
        operand("d_q", to.d_q, "[Nq, Hq, dh]", like_q);
        const Shape<3> like_k{p_.keys(), p_.kv_heads, p_.head_dim};
        operand("d_k", to.d_k, "[Nk, Hkv, dh]", like_k);
        operand("d_v", to.d_v, "[Nk, Hkv, dh]", like_k);
    }
    Shape<3> index_q_shape() const { return {p_.queries(), p_.kv_heads, p_.index_dim}; }
    Shape<2> index_k_shape() const { return {p_.keys(), p_.index_dim}; }
    void index(const IndexInput& in) const {
        require(p_.index_dim > 0, "index_dim is 0: the problem has no Index Branch");
        operand("index_q", in.index_q, "[Nq, Hkv, didx]", index_q_shape());
        operand("index_k", in.index_k, "[Nk, didx]", index_k_shape());
        same_element("index_k", in.index_k.element(), in.index_q.element());
    }
    void per_block(const char* name, const View<const float, 3>& view) const {
        operand(name, view, "[Nq, Hkv, B]", Shape<3>{p_.queries(), p_.kv_heads, p_.blocks()});
    }
    void ids(const View<const int32_t, 3>& ids, int64_t top_k) const {
        operand("ids", ids, "[Nq, Hkv, k]", Shape<3>{p_.queries(), p_.kv_heads, top_k});
    }
    void given_ids(const View<const int32_t, 3>& given) const {
        ids(given, given.extent(2));
        require(given.extent(2) >= 1, "ids has k = 0, must be at least 1");
        if (given.space() == Space::host) check_selection(p_, given);
    }

private:
    const Backend& backend_;
    const Problem& p_;
};

struct Registered {
    BackendInfo info;
    BackendFactory factory;
};

std::vector<Registered>& registry() {
    static std::vector<Registered> all{{{"reference", {}}, make_reference_backend},
                                       {{"cpu", {}}, make_cpu_backend}};
    return all;
}

}  // namespace

const char* to_string(Operation operation) {
    switch (operation) {
        case Operation::dense_attention: return "dense_attention";
        case Operation::dense_attention_grad: return "dense_attention_grad";
        case Operation::index_scores: return "index_scores";
        case Operation::select_blocks: return "select_blocks";
        case Operation::index_select: return "index_select";
        case Operation::sparse_attention: return "sparse_attention";
        case Operation::sparse_attention_grad: return "sparse_attention_grad";
        case Operation::block_mass: return "block_mass";
        case Operation::index_kl: return "index_kl";
    }
    return "?";
}

const char* to_string(LoopOrder order) {
    switch (order) {
        case LoopOrder::automatic: return "automatic";
        case LoopOrder::q_outer: return "q_outer";
        case LoopOrder::kv_outer: return "kv_outer";
    }
    return "?";
}

void Backend::check_support(const Problem& problem, const Request& request) const {
    const Support support = supports(problem, request);
    if (!support.yes)
        throw UnsupportedError(text("backend ", name(), " does not support ",
                                    to_string(request.operation), ": ", support.why_not));
}

void Backend::dense_attention(const Problem& p, const AttentionInput& in,
                              const AttentionOutput& to) {
    const Checker check(*this, p);
    check.input(in);
    check.output(to, in.q.element());
    check_support(p, {.operation = Operation::dense_attention, .element = in.q.element()});
    do_dense_attention(p, in, to);
}

void Backend::dense_attention_grad(const Problem& p, const AttentionInput& in,
                                   const AttentionSaved& saved, const AttentionGradient& to) {
    const Checker check(*this, p);
    check.input(in);
    check.gradient(saved, to);
    check_support(p, {.operation = Operation::dense_attention_grad, .element = in.q.element()});
    do_dense_attention_grad(p, in, saved, to);
}

void Backend::index_scores(const Problem& p, const IndexInput& in, View<float, 3> scores) {
    const Checker check(*this, p);
    check.index(in);
    check.per_block("scores", scores);
    check_support(p, {.operation = Operation::index_scores, .element = in.index_q.element()});
    do_index_scores(p, in, scores);
}

void Backend::select_blocks(const Problem& p, const SelectionRule& rule,
                            View<const float, 3> scores, View<int32_t, 3> ids) {
    const Checker check(*this, p);
    rule.validate();
    check.per_block("scores", scores);
    check.ids(ids, rule.top_k);
    check_support(p, {.operation = Operation::select_blocks, .top_k = rule.top_k});
    do_select_blocks(p, rule, scores, ids);
}

void Backend::index_select(const Problem& p, const SelectionRule& rule, const IndexInput& in,
                           View<int32_t, 3> ids) {
    const Checker check(*this, p);
    rule.validate();
    check.index(in);
    check.ids(ids, rule.top_k);
    check_support(p, {.operation = Operation::index_select,
                      .element = in.index_q.element(),
                      .top_k = rule.top_k});
    do_index_select(p, rule, in, ids);
}

void Backend::sparse_attention(const Problem& p, const AttentionInput& in,
                               View<const int32_t, 3> ids, const AttentionOutput& to,
                               LoopOrder order) {
    const Checker check(*this, p);
    check.input(in);
    check.given_ids(ids);
    check.output(to, in.q.element());
    check_support(p, {.operation = Operation::sparse_attention,
                      .element = in.q.element(),
                      .top_k = ids.extent(2),
                      .order = order});
    do_sparse_attention(p, in, ids, to, order);
}

void Backend::sparse_attention_grad(const Problem& p, const AttentionInput& in,
                                    View<const int32_t, 3> ids, const AttentionSaved& saved,
                                    const AttentionGradient& to) {
    const Checker check(*this, p);
    check.input(in);
    check.given_ids(ids);
    check.gradient(saved, to);
    check_support(p, {.operation = Operation::sparse_attention_grad,
                      .element = in.q.element(),
                      .top_k = ids.extent(2)});
    do_sparse_attention_grad(p, in, ids, saved, to);
}

void Backend::block_mass(const Problem& p, In<3> q, In<3> k, const BlockMassOutput& to) {
    const Checker check(*this, p);
    check.q(q);
    check.k(k);
    check.same_element("k", k.element(), q.element());
    check.per_block("mass", to.mass);
    if (to.max_logit) check.per_block("max_logit", to.max_logit);
    check_support(p, {.operation = Operation::block_mass, .element = q.element()});
    do_block_mass(p, q, k, to);
}

void Backend::index_kl(const Problem& p, const IndexInput& in, In<3> q, In<3> k,
                       View<const int32_t, 3> ids, const IndexKlOutput& to, Teacher teacher) {
    const Checker check(*this, p);
    check.index(in);
    check.q(q);
    check.k(k);
    check.same_element("q", q.element(), in.index_q.element());
    check.same_element("k", k.element(), in.index_q.element());
    if (ids) check.given_ids(ids);
    check.operand("kl", to.kl, "[Nq, Hkv]", Shape<2>{p.queries(), p.kv_heads});
    require(static_cast<bool>(to.d_index_q) == static_cast<bool>(to.d_index_k),
            "only one of d_index_q and d_index_k is present, must be both or none");
    if (to.d_index_q) {
        check.operand("d_index_q", to.d_index_q, "[Nq, Hkv, didx]", check.index_q_shape());
        check.operand("d_index_k", to.d_index_k, "[Nk, didx]", check.index_k_shape());
    }
    check_support(p, {.operation = Operation::index_kl,
                      .element = in.index_q.element(),
                      .top_k = ids ? ids.extent(2) : 0,
                      .teacher = teacher});
    do_index_kl(p, in, q, k, ids, to, teacher);
}

void Backend::do_dense_attention_grad(const Problem&, const AttentionInput&, const AttentionSaved&,
                                      const AttentionGradient&) {
    MSA_CHECK(false && "supports() promised what is not there");
}

void Backend::do_sparse_attention_grad(const Problem&, const AttentionInput&,
                                       View<const int32_t, 3>, const AttentionSaved&,
                                       const AttentionGradient&) {
    MSA_CHECK(false && "supports() promised what is not there");
}

void register_backend(BackendInfo info, BackendFactory factory) {
    std::vector<Registered>& all = registry();
    std::erase_if(all, [&](const Registered& known) { return known.info.name == info.name; });
    all.push_back({std::move(info), std::move(factory)});
}

std::vector<BackendInfo> list_backends() {
    std::vector<BackendInfo> infos;
    for (const Registered& known : registry()) infos.push_back(known.info);
    return infos;
}

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options) {
    std::string names;
    for (const Registered& known : registry()) {
        if (known.info.name == name) {
            if (!known.info.usable.yes)
                throw UnsupportedError(
                    text("backend ", name, " cannot start here: ", known.info.usable.why_not));
            return known.factory(options);
        }
        names += (names.empty() ? "" : ", ") + known.info.name;
    }
    throw InputError(text("no backend is called '", name, "'; there are: ", names));
}

double Backend::cold_seconds(const std::function<void()>& work) {
    using Clock = std::chrono::steady_clock;
    static const std::vector<int64_t> filler(size_t{1} << 23, 1);  // 64 MB, more than caches hold
    volatile int64_t sum = std::accumulate(filler.begin(), filler.end(), int64_t{0});
    static_cast<void>(sum);
    finish();
    const Clock::time_point begin = Clock::now();
    work();
    finish();
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace msa
