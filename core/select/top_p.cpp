// SPDX-License-Identifier: MIT
#include <algorithm>
#include <limits>
#include <numeric>

#include "core/select/attention_rows.h"
#include "core/select/received_mass.h"

namespace msa {
namespace {

constexpr int64_t kProbed = 256;  // queries of a sequence that decide on p
constexpr int kHalvings = 40;     // of [0, 1] in search of p
constexpr float kNotTaken = -std::numeric_limits<float>::infinity();

/// A row's blocks in the order in which top-p takes them: forced ones, then by mass.
std::vector<int32_t> order_of(View<const float, 1> mass, int64_t blocks,
                              const SelectionRule& rule) {
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        const bool forced = is_forced(rule, a, blocks), other = is_forced(rule, b, blocks);
        if (forced != other) return forced;
        return mass(a) != mass(b) ? mass(a) > mass(b) : a < b;
    });
    return order;
}

/// Blocks of `order` that it takes to cover the share p of the mass, forced ones at least.
int64_t taken(View<const float, 1> mass, const std::vector<int32_t>& order,
              const SelectionRule& rule, double p) {
    double sum = 0;
    int64_t n = 0;
    const auto blocks = std::ssize(order);
    while (n < blocks && (sum < p || is_forced(rule, order[static_cast<size_t>(n)], blocks)))
        sum += double{mass(order[static_cast<size_t>(n++)])};
    return n;
}

class TopPSelector final : public Selector {
public:
    std::string_view name() const override { return "top-p"; }
    std::string_view rule() const override {
        return "the fewest blocks that cover a share p of the Main Branch probability, mean over "
               "the group's heads; p of each group so that the mean query keeps the budget: the "
               "oracle with an uneven budget";
    }
    Needs needs() const override { return {.mass = true, .queries = true, .rule = true}; }

    void prepare(const SelectorLayer& layer) override {
        rows_.clear();
        share_.clear();
        for (int64_t s = 0; s < layer.problem.sequences(); ++s) sample(layer, s);
        for (int64_t r = 0; r < layer.problem.kv_heads; ++r) share_.push_back(find_share(layer, r));
    }

    void score(const SelectorLayer& layer, const SelectorChunk& chunk,
               View<float, 3> scores) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange> visible = visible_keys(p);
        for (int64_t i = 0; i < p.queries(); ++i) {
            const int64_t blocks =
                visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size);
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                const View<const float, 1> mass = chunk.mass[i][r];
                const std::vector<int32_t> order = order_of(mass, blocks, layer.rule);
                const int64_t n = taken(mass, order, layer.rule, share_[static_cast<size_t>(r)]);
                for (int64_t at = 0; at < blocks; ++at) {
                    const int32_t b = order[static_cast<size_t>(at)];
                    scores(i, r, b) = at < n ? mass(b) : kNotTaken;
                }
            }
        }
    }
    SelectionRule adjust(SelectionRule asked) const override {
        asked.top_k = kUneven;
        return asked;
    }

private:
    /// Queries of one sequence, their mass and the number of blocks that each sees.
    struct Rows {
        Tensor<float, 3> mass;  // [n, Hkv, B]
        std::vector<int64_t> blocks;
    };

    void sample(const SelectorLayer& layer, int64_t sequence) {
        const int64_t length = sequence_length(layer.problem, sequence);
        const int64_t available = std::max<int64_t>(0, length - layer.prompt);
        const int64_t n = std::min(kProbed, available);
        std::vector<int64_t> positions;
        Rows rows;
        for (int64_t i = 0; i < n; ++i) {
            positions.push_back(layer.prompt + (2 * i + 1) * available / (2 * n));
            rows.blocks.push_back(visible_blocks(positions.back() + 1, layer.problem.block_size));
        }
        rows.mass = mass_at(layer, sequence, positions);
        rows_.push_back(std::move(rows));
    }

    /// The p at which the sample keeps as many blocks as with top_k of each row.
    double find_share(const SelectorLayer& layer, int64_t group) const {
        struct Row {
            View<const float, 1> mass;
            std::vector<int32_t> order;
        };
        std::vector<Row> all;
        int64_t budget = 0;
        for (const Rows& rows : rows_)
            for (int64_t i = 0; i < rows.mass.extent(0); ++i) {
                const int64_t blocks = rows.blocks[static_cast<size_t>(i)];
                const View<const float, 1> mass = rows.mass.view()[i][group];
                all.push_back({mass, order_of(mass, blocks, layer.rule)});
                budget += std::min(blocks, layer.rule.top_k);
            }
        double low = 0, high = 1;
        for (int step = 0; step < kHalvings; ++step) {
            const double p = (low + high) / 2;
            int64_t kept = 0;
            for (const Row& row : all) kept += taken(row.mass, row.order, layer.rule, p);
            (kept <= budget ? low : high) = p;
        }
        return low;
    }

    std::vector<Rows> rows_;     // [S]
    std::vector<double> share_;  // [Hkv] p
};

}  // namespace

std::unique_ptr<Selector> make_top_p_selector() { return std::make_unique<TopPSelector>(); }

}  // namespace msa
