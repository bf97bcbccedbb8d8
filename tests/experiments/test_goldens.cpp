// SPDX-License-Identifier: MIT
// The numbers that the programs give of known activations stay as they are
// (tests/goldens/make_programs.py).
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/experiments/cli.h"

namespace msa::test {
namespace {

using nlohmann::json;

/// Attention in float, by whatever compiler, agrees to about six digits; means over hundreds of
/// rows do, too. Numbers below kSmall are differences of such.
constexpr double kDigits = 1e-5, kSmall = 1e-2;

class Goldens : public CliTest, public testing::WithParamInterface<const char*> {
protected:
    json golden_ =
        json::parse(file_text(std::string(MSA_SOURCE_DIR) + "/tests/goldens/programs.json"));

    static const Program& program(const std::string& name) {
        for (const Program& known : programs())
            if (known.name == name) return known;
        throw std::logic_error("no program " + name);
    }
};

TEST_P(Goldens, NumbersStay) {
    std::vector<std::string> synth = golden_["planted"];
    synth.insert(synth.end(), {"--out", path("planted.h5")});
    ASSERT_EQ(kSynth(synth).code, 0);
    const json& run = golden_["runs"][GetParam()];
    std::vector<std::string> args;
    for (const std::string arg : run["args"])
        args.push_back(arg == "{sample}"    ? std::string(MSA_SOURCE_DIR) + "/data/sample.h5"
                       : arg == "{planted}" ? path("planted.h5")
                                            : arg);
    const Program& asked = program(args.front());
    args.erase(args.begin());
    args.insert(args.end(), {"--out", path("out")});
    const Outcome outcome = asked(args);
    ASSERT_TRUE(outcome.code == 0 || outcome.code == 2) << outcome.err;
    const json found = json::parse(file_text(path("out/summary.json")));
    EXPECT_GE(run["numbers"].size(), 30U);
    for (const auto& [where, wanted] : run["numbers"].items()) {
        const json::json_pointer at(where);
        ASSERT_TRUE(found.contains(at)) << where;
        const double want = wanted.get<double>();
        ASSERT_TRUE(found[at].is_number()) << where << " is " << found[at] << ", was " << want;
        EXPECT_NEAR(found[at].get<double>(), want, kDigits * std::max(std::abs(want), kSmall))
            << where;
    }
}

INSTANTIATE_TEST_SUITE_P(Programs, Goldens,
                         testing::Values("analyze", "analyze-planted", "compare", "compare-heads",
                                         "compare-decode", "advise", "reuse", "precision"),
                         [](const auto& name) {
                             std::string of = name.param;
                             std::erase(of, '-');
                             return of;
                         });

}  // namespace
}  // namespace msa::test
