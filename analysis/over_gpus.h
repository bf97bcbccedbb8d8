// SPDX-License-Identifier: MIT
// One layer over several GPUs, from sizes and links alone: what core/parallel does, at the
// roofline's rates. Letters: P GPUs, H hosts of h = P / H, N tokens.
//
// Prefill. Chunks are those of parallel::ZigZag. A chunk takes what the pipeline "automatic" takes
// for its queries behind its prefix (chunk_pipelines). All keys are W = N (e_i didx + 2 e Hkv dh)
// bytes; a GPU brings in W (1 - 1 / P) of them, in the order of the sequence. Within a host all
// come over the links. Among hosts, a GPU fetches its h-th of what other hosts have over the
// network, W (1 - 1 / H) / h, and hands it on over the links, which carry the rest:
//   gather = max(W (1 - 1 / H) / h / network, (W (1 - 1 / P) - W (1 - 1 / H) / h) / link)
// The 2 P - 2 chunks of others come one after another, so that chunk c of rank r can begin at
//   latency + (c, less 1 where the rank's early chunk is ahead) * gather / (2 P - 2)
// and not before the rank's early chunk is done. The time that a rank waits is the part of
// the gather that is not overlapped.
//
// Decode. Keys are divided: index_select reads N / P index keys, attention k / P blocks, or k where
// they all lie with one GPU. Then all send to all, twice: 8 Hkv k bytes of candidates, and
// Hq (4 dh + 8) of partial outputs with their sums:
//   exchange = 2 latency + (bytes to a GPU) / link, or network where it is slower
//
// What the roofline leaves out is left out here too: launches, and chains of reads that wait for
// each other.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/stage_cost.h"

namespace msa::analysis {

/// One GPU of a prefill, in seconds.
struct RankTime {
    double early = 0, late = 0;  // its two chunks
    double end = 0;              // when the second is done
    double compute() const { return early + late; }
    double waited() const { return end - compute(); }
};

struct PrefillOverGpus {
    double one_seconds = 0;  // of one GPU alone
    double gather_bytes = 0, gather_seconds = 0;
    std::vector<RankTime> ranks;

    /// When the last one is done.
    double seconds() const;
    double speedup() const { return one_seconds / seconds(); }
    /// Of the slowest rank's chunks over the mean, less 1.
    double imbalance() const;
    /// The longest wait of any rank.
    double exposed_seconds() const;
};

struct DecodeOverGpus {
    double one_seconds = 0;
    double select_seconds = 0;                            // index_select on a GPU's part
    double attend_seconds = 0, attend_worst_seconds = 0;  // k / P blocks, and k
    double exchange_bytes = 0, exchange_seconds = 0;      // of both, into a GPU

    double seconds() const { return select_seconds + attend_seconds + exchange_seconds; }
    double speedup() const { return one_seconds / seconds(); }
    double worst_speedup() const {
        return one_seconds / (seconds() - attend_seconds + attend_worst_seconds);
    }
};

/// Throw InputError where the hardware has no links, or needs a network that it has not; where the
/// GPUs are more than a host's and no multiple of it; and where the sequence is too short to be
/// divided: less than a unit of ZigZag for each chunk, or than k blocks for each part.
PrefillOverGpus prefill_over_gpus(const LayerSizes&, int gpus, const Hardware&);
DecodeOverGpus decode_over_gpus(const LayerSizes&, int gpus, const Hardware&);

}  // namespace msa::analysis
