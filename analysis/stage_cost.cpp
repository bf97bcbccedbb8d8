// SPDX-License-Identifier: MIT
#include "analysis/stage_cost.h"

#include "core/error.h"

namespace msa::analysis {
namespace {

constexpr double kScoreBytes = 4, kIdBytes = 4;

/// The sizes as the formulas name them.
struct Letters {
    explicit Letters(const LayerSizes& s)
        : n(static_cast<double>(s.tokens)),
          hq(static_cast<double>(s.query_heads)),
          hkv(static_cast<double>(s.kv_heads)),
          dh(static_cast<double>(s.head_dim)),
          didx(static_cast<double>(s.index_dim)),
          bk(static_cast<double>(s.block_size)),
          k(static_cast<double>(s.top_k)),
          e(static_cast<double>(element_bytes(s.element))),
          ei(static_cast<double>(element_bytes(s.index_element))),
          scores(hkv * n * n / bk / 2) {}
    double n, hq, hkv, dh, didx, bk, k, e, ei;
    double scores;  // (query, group, visible block)
};

Stage dense_attention(const LayerSizes& s) {
    const Letters x(s);
    return {"dense attention",
            {2 * x.hq * x.dh * x.n * x.n, 2 * x.e * (x.hq + x.hkv) * x.n * x.dh},
            s.element,
            "2 Hq dh N^2",
            "2 e (Hq + Hkv) N dh"};
}

Stage index_scores(const LayerSizes& s) {
    const Letters x(s);
    return {
        "index scores",
        {x.hkv * x.didx * x.n * x.n, x.ei * (x.hkv + 1) * x.n * x.didx + kScoreBytes * x.scores},
        s.index_element,
        "Hkv didx N^2",
        "e_i (Hkv + 1) N didx + 4 Hkv N B / 2"};
}

Stage select_blocks(const LayerSizes& s) {
    const Letters x(s);
    return {"select blocks",
            {0, kScoreBytes * x.scores + kIdBytes * x.hkv * x.n * x.k},
            s.index_element,
            "0",
            "4 Hkv N B / 2 + 4 Hkv N k"};
}

Stage reverse_index(const LayerSizes& s) {
    const Letters x(s);
    return {"reverse index",
            {0, 3 * kIdBytes * x.hkv * x.n * x.k},
            s.index_element,
            "0",
            "4 Hkv N k (ids) + 8 Hkv N k (query, slot)"};
}

Stage sparse_q_outer(const LayerSizes& s) {
    const Letters x(s);
    return {"sparse attention",
            {4 * x.hq * x.n * x.dh * x.k * x.bk,
             2 * x.e * x.hq * x.n * x.dh + 2 * x.e * x.hkv * x.n * x.k * x.bk * x.dh},
            s.element,
            "4 Hq N dh k Bk",
            "2 e Hq N dh (q, out) + 2 e Hkv N k Bk dh (k, v)"};
}

Stage sparse_kv_outer(const LayerSizes& s) {
    const Letters x(s);
    return {"sparse attention",
            {4 * x.hq * x.n * x.dh * x.k * x.bk,
             2 * x.e * x.hkv * x.n * x.dh + 2 * x.e * x.hq * x.n * x.k * x.dh},
            s.element,
            "4 Hq N dh k Bk",
            "2 e Hkv N dh (k, v) + 2 e Hq N k dh (gathered q, partial out)"};
}

Stage combine(const LayerSizes& s) {
    const Letters x(s);
    return {
        "combine", {0, x.e * x.hq * x.n * (x.k + 1) * x.dh}, s.element, "0", "e Hq N (k + 1) dh"};
}

Stage decode_dense(const LayerSizes& s) {
    const Letters x(s);
    return {"dense attention",
            {4 * x.hq * x.dh * x.n, 2 * x.e * x.hkv * x.n * x.dh},
            s.element,
            "4 Hq dh N",
            "2 e Hkv N dh"};
}

Stage decode_index(const LayerSizes& s) {
    const Letters x(s);
    return {"index scores",
            {2 * x.hkv * x.didx * x.n, x.ei * x.n * x.didx},
            s.index_element,
            "2 Hkv didx N",
            "e_i N didx"};
}

Stage decode_sparse(const LayerSizes& s) {
    const Letters x(s);
    return {"sparse attention",
            {4 * x.hq * x.dh * x.k * x.bk, 2 * x.e * x.hkv * x.k * x.bk * x.dh},
            s.element,
            "4 Hq dh k Bk",
            "2 e Hkv k Bk dh"};
}

}  // namespace

void LayerSizes::validate() const {
    for (const auto& [name, value] : {std::pair{"context", tokens},
                                      {"query heads", query_heads},
                                      {"key-value heads", kv_heads},
                                      {"head dim", head_dim},
                                      {"index dim", index_dim},
                                      {"block size", block_size},
                                      {"top-k", top_k}})
        require(value > 0, name, " is ", value, ", must be positive");
    require(query_heads % kv_heads == 0, "query heads are ", query_heads,
            ", must be a multiple of the ", kv_heads, " key-value heads");
    require(top_k <= tokens / block_size, "context is ", tokens, ", must hold the k Bk = ", top_k,
            " * ", block_size, " tokens that a query selects");
}

Cost Pipeline::total() const {
    Cost sum;
    for (const Stage& stage : stages) sum = sum + stage.cost;
    return sum;
}

double Pipeline::seconds(const Hardware& on) const {
    double sum = 0;
    for (const Stage& stage : stages) sum += roofline_seconds(stage.cost, stage.element, on);
    return sum;
}

std::vector<Pipeline> prefill_pipelines(const LayerSizes& s) {
    return {
        {"dense", {dense_attention(s)}},
        {"q_outer", {index_scores(s), select_blocks(s), sparse_q_outer(s)}},
        {"kv_outer",
         {index_scores(s), select_blocks(s), reverse_index(s), sparse_kv_outer(s), combine(s)}}};
}

std::vector<Pipeline> decode_pipelines(const LayerSizes& s) {
    return {{"dense", {decode_dense(s)}}, {"msa", {decode_index(s), decode_sparse(s)}}};
}

double flop_ratio(const LayerSizes& s) {
    const std::vector<Pipeline> all = prefill_pipelines(s);
    return all[0].total().flops / all[1].total().flops;
}

Cost q_outer_cost(const LayerSizes& s) { return sparse_q_outer(s).cost; }

Cost kv_outer_cost(const LayerSizes& s) { return sparse_kv_outer(s).cost + combine(s).cost; }

double slot_buffer_bytes(const LayerSizes& s) {
    const Letters x(s);
    return x.k * x.n * x.hq * (x.e * x.dh + 4);
}

}  // namespace msa::analysis
