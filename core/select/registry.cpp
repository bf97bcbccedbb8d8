// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/error.h"
#include "core/meant.h"
#include "core/select/selector.h"
#include "core/select/token_selector.h"

// The policies, in the order of the documentation. <name>.cpp defines make_<name>_selector(), but
// h2o.cpp that of h2o_streamed, too, and qsa.cpp and hisa.cpp those of their token forms. One more
// policy is one more line here.
#define MSA_SELECTORS(X)         \
    X(index)                     \
    X(oracle)                    \
    X(oracle_logit)              \
    X(oracle_value)              \
    X(oracle_error)              \
    X(top_p)                     \
    X(ada_oracle)                \
    X(mean_key)                  \
    X(quest)                     \
    X(quest_pages)               \
    X(sparq)                     \
    X(double_sparsity)           \
    X(twilight)                  \
    X(keydiff)                   \
    X(shadowkv)                  \
    X(nsa)                       \
    X(infllm_v2)                 \
    X(infllm)                    \
    X(dsa)                       \
    X(hisa)                      \
    X(qsa)                       \
    X(seerattention)             \
    X(minference)                \
    X(minference_vertical_slash) \
    X(minference_block_sparse)   \
    X(flexprefill)               \
    X(xattention)                \
    X(skip_softmax)              \
    X(expected_attention)        \
    X(snapkv)                    \
    X(h2o)                       \
    X(h2o_streamed)              \
    X(h2o_oracle)                \
    X(tova)                      \
    X(previous_layer)            \
    X(window)                    \
    X(random)
#define MSA_TOKEN_SELECTORS(X) \
    X(window_tokens)           \
    X(streaming_llm)           \
    X(dsa_tokens)              \
    X(hisa_tokens)             \
    X(qsa_tokens)

namespace msa {

#define MSA_DECLARE(name) std::unique_ptr<Selector> make_##name##_selector();
#define MSA_DECLARE_TOKENS(name) std::unique_ptr<TokenSelector> make_##name##_selector();
MSA_SELECTORS(MSA_DECLARE)
MSA_TOKEN_SELECTORS(MSA_DECLARE_TOKENS)

namespace {

#define MSA_MAKER(name) make_##name##_selector,
constexpr std::unique_ptr<Selector> (*kMakers[])() = {MSA_SELECTORS(MSA_MAKER)};
constexpr std::unique_ptr<TokenSelector> (*kTokenMakers[])() = {MSA_TOKEN_SELECTORS(MSA_MAKER)};

/// The policy of `makers` that has the name of the label, with its options; nothing where none has.
template <typename Makers>
auto find(const Makers& makers, std::string_view label) -> decltype(makers[0]()) {
    const std::string_view name = name_of_label(label);
    for (const auto make : makers) {
        auto policy = make();
        const std::vector<std::string_view> others = policy->other_names();
        if (policy->name() != name && std::find(others.begin(), others.end(), name) == others.end())
            continue;
        if (name.size() < label.size()) policy->configure(label.substr(name.size() + 1));
        return policy;
    }
    return nullptr;
}

template <typename Makers>
std::vector<std::string> names_of(const Makers& makers) {
    std::vector<std::string> names;
    for (const auto make : makers) names.emplace_back(make()->name());
    return names;
}

/// Methods that are no policies, and what there is of them.
struct NoPolicy {
    std::string_view name, why;
};
constexpr NoPolicy kNoPolicies[] = {
    {"csa",
     "DeepSeek-V4's CSA ranks learned entries of 4 tokens, which a file of activations does "
     "not have; dsa:compress=4 ranks means of 4 index keys in their place"},
    {"hca",
     "DeepSeek-V4's HCA attends to all of its learned entries of 128 tokens and selects "
     "none"},
    {"index-share",
     "IndexShare shares one choice among layers; msa-fit-indexer --every 4 teaches it, and "
     "msa-reuse "
     "--every 4 measures it without"}};

[[noreturn]] void refuse(std::string_view name, const std::vector<std::string>& names) {
    for (const NoPolicy& none : kNoPolicies)
        if (none.name == name) throw InputError(concat("'", name, "' is no selector: ", none.why));
    std::string known;
    for (const std::string& one : names) known += (known.empty() ? "" : ", ") + one;
    throw InputError(concat("no selector is called '", name, "'", did_you_mean(name, names),
                            "; there are: ", known));
}

}  // namespace

std::vector<std::string> list_selectors() { return names_of(kMakers); }
std::vector<std::string> list_token_selectors() { return names_of(kTokenMakers); }

std::vector<std::string> list_policies() {
    std::vector<std::string> names = list_selectors();
    for (std::string& name : list_token_selectors()) names.push_back(std::move(name));
    return names;
}

std::vector<std::string> list_pointwise_selectors() {
    std::vector<std::string> names = list_selectors();
    std::erase_if(names, [](const std::string& name) {
        const Policy::Needs needs = make_selector(name)->needs();
        return needs.queries || needs.values || needs.previous_layer || needs.rule;
    });
    return names;
}

std::unique_ptr<Selector> make_selector(std::string_view label) {
    if (std::unique_ptr<Selector> selector = find(kMakers, label)) return selector;
    refuse(name_of_label(label), list_selectors());
}

std::unique_ptr<TokenSelector> find_token_selector(std::string_view label) {
    return find(kTokenMakers, label);
}

std::unique_ptr<Policy> make_policy(std::string_view label) {
    if (std::unique_ptr<Selector> selector = find(kMakers, label)) return selector;
    if (std::unique_ptr<TokenSelector> selector = find(kTokenMakers, label)) return selector;
    refuse(name_of_label(label), list_policies());
}

}  // namespace msa
