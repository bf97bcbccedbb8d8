// SPDX-License-Identifier: MIT
// Accumulators that have each seen a part of the rows are joined to one that has seen all.
#include <gtest/gtest.h>

#include <cmath>

#include "analysis/entropy.h"
#include "analysis/output_error.h"
#include "analysis/overlap.h"
#include "analysis/popularity.h"
#include "analysis/recall.h"
#include "analysis/sink.h"
#include "core/error.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"
#include "tests/support/runner.h"

namespace msa::analysis {
namespace {

constexpr int64_t kQueries = 83, kHeads = 6, kGroups = 2;

/// The operands of all accumulators, and what attention makes of them.
struct Rows {
    Problem p = square_problem(0, kHeads, kGroups, 16, 0, 8);
    test::Operands o;
    Tensor<int32_t, 3> ids, oracle;
    Tensor<float, 3> mass;
    test::Attention dense, sparse, mean_key;
    std::vector<RowKind> kinds;

    Rows() {
        p.batch = PackedBatch({0, 50, kQueries}, {0, 50, kQueries});
        o.q = test::normal<3>({kQueries, kHeads, 16}, 1);
        o.k = test::normal<3>({kQueries, kGroups, 16}, 2);
        o.v = test::normal<3>({kQueries, kGroups, 16}, 3);
        test::Runner reference = test::reference();
        const SelectionRule rule{.top_k = 3};
        mass = test::normal<3>({kQueries, kGroups, p.blocks()}, 4);
        for (int64_t n = 0; n < mass.size(); ++n) mass.data()[n] = std::fabs(mass.data()[n]);
        oracle = reference.select_blocks(p, rule, mass);
        ids = reference.select_blocks(p, rule, test::normal<3>({kQueries, kGroups, p.blocks()}, 5));
        dense = reference.dense_attention(p, o);
        sparse = reference.sparse_attention(p, o, ids);
        o.v = test::normal<3>({kQueries, kGroups, 16}, 2);  // v := k
        mean_key = reference.dense_attention(p, o);
        kinds = row_kinds(p, rule.top_k, false);
    }
};

const Rows& rows() {
    static const Rows all;
    return all;
}

template <typename T, int Rank>
View<const T, Rank> part(const Tensor<T, Rank>& of, QueryRange range) {
    return of.view().slice(range.begin, range.end - range.begin);
}

template <typename T>
std::span<const T> part(const std::vector<T>& of, QueryRange range) {
    return std::span(of).subspan(static_cast<size_t>(range.begin),
                                 static_cast<size_t>(range.end - range.begin));
}

/// make(range): an accumulator that has seen the rows of a range. All of them sum what is not
/// negative.
template <typename Make>
void expect_joined_parts_to_be_the_whole(const Make& make) {
    const State whole = make({0, kQueries}).state();
    EXPECT_GT(whole.counts.size() + whole.sums.size(), 0U);
    for (const std::vector<int64_t>& ends :
         {std::vector<int64_t>{kQueries}, {50, kQueries}, {1, 7, 7, 60, kQueries}}) {
        auto joined = make({0, 0});
        int64_t begin = 0;
        for (int64_t end : ends) {
            joined.join(make({begin, end}).state());
            begin = end;
        }
        const State got = joined.state();
        EXPECT_EQ(got.counts, whole.counts);
        ASSERT_EQ(got.sums.size(), whole.sums.size());
        for (size_t n = 0; n < got.sums.size(); ++n) {
            ASSERT_GE(whole.sums[n], 0);
            // Two orders of the additions; an output error adds each channel by itself.
            const double roundings = ends.size() == 1 ? 0 : 2.0 * kQueries * 16 * 0x1p-53;
            EXPECT_NEAR(got.sums[n], whole.sums[n], roundings * whole.sums[n]);
        }
    }
}

TEST(State, OfRecall) {
    expect_joined_parts_to_be_the_whole([](QueryRange range) {
        const Rows& r = rows();
        const Problem p = r.p.with_queries(range);
        Recall recall(kGroups, {});
        recall.add(p, part(r.kinds, range), part(r.ids, range), part(r.oracle, range),
                   part(r.mass, range));
        return recall;
    });
}

TEST(State, OfGroupOverlap) {
    expect_joined_parts_to_be_the_whole([](QueryRange range) {
        GroupOverlap overlap(kGroups);
        overlap.add(part(rows().kinds, range), part(rows().ids, range));
        return overlap;
    });
}

TEST(State, OfDistances) {
    expect_joined_parts_to_be_the_whole([](QueryRange range) {
        const Rows& r = rows();
        Distances distances(r.p.blocks());
        distances.add(r.p.with_queries(range), part(r.kinds, range), part(r.ids, range));
        return distances;
    });
}

TEST(State, OfOutputError) {
    expect_joined_parts_to_be_the_whole([](QueryRange range) {
        const Rows& r = rows();
        OutputError error(kHeads);
        error.add(part(r.kinds, range), part(r.sparse.out, range), part(r.dense.out, range));
        return error;
    });
}

TEST(State, OfSinkMass) {
    expect_joined_parts_to_be_the_whole([](QueryRange range) {
        const Rows& r = rows();
        const Problem p = r.p.with_queries(range);
        SinkMass sink(kHeads, 4);
        sink.add(p, sink.logits(p, part(r.o.q, range), r.o.k), part(r.sparse.lse, range),
                 part(r.ids, range));
        return sink;
    });
}

TEST(State, OfEntropy) {
    expect_joined_parts_to_be_the_whole([](QueryRange range) {
        const Rows& r = rows();
        const Problem p = r.p.with_queries(range);
        Entropy entropy(kHeads);
        entropy.add(p, part(r.o.q, range), part(r.mean_key.out, range), part(r.dense.lse, range));
        return entropy;
    });
}

TEST(State, OfPopularity) {
    expect_joined_parts_to_be_the_whole([](QueryRange range) {
        const Rows& r = rows();
        Popularity popularity(r.p);
        popularity.add(r.p.with_queries(range), part(r.ids, range));
        return popularity;
    });
}

TEST(State, OfAnotherSizeIsRefused) {
    OutputError error(2);
    EXPECT_EQ(test::refusal([&] { error.join(OutputError(3).state()); }),
              "a state of output errors has 6 sums and 1 counts, must have 4 and 1");
    Entropy entropy(2);
    EXPECT_EQ(test::refusal([&] { entropy.join(error.state()); }),
              "a state of means has 4 sums and 1 counts, must have 2 and 2");
    Popularity popularity(2, {0, 3});
    EXPECT_THROW(popularity.join(Popularity(2, {0, 4}).state()), InputError);
    Distances distances(4);
    EXPECT_EQ(test::refusal([&] { distances.join(Distances(5).state()); }),
              "a state of distances has 0 sums and 5 counts, must have 0 and 4");
}

/// 1 + 2^-53 + 2^-53 is 1 from left to right; joined, it is 1 + 2^-52 in every run.
TEST(State, SumsAreThoseOfTheParts) {
    std::vector<Mean> one(1), left(1), right(1);
    const double small = 0x1p-53;
    for (double value : {1.0, small, small}) one[0].add(value);
    left[0].add(1);
    for (double value : {small, small}) right[0].add(value);
    join_means(left, state_of(right));
    EXPECT_EQ(one[0].sum(), 1);
    EXPECT_EQ(left[0].sum(), 1 + 0x1p-52);
    EXPECT_EQ(left[0].count(), 3);
}

}  // namespace
}  // namespace msa::analysis
