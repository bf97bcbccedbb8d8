// SPDX-License-Identifier: MIT
// The one interface that every implementation of MSA has. Shape letters: core/problem.h.
//
// Public calls check shapes, spaces, elements and support once, for all backends, and throw with
// the offending values; the virtual do_* may then assume valid arguments. Views live in the
// backend's space(); copies are explicit. Calls run in order but may be asynchronous: results are
// readable after finish(). One object is not safe for two threads; two objects are independent.
//
// For all operations: keys after a query's position and blocks outside its ids have no influence on
// its results, not even if they hold NaN. A NaN that a query does see makes its outputs NaN. The
// same arguments give bitwise the same results for any number of threads ("cuda-unordered"
// excepted).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/index_operands.h"
#include "core/number/operand_scales.h"
#include "core/problem.h"
#include "core/request.h"
#include "core/selection.h"
#include "core/tensor.h"

namespace msa {

struct AttentionInput {
    In<3> q;       // [Nq, Hq, dh], after RoPE
    Keys<3> k, v;  // [Nk, Hkv, dh] or in pages, both of one size; never repeated to query heads
    /// [Hq] Learnable sinks, one logit per query head (GPT-OSS, arXiv 2508.10925). A sink is one
    /// more term of the head's softmax, without a value vector: lse' = ln(e^lse + e^sink), out' =
    /// out e^(lse - lse'). A row without visible keys has out 0 and lse = sink. A NaN sink makes
    /// the head's outputs NaN. Absent: none.
    View<const float, 1> sinks = {};
    OperandScales scales = {};  // of e4m3 operands, which only sparse_attention takes
};

struct AttentionOutput {
    Out<3> out;          // [Nq, Hq, dh], f32 or like q (of e4m3: bf16); no visible key: 0
    View<float, 2> lse;  // [Nq, Hq] natural log of the sum of exp(logit); no visible key: -inf
};

/// What a backward pass takes in addition to the forward input.
struct AttentionSaved {
    In<3> out;                 // [Nq, Hq, dh] of the forward pass
    View<const float, 2> lse;  // [Nq, Hq] of the forward pass
    In<3> d_out;               // [Nq, Hq, dh]
    bool partial = false;      // true: out and lse cover other keys, too; gives these keys' part
};

/// The request that supports() takes for a call of sparse_attention_grad.
SparseAttentionGradRequest sparse_attention_grad_request(const AttentionInput&,
                                                         View<const int32_t, 3> ids,
                                                         const AttentionSaved&, LoopOrder);

struct AttentionGradient {
    Out<3> d_q;                   // [Nq, Hq, dh]
    Out<3> d_k, d_v;              // [Nk, Hkv, dh]
    View<float, 1> d_sinks = {};  // [Hq], absent: none
};

struct BlockMassInput {
    In<3> q;                          // as in AttentionInput
    Keys<3> k;                        // likewise
    View<const float, 1> sinks = {};  // likewise
};

struct BlockMassOutput {
    View<float, 3> mass;       // [Nq, Hkv, B]; a block without a visible token: 0
    View<float, 3> max_logit;  // [Nq, Hkv, B], may be absent; without a visible token: -inf
};

class Backend {
public:
    virtual ~Backend() = default;
    Backend() = default;
    Backend(const Backend&) = delete;
    Backend& operator=(const Backend&) = delete;

    virtual std::string_view name() const = 0;  // "reference", "cpu", "cpu-avx2", "cuda"
    virtual std::string device() const = 0;     // recorded beside every result
    virtual Space space() const = 0;            // where views must live
    virtual Support supports(const Problem&, const Request&) const = 0;

    /// Threads for work on the host beside this backend's operations.
    virtual int host_threads() const;

    /// Memory of this backend's space, zero-filled.
    virtual std::shared_ptr<void> allocate(int64_t bytes) = 0;
    /// Copies between the host and this backend's space, or within either, in order with the calls.
    /// On return the caller may change a host source and read a host destination. Otherwise the
    /// copy itself may be asynchronous, like a call.
    virtual void copy(void* to, Space to_space, const void* from, Space from_space,
                      int64_t bytes) = 0;
    /// Waits until all calls so far are done.
    virtual void finish() = 0;
    /// The kernel or library that ran the last call; recorded beside timings.
    virtual std::string answered_by() const { return std::string(name()); }
    /// Runs `calls`, operations of this backend on one problem, and returns a function that runs
    /// them again on the same views, whose contents may have changed. A device repeats them as one
    /// launch (a CUDA graph). Throws UnsupportedError for calls that cannot be captured. The views'
    /// memory must outlive the result.
    virtual std::function<void()> make_graph(const std::function<void()>& calls) {
        calls();
        return calls;
    }

    template <typename T, int Rank>
    Tensor<T, Rank> make(Shape<Rank> shape) {
        return {shape, allocate(element_count(shape) * int64_t{sizeof(T)}), space()};
    }
    template <typename T, int Rank>
    Tensor<std::remove_const_t<T>, Rank> upload(View<T, Rank> host) {
        auto here = make<std::remove_const_t<T>, Rank>(host.shape());
        copy(here.data(), space(), host.data(), host.space(), host.size() * int64_t{sizeof(T)});
        return here;
    }
    /// Waits for all calls so far.
    template <typename T, int Rank>
    void download(View<T, Rank> here, View<std::remove_const_t<T>, Rank> to) {
        MSA_CHECK(to.shape() == here.shape());
        copy(to.data(), to.space(), here.data(), here.space(), here.size() * int64_t{sizeof(T)});
    }
    template <typename T, int Rank>
    Tensor<std::remove_const_t<T>, Rank> download(View<T, Rank> here) {
        Tensor<std::remove_const_t<T>, Rank> host(here.shape(), Fill::nothing);
        download(here, host.view());
        return host;
    }

    /// Causal softmax attention with GQA (eq:softmax-attention).
    void dense_attention(const Problem&, const AttentionInput&, const AttentionOutput&);
    /// Its gradient, from the out and lse of the forward pass. With p = exp(scale q.k - lse),
    /// dP = <d_out, v> and D = <d_out, out>, a row's dS is p (dP - D), and
    ///   d_q = scale sum dS k over its keys,   d_k = scale sum dS q,   d_v = sum p d_out
    /// over the G heads of the group and all queries that see the key. With sinks s (lse and out
    /// include them), d_sinks = -sum exp(s - lse) D over all queries. A query that sees no key, and
    /// a key that no query sees, get 0. A NaN that a row sees, also one in its d_out, makes its d_q
    /// and the d_k and d_v of all keys that it sees NaN.
    /// Saved lse and out must belong to the input. No backend supports a window or cap.
    void dense_attention_grad(const Problem&, const AttentionInput&, const AttentionSaved&,
                              const AttentionGradient&);

    /// scores [Nq, Hkv, B]: max over the visible tokens of the block of
    /// index_scale * index_q . index_k (eq:msa-index-score); no visible token: -inf. A NaN product
    /// makes the block's score NaN. Blocks may be as small as one token.
    void index_scores(const Problem&, const IndexInput&, View<float, 3> scores);

    /// ids [Nq, Hkv, k] from scores [Nq, Hkv, B] (eq:msa-topk with SelectionRule). Candidates are
    /// the visible blocks whose score is above -inf (NaN counts as -inf, -0 equals +0); forced
    /// blocks need no score. Ties go to the lower id. Rows are ascending, padded with -1.
    void select_blocks(const Problem&, const SelectionRule&, View<const float, 3> scores,
                       View<int32_t, 3> ids);

    /// The two above fused: the same ids, no scores as a result. lse [Nq, Hkv], where present:
    /// natural log of the sum of exp(index_scale * index_q . index_k) over the visible tokens of
    /// the row's blocks, for index_kl; no block: -inf. int8 operands give no lse.
    void index_select(const Problem&, const SelectionRule&, const IndexInput&, View<int32_t, 3> ids,
                      View<float, 2> lse = {});

    /// Softmax attention over the visible tokens of the blocks ids [Nq, Hkv, k] of the query's
    /// group (eq:msa-sparse-attn). Blocks may be one token. An empty row of ids: out 0, lse -inf.
    /// Ids must satisfy check_selection, which is called for ids on the host.
    void sparse_attention(const Problem&, const AttentionInput&, View<const int32_t, 3> ids,
                          const AttentionOutput&, LoopOrder order = LoopOrder::automatic);
    /// Its gradient, as in dense_attention_grad, over the keys of the query's blocks. No gradient
    /// passes through ids.
    void sparse_attention_grad(const Problem&, const AttentionInput&, View<const int32_t, 3> ids,
                               const AttentionSaved&, const AttentionGradient&,
                               LoopOrder order = LoopOrder::automatic);

    /// mass [Nq, Hkv, B]: probability of dense attention summed over the block's visible tokens,
    /// mean over the G heads of the group (P_b); with sinks, a row's masses add up to 1 minus the
    /// sinks' mean probability. max_logit: maximum of the logit over the block's visible tokens and
    /// the group's heads. Blocks may be one token. To stream: Problem::with_queries.
    void block_mass(const Problem&, const BlockMassInput&, const BlockMassOutput&);

    /// Writes the queries' own tokens to keys in pages: row i of `rows` [Nq, heads, width], keys or
    /// values, goes to where `to` has the token at the position of query i. Heads and width are
    /// those of the pages; index keys have one head. A sequence has at least as many tokens as
    /// queries; where its length on the device says fewer, the first queries write nothing. Pages
    /// that another sequence reads are the caller's to copy first.
    void append(const Problem&, const In<3>& rows, const Keys<3>& to);

    /// KL divergence of the index distribution from the teacher, per row (eq:msa-kl), and the
    /// gradient of a multiple of its sum over all Nq * Hkv rows. Support: the visible tokens of the
    /// blocks ids [Nq, Hkv, k], or all visible tokens when ids is absent (warm-up). The teacher
    /// gets no gradient.
    ///
    /// Each head's probabilities on the support are those of sparse attention there: with the
    /// window, the cap and the head's sink. Sinks take part of each head's probability, so the mean
    /// over the heads is divided by its sum. The teacher is thus a distribution over the keys, with
    /// each head weighted by 1 - its sink's probability. A row has KL 0 and no gradient if its
    /// support is empty or lies wholly before its window.
    ///
    /// main_lse must belong to the input. It includes the sinks, as attention returns it, so a
    /// head's weight is 1 - exp(sink - lse). If a float lse is too coarse for that difference, the
    /// sums are computed again (by cuda's plain kernel for all rows with sinks).
    void index_kl(const Problem&, const IndexKlInput&, const IndexKlOutput&);

protected:
    /// InputError if these cannot belong to their input. A device trusts its caller.
    virtual void check_saved(const Problem&, const AttentionInput&, View<const int32_t, 3> ids,
                             const AttentionSaved&) const;
    virtual void check_index_lse(const Problem&, const IndexKlInput&) const;
    virtual void do_dense_attention(const Problem&, const AttentionInput&,
                                    const AttentionOutput&) = 0;
    virtual void do_index_scores(const Problem&, const IndexInput&, View<float, 3> scores) = 0;
    virtual void do_select_blocks(const Problem&, const SelectionRule&, View<const float, 3> scores,
                                  View<int32_t, 3> ids) = 0;
    virtual void do_index_select(const Problem&, const SelectionRule&, const IndexInput&,
                                 View<int32_t, 3> ids, View<float, 2> lse) = 0;
    virtual void do_sparse_attention(const Problem&, const AttentionInput&,
                                     View<const int32_t, 3> ids, const AttentionOutput&,
                                     LoopOrder) = 0;
    virtual void do_block_mass(const Problem&, const BlockMassInput&, const BlockMassOutput&) = 0;
    virtual void do_append(const Problem&, const In<3>& rows, const Keys<3>& to) = 0;
    virtual void do_index_kl(const Problem&, const IndexKlInput&, const IndexKlOutput&) = 0;
    // A backend overrides those that its supports() accepts.
    virtual void do_dense_attention_grad(const Problem&, const AttentionInput&,
                                         const AttentionSaved&, const AttentionGradient&);
    virtual void do_sparse_attention_grad(const Problem&, const AttentionInput&,
                                          View<const int32_t, 3> ids, const AttentionSaved&,
                                          const AttentionGradient&, LoopOrder);

private:
    void check_support(const Problem&, const Request&) const;
};

}  // namespace msa
