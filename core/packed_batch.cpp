// SPDX-License-Identifier: MIT
#include "core/packed_batch.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/cu_seqlens.h"
#include "core/error.h"

namespace msa {
namespace {

void check_cu_seqlens(const std::vector<int64_t>& cu_seqlens, std::string_view name) {
    require(!cu_seqlens.empty(), name, " is empty, must have one more entry than sequences");
    require(cu_seqlens.front() == 0, name, "[0] is ", cu_seqlens.front(), ", must be 0");
    for (size_t s = 1; s < cu_seqlens.size(); ++s)
        require(cu_seqlens[s - 1] <= cu_seqlens[s], name, "[", s, "] is ", cu_seqlens[s],
                ", must not be below ", name, "[", s - 1, "] = ", cu_seqlens[s - 1]);
}

}  // namespace

int64_t longest_sequence(std::span<const int64_t> cu_seqlens) {
    int64_t tokens = 0;
    for (size_t s = 1; s < cu_seqlens.size(); ++s)
        tokens = std::max(tokens, cu_seqlens[s] - cu_seqlens[s - 1]);
    return tokens;
}

struct PackedBatch::Layout {
    std::vector<int64_t> cu_seqlens_q{0}, cu_seqlens_k{0}, query_positions;
    mutable std::once_flag made;
    mutable std::vector<KeyRange> visible;

    /// Of row `i`, which belongs to sequence `s`.
    int64_t position(size_t s, int64_t i) const {
        if (!query_positions.empty()) return query_positions[static_cast<size_t>(i)];
        return cu_seqlens_k[s + 1] - cu_seqlens_k[s] - (cu_seqlens_q[s + 1] - i);
    }

    void check() const {
        check_cu_seqlens(cu_seqlens_q, "cu_seqlens_q");
        check_cu_seqlens(cu_seqlens_k, "cu_seqlens_k");
        require(cu_seqlens_q.size() == cu_seqlens_k.size(), "cu_seqlens_q has ",
                cu_seqlens_q.size(), " entries, cu_seqlens_k ", cu_seqlens_k.size(),
                "; they must have the same number");
        if (query_positions.empty()) return;
        require(static_cast<int64_t>(query_positions.size()) == cu_seqlens_q.back(),
                "query_positions has ", query_positions.size(),
                " entries, must have one per query = ", cu_seqlens_q.back());
        for (size_t s = 0; s + 1 < cu_seqlens_q.size(); ++s) check_positions(s);
    }

    void check_positions(size_t s) const {
        const int64_t keys_here = cu_seqlens_k[s + 1] - cu_seqlens_k[s];
        for (int64_t i = cu_seqlens_q[s]; i < cu_seqlens_q[s + 1]; ++i) {
            require(position(s, i) < keys_here, "query_positions[", i, "] is ", position(s, i),
                    ", must be below the keys of its sequence = ", keys_here);
            require(i == cu_seqlens_q[s] || position(s, i - 1) <= position(s, i),
                    "query_positions[", i, "] is ", position(s, i),
                    ", must not be below the one before it in its sequence");
        }
    }

    void make_visible() const {
        visible.resize(static_cast<size_t>(cu_seqlens_q.back()));
        for (size_t s = 0; s + 1 < cu_seqlens_q.size(); ++s)
            for (int64_t i = cu_seqlens_q[s]; i < cu_seqlens_q[s + 1]; ++i)
                visible[static_cast<size_t>(i)] = {cu_seqlens_k[s],
                                                   std::max<int64_t>(0, position(s, i) + 1)};
    }
};

PackedBatch::PackedBatch() {
    static const auto empty = std::make_shared<const Layout>();
    layout_ = empty;
}

PackedBatch::PackedBatch(std::vector<int64_t> cu_seqlens_q, std::vector<int64_t> cu_seqlens_k,
                         std::vector<int64_t> query_positions) {
    auto layout = std::make_shared<Layout>();
    layout->cu_seqlens_q = std::move(cu_seqlens_q);
    layout->cu_seqlens_k = std::move(cu_seqlens_k);
    layout->query_positions = std::move(query_positions);
    layout->check();
    layout_ = std::move(layout);
}

const std::vector<int64_t>& PackedBatch::cu_seqlens_q() const { return layout_->cu_seqlens_q; }
const std::vector<int64_t>& PackedBatch::cu_seqlens_k() const { return layout_->cu_seqlens_k; }
const std::vector<int64_t>& PackedBatch::query_positions() const {
    return layout_->query_positions;
}

int64_t PackedBatch::sequences() const { return std::ssize(layout_->cu_seqlens_q) - 1; }
int64_t PackedBatch::queries() const { return layout_->cu_seqlens_q.back(); }
int64_t PackedBatch::keys() const { return layout_->cu_seqlens_k.back(); }
int64_t PackedBatch::longest_keys() const { return longest_sequence(layout_->cu_seqlens_k); }
int64_t PackedBatch::longest_queries() const { return longest_sequence(layout_->cu_seqlens_q); }

const std::vector<KeyRange>& PackedBatch::visible_keys() const {
    std::call_once(layout_->made, [this] { layout_->make_visible(); });
    return layout_->visible;
}

PackedBatch PackedBatch::with_query_rows(std::span<const int64_t> rows) const {
    MSA_CHECK(std::is_sorted(rows.begin(), rows.end()));
    MSA_CHECK(rows.empty() || (0 <= rows.front() && rows.back() < queries()));
    const Layout& all = *layout_;
    auto part = std::make_shared<Layout>();
    part->cu_seqlens_k = all.cu_seqlens_k;
    part->cu_seqlens_q = all.cu_seqlens_q;
    for (int64_t& boundary : part->cu_seqlens_q)
        boundary = std::lower_bound(rows.begin(), rows.end(), boundary) - rows.begin();
    part->query_positions.reserve(rows.size());
    size_t s = 0;
    for (int64_t row : rows) {
        while (row >= all.cu_seqlens_q[s + 1]) ++s;
        part->query_positions.push_back(all.position(s, row));
    }
    PackedBatch batch;
    batch.layout_ = std::move(part);
    return batch;
}

PackedBatch PackedBatch::with_queries(QueryRange range) const {
    MSA_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= queries());
    std::vector<int64_t> rows(static_cast<size_t>(range.end - range.begin));
    std::iota(rows.begin(), rows.end(), range.begin);
    return with_query_rows(rows);
}

bool PackedBatch::operator==(const PackedBatch& other) const {
    return layout_ == other.layout_ || (layout_->cu_seqlens_q == other.layout_->cu_seqlens_q &&
                                        layout_->cu_seqlens_k == other.layout_->cu_seqlens_k &&
                                        layout_->query_positions == other.layout_->query_positions);
}

std::shared_ptr<const void> PackedBatch::identity() const { return layout_; }

}  // namespace msa
