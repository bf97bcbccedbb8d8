// SPDX-License-Identifier: MIT
// What the tests of one layer over several ranks share.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/number/convert.h"
#include "core/parallel/plan.h"
#include "tests/support/runner.h"

namespace msa::test {

/// Rows of a host tensor in a backend's memory, stored as `element`.
template <int Rank>
class Held {
public:
    Held(Backend& backend, Element element, View<const float, Rank> host) {
        const int64_t bytes = host.size() * element_bytes(element);
        const std::shared_ptr<void> stored = allocate_host(bytes);
        encode({host.data(), static_cast<size_t>(host.size())}, element, stored.get());
        memory_ = backend.allocate(bytes);
        backend.copy(memory_.get(), backend.space(), stored.get(), Space::host, bytes);
        view_ = {memory_.get(), host.shape(), element, backend.space()};
    }
    operator In<Rank>() const { return view_; }

private:
    std::shared_ptr<void> memory_;
    In<Rank> view_;
};

/// The rows of `ranges`, one behind the other.
template <typename T, int Rank>
Tensor<T, Rank> rows_of(const Tensor<T, Rank>& all, const std::vector<QueryRange>& ranges) {
    Shape<Rank> shape = all.shape();
    shape[0] = 0;
    for (const QueryRange& range : ranges) shape[0] += range.end - range.begin;
    Tensor<T, Rank> rows(shape);
    T* to = rows.data();
    for (const QueryRange& range : ranges) {
        const auto part = all.view().slice(range.begin, range.end - range.begin);
        to = std::copy_n(part.data(), part.size(), to);
    }
    return rows;
}

template <typename T, int Rank>
Tensor<T, Rank> copy_of(View<const T, Rank> from) {
    Tensor<T, Rank> copy(from.shape());
    std::copy_n(from.data(), from.size(), copy.data());
    return copy;
}

/// A backend of one rank: its own part of the threads.
inline std::unique_ptr<Backend> backend_of_rank(const Subject& subject, int device = 0) {
    BackendOptions options;
    options.threads = 1;
    options.device = device;
    return make_backend(subject.backend, options);
}

/// As many ranks as the tests divide a case among: backends share the plan, so one of them takes
/// several.
inline std::vector<int> rank_counts(const Subject& subject) {
    return subject.backend == "cpu" ? std::vector{1, 2, 5} : std::vector{3};
}

/// The cases of all operations that ranks can divide, once by queries and once by keys.
inline std::vector<Case> divisible_cases(bool windows) {
    std::vector<Case> all;
    for (const Case& c : cases(kTruth | kOwnAttention)) {
        const Problem& p = c.problem;
        if (p.sequences() == 1 && p.batch.query_positions().empty() && p.queries() <= p.keys() &&
            (windows || !p.window))
            all.push_back(c);
    }
    return all;
}

}  // namespace msa::test
