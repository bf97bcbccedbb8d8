// SPDX-License-Identifier: MIT
// Two packed documents, neither a whole number of blocks, choose as each alone does.
#include <cctype>

#include "core/select/token_selector.h"
#include "tests/core/select/gate_operands.h"
#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class PackedDocuments : public testing::TestWithParam<std::string> {
protected:
    static constexpr int64_t kFirst = 781, kSecond = 1267, kBlock = 32;
    struct Document {
        int64_t first, count;  // packed tokens
    };
    static Problem problem(const std::vector<int64_t>& starts) {
        Problem p = square_problem(0, 2, 2, 16, 16, kBlock);
        p.batch = PackedBatch(starts, starts);
        return p;
    }
    template <int Rank>
    static Tensor<float, Rank> part(const Tensor<float, Rank>& of, const Document& d) {
        Shape<Rank> shape = of.shape();
        const int64_t row = of.size() / shape[0];
        shape[0] = d.count;
        Tensor<float, Rank> rows(shape);
        std::copy_n(of.data() + d.first * row, d.count * row, rows.data());
        return rows;
    }

    /// A layer of the tokens of `d`, with the problem's sequences, and all of its queries.
    template <typename Visit>
    void with_layer(const Problem& p, const Document& d, const PolicyNeeds& needs, Visit visit) {
        const Tensor<float, 3> q = part(q_, d), k = part(k_, d), v = part(v_, d),
                               index_q = part(index_q_, d);
        const Tensor<float, 2> index_k = part(index_k_, d);
        const auto rows_of = [&](std::span<const int64_t> tokens) {
            Tensor<float, 3> rows({std::ssize(tokens), 2, 16});
            for (size_t n = 0; n < tokens.size(); ++n)
                std::copy_n(&q(tokens[n], 0, 0), 2 * 16,
                            rows.data() + static_cast<int64_t>(n) * 2 * 16);
            return Mirror<3>(*backend_, std::move(rows));
        };
        const auto read_learned = [&](LearnedOperand operand, std::span<const int64_t> tokens) {
            std::vector<int64_t> packed(tokens.begin(), tokens.end());
            for (int64_t& token : packed) token += d.first;
            Tensor<float, 3> all = gate_(operand, packed);
            if (operand != LearnedOperand::gate_k) return all;
            const int64_t begin = d.first == 0 ? 0 : ceil_div(kFirst, kBlock);
            int64_t blocks = 0;
            for (size_t s = 0; s + 1 < p.batch.cu_seqlens_k().size(); ++s)
                blocks +=
                    ceil_div(p.batch.cu_seqlens_k()[s + 1] - p.batch.cu_seqlens_k()[s], kBlock);
            return part(all, {begin, blocks});
        };
        const SelectionRule rule{.top_k = 6};
        const SelectorLayer layer{.problem = p,
                                  .backend = *backend_,
                                  .k = {*backend_, In<3>(k)},
                                  .index_k = {*backend_, In<2>(index_k)},
                                  .v = {*backend_, In<3>(v)},
                                  .seed = 7,
                                  .rule = rule,
                                  .read_q = rows_of,
                                  .read_learned = read_learned,
                                  .prompt = needs.phases == Phases::decode ? 40 : 0,
                                  .rope = rope_};
        std::vector<int64_t> tokens;
        for (size_t s = 0; s + 1 < p.batch.cu_seqlens_k().size(); ++s)
            for (int64_t i = p.batch.cu_seqlens_k()[s] + layer.prompt;
                 i < p.batch.cu_seqlens_k()[s + 1]; ++i)
                tokens.push_back(i);
        const Problem chosen = p.with_query_rows(tokens);
        const Mirror<3> rows = rows_of(tokens);
        Tensor<float, 3> index_rows({std::ssize(tokens), 2, 16});
        for (size_t n = 0; n < tokens.size(); ++n)
            std::copy_n(&index_q(tokens[n], 0, 0), 2 * 16,
                        index_rows.data() + static_cast<int64_t>(n) * 2 * 16);
        const auto previous = [&] {
            auto mass = backend_->make<float, 3>({chosen.queries(), 2, chosen.blocks()});
            backend_->block_mass(chosen, {rows.operand(), layer.k.operand()}, {mass, {}});
            backend_->finish();
            return Mirror<3>(*backend_, std::move(mass));
        };
        visit(layer, SelectorChunk(layer, chosen, tokens, rows, {*backend_, std::move(index_rows)},
                                   false, previous));
    }

    /// Of every query that is scored, by group: the scores of the blocks that it sees.
    using Scores = std::vector<std::vector<float>>;
    Scores scores(const Problem& p, const Document& d) {
        Scores all;
        const std::unique_ptr<Selector> selector = make_selector(GetParam());
        with_layer(p, d, selector->needs(), [&](const auto& layer, const SelectorChunk& chunk) {
            selector->prepare(layer);
            const Mirror<3> made = selector->score(layer, chunk);
            const View<const float, 3> of = made.host();
            for (int64_t i = 0; i < of.extent(0); ++i)
                for (int64_t r = 0; r < 2; ++r) {
                    const float* const row = of[i][r].data();
                    all.emplace_back(
                        row, row + visible_blocks(
                                       visible_keys(chunk.problem)[static_cast<size_t>(i)].count,
                                       kBlock));
                }
        });
        return all;
    }
    KeptTokens tokens(const Problem& p, const Document& d) {
        KeptTokens all;
        const std::unique_ptr<TokenSelector> selector = find_token_selector(GetParam());
        with_layer(p, d, selector->needs(), [&](const auto& layer, const SelectorChunk& chunk) {
            selector->prepare(layer);
            all = selector->select(layer, chunk, std::vector<int64_t>{100}).front();
        });
        return all;
    }

    const Problem packed_ = problem({0, kFirst, kFirst + kSecond}), one_ = problem({0, kFirst}),
                  two_ = problem({0, kSecond});
    Tensor<float, 3> q_ = normal<3>({kFirst + kSecond, 2, 16}, 1, 1.5F),
                     k_ = normal<3>(q_.shape(), 2), v_ = normal<3>(q_.shape(), 5),
                     index_q_ = normal<3>(q_.shape(), 3);
    Tensor<float, 2> index_k_ = normal<2>({kFirst + kSecond, 16}, 4);
    ReadLearned gate_ = random_gate(packed_);
    std::unique_ptr<Backend> backend_ = make_backend("cpu", {.threads = 2});
    RopePairs rope_{.frequencies = {1, 0.3, 0.02}};
};

class PackedBlocks : public PackedDocuments {};
class PackedTokens : public PackedDocuments {};

/// But for those that say in their note that all sequences have a say in what is chosen in one.
TEST_P(PackedBlocks, ScoreAsAloneUnlessTheirNoteSaysOtherwise) {
    const Scores together = scores(packed_, {0, kFirst + kSecond});
    Scores apart = scores(one_, {0, kFirst});
    for (std::vector<float>& row : scores(two_, {kFirst, kSecond})) apart.push_back(std::move(row));
    ASSERT_EQ(together.size(), apart.size());
    const std::unique_ptr<Selector> selector = make_selector(GetParam());
    const bool fitted = selector->note().find("all sequences") != std::string_view::npos &&
                        selector->label() == selector->name();
    EXPECT_EQ(together == apart, !fitted) << selector->note();
}

TEST_P(PackedTokens, AreKeptAsAlone) {
    const KeptTokens together = tokens(packed_, {0, kFirst + kSecond});
    KeptTokens apart = tokens(one_, {0, kFirst});
    for (std::vector<int64_t>& row : tokens(two_, {kFirst, kSecond}))
        apart.push_back(std::move(row));
    EXPECT_EQ(together, apart);
}

/// All policies, and those that are fitted to all sequences with what is fitted given.
std::vector<std::string> labels() {
    std::vector<std::string> all = list_selectors();
    for (const char* given : {"top-p:p=0.8", "twilight:p=0.8", "xattention:threshold=0.8"})
        all.emplace_back(given);
    return all;
}
std::string policy_name(const testing::TestParamInfo<std::string>& info) {
    std::string name = info.param;
    for (char& c : name)
        if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
    return name;
}
INSTANTIATE_TEST_SUITE_P(All, PackedBlocks, testing::ValuesIn(labels()), policy_name);
INSTANTIATE_TEST_SUITE_P(All, PackedTokens, testing::ValuesIn(list_token_selectors()), policy_name);

}  // namespace
}  // namespace msa::test
