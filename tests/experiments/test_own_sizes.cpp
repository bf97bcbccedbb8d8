// SPDX-License-Identifier: MIT
// Block size and k of a file's Index Branch, the model's own or a fitted one, are the defaults for
// it.
#include <hdf5.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "core/io/h5.h"
#include "experiments/driver/run_options.h"
#include "tests/experiments/fit_test.h"
#include "tests/experiments/report_of.h"
#include "tests/support/refusal.h"

namespace msa::test {
namespace {

using experiments::SizeOptions;

io::LayerInfo layer_with(std::optional<int64_t> block_size, std::optional<int64_t> top_k) {
    io::LayerInfo layer;
    layer.own_block_size = block_size;
    layer.own_top_k = top_k;
    return layer;
}

struct Sizes {
    int64_t block_size, top_k;
    std::string notes;
};

Sizes sizes(const std::vector<io::LayerInfo>& layers, const std::vector<std::string>& args = {}) {
    SizeOptions o;
    std::ostringstream notes;
    experiments::take_own_sizes(o, args, layers, notes);
    return {o.block_size, o.rule.top_k, notes.str()};
}

TEST(OwnSizes, OfAllLayersAreTheDefaults) {
    const Sizes own = sizes({layer_with(32, 5), layer_with(32, 5)});
    EXPECT_EQ(own.block_size, 32);
    EXPECT_EQ(own.top_k, 5);
    EXPECT_EQ(own.notes,
              "note: --block-size is 32, as the file says of its Index Branch\n"
              "note: --top-k is 5, as the file says of its Index Branch\n");
    const Sizes usual = sizes({layer_with(128, 16)});
    EXPECT_EQ(usual.block_size, 128);
    EXPECT_EQ(usual.notes, "");  // nothing has changed
}

TEST(OwnSizes, GiveWayToWhatIsAskedFor) {
    for (const std::vector<std::string>& args :
         {std::vector<std::string>{"--block-size", "128"}, {"--block-size=128"}}) {
        const Sizes own = sizes({layer_with(32, 5)}, args);
        EXPECT_EQ(own.block_size, 128);
        EXPECT_EQ(own.top_k, 5);
        EXPECT_EQ(own.notes, "note: --top-k is 5, as the file says of its Index Branch\n");
    }
}

TEST(OwnSizes, ThatDifferOrAreUnknownDecideNothing) {
    for (const std::vector<io::LayerInfo>& layers :
         {std::vector{layer_with(32, 5), layer_with(64, 6)},
          {layer_with(32, 5), layer_with({}, {})},
          {layer_with({}, {}), layer_with(32, 5)},
          {}}) {
        const Sizes own = sizes(layers);
        EXPECT_EQ(own.block_size, 128);
        EXPECT_EQ(own.top_k, 16);
        EXPECT_EQ(own.notes, "");
    }
}

TEST(OwnSizes, AreHeldToTheLimitsOfTheOptions) {
    EXPECT_EQ(refusal([] { sizes({layer_with(7, 5)}); }),
              "--block-size is 7, must be from 8 to 256");
}

TEST_F(Fit, AndAnalyzeTakeTheModelsOwnSizes) {
    const std::string file = write("a.h5");
    {
        const io::h5::Handle opened(H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        const io::h5::Handle group = io::h5::open_object(opened, {file, "/layers/3"});
        io::h5::set_attribute(group, "own_block_size", int64_t{16});
        io::h5::set_attribute(group, "own_top_k", int64_t{3});
    }
    const auto options = [&](const std::string& out) {
        return nlohmann::json(options_of_run(report_of(path(out))));
    };
    const Outcome fit = kFit({file, "--out", path("fit"), "--index-dim", "16", "--steps", "2"});
    ASSERT_EQ(fit.code, 0) << fit.err;
    const Outcome analyze = kAnalyze({path("fit/indexer.h5"), "--out", path("analyze")});
    ASSERT_EQ(analyze.code, 0) << analyze.err;
    for (const char* out : {"fit", "analyze"}) {
        EXPECT_EQ(options(out)["block_size"], 16) << out;
        EXPECT_EQ(options(out)["top_k"], 3) << out;
    }
    EXPECT_NE(analyze.err.find("note: --block-size is 16, as the file says"), std::string::npos);
}

TEST_F(Fit, IndexerFileSaysWhatItWasFittedFor) {
    const std::string file = write("a.h5");
    const Outcome fit = kFit({file, "--out", path("fit"), "--index-dim", "16", "--steps", "2",
                              "--block-size", "8", "--top-k", "3"});
    ASSERT_EQ(fit.code, 0) << fit.err;
    const io::ActivationsReader indexer(path("fit/indexer.h5"));
    EXPECT_EQ(indexer.layer(3).own_block_size, 8);
    EXPECT_EQ(indexer.layer(3).own_top_k, 3);
    const Outcome compare = kCompare({path("fit/indexer.h5"), "--out", path("compare"),
                                      "--selectors", "index", "--budgets", "16"});
    ASSERT_EQ(compare.code, 0) << compare.err;
    EXPECT_EQ(compare.err.substr(0, compare.err.find('\n')),
              "note: --block-size is 8, as the file says of its Index Branch");
    const auto options = nlohmann::json(options_of_run(report_of(path("compare"))));
    EXPECT_EQ(options["block_size"], 8);
}

}  // namespace
}  // namespace msa::test
