// SPDX-License-Identifier: MIT
#include "experiments/bench/check.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "core/e4m3_tolerance.h"
#include "core/random.h"
#include "core/reference/reference_backend.h"
#include "core/tolerance.h"
#include "experiments/bench/check_rows.h"
#include "experiments/driver/sample.h"

namespace msa::experiments::bench {
namespace {

constexpr int64_t kHostBytes = int64_t{1} << 28;  // of keys that are looked at

/// Blocks that any group of a query selected, ascending.
std::vector<int32_t> union_of(View<const int32_t, 3> ids) {
    std::vector<int32_t> blocks;
    for (int64_t r = 0; r < ids.extent(1); ++r)
        for (int32_t b : selected(ids, 0, r)) blocks.push_back(b);
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    return blocks;
}

/// Of an element of out whose values, by magnitude, have the attention-weighted mean `magnitude`
/// and are at most `largest`.
double out_bound(const Problem& p, double logit, double magnitude, double largest, Element operands,
                 Element stored) {
    const auto keys = static_cast<double>(p.keys());
    const double slots = slot_bound(stored, magnitude);
    if (operands != Element::e4m3)
        return attention_bound(logit, keys, magnitude, operands, stored) + slots;
    return e4m3_attention_bound(logit, keys, magnitude, largest, static_cast<double>(p.block_size),
                                stored) +
           slots;
}

/// Rows of the reference take the values that e4m3 operands stand for.
void scale_row(Backend& backend, const Tensor<float, 2>& scales, int64_t at, View<float, 3> rows) {
    if (scales.data() == nullptr) return;
    const Tensor<float, 2> own = backend.download(scales.view().slice(at, 1));
    for (int64_t t = 0; t < rows.extent(0); ++t)
        for (int64_t h = 0; h < rows.extent(1); ++h)
            for (int64_t d = 0; d < rows.extent(2); ++d) rows(t, h, d) *= own(0, h);
}

/// Scales of int8 operands of one query and the keys of its sequence, on the host.
struct IndexScales {
    Tensor<float, 2> q, k;

    IndexScales(Backend& backend, const Problem& p, const IndexOperands& index, int64_t query,
                KeyRange seen) {
        if (index.q_scales.size() == 0) return;
        const std::vector<int64_t>& keys = p.batch.cu_seqlens_k();
        const auto sequence = std::lower_bound(keys.begin(), keys.end(), seen.first) - keys.begin();
        const int64_t first = block_starts(p)[static_cast<size_t>(sequence)];
        q = backend.download(index.q_scales.view().slice(query, 1));
        k = backend.download(
            index.k_scales.view().slice(first, ceil_div(seen.count, p.block_size)));
    }
};

/// What the reference makes of one query.
void reference_scores(const Problem& p, View<const float, 3> index_q, View<const float, 2> index_k,
                      const IndexScales& scales, View<float, 3> to) {
    if (scales.q.size() > 0)
        reference::index_scores(p, index_q, index_k, {scales.q, scales.k, {}}, to);
    else
        reference::index_scores(p, index_q, index_k, to);
}

/// Of index scores that are rounded to float; those of int8 are exact.
double score_bound(const Problem& p, View<const float, 3> index_q, View<const float, 2> index_k,
                   Element element) {
    if (element == Element::int8) return 0;
    const double scale = p.index_scale();
    const double q = largest_norm<3>(index_q), k = largest_norm<2>(index_k);
    const double logit = element == Element::e4m3 ? e4m3_logit_bound(scale, q, k, p.index_dim)
                                                  : logit_bound(scale, q, k, p.index_dim);
    return logit + kRoundoff * scale * q * k;
}

}  // namespace

std::vector<int64_t> Checker::sample(int64_t key_bytes) const {
    const std::vector<KeyRange> visible = visible_keys(case_.problem);
    double keys = 0;
    for (const KeyRange& seen : visible) keys += static_cast<double>(seen.count);
    const double each =
        keys / static_cast<double>(std::ssize(visible)) * static_cast<double>(key_bytes);
    const auto fit = static_cast<int64_t>(static_cast<double>(kHostBytes) / each);
    return stratified_sample(std::ssize(visible), std::clamp<int64_t>(fit, 1, kRows), seed_);
}

Problem Checker::one_query(int64_t keys) const {
    Problem p = case_.problem;
    p.batch = PackedBatch({0, 1}, {0, keys});
    return p;
}

void Checker::fail(const char* stage, int64_t query, const std::string& fault) const {
    throw std::logic_error(concat(backend_.name(), ": ", stage, " of ", case_.name,
                                  " is wrong, so nothing of it is timed: query ", query, ": ",
                                  fault));
}

int64_t Checker::select_blocks(In<3> scores, View<const int32_t, 3> ids) {
    const std::vector<int64_t> rows = stratified_sample(ids.extent(0), kRows, seed_);
    for (int64_t row : rows) {
        const Problem p = one_query(case_.problem.keys());
        const std::string fault = selection_fault(
            p, {.top_k = case_.top_k}, backend_.download(scores.as<const float>().slice(row, 1)),
            backend_.download(ids.slice(row, 1)), 0);
        if (!fault.empty()) fail("select_blocks", row, fault);
    }
    return std::ssize(rows);
}

void Checker::same_ids(View<const int32_t, 3> want, const Layer& layer) {
    const Tensor<int32_t, 3> got = backend_.download(layer.ids.view());
    const auto [at, other] =
        std::mismatch(got.data(), got.data() + got.size(), want.data(), want.data() + want.size());
    const int64_t query = (at - got.data()) / std::max<int64_t>(1, got.size() / got.extent(0));
    if (at != got.data() + got.size())
        fail("index_select", query, concat("another id than before: ", *at, ", was ", *other));
}

int64_t Checker::index_select(const Layer& layer, const IndexOperands& index) {
    const std::vector<KeyRange> visible = visible_keys(case_.problem);
    struct Row {
        Problem problem;
        Tensor<float, 3> index_q;
        Tensor<float, 2> index_k;
        IndexScales scales;
        Tensor<int32_t, 3> ids;
        Tensor<float, 3> scores;
    };
    const std::vector<int64_t> queries = sample(case_.problem.index_dim * int64_t{sizeof(float)});
    std::vector<Row> rows;
    for (int64_t i : queries) {
        const KeyRange seen = visible[static_cast<size_t>(i)];
        Row row{one_query(seen.count),
                fetch(backend_, index.q, i, 1),
                fetch(backend_, index.k, seen.first, seen.count),
                IndexScales(backend_, case_.problem, index, i, seen),
                backend_.download(layer.ids.view().slice(i, 1)),
                {}};
        row.scores = Tensor<float, 3>({1, row.problem.kv_heads, row.problem.blocks()});
        rows.push_back(std::move(row));
    }
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < std::ssize(rows); ++n) {
        Row& row = rows[static_cast<size_t>(n)];
        reference_scores(row.problem, row.index_q, row.index_k, row.scales, row.scores);
    }
    for (size_t n = 0; n < rows.size(); ++n) {
        const Row& row = rows[n];
        const double bound = score_bound(row.problem, row.index_q, row.index_k, index.q.element());
        const std::string fault =
            selection_fault(row.problem, {.top_k = case_.top_k}, row.scores, row.ids, bound);
        if (!fault.empty()) fail("index_select", queries[n], fault);
    }
    return std::ssize(rows);
}

std::vector<int64_t> Checker::score_queries() const {
    return sample(case_.problem.index_dim * int64_t{sizeof(float)});
}

void Checker::index_scores(const IndexOperands& index, int64_t query, View<const float, 2> scores) {
    const KeyRange seen = visible_keys(case_.problem)[static_cast<size_t>(query)];
    const Problem p = one_query(seen.count);
    const Tensor<float, 3> index_q = fetch(backend_, index.q, query, 1);
    const Tensor<float, 2> index_k = fetch(backend_, index.k, seen.first, seen.count);
    Tensor<float, 3> want({1, p.kv_heads, p.blocks()});
    reference_scores(p, index_q, index_k, IndexScales(backend_, case_.problem, index, query, seen),
                     want);
    const double bound = score_bound(p, index_q, index_k, index.q.element());
    for (int64_t r = 0; r < p.kv_heads; ++r) {
        const std::string fault =
            difference("score of block", scores[r].data(), want.view()[0][r].data(), p.blocks(),
                       [&](int64_t) { return bound; });
        if (!fault.empty()) fail("index_scores", query, concat("group ", r, ": ", fault));
    }
}

void Checker::answer(std::vector<AttentionRow> rows) {
    for (AttentionRow& row : rows) {
        row.want = Tensor<float, 3>(row.q.shape());
        row.magnitude = Tensor<float, 3>(row.q.shape());
        row.lse = Tensor<float, 2>({1, row.problem.query_heads});
    }
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < std::ssize(rows); ++n) {
        AttentionRow& row = rows[static_cast<size_t>(n)];
        const auto attend = [&](Tensor<float, 3>& to) {
            const View<const float, 3> k = row.k, v = row.v;
            const reference::MainBranch in{row.q, k, v};
            if (row.ids.data() == nullptr)
                return reference::dense_attention(row.problem, in, to, row.lse);
            reference::sparse_attention(row.problem, in, row.ids, to, row.lse);
        };
        attend(row.want);
        std::transform(row.v.data(), row.v.data() + row.v.size(), row.v.data(),
                       [](float value) { return std::fabs(value); });
        attend(row.magnitude);
    }
    answers_ = std::move(rows);
}

int64_t Checker::compare_attention(const char* stage, const Layer& layer) const {
    const Element element = layer.q.element(), stored = layer.out.element();
    for (const AttentionRow& row : answers_) {
        const Problem& p = row.problem;
        const Tensor<float, 3> out = fetch(backend_, layer.out, row.query, 1);
        const Tensor<float, 2> lse = backend_.download(layer.lse.view().slice(row.query, 1));
        const float* const got = out.data() + row.head * p.head_dim;
        const double q = largest_norm<3>(row.q), k = largest_norm<3>(row.k);
        const double logit = element == Element::e4m3
                                 ? e4m3_logit_bound(p.softmax_scale(), q, k, p.head_dim)
                                 : logit_bound(p.softmax_scale(), q, k, p.head_dim);
        const double value = largest(row.v);
        const auto keys = static_cast<double>(p.keys());
        const double bound = lse_bound(logit, keys, p.softmax_scale() * q * k + std::log(keys));
        std::string fault = difference("lse of head", lse.data() + row.head, row.lse.data(),
                                       row.lse.size(), [&](int64_t) { return bound; });
        if (fault.empty())
            fault = difference("out", got, row.want.data(), row.want.size(), [&](int64_t i) {
                return out_bound(p, logit, row.magnitude.data()[i], value, element, stored);
            });
        if (!fault.empty()) fail(stage, row.query, fault);
    }
    return std::ssize(answers_);
}

Checker::AttentionRow Checker::selected_row(const Layer& layer, int64_t query, KeyRange seen,
                                            Tensor<int32_t, 3> ids) {
    const int64_t size = case_.problem.block_size;
    const std::vector<int32_t> blocks = union_of(ids);
    for (int64_t n = 0; n < ids.size(); ++n)
        if (int32_t& id = ids.data()[n]; id != kNoBlock)
            id = static_cast<int32_t>(std::lower_bound(blocks.begin(), blocks.end(), id) -
                                      blocks.begin());
    const auto tokens = [&](int32_t block) { return std::min(size, seen.count - block * size); };
    const int64_t keys = (std::ssize(blocks) - 1) * size + tokens(blocks.back());
    AttentionRow row;
    row.query = query;
    row.problem = one_query(keys);
    row.q = fetch(backend_, layer.q, query, 1);
    scale_row(backend_, layer.q_scales, query, row.q);
    const auto sequence =
        static_cast<size_t>(query_sequences(case_.problem)[static_cast<size_t>(query)]);
    const int64_t first_block = block_starts(case_.problem)[sequence];
    row.k = Tensor<float, 3>({keys, row.problem.kv_heads, row.problem.head_dim});
    row.v = Tensor<float, 3>(row.k.shape());
    for (size_t n = 0; n < blocks.size(); ++n) {
        const int64_t first = seen.first + blocks[n] * size, count = tokens(blocks[n]);
        for (const auto& [from, scales, to] :
             {std::tuple{&layer.k, &layer.k_scales, &row.k}, {&layer.v, &layer.v_scales, &row.v}}) {
            Tensor<float, 3> block = fetch(backend_, *from, first, count);
            scale_row(backend_, *scales, first_block + blocks[n], block);
            std::copy_n(block.data(), block.size(),
                        to->view().slice(static_cast<int64_t>(n) * size, count).data());
        }
    }
    row.ids = std::move(ids);
    return row;
}

int64_t Checker::sparse_attention(const Layer& layer) {
    const std::vector<KeyRange> visible = visible_keys(case_.problem);
    const std::vector<int64_t> queries = stratified_sample(case_.problem.queries(), kRows, seed_);
    std::vector<int32_t> all;
    std::vector<Tensor<int32_t, 3>> ids;
    for (int64_t i : queries) {
        ids.push_back(backend_.download(std::as_const(layer.ids).view().slice(i, 1)));
        all.insert(all.end(), ids.back().data(), ids.back().data() + ids.back().size());
    }
    if (all != answered_) {
        std::vector<AttentionRow> rows;
        for (size_t n = 0; n < queries.size(); ++n)
            rows.push_back(selected_row(layer, queries[n], visible[static_cast<size_t>(queries[n])],
                                        std::move(ids[n])));
        answer(std::move(rows));
        answered_ = std::move(all);
    }
    return compare_attention("sparse_attention", layer);
}

Checker::AttentionRow Checker::dense_row(const Layer& layer, int64_t query, KeyRange seen) {
    const Problem& p = case_.problem;
    AttentionRow row;
    row.query = query;
    row.head = static_cast<int64_t>(mix(seed_, 202, query) % static_cast<uint64_t>(p.query_heads));
    row.problem = one_query(seen.count);
    row.problem.query_heads = row.problem.kv_heads = 1;
    row.q = fetch_head(backend_, layer.q, query, 1, row.head);
    const int64_t group = row.head / p.group_size();
    row.k = fetch_head(backend_, layer.k, seen.first, seen.count, group);
    row.v = fetch_head(backend_, layer.v, seen.first, seen.count, group);
    return row;
}

int64_t Checker::dense_attention(const Layer& layer) {
    const std::vector<KeyRange> visible = visible_keys(case_.problem);
    const Problem& p = case_.problem;
    std::vector<AttentionRow> rows;
    for (int64_t i : sample(2 * p.head_dim * int64_t{sizeof(float)}))  // of k and v
        rows.push_back(dense_row(layer, i, visible[static_cast<size_t>(i)]));
    answer(std::move(rows));
    answered_.clear();
    return compare_attention("dense_attention", layer);
}

std::vector<int64_t> Checker::mass_queries() const {
    const Problem& p = case_.problem;
    // Softmax over all keys of all heads in double takes its time: an eighth of the rows.
    return sample(8 * p.kv_heads * p.head_dim * int64_t{sizeof(float)});
}

void Checker::block_mass(const Layer& layer, int64_t query, View<const float, 2> mass) {
    const KeyRange seen = visible_keys(case_.problem)[static_cast<size_t>(query)];
    const Problem p = one_query(seen.count);
    const Tensor<float, 3> q = fetch(backend_, layer.q, query, 1);
    const Tensor<float, 3> k = fetch(backend_, layer.k, seen.first, seen.count);
    Tensor<float, 3> want({1, p.kv_heads, p.blocks()});
    reference::block_mass(p, {q, k.view(), {}}, {want, {}});
    // Every part of the bound is a factor on the mass itself.
    const double factor = mass_bound(
        logit_bound(p.softmax_scale(), largest_norm<3>(q), largest_norm<3>(k), p.head_dim),
        static_cast<double>(seen.count));
    std::vector<float> expected(static_cast<size_t>(mass.extent(1)));
    for (int64_t r = 0; r < p.kv_heads; ++r) {
        std::fill(expected.begin(), expected.end(), 0.0F);
        std::copy_n(want.view()[0][r].data(), p.blocks(), expected.begin());
        const std::string fault = difference(
            "mass of block", mass[r].data(), expected.data(), mass.extent(1),
            [&](int64_t b) { return factor * double{expected[static_cast<size_t>(b)]}; });
        if (!fault.empty()) fail("block_mass", query, concat("group ", r, ": ", fault));
    }
}

}  // namespace msa::experiments::bench
