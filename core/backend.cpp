// SPDX-License-Identifier: MIT
#include "core/backend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "core/error.h"
#include "core/threads.h"

namespace msa {
namespace {

/// The checks that every public call makes of its operands.
class Checker {
public:
    Checker(const Backend& backend, const Problem& problem, int64_t min_block_size = kMinBlockSize)
        : backend_(backend), p_(problem) {
        problem.validate(min_block_size);
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

    /// A result is f32, or stored like the operands; of e4m3, which is too narrow, in bf16.
    void result_element(const char* name, Element element, Element operands) const {
        const bool narrow = operands == Element::e4m3;
        require(element == Element::f32 || element == (narrow ? Element::bf16 : operands), name,
                " is ", to_string(element), ", must be f32",
                operands == Element::f32 ? ""
                : narrow                 ? " or bf16"
                                         : " or like q");
    }

    void q(const In<3>& q) const {
        operand("q", q, "[Nq, Hq, dh]", Shape<3>{p_.queries(), p_.query_heads, p_.head_dim});
    }
    /// Keys, packed or in pages; `axes` are those of a token.
    template <int Rank>
    void keys(const char* name, const Keys<Rank>& keys, const std::string& axes,
              std::type_identity_t<Shape<Rank>> expected) const {
        if (!keys.paged()) return operand(name, keys, concat("[Nk, ", axes, "]").c_str(), expected);
        expected[0] = keys.shape()[0];
        operand(name, keys, concat("[pages * page_size, ", axes, "]").c_str(), expected);
        check_pages(p_, keys, name);
    }
    void k(const Keys<3>& k, const char* name = "k") const {
        keys(name, k, "Hkv, dh", {p_.keys(), p_.kv_heads, p_.head_dim});
    }
    template <int Rank>
    void packed(const char* name, const Keys<Rank>& keys) const {
        require(!keys.paged(), name, " is in pages, must be packed");
    }
    void input(const AttentionInput& in) const {
        q(in.q);
        k(in.k);
        k(in.v, "v");
        require(in.v.page_size() == in.k.page_size(), "v has pages of ", in.v.page_size(),
                " tokens, must have those of k = ", in.k.page_size(), "; 0: packed");
        require(in.v.seqused_k().data() == in.k.seqused_k().data(),
                "v has another seqused_k than k");
        same_element("k", in.k.element(), in.q.element());
        same_element("v", in.v.element(), in.q.element());
        sinks(in.sinks);
        check_scales(p_, in.scales, in.q.element(), in.k);
    }
    void sinks(const View<const float, 1>& given) const {
        if (given) operand("sinks", given, "[Hq]", Shape<1>{p_.query_heads});
    }
    void lse(const View<const float, 2>& lse, const char* name = "lse") const {
        operand(name, lse, "[Nq, Hq]", Shape<2>{p_.queries(), p_.query_heads});
    }
    void index_lse(const char* name, const View<const float, 2>& lse) const {
        operand(name, lse, "[Nq, Hkv]", Shape<2>{p_.queries(), p_.kv_heads});
    }
    void output(const AttentionOutput& to, Element operands) const {
        result_element("out", to.out.element(), operands);
        operand("out", to.out, "[Nq, Hq, dh]", Shape<3>{p_.queries(), p_.query_heads, p_.head_dim});
        lse(to.lse);
    }
    void gradient(const AttentionInput& in, const AttentionSaved& saved,
                  const AttentionGradient& to) const {
        packed("k", in.k);
        const Shape<3> like_q{p_.queries(), p_.query_heads, p_.head_dim};
        const Shape<3> like_k{p_.keys(), p_.kv_heads, p_.head_dim};
        const Element element = in.q.element();
        operand("saved out", saved.out, "[Nq, Hq, dh]", like_q);
        result_element("saved out", saved.out.element(), element);
        lse(saved.lse);
        operand("d_out", saved.d_out, "[Nq, Hq, dh]", like_q);
        result_element("d_out", saved.d_out.element(), element);
        operand("d_q", to.d_q, "[Nq, Hq, dh]", like_q);
        result_element("d_q", to.d_q.element(), element);
        operand("d_k", to.d_k, "[Nk, Hkv, dh]", like_k);
        result_element("d_k", to.d_k.element(), element);
        operand("d_v", to.d_v, "[Nk, Hkv, dh]", like_k);
        result_element("d_v", to.d_v.element(), element);
        if (!to.d_sinks) return;
        require(static_cast<bool>(in.sinks), "d_sinks is present, but sinks are absent");
        operand("d_sinks", to.d_sinks, "[Hq]", Shape<1>{p_.query_heads});
    }
    Shape<3> index_q_shape() const { return {p_.queries(), p_.kv_heads, p_.index_dim}; }
    Shape<2> index_k_shape() const { return {p_.keys(), p_.index_dim}; }
    void index(const IndexInput& in) const {
        require(p_.index_dim > 0, "index_dim is 0: the problem has no Index Branch");
        operand("index_q", in.index_q, "[Nq, Hkv, didx]", index_q_shape());
        keys("index_k", in.index_k, "didx", index_k_shape());
        same_element("index_k", in.index_k.element(), in.index_q.element());
        check_index_scales(p_, in.scales, in.index_q.element(), in.index_k);
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

}  // namespace

int Backend::host_threads() const { return threads_or_all(0); }

void Backend::check_support(const Problem& problem, const Request& request) const {
    Support support = supports(problem, request);
    if (std::holds_alternative<DenseAttentionGradRequest>(request) ||
        std::holds_alternative<SparseAttentionGradRequest>(request)) {
        if (problem.window)
            support = Support::no(concat("it takes no window, which is ", *problem.window));
        if (problem.softcap)
            support = Support::no(concat("it takes no soft cap, which is ", *problem.softcap));
    }
    if (!support.yes)
        throw UnsupportedError(concat("backend ", name(), " does not support ",
                                      operation_name(request), ": ", support.why_not));
}

SparseAttentionGradRequest sparse_attention_grad_request(const AttentionInput& in,
                                                         View<const int32_t, 3> ids,
                                                         const AttentionSaved& saved,
                                                         LoopOrder order) {
    const bool wide = saved.out.element() == Element::f32 || saved.d_out.element() == Element::f32;
    return {.element = in.q.element(),
            .top_k = ids.extent(2),
            .order = order,
            .saved = wide ? Element::f32 : in.q.element()};
}

void Backend::dense_attention(const Problem& p, const AttentionInput& in,
                              const AttentionOutput& to) {
    const Checker check(*this, p);
    check.input(in);
    check.output(to, in.q.element());
    check_support(p,
                  DenseAttentionRequest{.element = in.q.element(), .page_size = in.k.page_size()});
    do_dense_attention(p, in, to);
}

void Backend::dense_attention_grad(const Problem& p, const AttentionInput& in,
                                   const AttentionSaved& saved, const AttentionGradient& to) {
    const Checker check(*this, p);
    check.input(in);
    check.gradient(in, saved, to);
    check_support(p, DenseAttentionGradRequest{.element = in.q.element()});
    check_saved(p, in, {}, saved);
    do_dense_attention_grad(p, in, saved, to);
}

void Backend::index_scores(const Problem& p, const IndexInput& in, View<float, 3> scores) {
    const Checker check(*this, p, kMinScoredBlockSize);
    check.index(in);
    check.per_block("scores", scores);
    check_support(p, IndexScoresRequest{.element = in.index_q.element(),
                                        .page_size = in.index_k.page_size()});
    do_index_scores(p, in, scores);
}

void Backend::select_blocks(const Problem& p, const SelectionRule& rule,
                            View<const float, 3> scores, View<int32_t, 3> ids) {
    const Checker check(*this, p);
    rule.validate();
    check.per_block("scores", scores);
    check.ids(ids, rule.top_k);
    check_support(p, SelectBlocksRequest{.top_k = rule.top_k});
    do_select_blocks(p, rule, scores, ids);
}

void Backend::index_select(const Problem& p, const SelectionRule& rule, const IndexInput& in,
                           View<int32_t, 3> ids, View<float, 2> lse) {
    const Checker check(*this, p);
    rule.validate();
    check.index(in);
    check.ids(ids, rule.top_k);
    if (lse) check.index_lse("lse", lse);
    require(!lse || in.index_q.element() != Element::int8,
            "lse is present, but the operands are int8, which index_kl does not take");
    check_support(p, IndexSelectRequest{.element = in.index_q.element(),
                                        .top_k = rule.top_k,
                                        .page_size = in.index_k.page_size()});
    do_index_select(p, rule, in, ids, lse);
}

void Backend::sparse_attention(const Problem& p, const AttentionInput& in,
                               View<const int32_t, 3> ids, const AttentionOutput& to,
                               LoopOrder order) {
    const Checker check(*this, p, kMinScoredBlockSize);
    check.input(in);
    check.given_ids(ids);
    check.output(to, in.q.element());
    check_support(p, SparseAttentionRequest{.element = in.q.element(),
                                            .top_k = ids.extent(2),
                                            .order = order,
                                            .out = to.out.element(),
                                            .page_size = in.k.page_size()});
    do_sparse_attention(p, in, ids, to, order);
}

void Backend::sparse_attention_grad(const Problem& p, const AttentionInput& in,
                                    View<const int32_t, 3> ids, const AttentionSaved& saved,
                                    const AttentionGradient& to, LoopOrder order) {
    const Checker check(*this, p);
    check.input(in);
    check.given_ids(ids);
    check.gradient(in, saved, to);
    check_support(p, sparse_attention_grad_request(in, ids, saved, order));
    check_saved(p, in, ids, saved);
    do_sparse_attention_grad(p, in, ids, saved, to, order);
}

void Backend::block_mass(const Problem& p, const BlockMassInput& in, const BlockMassOutput& to) {
    const Checker check(*this, p, kMinScoredBlockSize);
    check.q(in.q);
    check.k(in.k);
    check.same_element("k", in.k.element(), in.q.element());
    check.sinks(in.sinks);
    check.per_block("mass", to.mass);
    if (to.max_logit) check.per_block("max_logit", to.max_logit);
    check_support(p, BlockMassRequest{.element = in.q.element(), .page_size = in.k.page_size()});
    do_block_mass(p, in, to);
}

void Backend::append(const Problem& p, const In<3>& rows, const Keys<3>& to) {
    const Checker check(*this, p, kMinScoredBlockSize);
    require(to.paged(), "page_table is absent");
    const std::vector<int64_t>&queries = p.batch.cu_seqlens_q(), &keys = p.batch.cu_seqlens_k();
    for (size_t s = 0; s + 1 < queries.size() && !to.seqused_k(); ++s)
        require(queries[s + 1] - queries[s] <= keys[s + 1] - keys[s], "seqused_k of sequence ", s,
                " is ", keys[s + 1] - keys[s], ", but it has ", queries[s + 1] - queries[s],
                " new tokens, which count, too");
    check.keys("pool", to, "heads, width", to.shape());
    check.operand("rows", rows, "[Nq, heads, width]",
                  Shape<3>{p.queries(), to.shape()[1], to.shape()[2]});
    check.same_element("rows", rows.element(), to.element());
    do_append(p, rows, to);
}

void Backend::index_kl(const Problem& p, const IndexKlInput& in, const IndexKlOutput& to) {
    const Checker check(*this, p);
    check.index(in.index);
    check.q(in.q);
    check.operand("k", in.k, "[Nk, Hkv, dh]", Shape<3>{p.keys(), p.kv_heads, p.head_dim});
    check.packed("index_k", in.index.index_k);
    const Element element = in.index.index_q.element();
    check.same_element("q", in.q.element(), element);
    check.same_element("k", in.k.element(), element);
    check.sinks(in.sinks);
    if (in.ids) check.given_ids(in.ids);
    if (in.main_lse) check.lse(in.main_lse, "main_lse");
    if (in.index_lse) check.index_lse("index_lse", in.index_lse);
    require(!in.gradient_scale || std::isfinite(*in.gradient_scale), "gradient_scale is ",
            in.gradient_scale.value_or(0), ", must be finite");
    require(to.kl || to.d_index_q, "kl, d_index_q and d_index_k are absent, must be one or more");
    if (to.kl) check.operand("kl", to.kl, "[Nq, Hkv]", Shape<2>{p.queries(), p.kv_heads});
    require(static_cast<bool>(to.d_index_q) == static_cast<bool>(to.d_index_k),
            "only one of d_index_q and d_index_k is present, must be both or none");
    if (to.d_index_q) {
        check.operand("d_index_q", to.d_index_q, "[Nq, Hkv, didx]", check.index_q_shape());
        check.operand("d_index_k", to.d_index_k, "[Nk, didx]", check.index_k_shape());
    }
    check_support(
        p, IndexKlRequest{
               .element = element, .top_k = in.ids ? in.ids.extent(2) : 0, .teacher = in.teacher});
    check_index_lse(p, in);
    do_index_kl(p, in, to);
}

void Backend::check_saved(const Problem&, const AttentionInput&, View<const int32_t, 3>,
                          const AttentionSaved&) const {}

void Backend::check_index_lse(const Problem&, const IndexKlInput&) const {}

void Backend::do_dense_attention_grad(const Problem&, const AttentionInput&, const AttentionSaved&,
                                      const AttentionGradient&) {
    MSA_CHECK(false && "supports() promised what is not there");
}

void Backend::do_sparse_attention_grad(const Problem&, const AttentionInput&,
                                       View<const int32_t, 3>, const AttentionSaved&,
                                       const AttentionGradient&, LoopOrder) {
    MSA_CHECK(false && "supports() promised what is not there");
}

}  // namespace msa
