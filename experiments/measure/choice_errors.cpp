// SPDX-License-Identifier: MIT
#include "experiments/measure/choice_errors.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/output_error.h"
#include "core/select/rows_held.h"
#include "core/selection.h"

namespace msa::experiments::measure {
namespace {

using Choices = std::span<const View<const int32_t, 3>>;

constexpr double kNothing = -std::numeric_limits<double>::infinity();
/// From here on a share has all the digits of a double, as has each of its parts that counts.
constexpr double kLeastShare = 1e-280;

/// How many blocks a row is attended to one by one at most: all, where the choices could keep as
/// many.
int64_t most_parts(const Problem& p, Choices choices) {
    int64_t all = 0;
    for (const View<const int32_t, 3>& ids : choices) all += ids.extent(2);
    return std::min(all, p.blocks());
}

/// [Nq, Hkv] The blocks, ascending, that any of the choices keeps: each row is attended to them one
/// by one.
std::vector<std::vector<int32_t>> parts_of(const Problem& p, Choices choices) {
    std::vector<std::vector<int32_t>> parts(static_cast<size_t>(p.queries() * p.kv_heads));
    for (int64_t row = 0; row < std::ssize(parts); ++row) {
        const int64_t i = row / p.kv_heads, r = row % p.kv_heads;
        std::vector<int32_t>& blocks = parts[static_cast<size_t>(row)];
        for (const View<const int32_t, 3>& ids : choices) {
            const std::span<const int32_t> kept = selected(ids, i, r);
            blocks.insert(blocks.end(), kept.begin(), kept.end());
        }
        std::sort(blocks.begin(), blocks.end());
        blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    }
    return parts;
}

/// Attention of some queries to each of their parts.
class Parts {
public:
    Parts(Backend& backend, const Problem& p, const AttentionInput& in, Choices choices)
        : blocks_(parts_of(p, choices)), first_{0}, heads_(p.group_size()) {
        int64_t most = 0;
        for (const std::vector<int32_t>& of : blocks_) {
            first_.push_back(first_.back() + std::ssize(of));
            most = std::max(most, std::ssize(of));
        }
        out_ = Tensor<float, 3>({first_.back(), heads_, p.head_dim}, Fill::nothing);
        lse_ = Tensor<float, 2>({first_.back(), heads_}, Fill::nothing);
        for (int64_t n = 0; n < most; ++n) attend_to(backend, p, in, n);
    }

    /// The place of a block among a row's parts.
    int64_t at(int64_t row, int32_t block) const {
        const std::vector<int32_t>& of = blocks_[static_cast<size_t>(row)];
        return std::lower_bound(of.begin(), of.end(), block) - of.begin();
    }
    int64_t count(int64_t row) const { return std::ssize(blocks_[static_cast<size_t>(row)]); }
    /// [count, G, dh] and [count, G]
    View<const float, 3> out(int64_t row) const {
        return std::as_const(out_).view().slice(first_[static_cast<size_t>(row)], count(row));
    }
    View<const float, 2> lse(int64_t row) const {
        return std::as_const(lse_).view().slice(first_[static_cast<size_t>(row)], count(row));
    }

private:
    /// Every row to the n-th of its parts.
    void attend_to(Backend& backend, const Problem& p, const AttentionInput& in, int64_t n) {
        Tensor<int32_t, 3> ids({p.queries(), p.kv_heads, 1}, Fill::nothing);
        for (int64_t row = 0; row < ids.size(); ++row)
            ids.data()[row] = n < count(row)
                                  ? blocks_[static_cast<size_t>(row)][static_cast<size_t>(n)]
                                  : kNoBlock;
        const Attention part = attend(backend, p, {in.q, in.k, in.v, {}}, ids.view());
        const int64_t floats = heads_ * p.head_dim;
#pragma omp parallel for num_threads(backend.host_threads())
        for (int64_t row = 0; row < ids.size(); ++row) {
            if (n >= count(row)) continue;
            const int64_t to = first_[static_cast<size_t>(row)] + n;
            std::copy_n(part.out.data() + row * floats, floats, out_.view()[to].data());
            std::copy_n(part.lse.data() + row * heads_, heads_, lse_.view()[to].data());
        }
    }

    std::vector<std::vector<int32_t>> blocks_;  // [Nq * Hkv]
    std::vector<int64_t> first_;                // [Nq * Hkv + 1] part of each row
    int64_t heads_;
    Tensor<float, 3> out_;
    Tensor<float, 2> lse_;
};

/// The shares of a row's parts [count, G] and of the sinks [G] in dense attention, by its lse [G].
class Shares {
public:
    Shares(View<const float, 2> of_parts, View<const float, 1> of_sinks, const float* dense_lse)
        : lse_(of_parts),
          sinks_(of_sinks),
          dense_(dense_lse),
          parts_(lse_.shape()),
          sink_({lse_.extent(1)}) {
        for (int64_t h = 0; h < lse_.extent(1); ++h) {
            sink_(h) = exp_from(sink_lse(h), double{dense_lse[h]});
            for (int64_t n = 0; n < lse_.extent(0); ++n)
                parts_(n, h) = exp_from(double{lse_(n, h)}, double{dense_lse[h]});
        }
    }

    /// The shares of the parts `kept` in attention of head h to them and the sink alone; 0 where
    /// there is nothing to attend to. Returns the lse of that attention.
    double among(std::span<const int64_t> kept, int64_t h, std::vector<float>& shares) const {
        shares.resize(kept.size());
        double sum = sink_(h);
        for (int64_t n : kept) sum += parts_(n, h);
        if (sum >= kLeastShare && std::isfinite(sum)) {
            for (size_t at = 0; at < kept.size(); ++at)
                shares[at] = static_cast<float>(parts_(kept[at], h) / sum);
            return double{dense_[h]} + std::log(sum);
        }
        double top = sink_lse(h);  // dense attention does not look at them, or is undefined
        for (int64_t n : kept) top = std::max(top, double{lse_(n, h)});
        sum = exp_from(sink_lse(h), top);
        for (int64_t n : kept) sum += exp_from(double{lse_(n, h)}, top);
        for (size_t at = 0; at < kept.size(); ++at)
            shares[at] =
                sum == 0 ? 0 : static_cast<float>(exp_from(double{lse_(kept[at], h)}, top) / sum);
        return sum == 0 ? kNothing : top + std::log(sum);
    }

private:
    double sink_lse(int64_t h) const { return sinks_ ? double{sinks_(h)} : kNothing; }
    static double exp_from(double lse, double top) {
        return lse == kNothing ? 0 : std::exp(lse - top);
    }

    View<const float, 2> lse_;
    View<const float, 1> sinks_;
    const float* dense_;  // [G]
    Tensor<double, 2> parts_;
    Tensor<double, 1> sink_;
};

/// What a thread needs to go from row to row.
struct Scratch {
    std::vector<int64_t> kept;
    std::vector<float> shares, out;
};

/// sum |o - dense [G, dh]|^2 of a row over the kept parts, and lse [G] of it.
double squared_error(View<const float, 3> parts, const Shares& weights, const float* dense,
                     Scratch& s, float* lse) {
    const int64_t dims = parts.extent(2);
    double sum = 0;
    s.out.resize(static_cast<size_t>(dims));
    float* const out = s.out.data();
    for (int64_t h = 0; h < parts.extent(1); ++h) {
        lse[h] = static_cast<float>(weights.among(s.kept, h, s.shares));
        std::fill_n(out, dims, 0.0F);
        for (size_t at = 0; at < s.kept.size(); ++at) {
            const float share = s.shares[at];
            const float* const part = &parts(s.kept[at], h, 0);
            for (int64_t d = 0; d < dims; ++d) out[d] += share * part[d];
        }
        sum += analysis::squared_difference(out, dense + h * dims, dims);
    }
    return sum;
}

/// The rows of a tile of queries, of all choices.
void add_tile(const Problem& p, const Parts& parts, View<const float, 1> sinks,
              const Attention& dense, Choices choices, int64_t first,
              std::vector<ChoiceError>& errors, int threads) {
    const int64_t heads = p.group_size();
#pragma omp parallel num_threads(threads)
    {
        Scratch scratch;
#pragma omp for schedule(dynamic, 8)
        for (int64_t row = 0; row < p.queries() * p.kv_heads; ++row) {
            const int64_t i = row / p.kv_heads, r = row % p.kv_heads;
            const View<const float, 1> sinks_of_group =
                sinks ? sinks.slice(r * heads, heads) : View<const float, 1>();
            const Shares weights(parts.lse(row), sinks_of_group, &dense.lse(first + i, r * heads));
            for (size_t c = 0; c < choices.size(); ++c) {
                scratch.kept.clear();
                for (int32_t b : selected(choices[c], i, r))
                    scratch.kept.push_back(parts.at(row, b));
                errors[c].squared(first + i, r) =
                    squared_error(parts.out(row), weights, &dense.out(first + i, r * heads, 0),
                                  scratch, &errors[c].lse(first + i, r * heads));
            }
        }
    }
}

}  // namespace

std::vector<ChoiceError> squared_errors(Backend& backend, const Problem& p,
                                        const AttentionInput& in, const Attention& dense,
                                        Choices choices) {
    std::vector<ChoiceError> errors;
    if (backend.space() != Space::host || in.q.element() != Element::f32) {
        for (const View<const int32_t, 3>& ids : choices) {
            Attention over = attend_selected(backend, p, in, ids);
            errors.push_back({analysis::squared_differences(over.out, dense.out, p.kv_heads),
                              std::move(over.lse)});
        }
        return errors;
    }
    for (size_t n = 0; n < choices.size(); ++n)
        errors.push_back({Tensor<double, 2>({p.queries(), p.kv_heads}),
                          Tensor<float, 2>({p.queries(), p.query_heads})});
    const int64_t most = most_parts(p, choices);
    const int64_t step = rows_held(most * p.query_heads * p.head_dim);
    const View<const float, 3> q = in.q.as<const float>();
    for (int64_t begin = 0; begin < p.queries(); begin += step) {
        const int64_t count = std::min(step, p.queries() - begin);
        const Problem tile = p.with_queries({begin, begin + count});
        std::vector<View<const int32_t, 3>> some;
        for (const View<const int32_t, 3>& ids : choices) some.push_back(ids.slice(begin, count));
        const Parts parts(backend, tile, {q.slice(begin, count), in.k, in.v, {}}, some);
        add_tile(tile, parts, in.sinks, dense, some, begin, errors, backend.host_threads());
    }
    return errors;
}

}  // namespace msa::experiments::measure
