// SPDX-License-Identifier: MIT
// The roofline: a machine's peak rates, and the resulting lower bound on time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/tensor.h"

namespace msa::analysis {

/// Work of one kernel: floating-point operations (a multiply-add is 2) and bytes to and from
/// memory.
struct Cost {
    double flops = 0, bytes = 0;
    double intensity() const { return flops / bytes; }  // FLOP/byte
    Cost operator+(const Cost& other) const { return {flops + other.flops, bytes + other.bytes}; }
};

/// A chip, in FLOP/s and byte/s: dense matrix peaks, never the ones with structured sparsity.
struct Hardware {
    std::string name;
    std::map<Element, double> flops_per_second;
    double bytes_per_second = 0;                   // of the memory
    std::optional<double> cache_bytes;             // last-level cache that all cores share
    std::optional<double> cache_bytes_per_second;  // read from it

    /// A link to other chips: byte/s into one chip, with the same rate out at the same time, and
    /// the latency of a small message in seconds.
    struct Link {
        double bytes_per_second = 0, seconds = 0;
    };
    std::optional<Link> link = {};     // to the other chips of a host
    std::optional<Link> network = {};  // to chips of other hosts, each chip's share
    int64_t chips_of_host = 1;
    double step_seconds =
        0;  // launches and chains of dependent reads of a decode step; 0: not known

    /// Throws InputError naming chip and element if there is no entry.
    double peak(Element) const;
    /// Throws InputError if there is no entry.
    double cache() const;
    const Link& links() const;
    const Link& networks() const;
    /// FLOP/byte above which arithmetic, not memory, is the limit.
    double ridge(Element element) const { return peak(element) / bytes_per_second; }
};

/// max(flops / peak of the operands' element, bytes / bandwidth). Work without arithmetic needs no
/// peak.
double roofline_seconds(const Cost&, Element, const Hardware&);
/// Whether memory is the limit.
bool memory_bound(const Cost&, Element, const Hardware&);

}  // namespace msa::analysis
