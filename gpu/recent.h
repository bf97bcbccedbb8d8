// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <list>
#include <memory>

namespace msa::cuda {

/// The objects used last, `Most` of them; what is older is let go. Whoever goes on using one (a
/// captured graph) shares it.
template <typename T, size_t Most>
class Recent {
public:
    /// The one that is(object), else what make() returns, a shared pointer.
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

    /// Does the next one that is made push one out?
    bool is_full() const { return objects_.size() == Most; }

private:
    std::list<std::shared_ptr<T>> objects_;  // the latest first
};

}  // namespace msa::cuda
