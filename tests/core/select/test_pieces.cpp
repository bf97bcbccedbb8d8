// SPDX-License-Identifier: MIT
// NSA and InfLLM-V2: attention to mean-pooled pieces of 32 keys, every 16.
#include "core/registry.h"
#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class Pieces : public Policy {
protected:
    /// Softmax over the pieces that query `token` sees as a whole, summed over the group's heads.
    std::vector<double> attention_to_pieces(int64_t token, int64_t r) const {
        const int64_t seen = position(token) + 1;
        std::vector<double> sums;
        for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
            std::vector<double> weights;
            double all = 0;
            for (int64_t first = 0; first + 32 <= seen; first += 16) {
                double dot = 0;
                for (int64_t j = first; j < first + 32; ++j)
                    for (int64_t d = 0; d < 16; ++d)
                        dot += double{q_(token, h, d)} * double{k_(start(token) + j, r, d)} / 32;
                weights.push_back(std::exp(dot / 4));
                all += weights.back();
            }
            sums.resize(weights.size(), 0.0);
            for (size_t n = 0; n < weights.size(); ++n) sums[n] += weights[n] / all;
        }
        return sums;
    }
};

/// Blocks of 16: piece n covers blocks n and n + 1, one stride of each.
TEST_F(Pieces, NsaAddsThePiecesOfTheBlock) {
    expect_scores(scores("nsa"), votes_bound(4), [&](int64_t i, int64_t r, int64_t b) {
        const std::vector<double> p = attention_to_pieces(i, r);
        const auto at = [&](int64_t n) {
            return n >= 0 && n < std::ssize(p) ? p[static_cast<size_t>(n)] : 0.0;
        };
        return at(b - 1) + at(b);
    });
}

TEST_F(Pieces, InfLlmV2TakesTheLargestPieceOfTheBlock) {
    expect_scores(scores("infllm-v2"), votes_bound(2), [&](int64_t i, int64_t r, int64_t b) {
        const std::vector<double> p = attention_to_pieces(i, r);
        const auto at = [&](int64_t n) {
            return n >= 0 && n < std::ssize(p) ? p[static_cast<size_t>(n)] : 0.0;
        };
        return std::max(at(b - 1), at(b));
    });
}

/// The paper's double sum over m < l'/d and n < l/d, with the pieces counted so that they overlap
/// their block: p_slc[j] = sum p_cmp[(l'/d) j + m + n - 1].
TEST(NsaImportance, IsTheDoubleSumOfThePaperAtItsSizes) {
    Problem p = square_problem(320, 1, 1, 16, 0, 64);
    const Tensor<float, 3> q = normal<3>({320, 1, 16}, 1), k = normal<3>({320, 1, 16}, 2);
    const std::unique_ptr<Backend> backend = make_backend("cpu");
    const std::unique_ptr<Selector> nsa = make_selector("nsa");
    const SelectorLayer layer{.problem = p, .backend = *backend, .k = {*backend, In<3>(k)}};
    const std::vector<int64_t> last{319};
    const Problem one = p.with_query_rows(last);
    nsa->prepare(layer);
    const Mirror<3> scores = nsa->score(
        layer, SelectorChunk(layer, one, last, {*backend, In<3>(q.view().slice(319, 1))}));
    const View<const float, 3> got = scores.host();
    std::vector<double> weights;
    double all = 0;
    for (int64_t first = 0; first + 32 <= 320; first += 16) {
        double dot = 0;
        for (int64_t j = first; j < first + 32; ++j)
            for (int64_t d = 0; d < 16; ++d) dot += double{q(319, 0, d)} * double{k(j, 0, d)} / 32;
        weights.push_back(std::exp(dot / 4));
        all += weights.back();
    }
    for (int64_t j = 0; j < 5; ++j) {
        double want = 0;
        for (int64_t m = 0; m < 4; ++m)
            for (int64_t n = 0; n < 2; ++n) {
                const int64_t piece = 4 * j + m + n - 1;
                if (piece >= 0 && piece < std::ssize(weights))
                    want += weights[static_cast<size_t>(piece)] / all;
            }
        EXPECT_NEAR(
            got(0, 0, j), want,
            2 * mass_bound(logit_bound(0.25, largest_norm<3>(q), largest_norm<3>(k), 16), 320));
    }
}

TEST(PieceSelectors, ForcedBlocksAreThoseOfTheSources) {
    EXPECT_EQ(make_selector("nsa")->adjust({.top_k = 16}, 0),
              (SelectionRule{.top_k = 16, .forced_local = 2, .forced_first = 1}));
    EXPECT_EQ(make_selector("infllm-v2")->adjust({.top_k = 96}, 0),
              (SelectionRule{.top_k = 96, .forced_local = 32, .forced_first = 1}));
}

}  // namespace
}  // namespace msa::test
