// SPDX-License-Identifier: MIT
#include "analysis/metrics.h"

#include "core/error.h"

namespace msa::analysis {
namespace {

constexpr Metric kTable[] = {
    // What a selection keeps.
    {"block_recall", "block recall", "share of blocks", "group",
     "|I* ∩ Î| / |I*|: share of the oracle's blocks I* that the selector chose too (Î)"},
    {"score_recall", "score recall", "share of mass", "group",
     "block recall weighted by mass: sum of P_b over I* ∩ Î / sum of P_b over I*"},
    {"mass_kept", "mass kept", "probability", "group",
     "sum of P_b over Î: share of the dense attention probability on the chosen blocks; small gaps "
     "may hide large losses of the model (docs/smollm2.md)"},
    {"oracle_mass", "oracle mass", "probability", "group",
     "sum of P_b over I*: mass kept by the oracle's choice of as many blocks"},
    {"output_error", "output error", "relative", "head",
     "|o_sparse - o_dense| / |o_dense| of each head over the counted queries, mean over heads"},
    {"group_output_error", "error", "relative", "group",
     "|o_sparse - o_dense| / |o_dense| of each group's heads together over the counted queries, "
     "mean over groups; output_error is the mean over heads instead"},
    {"dead_heads", "dead heads", "heads", "layer",
     "heads whose dense output is 0 on all counted queries: they have no output error and are left "
     "out of its mean"},
    {"dead_groups", "dead groups", "groups", "layer",
     "groups whose dense output is 0 on all counted queries: they have no output error and are "
     "left out of its mean"},
    {"layer_overlap", "layer overlap", "IoU", "layer,layer",
     "|A ∩ B| / |A ∪ B| of the blocks that two layers choose for the same query and group, mean "
     "over a sample of queries"},
    {"group_overlap", "group overlap", "IoU", "group,group",
     "|A ∩ B| / |A ∪ B| of the blocks that two groups choose for the same query, mean over the "
     "counted queries; 1 where both choose none"},
    {"queries_per_block", "queries per block", "queries", "group,block",
     "queries of the group whose chosen blocks have the block among them, blocks of all sequences "
     "numbered through"},
    {"gini", "Gini", "1", "group",
     "1 - 2 * area under the Lorenz curve of queries_per_block: 0 where all blocks are equally "
     "popular, or nothing is chosen"},
    // What a selection reads and costs.
    {"blocks_kept", "blocks kept", "blocks", "group", "chosen blocks per counted query and group"},
    {"tokens_read", "tokens read", "tokens", "group",
     "keys that a counted query reads per group: its own block as far as it sees it"},
    {"index_flops", "index FLOPs", "FLOP", "layer",
     "FLOPs of the selector's scores per query of the phase, all heads (a multiply-add is 2)"},
    {"index_bytes", "index bytes", "B", "layer",
     "bytes that the selector's scores read per query of the phase, each query on its own, 2-byte "
     "elements; what is read once for several queries is spread over them"},
    {"attention_flops", "attention FLOPs", "FLOP", "layer",
     "FLOPs of attention over the chosen keys per query"},
    {"attention_bytes", "attention bytes", "B", "layer",
     "bytes of chosen keys and values per query, each query on its own, 2-byte elements"},
    // Where the probability lies.
    {"sink_mass_dense", "sink dense", "probability", "head",
     "probability on token 0 in dense attention, mean over the counted queries and heads"},
    {"sink_mass_first_tokens", "sink tokens", "probability", "head",
     "probability on the first tokens, as many as the run counts to the sink, in dense attention"},
    {"sink_mass_first_block", "first block", "probability", "group",
     "probability on the first block in dense attention"},
    {"first_block_rate", "block 0 rate", "share of queries", "group",
     "share of the counted queries whose chosen blocks have the first block among them"},
    {"local_rate", "local rate", "share of queries", "group",
     "share of the counted queries whose chosen blocks have the block before their own among them"},
    {"far_overlap", "far overlap", "IoU", "group,group",
     "|A ∩ B| / |A ∪ B| of the far blocks (neither the first one nor the query's newest two) that "
     "two groups choose for the same query, mean over the counted queries where one of them has "
     "any, then over pairs of groups"},
    {"sink_mass_sparse", "sink sparse", "probability", "head",
     "probability on token 0 in attention over the chosen blocks, mean likewise"},
    {"learned_sink_mass", "learned sink", "probability", "head",
     "probability on the learnable sink in the attention that the layer does, mean over all "
     "queries and heads"},
    {"entropy_dense", "entropy dense", "nats", "head",
     "entropy of dense attention in nats, mean over all queries and heads"},
    {"entropy_sparse", "entropy sparse", "nats", "head",
     "entropy of attention over the chosen blocks in nats, mean likewise"},
    // Of how narrowly a selection is decided (analysis/tie_margin.h).
    {"tied", "tied", "share of queries", "group",
     "share of the queries with a choice to make whose k-th and next best scores are equal, so "
     "that "
     "the lower block id decides"},
    {"tied_by_rounding", "tied by rounding", "share of queries", "group",
     "the same of scores that differ by no more than twice the error of their float sums"},
    {"all_tied", "all tied", "share of queries", "group",
     "the same of queries whose candidates all have one score"},
    // Of an Index Branch.
    {"kl", "KL", "nats", "group",
     "KL divergence of the index distribution from the teacher over all visible keys, in nats"},
    {"kl_selected", "KL selected", "nats", "group",
     "the same over the keys of the blocks that the Index Branch chose, both distributions made to "
     "sum to 1 there (the paper's sparse stage)"},
    {"entropy_index", "entropy index", "nats", "group",
     "entropy of the index distribution over all visible keys, in nats"},
    {"entropy_teacher", "entropy teacher", "nats", "group",
     "entropy of the teacher over all visible keys, in nats"},
    // Of the ids of another layer.
    {"mass_lost", "mass lost", "probability", "source",
     "mass kept with the layer's own ids, less that with the ids of the source layer"},
    {"own_recall", "recall of own ids", "share of blocks", "source",
     "share of the blocks of the layer's own ids that are among the ids of the source layer"},
    // Of operands that are stored in fewer bits.
    {"precision_recall", "recall of f32 ids", "share of blocks", "precision",
     "share of the blocks that full precision selects that are among the ids"},
    {"mass_share", "mass kept / f32", "ratio", "precision",
     "mass kept, over that of full precision"},
    {"recall_share", "recall / f32", "ratio", "precision",
     "block recall, over that of full precision"},
    {"dense_error", "dense error", "relative", "head",
     "relative error of dense attention on the stored K and V, |o - o'| / |o'| with o' that of "
     "full precision, over all queries of a head; mean over the heads"},
    {"sparse_error", "sparse error", "relative", "head",
     "the same of sparse attention over the ids of full precision, against that attention on K "
     "and V in full precision"},
    {"bits_per_token", "bits per token", "bit", "precision",
     "of a token in one layer, its scales included (32 bits each, 8 in fp4): of index_k, which "
     "one head shares; of K and V of all heads; mean over the layers"},
    {"bits_per_value", "bits per value", "bit", "precision",
     "bits_per_token over the values of a token"},
    // Of a cache of blocks.
    {"hit_rate", "hits", "share of uses", "size",
     "share of uses that do not miss in a least-recently-used cache; sums over layers, groups "
     "and steps. lfu: the block used least often since the first step leaves first. belady: "
     "the one whose next use is furthest away, which no policy beats"},
    {"bytes_per_token", "link bytes", "B", "size",
     "misses times the bytes of a block, per step of all layers and groups, scaled to the "
     "layers of the model; where the previous layer's blocks are prefetched, of "
     "in_vain_per_token, too"},
    {"written_bytes_per_token", "bytes written", "B", "selector",
     "bytes of the new keys and values, which go out once, in the other direction"},
    {"link_seconds_per_token", "link time", "s", "size",
     "bytes_per_token over the bandwidth of the link"},
    {"late_misses_per_token", "late misses", "blocks", "size",
     "misses that prefetching the previous layer's blocks does not foresee; what is fetched "
     "waits beside the cache until it is used; all misses of a layer that has none before it"},
    {"in_vain_per_token", "fetched in vain", "blocks", "size",
     "blocks that this prefetching fetches and the step does not use"},
};

}  // namespace

std::span<const Metric> list_metrics() { return kTable; }

const Metric& metric(std::string_view name) {
    for (const Metric& known : kTable)
        if (name == known.name) return known;
    throw std::logic_error(concat("no metric is called '", name, "'"));
}

}  // namespace msa::analysis
