// SPDX-License-Identifier: MIT
#include "analysis/stage_cost.h"

#include <algorithm>
#include <cmath>

#include "analysis/bytes.h"
#include "analysis/cost_model.h"
#include "core/error.h"
#include "core/kernel_sizes.h"
#include "core/problem.h"

namespace msa::analysis {
namespace {

/// The sizes as the formulas name them.
struct Letters {
    explicit Letters(const LayerSizes& s)
        : n(real(s.tokens)),
          hq(real(s.query_heads)),
          hkv(real(s.kv_heads)),
          dh(real(s.head_dim)),
          didx(real(s.index_dim)),
          bk(real(s.block_size)),
          k(real(s.top_k)),
          e(real(element_bytes(s.element))),
          ei(real(element_bytes(s.index_element))),
          w(std::min(n, real(s.window.value_or(s.tokens)))),
          scores(hkv * n * n / bk / 2) {}
    double n, hq, hkv, dh, didx, bk, k, e, ei;
    double w;       // keys that dense attention sees at most
    double scores;  // (query, group, visible block)
};

// The kernels' stages.

/// A phase, with the letters that the kernels add.
struct Phase : Letters {
    Phase(const LayerSizes& s, int64_t queries)
        : Letters(s),
          sizes(s),
          nq(real(queries)),
          pairs(queries == 1 ? n : nq * n - nq * nq / 2),
          attended(queries == 1 ? w : within(n) - within(n - nq)),
          attended_keys(queries == 1 ? w : std::min(n, nq + w)),
          in_tile(std::min(s.tile_queries(), queries)),
          tiles(real(ceil_div(queries, in_tile))),
          chunks(real(ceil_div(ceil_div(queries, s.tile_queries()),
                               cuda::sparse_chunk_tiles(s.query_heads, s.group_size(), s.head_dim,
                                                        s.top_k, element_bytes(s.element))))),
          key_values(2 * e * n * dh) {}
    const LayerSizes& sizes;
    double nq, pairs;
    double attended, attended_keys;  // of dense attention: pairs, keys that any query attends to
    int64_t in_tile;                 // T
    double tiles, chunks;
    double key_values;  // bytes of one group's keys and values

    /// (query, key) pairs of the first n0 queries that dense attention sees.
    double within(double n0) const { return std::min(n0, w) * (n0 - std::min(n0, w) / 2); }
    /// Rows of `unit` that the heads of `queries` fill together.
    double rows(int64_t queries, int64_t unit) const {
        return real(ceil_div(queries * sizes.group_size(), unit) * unit);
    }
    /// A stage that reads `blocks` blocks of keys and values per group.
    Stage reads_blocks(Stage stage, double blocks) const {
        const double reads = 2 * e * bk * dh * blocks, once = std::min(reads, key_values);
        stage.cost.bytes += hkv * once;
        stage.repeated_bytes = hkv * (reads - once);
        stage.working_set_bytes = key_values;
        return stage;
    }
};

Stage dense(const Phase& x) {
    return {
        "dense attention",
        {4 * x.hq * x.dh * x.attended,
         2 * x.e * (x.hq * x.nq + x.hkv * x.attended_keys) * x.dh + kScoreBytes * x.hq * x.nq},
        x.sizes.element,
        x.sizes.window ? "4 Hq dh Pw" : "4 Hq dh P",
        x.sizes.window ? "2 e (Hq Nq + Hkv Nw) dh + 4 Hq Nq" : "2 e (Hq Nq + Hkv N) dh + 4 Hq Nq"};
}

Stage index_select(const Phase& x) {
    return {"index select",
            {2 * x.hkv * x.didx * x.pairs,
             x.ei * (x.hkv * x.nq + x.n) * x.didx + kIdBytes * x.hkv * x.nq * x.k},
            x.sizes.index_element,
            "2 Hkv didx P",
            "e_i (Hkv Nq + N) didx + 4 Hkv Nq k"};
}

Stage one_query_at_a_time(const Phase& x) {
    return x.reads_blocks(
        {"sparse attention",
         {4 * x.hkv * x.nq * x.rows(1, cuda::kDecodeHeads) * x.dh * x.k * x.bk,
          2 * x.e * x.hq * x.nq * x.dh + kScoreBytes * x.hq * x.nq + kIdBytes * x.hkv * x.nq * x.k},
         x.sizes.element,
         "4 Hkv Nq R1 dh k Bk",
         "2 e Hq Nq dh (q, out) + 4 Hq Nq (lse) + 4 Hkv Nq k (ids) + 2 e Hkv Nq "
         "k Bk dh (k, v)"},
        x.nq * x.k);
}

double mask_bytes(const Phase& x, double slots) {
    return slots > 0 ? cuda::kSlotMaskBytes * x.hkv * x.nq : 0;
}

/// ids to unions of `blocks` blocks and to handles of `slots` blocks per query.
Stage schedule(const Phase& x, double blocks, double slots) {
    const double ids = kIdBytes * x.hkv * x.nq * x.k;
    return {"schedule",
            {0, (slots > 0 ? 2 : 1) * ids + cuda::kUnionBlockBytes * x.hkv * x.tiles * blocks +
                    cuda::kBlockUseBytes * x.hkv * x.nq * slots + mask_bytes(x, slots)},
            x.sizes.element,
            "0",
            concat(slots > 0 ? "8" : "4", " Hkv Nq k (ids) + 8 Hkv Nq / T U (unions)",
                   slots > 0 ? " + 16 Hkv Nq s (handles) + 4 Hkv Nq (masks)" : "")};
}

double slot_bytes(const Phase& x, double slots) {
    return (x.e * x.dh + kScoreBytes) * x.hq * x.nq * slots;
}

/// The first phase: every round of slots reads the blocks that its queries see once, half of all on
/// average. A round ends where slots or the schedule do. A tile takes as many slots as its neediest
/// query; the mean is taken in its place.
Stage block_by_block(const Phase& x, double slots) {
    const auto in_pass =
        std::min(cuda::sparse_pass_queries(x.sizes.group_size()), static_cast<int64_t>(x.nq));
    const double rows = x.rows(in_pass, cuda::kSparsePassRows) / real(in_pass);
    const double scheduled = real(cuda::sparse_scheduled_chunks(x.sizes.group_size()));
    const double rounds = std::ceil(std::max(x.chunks * slots / x.k, x.chunks / scheduled));
    const double block_reads = std::min(x.nq * slots, x.n / x.bk * (rounds + 1) / 2);
    return {"sparse attention, block by block",
            {4 * x.hkv * x.nq * slots * rows * x.dh * x.bk,
             cuda::kBlockUseBytes * x.hkv * x.nq * slots + x.e * x.hq * x.nq * slots * x.dh +
                 slot_bytes(x, slots) + 2 * x.e * x.hkv * x.bk * x.dh * block_reads},
            x.sizes.element,
            "4 Hkv Nq s Rs dh Bk",
            "16 Hkv Nq s (handles) + e Hq Nq s dh (gathered q) + (e dh + 4) Hq Nq s (partial out) "
            "+ 2 e Hkv N dh (C + 1) / 2 (k, v)"};
}

/// The union of a tile, and at the end of it the slots of its queries.
Stage tile_by_tile(const Phase& x, double blocks, double slots) {
    const char* const name = slots == 0    ? "sparse attention, tile by tile"
                             : blocks == 0 ? "combine"
                                           : "sparse attention, tile by tile, and combine";
    const double q = blocks > 0 ? x.e * x.hq * x.nq * x.dh : 0;
    return x.reads_blocks(
        {name,
         {4 * x.hkv * x.tiles * x.rows(x.in_tile, cuda::kSparseTileRows) * x.dh * blocks * x.bk,
          q + (x.e * x.dh + kScoreBytes) * x.hq * x.nq +
              cuda::kUnionBlockBytes * x.hkv * x.tiles * blocks + mask_bytes(x, slots) +
              slot_bytes(x, slots)},
         x.sizes.element,
         blocks > 0 ? "4 Hkv Nq / T R dh U Bk" : "0",
         concat(
             blocks > 0 ? "e Hq Nq dh (q) + 2 e Hkv Nq / T U Bk dh (k, v) + 8 Hkv Nq / T U + " : "",
             "(e dh + 4) Hq Nq (out, lse)",
             slots > 0 ? " + (e dh + 4) Hq Nq s (partial out) + 4 Hkv Nq (masks)" : "")},
        x.tiles * blocks);
}

/// MSA where a tile walks `blocks` blocks as a union and each query leaves `slots` to kv_outer.
Pipeline tiled(const char* name, const Phase& x, double blocks, double slots) {
    Pipeline made{name, {index_select(x), schedule(x, blocks, slots)}};
    if (slots > 0) made.stages.push_back(block_by_block(x, slots));
    made.stages.push_back(tile_by_tile(x, blocks, slots));
    return made;
}

std::vector<Pipeline> pipelines(const Phase& x) {
    const double in_union = x.in_tile == 1 ? x.k : x.sizes.union_blocks();
    const LayerSizes::Sharing sharing = x.sizes.sharing();
    const Pipeline q_outer{"q_outer", {index_select(x), one_query_at_a_time(x)}};
    return {{"dense", {dense(x)}},
            q_outer,
            tiled("union", x, in_union, 0),
            tiled("kv_outer", x, 0, x.k),
            x.in_tile == 1 ? Pipeline{"automatic", q_outer.stages}
                           : tiled("automatic", x, sharing.shared_blocks, sharing.slot_blocks)};
}

// The paper's stages.

Stage dense_attention(const LayerSizes& s) {
    const Letters x(s);
    return {"dense attention",
            {4 * x.hq * x.dh * (x.w * x.n - x.w * x.w / 2), 2 * x.e * (x.hq + x.hkv) * x.n * x.dh},
            s.element,
            s.window ? "4 Hq dh (w N - w^2 / 2)" : "2 Hq dh N^2",
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
            {0, 2 * kIdBytes * x.hkv * x.n * x.k},
            s.index_element,
            "0",
            "4 Hkv N k (ids) + 4 Hkv N k (32-bit handles)"};
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
            {4 * x.hq * x.dh * x.w, 2 * x.e * x.hkv * x.w * x.dh},
            s.element,
            s.window ? "4 Hq dh w" : "4 Hq dh N",
            s.window ? "2 e Hkv w dh" : "2 e Hkv N dh"};
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
    require(window.value_or(1) > 0, "window is ", window.value_or(1), ", must be positive");
    require(query_heads % kv_heads == 0, "query heads are ", query_heads,
            ", must be a multiple of the ", kv_heads, " key-value heads");
    require(top_k <= tokens / block_size, "context is ", tokens, ", must hold the k Bk = ", top_k,
            " * ", block_size, " tokens that a query selects");
    const double most = real(tile_queries() * top_k);
    require(
        !given_union_blocks || (*given_union_blocks >= real(top_k) && *given_union_blocks <= most),
        "union of a tile is ", given_union_blocks.value_or(0), ", must be from k = ", top_k,
        " to the ", most, " blocks that the ", tile_queries(), " queries of a tile select at most");
}

double Stage::memory_bytes(const Hardware& on) const {
    if (repeated_bytes == 0) return cost.bytes;
    const double held = std::min(1.0, on.cache_bytes.value_or(0) / working_set_bytes);
    return cost.bytes + repeated_bytes * (1 - held);
}

double Stage::seconds(const Hardware& on) const {
    const double main = roofline_seconds({cost.flops, memory_bytes(on)}, element, on);
    return on.cache_bytes_per_second ? std::max(main, cache_bytes() / *on.cache_bytes_per_second)
                                     : main;
}

const char* Stage::limit(const Hardware& on) const {
    const Cost main{cost.flops, memory_bytes(on)};
    if (seconds(on) > roofline_seconds(main, element, on)) return "cache";
    return memory_bound(main, element, on) ? "memory" : "arithmetic";
}

Cost Pipeline::total(const Hardware& on) const {
    Cost sum;
    for (const Stage& stage : stages) sum = sum + Cost{stage.cost.flops, stage.memory_bytes(on)};
    return sum;
}

double Pipeline::seconds(const Hardware& on) const {
    double sum = 0;
    for (const Stage& stage : stages) sum += stage.seconds(on);
    return sum;
}

std::vector<Pipeline> chunk_pipelines(const LayerSizes& s, int64_t queries) {
    return pipelines({s, queries});
}

std::vector<Pipeline> prefill_pipelines(const LayerSizes& s) { return pipelines({s, s.tokens}); }

std::vector<Pipeline> decode_pipelines(const LayerSizes& s) { return pipelines({s, 1}); }

std::vector<Pipeline> paper_prefill_pipelines(const LayerSizes& s) {
    return {
        {"dense", {dense_attention(s)}},
        {"q_outer", {index_scores(s), select_blocks(s), sparse_q_outer(s)}},
        {"kv_outer",
         {index_scores(s), select_blocks(s), reverse_index(s), sparse_kv_outer(s), combine(s)}}};
}

std::vector<Pipeline> paper_decode_pipelines(const LayerSizes& s) {
    return {{"dense", {decode_dense(s)}}, {"msa", {decode_index(s), decode_sparse(s)}}};
}

double paper_flop_ratio(const LayerSizes& s) {
    return dense_attention(s).cost.flops /
           (index_scores(s).cost.flops + sparse_q_outer(s).cost.flops);
}

IndexTraining index_training(const LayerSizes& s, bool on_selected) {
    const Problem p =
        square_problem(0, s.query_heads, s.kv_heads, s.head_dim, s.index_dim, s.block_size);
    const auto n = static_cast<double>(s.tokens),
               kept = static_cast<double>(s.top_k * s.block_size);
    const double keys = on_selected ? n * kept - kept * kept / 2 : n * n / 2;
    const double triples = static_cast<double>(s.kv_heads) * keys;
    const double gradients = index_gradient_flops(p, triples);
    return {index_scores(s).cost.flops, index_kl_flops(p, triples) - gradients, gradients};
}

Cost paper_q_outer_cost(const LayerSizes& s) { return sparse_q_outer(s).cost; }

Cost paper_kv_outer_cost(const LayerSizes& s) { return sparse_kv_outer(s).cost + combine(s).cost; }

double paper_slot_buffer_bytes(const LayerSizes& s) {
    const Letters x(s);
    return x.k * x.n * x.hq * (x.e * x.dh + kScoreBytes);
}

}  // namespace msa::analysis
