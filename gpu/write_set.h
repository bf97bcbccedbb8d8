// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <vector>

#include "core/keys.h"
#include "core/tensor.h"

namespace msa::cuda {

/// Memory that earlier work in the stream writes. A kernel that starts before that work is done
/// (see launch_early) must not read this memory early.
class WriteSet {
public:
    template <typename... Views>
    explicit WriteSet(const Views&... views) : ranges_{range_of(views)...} {}

    void add(const void* data, int64_t bytes) {
        constexpr size_t kMostRanges = 64;
        if (ranges_.size() >= kMostRanges) return add_everything();
        ranges_.push_back({data, static_cast<const char*>(data) + bytes});
    }
    void add(const WriteSet& more) {
        ranges_.insert(ranges_.end(), more.ranges_.begin(), more.ranges_.end());
        everything_ |= more.everything_;
    }
    /// From now on, all memory counts as written.
    void add_everything() {
        everything_ = true;
        ranges_.clear();
    }

    template <typename View>
    bool writes(const View& view) const {
        const Range r = range_of(view);
        return everything_ || std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& w) {
                   return w.begin < r.end && r.begin < w.end;
               });
    }

private:
    struct Range {
        const void *begin, *end;
    };
    template <typename T, int Rank>
    static Range range_of(const View<T, Rank>& view) {
        return {view.data(), view.data() + view.size()};
    }
    template <typename Void, int Rank>
    static Range range_of(const AnyView<Void, Rank>& view) {
        const auto* const begin = static_cast<const char*>(view.data());
        return {begin, begin + element_count(view.shape()) * element_bytes(view.element())};
    }
    /// Of pages, with what lies between them.
    template <int Rank>
    static Range range_of(const Keys<Rank>& keys) {
        if (!keys.paged()) return range_of(static_cast<const In<Rank>&>(keys));
        const auto* const begin = static_cast<const char*>(keys.data());
        return {begin, begin + keys.pages() * keys.strides()[0] * element_bytes(keys.element())};
    }
    std::vector<Range> ranges_;
    bool everything_ = false;
};

}  // namespace msa::cuda
