// SPDX-License-Identifier: MIT
// A block leaves the base-2 logarithm of each row's sum over its keys in a slot; a row's slots are
// then joined in order.
#include "core/cpu/support_sums.h"

#include <cmath>

namespace msa::cpu {

Tensor<int32_t, 3> visible_ids(const Problem& p, int64_t first, int64_t slots) {
    Tensor<int32_t, 3> ids({p.queries(), p.kv_heads, slots}, Fill::nothing);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const int64_t blocks =
            visible_blocks(visible_keys(p)[static_cast<size_t>(i)].count, p.block_size);
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t slot = 0; slot < slots; ++slot)
                ids(i, r, slot) =
                    first + slot < blocks ? static_cast<int32_t>(first + slot) : kNoBlock;
    }
    return ids;
}

SupportSums::SupportSums(const Problem& p, const Branch& branch, int threads)
    : p_(p), branch_(branch), threads_(threads), states_({p.queries(), branch.q.extent(1)}) {
    std::fill_n(states_.data(), states_.size(), OnlineSum{});
}

struct SupportSums::Worker {
    const Branch& branch;
    View<float, 3> slots;  // [Nq, heads, k]
    BranchScratch scratch;

    void begin() {}
    void start(const GroupBlock& block) { scratch.pack(branch, block); }
    void add(const BlockPass& pass) {
        for_each_row(branch, pass, scratch,
                     [&](int64_t n, int64_t head, float* logits, int64_t first, int64_t end) {
                         const auto [query, slot] = pass.use(n);
                         OnlineSum sum;
                         softmax_step(logits + first, end - first, sum);
                         slots(query, pass.block.group * branch.heads + head, slot) =
                             static_cast<float>(double{sum.reference} + std::log2(sum.sum));
                     });
    }
    void end(const KeyRange&) {}
};

void SupportSums::add(View<const int32_t, 3> ids) {
    const int64_t heads = branch_.q.extent(1), k = ids.extent(2);
    const Shape<3> shape{p_.queries(), heads, k};
    if (slots_.size() < element_count(shape))
        slots_ = Tensor<float, 1>({element_count(shape)}, Fill::nothing);
    const View<float, 3> slots(slots_.data(), shape);
    std::vector<Worker> workers;
    for (int t = 0; t < threads_; ++t)
        workers.push_back({branch_, slots, BranchScratch(branch_, p_.block_size)});
    for_each_block(p_, ids, workers);
#pragma omp parallel num_threads(threads_)
    {
        std::vector<float> row(static_cast<size_t>(k + kLanes));  // softmax_step looks behind it
#pragma omp for
        for (int64_t i = 0; i < p_.queries(); ++i)
            for (int64_t h = 0; h < heads; ++h) {
                const int64_t used = std::ssize(selected(ids, i, h / branch_.heads));
                std::copy_n(&slots(i, h, 0), used, row.data());
                softmax_step(row.data(), used, states_(i, h));
            }
    }
}

void index_lse(const Problem& whole, View<const float, 3> index_q, const KeyTokens<float>& index_k,
               View<const int32_t, 3> ids, View<float, 2> lse, int threads) {
    const int64_t piece = piece_queries(whole, ids, whole.kv_heads);
    for (int64_t begin = 0; begin < whole.queries(); begin += piece) {
        const Problem p = whole.with_queries({begin, std::min(begin + piece, whole.queries())});
        const Branch branch = index_branch(p, index_q.slice(begin, p.queries()), index_k);
        SupportSums sums(p, branch, threads);
        sums.add(ids.slice(begin, p.queries()));
        for (int64_t i = 0; i < p.queries(); ++i)
            for (int64_t r = 0; r < p.kv_heads; ++r) lse(begin + i, r) = sums.lse(i, r);
    }
}

}  // namespace msa::cpu
