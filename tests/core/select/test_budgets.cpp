// SPDX-License-Identifier: MIT
// One selector serves several budgets: what is computed for all of them together gives the scores
// that each would get alone.
#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

constexpr int64_t kChunk = 50;  // queries; crosses the end of the first sequence

class Budgets : public Policy, public testing::WithParamInterface<std::string> {
protected:
    const std::vector<SelectionRule> rules_{{.top_k = 2}, {.top_k = 4}, {.top_k = 7}};

    /// Scores of all queries at each rule, the rules one after the other in every chunk.
    std::vector<Tensor<float, 3>> together(int64_t prompt) const {
        const std::unique_ptr<Selector> selector = make_selector(GetParam());
        SelectorLayer layer = selector_layer(prompt, rules_.front());
        layer.rules = rules_;
        std::vector<int64_t> tokens;
        for (int64_t i = 0; i < p_.queries(); ++i)
            if (position(i) >= prompt) tokens.push_back(i);
        const Problem some = p_.with_query_rows(tokens);
        std::vector<Tensor<float, 3>> all;
        for (size_t n = 0; n < rules_.size(); ++n)
            all.emplace_back(Shape<3>{p_.queries(), p_.kv_heads, p_.blocks()});
        selector->prepare(layer);
        for (int64_t begin = 0; begin < some.queries(); begin += kChunk) {
            const QueryRange range{begin, std::min(begin + kChunk, some.queries())};
            const Problem chunk = some.with_queries(range);
            const auto mine = std::span(tokens).subspan(
                static_cast<size_t>(begin), static_cast<size_t>(range.end - range.begin));
            for (size_t n = 0; n < rules_.size(); ++n) {
                layer.rule = rules_[n];
                const Mirror<3> part = selector->score(layer, selector_chunk(layer, chunk, mine));
                for (size_t i = 0; i < mine.size(); ++i)
                    std::copy_n(part.host()[static_cast<int64_t>(i)].data(),
                                p_.kv_heads * p_.blocks(), all[n].view()[mine[i]].data());
            }
        }
        return all;
    }

    void expect_same_as_alone(int64_t prompt) const {
        const std::vector<Tensor<float, 3>> got = together(prompt);
        for (size_t n = 0; n < rules_.size(); ++n) {
            const Tensor<float, 3> alone = scores(GetParam(), prompt, rules_[n]);
            for (int64_t i = 0; i < p_.queries(); ++i)
                for (int64_t r = 0; position(i) >= prompt && r < p_.kv_heads; ++r)
                    for (int64_t b = 0; b < blocks(i); ++b)
                        ASSERT_EQ(got[n](i, r, b), alone(i, r, b))
                            << "k " << rules_[n].top_k << ", token " << i << ", group " << r
                            << ", block " << b;
        }
    }
};

std::vector<std::string> selectors_of_budgets() {
    std::vector<std::string> names;
    for (const std::string& name : list_selectors())
        if (make_selector(name)->needs().uses_rule(1)) names.push_back(name);
    return names;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
    std::string name = info.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

TEST_P(Budgets, TogetherAreAsAlone) {
    const Phases phases = make_selector(GetParam())->needs().phases;
    if (phases != Phases::decode) expect_same_as_alone(0);
    if (phases != Phases::prefill) expect_same_as_alone(50);
}

INSTANTIATE_TEST_SUITE_P(All, Budgets, testing::ValuesIn(selectors_of_budgets()), test_name);

}  // namespace
}  // namespace msa::test
