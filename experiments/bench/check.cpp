// SPDX-License-Identifier: MIT
#include "experiments/bench/check.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "core/e4m3.h"
#include "core/half.h"
#include "core/random.h"
#include "core/reference/attention_grad.h"
#include "core/reference/reference_backend.h"
#include "core/tolerance.h"
#include "experiments/driver/sample.h"

namespace msa::experiments::bench {
namespace {

constexpr int64_t kRows = 32;                     // at most
constexpr int64_t kKlRows = 4;                    // likewise
constexpr int64_t kGradientKeys = 4;              // of one group, likewise
constexpr int64_t kHostBytes = int64_t{1} << 28;  // of keys that are looked at

/// Rows [first, first + count) of an operand, as floats on the host.
template <int Rank>
Tensor<float, Rank> fetch(Backend& backend, const Stored<Rank>& from, int64_t first,
                          int64_t count) {
    const In<Rank> part = from.slice(first, count);
    const auto floats = [](const auto& stored) {
        Tensor<float, Rank> values(stored.shape());
        std::transform(stored.data(), stored.data() + stored.size(), values.data(),
                       [](auto value) { return static_cast<float>(value); });
        return values;
    };
    if (part.element() == Element::bf16)
        return floats(backend.download(part.template as<const bf16>()));
    if (part.element() == Element::e4m3)
        return floats(backend.download(part.template as<const e4m3>()));
    return backend.download(part.template as<const float>());
}

/// One head of the rows [first, first + count) of an operand.
Tensor<float, 3> fetch_head(Backend& backend, const Stored<3>& from, int64_t first, int64_t count,
                            int64_t head) {
    constexpr int64_t kPiece = int64_t{1} << 24;  // bytes, which malloc keeps
    const int64_t heads = from.shape()[1], width = from.shape()[2];
    const int64_t piece = std::max<int64_t>(1, kPiece / from.row_bytes());
    Tensor<float, 3> values({count, 1, width});
    const auto take = [&](int64_t begin, const auto& rows) {
#pragma omp parallel for
        for (int64_t n = 0; n < rows.extent(0); ++n)
            for (int64_t d = 0; d < width; ++d)
                values.data()[(begin + n) * width + d] =
                    static_cast<float>(rows.data()[(n * heads + head) * width + d]);
    };
    for (int64_t begin = 0; begin < count; begin += piece) {
        const In<3> part = from.slice(first + begin, std::min(piece, count - begin));
        if (part.element() == Element::bf16)
            take(begin, backend.download(part.as<const bf16>()));
        else
            take(begin, backend.download(part.as<const float>()));
    }
    return values;
}

/// The first element of `got` that is further from `want` than `bound` of its index; empty: none.
template <typename Bound>
std::string difference(const char* what, const float* got, const float* want, int64_t size,
                       Bound bound) {
    for (int64_t i = 0; i < size; ++i)
        if (!(std::fabs(double{got[i]} - double{want[i]}) <= bound(i)))  // NaN is wrong
            return text(what, " ", i, " is ", got[i], ", must be ", want[i], " within ", bound(i));
    return "";
}

/// Blocks that any group of a query selected, ascending.
std::vector<int32_t> union_of(View<const int32_t, 3> ids) {
    std::vector<int32_t> blocks;
    for (int64_t r = 0; r < ids.extent(1); ++r)
        for (int32_t b : selected(ids, 0, r)) blocks.push_back(b);
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    return blocks;
}

/// Of an element of out whose values, by magnitude, have the attention-weighted mean `magnitude`.
double out_bound(double logit, double keys, double magnitude, Element element) {
    return attention_bound(logit, keys, magnitude, element, element) +
           slot_bound(element, magnitude);
}

/// Of index scores that are rounded to float.
double score_bound(const Problem& p, View<const float, 3> index_q, View<const float, 2> index_k,
                   Element element) {
    const double scale = p.index_scale();
    const double q = largest_norm<3>(index_q), k = largest_norm<2>(index_k);
    const double logit = element == Element::e4m3 ? e4m3_logit_bound(scale, q, k, p.index_dim)
                                                  : logit_bound(scale, q, k, p.index_dim);
    return logit + kRoundoff * scale * q * k;
}

/// Largest magnitude.
template <int Rank>
double largest(const Tensor<float, Rank>& values) {
    double most = 0;
    for (int64_t i = 0; i < values.size(); ++i)
        most = std::max(most, std::fabs(double{values.data()[i]}));
    return most;
}

/// Of rows q, d_out and lse over some of their `keys` keys; rows and masses are left at one row's.
GradientSizes gradient_sizes(const Problem& p, const Tensor<float, 3>& q, const Tensor<float, 3>& k,
                             const Tensor<float, 3>& v, const Tensor<float, 3>& d_out,
                             const Tensor<float, 2>& lse, double keys, Element element) {
    const double logit =
        logit_bound(p.softmax_scale(), largest_norm<3>(q), largest_norm<3>(k), p.head_dim);
    GradientSizes sizes{};
    sizes.weight = saved_weight_bound(logit, keys, largest(lse));
    sizes.out = attention_bound(logit, keys, largest(v), element, element);
    sizes.d_out_norm = largest_norm<3>(d_out);
    sizes.v_norm = largest_norm<3>(v);
    sizes.d_out_max = largest(d_out);
    sizes.q_max = largest(q);
    sizes.k_max = largest(k);
    sizes.keys = keys;
    sizes.rows = sizes.mass = sizes.sink_mass = 1;
    sizes.scale = p.softmax_scale();
    sizes.width = p.head_dim;
    sizes.taken = element == Element::f32 ? 0 : storage_roundoff(element);
    sizes.stored = storage_roundoff(element);
    return sizes;
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
    throw std::logic_error(text(backend_.name(), ": ", stage, " of ", case_.name,
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
        fail("index_select", query, text("another id than before: ", *at, ", was ", *other));
}

int64_t Checker::index_select(const Layer& layer, const IndexOperands& index) {
    const std::vector<KeyRange> visible = visible_keys(case_.problem);
    struct Row {
        Problem problem;
        Tensor<float, 3> index_q;
        Tensor<float, 2> index_k;
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
                backend_.download(layer.ids.view().slice(i, 1)),
                {}};
        row.scores = Tensor<float, 3>({1, row.problem.kv_heads, row.problem.blocks()});
        rows.push_back(std::move(row));
    }
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < std::ssize(rows); ++n) {
        Row& row = rows[static_cast<size_t>(n)];
        reference::index_scores(row.problem, row.index_q, row.index_k, row.scores);
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
    reference::index_scores(p, index_q, index_k, want);
    const double bound = score_bound(p, index_q, index_k, index.q.element());
    for (int64_t r = 0; r < p.kv_heads; ++r) {
        const std::string fault =
            difference("score of block", scores[r].data(), want.view()[0][r].data(), p.blocks(),
                       [&](int64_t) { return bound; });
        if (!fault.empty()) fail("index_scores", query, text("group ", r, ": ", fault));
    }
}

int64_t Checker::index_kl(const Layer& layer, const IndexOperands& index,
                          View<const int32_t, 3> ids, bool selected) {
    const Problem& all = case_.problem;
    // The reference takes all heads' softmax over all keys: a few rows that see enough of them.
    const std::vector<int64_t> rows = stratified_sample(
        all.queries(), std::min<int64_t>(kKlRows, std::ssize(mass_queries())), seed_);
    const Problem p = all.with_query_rows(rows);
    const Stored<3> q = gather(backend_, layer.q, rows);
    const Stored<3> index_q = gather(backend_, index.q, rows);
    Tensor<int32_t, 3> some({p.queries(), ids.extent(1), ids.extent(2)});
    for (size_t n = 0; n < rows.size(); ++n)
        std::copy_n(ids[rows[n]].data(), some.view()[0].size(),
                    some.view()[static_cast<int64_t>(n)].data());
    const Tensor<int32_t, 3> ids_there = backend_.upload(std::as_const(some).view());
    auto kl = backend_.make<double, 2>({p.queries(), p.kv_heads});
    auto d_index_q = backend_.make<float, 3>(index_q.shape());
    auto d_index_k = backend_.make<float, 2>(index.k.shape());
    IndexKlInput in{{index_q, index.k}, q, layer.k, {}};
    if (selected) in.ids = ids_there;
    backend_.index_kl(p, in, {kl, d_index_q, d_index_k});

    const Tensor<float, 3> host_q = fetch(backend_, q, 0, p.queries());
    const Tensor<float, 3> host_k = fetch(backend_, layer.k, 0, p.keys());
    const Tensor<float, 3> host_index_q = fetch(backend_, index_q, 0, p.queries());
    const Tensor<float, 2> host_index_k = fetch(backend_, index.k, 0, p.keys());
    Tensor<double, 2> want(kl.shape());
    Tensor<float, 3> want_q(d_index_q.shape());
    Tensor<float, 2> want_k(d_index_k.shape());
    reference::index_kl(p, host_index_q, host_index_k, {host_q, host_k, {}},
                        selected ? some.view() : View<int32_t, 3>(), {want, want_q, want_k},
                        Teacher::mean);

    double keys = 1;
    for (const KeyRange& seen : visible_keys(p))
        keys = std::max(keys, static_cast<double>(seen.count));
    const double main_size = p.softmax_scale() * largest_norm<3>(host_q) * largest_norm<3>(host_k);
    const double index_size =
        p.index_scale() * largest_norm<3>(host_index_q) * largest_norm<2>(host_index_k);
    const double index_logit = logit_bound(p.index_scale(), largest_norm<3>(host_index_q),
                                           largest_norm<2>(host_index_k), p.index_dim);
    const TeacherBound teacher =
        teacher_bound(logit_bound(p.softmax_scale(), largest_norm<3>(host_q),
                                  largest_norm<3>(host_k), p.head_dim),
                      keys, p.group_size(), Teacher::mean);
    const auto n = static_cast<double>(p.queries() * p.kv_heads);
    const double kl_most =
        kl_bound(teacher, index_logit, keys, 2 * (main_size + index_size + 2 * std::log(keys)));
    const Tensor<double, 2> got = backend_.download(std::as_const(kl).view());
    for (int64_t i = 0; i < got.size(); ++i)
        if (!(std::fabs(got.data()[i] - want.data()[i]) <= kl_most))
            fail("index_kl", rows[static_cast<size_t>(i / p.kv_heads)],
                 text("the loss of group ", i % p.kv_heads, " is ", got.data()[i], ", must be ",
                      want.data()[i], " within ", kl_most));
    const auto gradient = [&](const char* what, const auto& there, const auto& expected,
                              double operand, double summed) {
        const auto host = backend_.download(std::as_const(there).view());
        const double bound =
            kl_gradient_bound(teacher, index_logit, keys, p.index_scale(), operand, summed, n);
        const std::string fault = difference(what, host.data(), expected.data(), host.size(),
                                             [&](int64_t) { return bound; });
        if (!fault.empty()) fail("index_kl", rows.front(), fault);
    };
    gradient("d_index_q", d_index_q, want_q, largest(host_index_k), 1);
    gradient("d_index_k", d_index_k, want_k, largest(host_index_q), n);
    return std::ssize(rows);
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
            const reference::MainBranch in{row.q, row.k, row.v};
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
    const Element element = layer.q.element();
    for (const AttentionRow& row : answers_) {
        const Problem& p = row.problem;
        const Tensor<float, 3> out = fetch(backend_, layer.out, row.query, 1);
        const Tensor<float, 2> lse = backend_.download(layer.lse.view().slice(row.query, 1));
        const float* const got = out.data() + row.head * p.head_dim;
        const double q = largest_norm<3>(row.q), k = largest_norm<3>(row.k);
        const double logit = logit_bound(p.softmax_scale(), q, k, p.head_dim);
        const auto keys = static_cast<double>(p.keys());
        const double bound = lse_bound(logit, keys, p.softmax_scale() * q * k + std::log(keys));
        std::string fault = difference("lse of head", lse.data() + row.head, row.lse.data(),
                                       row.lse.size(), [&](int64_t) { return bound; });
        if (fault.empty())
            fault = difference("out", got, row.want.data(), row.want.size(), [&](int64_t i) {
                return out_bound(logit, keys, row.magnitude.data()[i], element);
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
    row.k = Tensor<float, 3>({keys, row.problem.kv_heads, row.problem.head_dim});
    row.v = Tensor<float, 3>(row.k.shape());
    for (size_t n = 0; n < blocks.size(); ++n) {
        const int64_t first = seen.first + blocks[n] * size, count = tokens(blocks[n]);
        for (const auto& [from, to] : {std::pair{&layer.k, &row.k}, {&layer.v, &row.v}}) {
            const Tensor<float, 3> block = fetch(backend_, *from, first, count);
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

void Checker::compare_d_q(const char* stage, const Layer& layer, const AttentionRow& row) const {
    const Problem& p = row.problem;
    const int64_t last = row.head + p.query_heads;
    // The problem's heads alone.
    const auto rows_of = [&](const Stored<3>& from) {
        const Tensor<float, 3> all = fetch(backend_, from, row.query, 1);
        Tensor<float, 3> some({1, p.query_heads, p.head_dim});
        std::copy(&all(0, row.head, 0), &all(0, 0, 0) + last * p.head_dim, some.data());
        return some;
    };
    const Tensor<float, 3> out = rows_of(layer.out), d_out = rows_of(layer.d_out);
    const Tensor<float, 2> all_lse = backend_.download(layer.lse.view().slice(row.query, 1));
    Tensor<float, 2> lse({1, p.query_heads});
    std::copy_n(&all_lse(0, row.head), p.query_heads, lse.data());
    Tensor<float, 3> d_q(row.q.shape()), d_k(row.k.shape()), d_v(row.v.shape());
    const AttentionInput in{row.q, row.k, row.v};
    const AttentionSaved saved{out, lse, d_out};
    const AttentionGradient to{d_q, d_k, d_v};
    if (row.ids.data() != nullptr)
        reference::sparse_attention_grad(p, in, row.ids, saved, to);
    else
        reference::dense_attention_grad(p, in, saved, to);
    const GradientSizes sizes = gradient_sizes(p, row.q, row.k, row.v, d_out, lse,
                                               static_cast<double>(p.keys()), layer.q.element());
    const Tensor<float, 3> got = rows_of(layer.d_q);
    const std::string fault =
        difference("d_q", got.data(), d_q.data(), d_q.size(), [&](int64_t) { return sizes.d_q(); });
    if (!fault.empty()) fail(stage, row.query, text("from head ", row.head, " on: ", fault));
}

int64_t Checker::compare_keys(const char* stage, const Layer& layer,
                              View<const int32_t, 3> ids) const {
    const Problem& all = case_.problem;
    const auto group = static_cast<int64_t>(mix(seed_, 203) % static_cast<uint64_t>(all.kv_heads));
    const std::vector<int64_t> tokens =
        stratified_sample(all.keys(), std::min(kGradientKeys, all.keys()), seed_);
    const auto keys = std::ssize(tokens);
    Problem p = all;  // the sampled keys and one head; its layout is not asked for
    p.query_heads = p.kv_heads = 1;
    Tensor<float, 3> k({keys, 1, p.head_dim}), v(k.shape()), d_k(k.shape()), d_v(k.shape());
    Tensor<float, 3> sum_k(k.shape()), sum_v(k.shape()), mass(k.shape());
    const auto add = [](Tensor<float, 3>& to, const Tensor<float, 3>& more) {
        std::transform(to.data(), to.data() + to.size(), more.data(), to.data(), std::plus<>());
    };
    for (int64_t n = 0; n < keys; ++n)
        for (const auto& [from, to] : {std::pair{&layer.k, &k}, {&layer.v, &v}}) {
            const Tensor<float, 3> row =
                fetch_head(backend_, *from, tokens[static_cast<size_t>(n)], 1, group);
            std::copy_n(row.data(), row.size(), &(*to)(n, 0, 0));
        }
    // Which of the keys each query attends to.
    std::vector<std::vector<int64_t>> seen;
    for (int64_t i = 0; i < all.queries(); ++i) {
        const KeyRange range = visible_keys(all)[static_cast<size_t>(i)];
        std::vector<int64_t>& of = seen.emplace_back();
        for (int64_t n = 0; n < keys; ++n) {
            const int64_t at = tokens[static_cast<size_t>(n)] - range.first;
            bool in = at >= 0 && at < range.count;
            if (in && ids) {
                const std::span<const int32_t> blocks = selected(ids, i, group);
                in = std::binary_search(blocks.begin(), blocks.end(), at / all.block_size);
            }
            if (in) of.push_back(n);
        }
    }
    GradientSizes most{};
    for (int64_t h = group * all.group_size(); h < (group + 1) * all.group_size(); ++h) {
        const auto head = [&](const Stored<3>& from) {
            return fetch_head(backend_, from, 0, all.queries(), h);
        };
        const Tensor<float, 3> q = head(layer.q), out = head(layer.out), d_out = head(layer.d_out);
        const Tensor<float, 2> all_lse = backend_.download(layer.lse.view());
        Tensor<float, 2> lse({all.queries(), 1});
        for (int64_t i = 0; i < all.queries(); ++i) lse(i, 0) = all_lse(i, h);
        Tensor<float, 3> d_q(q.shape()), ones(q.shape());
        std::fill_n(ones.data(), ones.size(), 1.0F);
        const auto run = [&](const Tensor<float, 3>& gradient) {
            reference::AttentionGrad grad(p, {q, k, v}, {out, lse, gradient}, {d_q, d_k, d_v});
            for (int64_t i = 0; i < all.queries(); ++i)
                grad.add_row(i, 0, seen[static_cast<size_t>(i)]);
            grad.finish();
        };
        run(d_out);
        add(sum_k, d_k);
        add(sum_v, d_v);
        run(ones);  // then d_v is the weight that the key gets
        add(mass, d_v);
        const GradientSizes sizes = gradient_sizes(
            p, q, k, v, d_out, lse, static_cast<double>(all.keys()), layer.q.element());
        if (sizes.d_logit() >= most.d_logit()) most = sizes;
        most.q_max = std::max(most.q_max, sizes.q_max);
        most.d_out_max = std::max(most.d_out_max, sizes.d_out_max);
    }
    most.rows = static_cast<double>(all.queries() * all.group_size());
    for (int64_t n = 0; n < keys; ++n) {
        most.mass = double{mass(n, 0, 0)} + 1;
        const int64_t token = tokens[static_cast<size_t>(n)];
        const auto compare = [&](const char* what, const Stored<3>& from,
                                 const Tensor<float, 3>& want, double bound) {
            const Tensor<float, 3> got = fetch_head(backend_, from, token, 1, group);
            const std::string fault = difference(what, got.data(), &want(n, 0, 0), got.size(),
                                                 [&](int64_t) { return bound; });
            if (!fault.empty()) fail(stage, token, text("as a key of group ", group, ": ", fault));
        };
        compare("d_k", layer.d_k, sum_k, most.d_k());
        compare("d_v", layer.d_v, sum_v, most.d_v());
    }
    return keys;
}

int64_t Checker::dense_attention_grad(const Layer& layer) {
    const std::vector<KeyRange> visible = visible_keys(case_.problem);
    const std::vector<int64_t> queries =
        sample(2 * case_.problem.head_dim * int64_t{sizeof(float)});  // of k and v
    for (int64_t i : queries)
        compare_d_q("dense_attention_grad", layer,
                    dense_row(layer, i, visible[static_cast<size_t>(i)]));
    return std::ssize(queries) + compare_keys("dense_attention_grad", layer, {});
}

int64_t Checker::sparse_attention_grad(const Layer& layer, View<const int32_t, 3> ids) {
    const std::vector<KeyRange> visible = visible_keys(case_.problem);
    const std::vector<int64_t> queries = stratified_sample(case_.problem.queries(), kRows, seed_);
    for (int64_t i : queries) {
        Tensor<int32_t, 3> own({1, ids.extent(1), ids.extent(2)});
        std::copy_n(ids[i].data(), own.size(), own.data());
        compare_d_q("sparse_attention_grad", layer,
                    selected_row(layer, i, visible[static_cast<size_t>(i)], std::move(own)));
    }
    return std::ssize(queries) + compare_keys("sparse_attention_grad", layer, ids);
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
    reference::block_mass(p, {q, k, {}}, {want, {}});
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
        if (!fault.empty()) fail("block_mass", query, text("group ", r, ": ", fault));
    }
}

}  // namespace msa::experiments::bench
