// SPDX-License-Identifier: MIT
// The time of core/parallel for one layer on several GPUs, from sizes, links and the roofline's
// rates. Letters: P GPUs, H hosts of h = P / H GPUs, N tokens.
//
// Prefill. Chunks are those of parallel::ZigZag. A chunk takes the time of the pipeline "automatic"
// for its queries after its prefix (chunk_pipelines). All keys are W = N (e_i didx + 2 e Hkv dh)
// bytes, of which a GPU receives W (1 - 1 / P), in sequence order. Within one host all come over
// the links. With several hosts, a GPU fetches 1 / h of the other hosts' keys over the network, W
// (1 - 1 / H) / h, and passes them on over the links, which also carry the rest:
//   gather = max(W (1 - 1 / H) / h / network, (W (1 - 1 / P) - W (1 - 1 / H) / h) / link)
// and the other ranks' 2 P - 2 chunks arrive one after another at equal intervals. Within one host
// all ranks want the same chunk at first, and share the link of its owner (GatherInHost). A chunk
// begins when the keys up to its end are there, and not before the rank's early chunk is done. A
// rank waits for the part of the gather that is not overlapped.
//
// Decode. Keys are divided: index_select reads N / P index keys, attention k / P blocks, or k if
// one GPU has them all. There are two all-to-all exchanges: 8 Hkv k bytes of candidates, and Hq (4
// dh + 8) bytes of partial outputs with their sums:
//   exchange = 2 (h - 1) latency + (bytes to a GPU) / link, or network where it is slower
// since a GPU reads the lists of the others one after the other. `step` seconds are added, on one
// GPU too, where the hardware has them. Other launches and chains of dependent reads are left out,
// as in the roofline.
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

    /// Time at which the last GPU is done.
    double seconds() const;
    double speedup() const { return one_seconds / seconds(); }
    /// Time of the slowest rank's chunks over the mean, minus 1.
    double imbalance() const;
    /// The longest wait of any rank.
    double exposed_seconds() const;
};

struct DecodeOverGpus {
    double one_seconds = 0;
    double select_seconds = 0;                            // index_select on a GPU's part
    double attend_seconds = 0, attend_worst_seconds = 0;  // for k / P blocks, and for k
    double exchange_bytes = 0, exchange_seconds = 0;      // of both exchanges, into a GPU
    double step_seconds = 0;                              // Hardware's, part of one_seconds too

    double seconds() const {
        return step_seconds + select_seconds + attend_seconds + exchange_seconds;
    }
    double speedup() const { return one_seconds / seconds(); }
    double worst_speedup() const {
        return one_seconds / (seconds() - attend_seconds + attend_worst_seconds);
    }
};

/// Throw InputError if the hardware lacks the link or network that is needed; if the number of GPUs
/// exceeds a host's and is not a multiple of it; and if the sequence is too short: less than a unit
/// of ZigZag per chunk, or than k blocks per part.
PrefillOverGpus prefill_over_gpus(const LayerSizes&, int gpus, const Hardware&);
DecodeOverGpus decode_over_gpus(const LayerSizes&, int gpus, const Hardware&);

}  // namespace msa::analysis
