// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <list>
#include <memory>

namespace msa::cuda {

/// A cache of the `Most` objects used last. A user that keeps one longer (a captured graph) shares
/// ownership.
template <typename T, size_t Most>
class LruCache {
public:
    /// The object for which is(object) holds, else the shared pointer that make() returns.
    template <typename Is, typename Make>
    std::shared_ptr<T> get(Is is, Make make) {
        const auto found =
            std::find_if(objects_.begin(), objects_.end(), [&](const auto& o) { return is(*o); });
        if (found != objects_.end()) {
            objects_.splice(objects_.begin(), objects_, found);
        } else {
            objects_.push_front(make());
            if (objects_.size() > Most) objects_.pop_back();
        }
        return objects_.front();
    }

    /// Whether the next new object evicts one.
    bool is_full() const { return objects_.size() == Most; }

private:
    std::list<std::shared_ptr<T>> objects_;  // most recent first
};

}  // namespace msa::cuda
