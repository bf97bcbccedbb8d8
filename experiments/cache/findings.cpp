// SPDX-License-Identifier: MIT
#include "experiments/cache/findings.h"

#include <algorithm>
#include <numeric>

#include "experiments/report/text.h"

namespace msa::experiments::cache {
namespace {

double real(int64_t count) { return static_cast<double>(count); }

/// One selector's layers, and what they count as for the model.
struct Arm {
    std::vector<const LayerFindings*> layers{};
    double scale = 1;  // layers of the model over these
    const Findings* findings = nullptr;

    /// Sum over layers of what `get` says of one, per token.
    template <typename Get>
    double per_token(Get get) const {
        double sum = 0;
        for (const LayerFindings* layer : layers)
            sum += static_cast<double>(get(*layer)) / real(layer->steps);
        return sum * scale;
    }
    int64_t uses() const {
        int64_t sum = 0;
        for (const LayerFindings* layer : layers) sum += layer->seen.reuse.uses;
        return sum;
    }
    template <typename Get>
    double hit_rate(Get misses) const {
        int64_t sum = 0;
        for (const LayerFindings* layer : layers) sum += misses(*layer);
        return 1 - real(sum) / real(uses());
    }
    template <typename Get>
    double bytes(Get misses) const {
        return per_token([&](const LayerFindings& of) { return misses(of) * of.block_bytes; });
    }
};

auto lru_misses(int64_t blocks) {
    return [blocks](const LayerFindings& of) { return of.seen.reuse.distances.misses(blocks); };
}
int64_t in_vain(const LayerFindings& of, int64_t blocks) {
    return of.seen.by_layer ? of.seen.by_layer->in_vain.misses(blocks) : 0;
}
/// Blocks over the link: the misses, whether they were foreseen or not, and what was fetched in
/// vain.
auto fetched(const Findings& findings, int64_t blocks) {
    return [&findings, blocks](const LayerFindings& of) {
        return lru_misses(blocks)(of) + (findings.prefetch ? in_vain(of, blocks) : 0);
    };
}
auto misses_at(std::vector<int64_t> Seen::*policy, size_t size) {
    return [=](const LayerFindings& of) { return (of.seen.*policy)[size]; };
}

Point point_of(const Arm& arm, int64_t blocks, const std::vector<int64_t>& sizes) {
    const Findings& findings = *arm.findings;
    Point point{.selector = arm.layers.front()->selector, .blocks = blocks};
    point.share_of_context = real(blocks) / real(findings.context_blocks);
    for (const LayerFindings* layer : arm.layers)
        point.cache_bytes += real(blocks * layer->groups * layer->block_bytes) * arm.scale;
    point.hit_rate = arm.hit_rate(lru_misses(blocks));
    if (const auto at = std::ranges::find(sizes, blocks); at != sizes.end()) {
        const auto size = static_cast<size_t>(at - sizes.begin());
        point.lfu = arm.hit_rate(misses_at(&Seen::lfu, size));
        point.belady = arm.hit_rate(misses_at(&Seen::belady, size));
    }
    point.misses = arm.per_token(lru_misses(blocks));
    point.bytes = arm.bytes(fetched(findings, blocks));
    point.link_seconds = point.bytes / findings.link;
    const bool guessed = std::ranges::any_of(
        arm.layers, [](const LayerFindings* layer) { return layer->seen.by_layer.has_value(); });
    if (!guessed) return point;
    point.late = arm.per_token([&](const LayerFindings& of) {
        return of.seen.by_layer ? of.seen.by_layer->left.misses(blocks) : lru_misses(blocks)(of);
    });
    point.late_in_vain =
        arm.per_token([&](const LayerFindings& of) { return in_vain(of, blocks); });
    return point;
}

/// The smallest tried size whose misses under `policy` are in time.
std::optional<int64_t> smallest(const Arm& arm, std::vector<int64_t> Seen::*policy,
                                const std::vector<int64_t>& sizes) {
    for (size_t size = 0; size < sizes.size(); ++size)
        if (arm.bytes(misses_at(policy, size)) <= arm.findings->bytes_per_token())
            return sizes[size];
    return std::nullopt;
}

/// The smallest cache from `size` on that is in time: what is fetched never grows with its size.
std::optional<Point> smallest_in_time(const Arm& arm, int64_t size,
                                      const std::vector<int64_t>& sizes) {
    int64_t end = arm.findings->context_blocks + 1;
    while (size < end) {
        const int64_t middle = std::midpoint(size, end);
        if (arm.bytes(fetched(*arm.findings, middle)) > arm.findings->bytes_per_token())
            size = middle + 1;
        else
            end = middle;
    }
    if (size > arm.findings->context_blocks) return std::nullopt;
    return point_of(arm, size, sizes);
}

SelectorFindings of_selector(const Findings& findings, const std::string& selector,
                             const std::vector<int64_t>& sizes) {
    Arm arm{.findings = &findings};
    SelectorFindings found{.selector = selector};
    int64_t smallest_cache = 1;
    for (const LayerFindings& layer : findings.layers) {
        if (layer.selector != selector) continue;
        arm.layers.push_back(&layer);
        smallest_cache = std::max(smallest_cache, layer.smallest_cache);
        found.layers_guessed += layer.seen.by_layer ? 1 : 0;
    }
    found.layers = std::ssize(arm.layers);
    arm.scale = real(findings.model_layers) / real(found.layers);
    for (int64_t size : sizes) found.points.push_back(point_of(arm, size, sizes));
    found.whole = point_of(arm, findings.context_blocks, sizes);
    found.whole.role = Role::whole_context;
    found.lfu = smallest(arm, &Seen::lfu, sizes);
    found.belady = smallest(arm, &Seen::belady, sizes);
    for (const LayerFindings* layer : arm.layers)
        found.written_bytes +=
            real(layer->groups * layer->block_bytes) / real(findings.block_size) * arm.scale;
    found.recommended = smallest_in_time(arm, smallest_cache, sizes);
    if (found.recommended) found.recommended->role = Role::recommended;
    return found;
}

std::optional<int64_t> attribute(const io::ResultsReader& results, const std::string& object,
                                 const char* name) {
    if (!results.has(object, name)) return std::nullopt;
    return static_cast<int64_t>(results.number(object, name));
}

void read_layers(const io::ResultsReader& results, Findings& findings) {
    const std::vector<std::string> selectors = results.list("/cache");
    for (const std::string& name : results.list("/layers")) {
        const std::string at = "/layers/" + name;
        const auto size = [&](const char* which) { return attribute(results, at, which).value(); };
        findings.block_size = size("block_size");
        findings.steps = std::max(findings.steps, size("steps"));
        findings.sequences = std::max(findings.sequences, size("sequences"));
        findings.context_blocks = std::max(findings.context_blocks, size("context_blocks"));
        for (const std::string& selector : selectors) {
            if (!results.has("/cache/" + selector + "/" + name)) continue;
            LayerFindings layer{.layer = std::stoll(name),
                                .selector = selector,
                                .steps = size("steps"),
                                .groups = size("kv_heads"),
                                .block_bytes = size("block_bytes"),
                                .smallest_cache = size("smallest_cache"),
                                .note = results.text(at, "previous_layer_note")};
            layer.seen = read_seen(results, selector, layer.layer);
            const std::optional<int64_t> previous = attribute(results, at, "previous_layer");
            if (layer.seen.by_layer)
                layer.previous = previous;
            else if (previous)
                layer.note = concat("layer ", *previous, ", the one before it, has no ids of it");
            findings.layers.push_back(layer);
        }
    }
}

}  // namespace

bool Findings::reached() const {
    return std::ranges::any_of(
        selectors, [](const SelectorFindings& one) { return one.recommended.has_value(); });
}

Findings make_findings(const io::ResultsReader& results) {
    const io::RunRecord& run = results.run();
    const auto options = recorded_options<CacheOptions>(run.options);
    Findings findings{.element = to_string(options.element.value())};
    findings.model_layers = options.model_layers.value();
    findings.prefetch = options.prefetch;
    findings.link = options.link * kGiga;
    findings.seconds_per_token = options.time_per_token * kMicro;
    read_layers(results, findings);
    for (const std::string& selector : results.list("/cache"))
        findings.selectors.push_back(of_selector(findings, selector, options.sizes));
    return findings;
}

}  // namespace msa::experiments::cache
