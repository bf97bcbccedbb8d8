// SPDX-License-Identifier: MIT
#include "analysis/hardware.h"

#include <algorithm>

namespace msa::analysis {

double Hardware::peak(Element element) const {
    const auto at = flops_per_second.find(element);
    require(at != flops_per_second.end(), name, ": teraflops_per_second has no ",
            to_string(element));
    return at->second;
}

double Hardware::cache() const {
    require(cache_bytes.has_value(), name, ": has no cache_mebibytes");
    return *cache_bytes;
}

const Hardware::Link& Hardware::links() const {
    require(link.has_value(), name, ": has no link_gigabytes_per_second");
    return *link;
}

const Hardware::Link& Hardware::networks() const {
    require(network.has_value(), name, ": has no network_gigabytes_per_second");
    return *network;
}

double roofline_seconds(const Cost& cost, Element element, const Hardware& on) {
    const double memory = cost.bytes / on.bytes_per_second;
    return cost.flops == 0 ? memory : std::max(memory, cost.flops / on.peak(element));
}

bool memory_bound(const Cost& cost, Element element, const Hardware& on) {
    return cost.flops == 0 || cost.intensity() < on.ridge(element);
}

}  // namespace msa::analysis
