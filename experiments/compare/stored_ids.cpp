// SPDX-License-Identifier: MIT
#include "experiments/compare/stored_ids.h"

#include <algorithm>

#include "core/select/selector.h"
#include "experiments/driver/sample.h"

namespace msa::experiments::compare {
namespace {

constexpr int64_t kStoredRows = 1024;

}  // namespace

StoredIds::StoredIds(io::UnitWriter& to, std::string layer, std::span<const int64_t> tokens,
                     QueryRange part, uint64_t seed)
    : to_(to),
      layer_(std::move(layer)),
      tokens_(tokens),
      numbers_(stratified_sample(std::ssize(tokens), kStoredRows, seed)) {
    std::erase_if(numbers_, [&](int64_t n) { return n < part.begin || n >= part.end; });
}

void StoredIds::write_queries() const {
    std::vector<int64_t> tokens;
    for (int64_t n : numbers_) tokens.push_back(tokens_[static_cast<size_t>(n)]);
    to_.write<int64_t, 1>("/queries/" + layer_ + "/token", {tokens.data(), {std::ssize(tokens)}},
                          {"query", "token", "packed token index of each query in /select"});
}

std::string StoredIds::dataset(const measure::Choice& choice) const {
    return "/select/" + choice.key + "/" + layer_ + "/ids";
}

void StoredIds::create(const measure::Choice& choice, int64_t groups) const {
    to_.create<int32_t, 3>(dataset(choice), {std::ssize(numbers_), groups, choice.used.top_k},
                           {"query,group,slot", "block of the sequence",
                            make_selector(choice.selector)->rule_in_full()});
}

void StoredIds::write(const measure::Choice& choice, QueryRange range,
                      View<const int32_t, 3> ids) const {
    const auto begin = std::lower_bound(numbers_.begin(), numbers_.end(), range.begin);
    const auto end = std::lower_bound(begin, numbers_.end(), range.end);
    if (begin == end) return;
    Tensor<int32_t, 3> rows({end - begin, ids.extent(1), ids.extent(2)});
    for (auto row = begin; row != end; ++row)
        std::copy_n(ids[*row - range.begin].data(), ids.extent(1) * ids.extent(2),
                    rows.view()[row - begin].data());
    to_.write_rows<int32_t, 3>(dataset(choice), begin - numbers_.begin(), rows);
}

}  // namespace msa::experiments::compare
