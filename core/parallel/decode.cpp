// SPDX-License-Identifier: MIT
#include "core/parallel/decode.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/top_blocks.h"

namespace msa::parallel {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

bool better(const Candidate& a, const Candidate& b) {
    return a.score > b.score || (a.score == b.score && a.block < b.block);
}

/// Blocks of the whole sequence that query i sees.
int64_t blocks_seen(const SplitKeys& split, int64_t i) {
    const Problem& p = split.problem();
    return visible_blocks(visible_keys(p)[static_cast<size_t>(i)].count, p.block_size);
}

template <typename T>
std::vector<T> of_all_ranks(const Group& group, std::span<const T> mine) {
    std::vector<T> all(mine.size() * static_cast<size_t>(group.size()));
    group.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
    return all;
}

Tensor<float, 3> part_scores(Backend& backend, const KeyPart& part, const DecodeInput& in) {
    const Problem& p = part.problem;
    if (part.blocks == 0) return Tensor<float, 3>({p.queries(), p.kv_heads, 0});
    Tensor<float, 3> scores = backend.make<float, 3>({p.queries(), p.kv_heads, part.blocks});
    backend.index_scores(p, {in.index_q, in.index_k}, scores);
    return backend.download(std::as_const(scores).view());
}

struct Attention {
    Tensor<float, 3> out;
    Tensor<float, 2> lse;
};

Attention part_attention(Backend& backend, const KeyPart& part, const DecodeInput& in,
                         const Tensor<int32_t, 3>& ids, View<const float, 1> sinks) {
    const Problem& p = part.problem;
    Tensor<float, 3> out = backend.make<float, 3>({p.queries(), p.query_heads, p.head_dim});
    Tensor<float, 2> lse = backend.make<float, 2>({p.queries(), p.query_heads});
    const Tensor<int32_t, 3> here = backend.upload(ids.view());
    backend.sparse_attention(p, {in.q, in.k, in.v, sinks, in.scales}, here, {out.view(), lse});
    return {backend.download(std::as_const(out).view()),
            backend.download(std::as_const(lse).view())};
}

}  // namespace

std::vector<Candidate> best_candidates(const SplitKeys& split, int rank, const SelectionRule& rule,
                                       View<const float, 3> scores) {
    const KeyPart& part = split.of(rank);
    const Problem& p = part.problem;
    std::vector<Candidate> best, row;
    for (int64_t i = 0; i < p.queries(); ++i) {
        const int64_t seen = blocks_seen(split, i);
        const int64_t here = std::clamp<int64_t>(seen - part.first_block, 0, part.blocks);
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            row.clear();
            for (int64_t b = 0; b < here; ++b) {
                const int64_t block = part.first_block + b;
                const float score = scores(i, r, b);
                if (!is_forced(rule, block, seen) && score > kNothing)  // not NaN
                    row.push_back({score, static_cast<int32_t>(block)});
            }
            const auto kept = std::min<int64_t>(rule.top_k, std::ssize(row));
            std::partial_sort(row.begin(), row.begin() + kept, row.end(), better);
            row.resize(static_cast<size_t>(rule.top_k), Candidate{kNothing, kNoBlock});
            best.insert(best.end(), row.begin(), row.end());
        }
    }
    return best;
}

Tensor<int32_t, 3> pick_blocks(const SplitKeys& split, const SelectionRule& rule,
                               std::span<const Candidate> of_all) {
    const Problem& p = split.problem();
    const int64_t rows = p.queries() * p.kv_heads, k = rule.top_k;
    MSA_CHECK(std::ssize(of_all) == split.ranks() * rows * k);
    Tensor<int32_t, 3> ids({p.queries(), p.kv_heads, k});
    TopBlocks top(rule);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            top.start(blocks_seen(split, i));
            std::vector<Candidate> row;
            for (int64_t rank = 0; rank < split.ranks(); ++rank) {
                const auto list =
                    of_all.subspan(static_cast<size_t>((rank * rows + i * p.kv_heads + r) * k),
                                   static_cast<size_t>(k));
                std::copy_if(list.begin(), list.end(), std::back_inserter(row),
                             [](const Candidate& c) { return c.block != kNoBlock; });
            }
            // In ascending order, as select_blocks meets them.
            std::sort(row.begin(), row.end(),
                      [](const Candidate& a, const Candidate& b) { return a.block < b.block; });
            for (const Candidate& c : row) top.offer(c.block, c.score);
            top.finish(ids.view()[i][r]);
        }
    return ids;
}

Tensor<int32_t, 3> own_blocks(const SplitKeys& split, int rank, View<const int32_t, 3> ids) {
    const KeyPart& part = split.of(rank);
    Tensor<int32_t, 3> own(ids.shape());
    std::fill_n(own.data(), own.size(), kNoBlock);
    for (int64_t i = 0; i < ids.extent(0); ++i)
        for (int64_t r = 0; r < ids.extent(1); ++r) {
            int64_t n = 0;
            for (int64_t block : selected(ids, i, r))
                if (block >= part.first_block && block < part.first_block + part.blocks)
                    own(i, r, n++) = static_cast<int32_t>(block - part.first_block);
        }
    return own;
}

void merge_parts(int ranks, std::span<const float> outs, std::span<const float> lses,
                 View<float, 3> out, View<float, 2> lse) {
    const int64_t heads = lse.size(), width = out.extent(2);
    MSA_CHECK(std::ssize(lses) == ranks * heads && std::ssize(outs) == ranks * out.size());
    std::vector<double> weights(static_cast<size_t>(ranks)), sum(static_cast<size_t>(width));
    for (int64_t head = 0; head < heads; ++head) {
        const auto lse_of = [&](int64_t rank) {
            return double{lses[static_cast<size_t>(rank * heads + head)]};
        };
        double most = kNothing, total = 0;
        for (int64_t rank = 0; rank < ranks; ++rank) {
            // std::max would lose a NaN that comes second.
            if (std::isnan(lse_of(rank)) || lse_of(rank) > most) most = lse_of(rank);
            if (std::isnan(most)) break;
        }
        std::fill(sum.begin(), sum.end(), 0.0);
        for (int64_t rank = 0; rank < ranks && most != kNothing; ++rank) {
            const double weight = std::exp(lse_of(rank) - most);
            total += weight;
            if (weight == 0) continue;  // a part that has no key
            const auto part = outs.subspan(static_cast<size_t>((rank * heads + head) * width),
                                           static_cast<size_t>(width));
            for (size_t d = 0; d < part.size(); ++d) sum[d] += weight * double{part[d]};
        }
        lse.data()[head] = static_cast<float>(most == kNothing ? most : most + std::log(total));
        for (int64_t d = 0; d < width; ++d)
            out.data()[head * width + d] =
                static_cast<float>(most == kNothing ? 0 : sum[static_cast<size_t>(d)] / total);
    }
}

DecodeOutput decode(const Group& group, Backend& backend, const SplitKeys& split,
                    const SelectionRule& rule, const DecodeInput& in) {
    rule.validate();
    MSA_CHECK(split.ranks() == group.size());
    const Problem& p = split.problem();
    const int rank = group.rank();
    const KeyPart& part = split.of(rank);
    const Tensor<float, 3> scores = part_scores(backend, part, in);
    const std::vector<Candidate> mine = best_candidates(split, rank, rule, scores);
    DecodeOutput to;
    to.ids = pick_blocks(split, rule, of_all_ranks(group, std::span<const Candidate>(mine)));
    const Attention own = part_attention(backend, part, in, own_blocks(split, rank, to.ids),
                                         rank == 0 ? in.sinks : View<const float, 1>());
    const auto gathered = [&](const float* values, int64_t count) {
        return of_all_ranks(group, std::span(values, static_cast<size_t>(count)));
    };
    const std::vector<float> outs = gathered(own.out.data(), own.out.size());
    const std::vector<float> lses = gathered(own.lse.data(), own.lse.size());
    to.out = Tensor<float, 3>({p.queries(), p.query_heads, p.head_dim}, Fill::nothing);
    to.lse = Tensor<float, 2>({p.queries(), p.query_heads}, Fill::nothing);
    merge_parts(split.ranks(), outs, lses, to.out, to.lse);
    return to;
}

}  // namespace msa::parallel
