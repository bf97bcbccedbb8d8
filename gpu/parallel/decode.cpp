// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/error.h"
#include "gpu/cuda_parallel.h"
#include "gpu/kernels/index_select_sm90.h"
#include "gpu/kernels/sparse_attention_decode_sm90.h"
#include "gpu/layout.h"
#include "gpu/plan/limits.h"
#include "gpu/plan/sparse_attention.h"
#include "gpu/plan/tuned.h"
#include "gpu/shared_stream.h"

namespace msa::parallel {
namespace {

using cuda::are_aligned;
using cuda::Call;
using cuda::CandidateExchange;
using cuda::check;
using cuda::DeviceRule;
using cuda::kDecodeCluster;
using cuda::kIndexDecodeRows;
using cuda::kMostExchanging;
using cuda::kMostRanks;
using cuda::kPartWords;
using cuda::Layout;
using cuda::list_length;
using cuda::narrow;
using cuda::RankExchange;
using cuda::Scratch;
using cuda::share_stream;
using cuda::SharedStream;
using cuda::sparse_decode_clusters;
using cuda::WriteSet;

void require_support(const Support& support) {
    if (!support.yes) throw UnsupportedError("a decode step over several GPUs: " + support.why_not);
}

/// Blocks of the part that the rule forces in the whole sequence, oldest and newest.
SelectionRule rule_of_part(const SplitKeys& split, int rank, const SelectionRule& rule) {
    const KeyPart& part = split.of(rank);
    SelectionRule own = rule;
    own.forced_first = std::clamp<int64_t>(rule.forced_first - part.first_block, 0, part.blocks);
    own.forced_local = rank == split.ranks() - 1 ? rule.forced_local : 0;
    return own;
}

Support newest_are_with_the_last(const SplitKeys& split, const SelectionRule& rule) {
    const Problem& p = split.problem();
    const int64_t first_seen = visible_keys(p).front().count;
    const int64_t oldest = visible_blocks(first_seen, p.block_size) - rule.forced_local;
    if (oldest >= split.of(split.ranks() - 1).first_block) return {};
    return Support::no("the newest blocks are not all with the last rank");
}

/// A kind of message: its inboxes and its rounds.
struct Post {
    SharedMemory inbox;
    Tensor<uint32_t, 1> rounds;

    Post(PeerCopies& peers, int messages, int words)
        : inbox(peers.share(RankExchange::bytes(peers.ranks(), messages, words))),
          rounds({messages}, peers.backend().allocate(messages * int64_t{sizeof(uint32_t)}),
                 Space::device) {}

    void describe(RankExchange& x, int rank, int words) {
        x.rank = rank;
        x.ranks = static_cast<int>(inbox.of_rank.size());
        x.messages = narrow(rounds.size());
        x.words = words;
        for (int other = 0; other < x.ranks; ++other)
            x.inbox[other] =
                static_cast<uint4*>(const_cast<void*>(inbox.of_rank[static_cast<size_t>(other)]));
        x.rounds = rounds.data();
    }
};

/// Of a rank that is alone: to have the kernels loaded before any of them waits for another GPU.
template <typename Exchange>
Exchange alone(Exchange x) {
    x.inbox[0] = x.inbox[x.rank];
    x.rank = 0;
    x.ranks = 1;
    return x;
}

class Decode final : public CudaDecode {
public:
    Decode(PeerCopies& peers, const SplitKeys& split, const SelectionRule& rule)
        : peers_(peers),
          shared_(share_stream(peers.backend())),
          problem_(split.of(peers.rank()).problem),
          rule_(rule_of_part(split, peers.rank(), rule)),
          whole_(split.problem(), shared_.stream),
          part_(problem_, shared_.stream),
          scratch_(shared_.stream),
          candidates_(peers, narrow(problem_.queries() * problem_.kv_heads),
                      narrow(list_length(rule.top_k))),
          parts_(peers, narrow(2 * problem_.queries() * problem_.query_heads), kPartWords),
          own_ids_(peers.backend().make<int32_t, 3>(
              {problem_.queries(), problem_.kv_heads, rule.top_k})) {
        const int rank = peers.rank();
        candidates_.describe(candidate_exchange_, rank, narrow(list_length(rule.top_k)));
        candidate_exchange_.first_block = narrow(split.of(rank).first_block);
        candidate_exchange_.blocks = narrow(split.of(rank).blocks);
        candidate_exchange_.rule = DeviceRule(rule);
        candidate_exchange_.visible = whole_.visible();
        candidate_exchange_.own_ids = own_ids_.data();
        parts_.describe(part_exchange_, rank, kPartWords);
        peers.backend().finish();
        peers.group().barrier();  // all inboxes are empty
    }

    void run(const DecodeInput& in, View<int32_t, 3> ids, Out<3> out, View<float, 2> lse,
             bool settled) override {
        check(cudaSetDevice(shared_.device.ordinal), "choosing the device");
        check_operands(in, ids, out, lse);
        if (!loaded_) {
            queue(in, ids, out, lse, false, alone(candidate_exchange_), alone(part_exchange_));
            peers_.backend().finish();
            peers_.group().barrier();
            loaded_ = true;
        }
        queue(in, ids, out, lse, settled, candidate_exchange_, part_exchange_);
    }

private:
    void check_operands(const DecodeInput& in, View<int32_t, 3> ids, Out<3> out,
                        View<float, 2> lse) const {
        const Problem& p = problem_;
        const Shape<3> heads{p.queries(), p.query_heads, p.head_dim};
        const Shape<3> keys{p.keys(), p.kv_heads, p.head_dim};
        require(in.index_q.shape() == Shape<3>{p.queries(), p.kv_heads, p.index_dim} &&
                    in.index_k.shape() == Shape<2>{p.keys(), p.index_dim} &&
                    in.q.shape() == heads && in.k.shape() == keys && in.v.shape() == keys &&
                    ids.shape() == own_ids_.shape() && out.shape() == heads &&
                    lse.shape() == Shape<2>{p.queries(), p.query_heads},
                "an operand or result has not the shape of the rank's part of a decode step");
        if (in.sinks) require_support(Support::no("it takes no sinks"));
        if (!cuda::is_tuned_width(p.index_dim))
            require_support(cuda::not_tuned("the index dim", p.index_dim));
        require_support(takes_index_select_sm90(
            shared_.device, p, {.element = in.index_q.element(), .top_k = rule_.top_k},
            are_aligned(in.index_q, in.index_k)));
        check_scales(p, in.scales, in.q.element(), in.k);
        if (!cuda::is_tuned_width(p.head_dim))
            require_support(cuda::not_tuned("the head dim", p.head_dim));
        require_support(takes_sparse_attention_tuned(
            shared_.device, p,
            {.element = in.q.element(), .top_k = rule_.top_k, .out = out.element()},
            are_aligned(in.q, in.k, in.v, out)));
    }

    void queue(const DecodeInput& in, View<int32_t, 3> ids, Out<3> out, View<float, 2> lse,
               bool settled, const CandidateExchange& candidates, const RankExchange& parts) {
        WriteSet ahead;
        if (!settled) ahead.add_everything();
        scratch_.begin_call();
        const Call call{problem_,        shared_.device, shared_.stream, &scratch_,
                        part_.visible(), &part_,         ahead,          nullptr};
        index_select_of_rank_sm90(call, rule_, {in.index_q, in.index_k}, ids, &candidates);
        sparse_attention_tuned(call, {in.q, in.k, in.v, {}, in.scales}, own_ids_, {out, lse},
                               LoopOrder::automatic, &parts);
    }

    PeerCopies& peers_;
    SharedStream shared_;
    Problem problem_;     // the rank's part
    SelectionRule rule_;  // of its blocks
    Layout whole_, part_;
    Scratch scratch_;
    Post candidates_, parts_;
    Tensor<int32_t, 3> own_ids_;
    CandidateExchange candidate_exchange_;
    RankExchange part_exchange_;
    bool loaded_ = false;
};

}  // namespace

std::unique_ptr<CudaDecode> make_cuda_decode(PeerCopies& peers, const SplitKeys& split,
                                             const SelectionRule& rule) {
    rule.validate();
    const Problem& p = split.problem();
    MSA_CHECK(split.ranks() == peers.ranks());
    const auto at_most = [](const char* what, int64_t value, int64_t most) {
        if (value > most)
            require_support(Support::no(concat(what, " are ", value, ", must be at most ", most)));
    };
    require(p.queries() >= 1, "there are no queries");
    at_most("ranks", split.ranks(), kMostRanks);
    at_most("thread blocks of decoding",
            kDecodeCluster * sparse_decode_clusters(p.queries(), p.kv_heads, p.group_size()),
            kMostExchanging);
    at_most("rows of queries", p.queries() * p.kv_heads, kIndexDecodeRows);
    require_support(newest_are_with_the_last(split, rule));
    return std::make_unique<Decode>(peers, split, rule);
}

}  // namespace msa::parallel
