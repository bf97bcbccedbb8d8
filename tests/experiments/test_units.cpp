// SPDX-License-Identifier: MIT
// A layer that is cut into units of some queries: the same bytes for any number of workers, and the
// numbers of the layer.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/io/results.h"
#include "experiments/compare/layer.h"
#include "experiments/driver/options.h"
#include "experiments/driver/sample.h"
#include "experiments/programs.h"
#include "tests/experiments/shards_test.h"

namespace msa::test {
namespace {

using nlohmann::json;

/// A program that cuts layers.
struct Cutter {
    const Program& program;
    std::vector<std::string> options;
    std::vector<std::string> files;  // that it writes, the same bytes for any workers
    /// Are there sums of doubles in a dataset? Everything else is of one query, or counted.
    bool (*is_summed)(const std::string& dataset);
    double additions;  // of the longest of these sums, each of values that are not negative
    std::string unit_queries = "16";
};

/// 150 queries, of which an output error adds each of 16 channels by itself.
const Cutter kAnalyzes{kAnalyze,
                       {"--block-size", "8", "--top-k", "4", "--selectors", "oracle,random",
                        "--dump", "outputs,scores,mass"},
                       {"results.h5", "summary.json", "metrics.csv"},
                       [](const std::string& dataset) {
                           return dataset.starts_with("/metrics") ||
                                  dataset.starts_with("/blocks") || dataset.ends_with("/mass_kept");
                       },
                       150 * 16};

/// 150 queries, twice where each head chooses; and what makes an average of a sum.
const Cutter kCompares{
    kCompare,
    {"--block-size", "8", "--budgets", "16,32", "--selectors", "top-p,h2o-streamed,window-tokens"},
    {"results.h5", "summary.json", "metrics.csv", "tables.txt"},
    [](const std::string& dataset) {
        if (dataset.ends_with("/blocks_kept") || dataset.ends_with("/tokens_read")) return false;
        return dataset.starts_with("/metrics") || dataset.starts_with("/blocks") ||
               dataset.starts_with("/overlap") || dataset.ends_with("/norm");
    },
    150 * 2 + 8};

std::string cutter_name(const testing::TestParamInfo<const Cutter*>& info) {
    return info.param == &kAnalyzes ? "Analyze" : "Compare";
}

/// Numbers of two summaries, but for the options and what is of chunks.
void expect_summary_near(const json& left, const json& right, double bound, const std::string& at) {
    if (!left.is_structured()) {
        if (left.is_number_float() && right.is_number_float()) {
            EXPECT_NEAR(left, right, bound * std::max(1.0, std::abs(left.get<double>()))) << at;
        } else {
            EXPECT_EQ(left, right) << at;
        }
        return;
    }
    ASSERT_EQ(left.size(), right.size()) << at;
    for (const auto& [key, value] : left.items()) {
        const json& other = left.is_object() ? right.at(key) : right.at(std::stoul(key));
        if (key == "options") continue;
        if (key == "largest_mass_bound") {  // the units lie in the only chunk of the layer
            EXPECT_LE(other.get<double>(), value.get<double>());
        } else {
            expect_summary_near(value, other, bound, text(at, "/", key));
        }
    }
}

/// One layer, whose 150 queries are cut into units.
class Cut : public Shards {
protected:
    std::vector<std::string> args(const Cutter& of, const std::string& out,
                                  const std::vector<std::string>& more = {}) const {
        std::vector<std::string> all{file_, "--out", path(out), "--threads", "1"};
        all.insert(all.end(), of.options.begin(), of.options.end());
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    std::vector<std::string> cut(const Cutter& of, const std::string& out,
                                 std::vector<std::string> more = {}) const {
        more.insert(more.end(), {"--unit-queries", of.unit_queries});
        return args(of, out, more);
    }
    /// What is of one query, and every count, is the same to the bit; a sum is off by two orders of
    /// its additions, and an average of such sums and the interval of one by twice that.
    void expect_order_of_sums_alone(const Cutter& of, const std::vector<std::string>& more) const {
        const Outcome left = of.program(args(of, "layer", more));
        ASSERT_EQ(left.code, 0) << left.err;
        const Outcome right = of.program(cut(of, "cut", more));
        ASSERT_EQ(right.code, 0) << right.err;
        const std::string layer = path("layer/results.h5"), cut = path("cut/results.h5");
        EXPECT_TRUE(same_data(layer, cut, of.is_summed));
        const io::ResultsReader a(layer), b(cut);
        const double bound = 2 * of.additions * 0x1p-53;
        int64_t sums = 0;
        for (const io::DatasetInfo& dataset : a.datasets("/")) {
            if (!of.is_summed(dataset.path)) continue;
            std::vector<double> lefts, rights;
            for (const auto& [file, to] : {std::pair{&a, &lefts}, std::pair{&b, &rights}})
                file->visit(dataset, [to = to](std::span<const double> values) {
                    to->insert(to->end(), values.begin(), values.end());
                });
            for (size_t n = 0; n < lefts.size(); ++n, ++sums)
                EXPECT_NEAR(lefts[n], rights[n], bound * lefts[n]) << dataset.path;
        }
        EXPECT_GT(sums, 90);
        const auto summary = [&](const char* out) {
            return json::parse(file_text(path(text(out, "/summary.json"))));
        };
        expect_summary_near(summary("layer"), summary("cut"), 2 * bound, "");
    }
};

class Units : public Cut, public testing::WithParamInterface<const Cutter*> {
protected:
    Units() {
        file_ = make("a.h5", {.layers = {3},
                              .own_attention = {{"sliding_window", {40}}, {"sinks", {0, 1, -1, 2}}},
                              .rotary_dim = 8});
    }
    std::vector<std::string> args(const std::string& out,
                                  const std::vector<std::string>& more = {}) const {
        return Cut::args(*GetParam(), out, more);
    }
    std::vector<std::string> cut(const std::string& out, std::vector<std::string> more = {}) const {
        return Cut::cut(*GetParam(), out, std::move(more));
    }
    Outcome run(const std::vector<std::string>& args) const { return GetParam()->program(args); }
    /// Merges what --shard 0/count and so on give of a cut, and compares it with the folder
    /// `whole`.
    void expect_shards_to_give(int64_t count, const std::string& whole) const {
        std::vector<std::string> folders;
        for (int64_t n = 0; n < count; ++n) {
            const std::string out = text("part", count, "-", n);
            const Outcome shard = run(cut(out, {"--shard", part(n, count), "--jobs", "2"}));
            ASSERT_EQ(shard.code, 0) << shard.err;
            folders.push_back(path(out));
        }
        const Outcome merged = merge(folders, text("merged", count));
        ASSERT_EQ(merged.code, 0) << merged.err;
        expect_same(text("merged", count), whole, GetParam()->files);
    }
};

TEST_P(Units, AnyNumberOfWorkersGivesTheBytesOfOne) {
    const Outcome whole = run(cut("whole"));
    ASSERT_EQ(whole.code, 0) << whole.err;
    const json units = json::parse(file_text(path("whole/run.json")))["units"];
    ASSERT_EQ(units.size(), 10U);
    EXPECT_EQ(units[9]["unit"], "layer 3, queries 144:150");
    EXPECT_EQ(io::ResultsReader(path("whole/results.h5")).done(),
              (std::vector<std::string>{"layer 3"}));
    for (int64_t count : {1, 2, 3, 7}) expect_shards_to_give(count, "whole");
    for (const std::string jobs : {"2", "5"}) {
        const Outcome outcome = run(cut(jobs, {"--jobs", jobs, "--devices", "0,1"}));
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        EXPECT_EQ(outcome.out, whole.out);
        expect_same(jobs, "whole", GetParam()->files);
    }
}

TEST_P(Units, OfSeveralLayersStayApart) {
    file_ = make("two.h5", {.layers = {2, 10}, .rotary_dim = 8});
    ASSERT_EQ(run(cut("whole")).code, 0);
    EXPECT_EQ(io::ResultsReader(path("whole/results.h5")).done(),
              (std::vector<std::string>{"layer 2", "layer 10"}));
    expect_shards_to_give(3, "whole");
}

TEST_P(Units, AreTheLayerButForTheOrderOfSums) {
    expect_order_of_sums_alone(*GetParam(), {});
    const io::ResultsReader a(path("layer/results.h5")), b(path("cut/results.h5"));
    for (const char* name : {"window", "tokens", "softmax_scale"})
        EXPECT_EQ(a.number("/layers/3", name), b.number("/layers/3", name)) << name;
    if (a.has("/layers/3", "mass_bound")) {
        EXPECT_EQ(a.number("/layers/3", "mass_bound"), b.number("/layers/3", "mass_bound"));
    }
}

TEST_P(Units, OfAllQueriesAreTheLayerToTheBit) {
    ASSERT_EQ(run(args("layer")).code, 0);
    for (const std::string queries : {"150", "1000"}) {
        ASSERT_EQ(run(args(queries, {"--unit-queries", queries})).code, 0);
        EXPECT_TRUE(same_data(path("layer/results.h5"), path(queries + "/results.h5")));
        EXPECT_EQ(file_text(path("layer/metrics.csv")), file_text(path(queries + "/metrics.csv")));
    }
}

TEST_P(Units, WhatIsMissingOrOfAnotherCutIsNamed) {
    ASSERT_EQ(run(cut("part0", {"--shard", "0/5"})).code, 0);
    ASSERT_EQ(run(cut("part1", {"--shard", "1/5"})).code, 0);
    refuses({path("part0"), path("part1")},
            "not finished in any of them: layer 3, queries 32:48 (of --shard 2/5), "
            "layer 3, queries 48:64 (of --shard 3/5), ");
    ASSERT_EQ(run(args("other", {"--shard", "1/5", "--unit-queries", "17"})).code, 0);
    refuses({path("part0"), path("other")}, "is of another run, options.");
    const Outcome other = run(args("part0", {"--resume"}));
    EXPECT_EQ(other.code, 2);
    EXPECT_NE(other.err.find("cannot resume, options."), std::string::npos) << other.err;
    // A whole run in the folder of a shard does what is missing, and nothing twice.
    const Outcome rest = run(cut("part0", {"--resume"}));
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_NE(rest.err.find("layer 3, queries 0:16: done before\n"
                            "layer 3, queries 80:96: done before\n"),
              std::string::npos)
        << rest.err;
    EXPECT_EQ(rest.err.find("queries 16:32: done before"), std::string::npos) << rest.err;
    ASSERT_EQ(run(cut("whole")).code, 0);
    expect_same("part0", "whole", GetParam()->files);
}

TEST_P(Units, AKilledWorkerGoesOnWithItsUnit) {
    using std::chrono::microseconds;
    const auto args = [&](const std::string& out) {
        return cut(out, {"--backend", "reference", "--resume"});
    };
    ASSERT_EQ(run(args("whole")).code, 0);
    int code = -1, killed = 0;
    for (int64_t delay = 15000; code != 0; delay += delay / 4) {
        code = run_for(GetParam()->program.name, args("killed"), microseconds(delay));
        ASSERT_TRUE(code == 0 || code == -1) << code;
        killed += code == -1 ? 1 : 0;
    }
    EXPECT_GT(killed, 0);
    expect_same("killed", "whole", GetParam()->files);
}

/// What msa-compare alone has: policies that look at other queries, and phases.
class CompareUnits : public Cut {
protected:
    CompareUnits() { file_ = make("a.h5", {.layers = {2, 3}, .rotary_dim = 8}); }
    /// Of layer 3, with these options beside those of every run.
    void expect_choices_of_the_layer(std::vector<std::string> more) const {
        SCOPED_TRACE(experiments::join(more));
        more.insert(more.end(), {"--layers", "3", "--overwrite"});
        Cutter of = kCompares;
        of.options = {"--block-size", "8", "--budgets", "16,32"};
        of.unit_queries = "30";
        expect_order_of_sums_alone(of, more);
    }
};

TEST_F(CompareUnits, ChooseAsTheLayerDoes) {
    expect_choices_of_the_layer({});  // every policy, as it is next
    expect_choices_of_the_layer({"--phase", "decode", "--prompt", "40"});
    expect_choices_of_the_layer({"--share", "head", "--selectors", "oracle,h2o-oracle,dsa-tokens"});
    expect_choices_of_the_layer({"--share", "layer", "--selectors", "snapkv,h2o-oracle"});
    expect_choices_of_the_layer({"--ablation", "forced", "--selectors", "top-p,h2o-streamed"});
    expect_choices_of_the_layer({"--sample-queries", "70", "--selectors", "h2o-oracle,twilight"});
}

TEST_F(CompareUnits, TimesAddUp) {
    ASSERT_EQ(kCompare(cut(kCompares, "out")).code, 0);
    const json timing = json::parse(file_text(path("out/timing.json")))["layers"];
    const json units = json::parse(file_text(path("out/run.json")))["units"];
    ASSERT_EQ(timing.size(), 2U);
    ASSERT_EQ(units.size(), 20U);
    for (const json& layer : timing) {
        double select = 0, all = 0;
        for (const json& unit : units) {
            if (!unit["unit"].get<std::string>().starts_with(text("layer ", layer["layer"], ",")))
                continue;
            EXPECT_EQ(unit["device"], layer["device"]);
            select += unit["timing"]["top-p"]["select_seconds"].get<double>();
            for (const json& seconds : unit["timing"])
                for (const json& value : seconds) all += value.get<double>();
        }
        EXPECT_GT(select, 0);
        EXPECT_NEAR(layer["selectors"]["top-p"]["select_seconds"], select, 1e-9 * select);
        EXPECT_NEAR(layer["sum_seconds"], all, 1e-9 * all);
    }
}

TEST_F(CompareUnits, UndefinedRowsAreNamedWithTheirUnitAndCountedTogether) {
    const std::string file = make("huge.h5", {.layers = {0}});
    poke(file, "/layers/0/q", {100, 0, 0}, 1e30F, {1, 4, 1});
    poke(file, "/layers/0/q", {140, 0, 0}, 1e30F, {1, 4, 1});
    poke(file, "/layers/0/k", {95, 0, 0}, 1e30F, {1, 2, 1});
    file_ = file;
    const Outcome outcome = kCompare(cut(kCompares, "out"));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    for (const char* says : {"layer 0, queries 96:112: attention is undefined, NaN or an overflow "
                             "in its logits, in 2 rows; the first is token 100, group 0",
                             "layer 0, queries 128:144: attention is undefined, NaN or an overflow "
                             "in its logits, in 2 rows; the first is token 140, group 0"})
        EXPECT_NE(outcome.err.find(says), std::string::npos) << outcome.err;
    const json summary = json::parse(file_text(path("out/summary.json")));
    EXPECT_EQ(summary["checks"][0]["rows_undefined"], 4);
    for (const json& row : summary["rows"]) EXPECT_TRUE(row["mass_kept"].is_null()) << row;
}

/// Ids are stored of a sample: parts of any cut, one without any of them, have the rows of all.
TEST_F(CompareUnits, StoredIdsAreThoseOfTheLayer) {
    namespace compare = experiments::compare;
    const std::string file = make("long.h5", {.cu_seqlens = {0, 1030}, .layers = {3}});
    compare::CompareOptions o;
    o.block_size = 64;
    o.budgets = {{"128", 128}};
    const std::vector<int64_t> sample = experiments::stratified_sample(1030, 1024, o.seed);
    ASSERT_EQ(sample.front(), 0);
    int64_t gap = 0;
    while (sample[static_cast<size_t>(gap)] == gap) ++gap;
    const io::ActivationsReader reader(file);
    const auto backend = make_backend("cpu", {.threads = 1});
    std::vector<int64_t> tokens(1030);
    std::iota(tokens.begin(), tokens.end(), 0);
    const auto ids = [&](const std::string& name, const std::vector<int64_t>& cuts) {
        io::RunRecord record;
        for (size_t n = 0; n + 1 < cuts.size(); ++n) record.units.push_back(text("part ", n));
        record.joined["layer 3"] = record.units;
        io::ResultsWriter writer(path(name), record, io::IfExists::refuse);
        for (size_t n = 0; n + 1 < cuts.size(); ++n) {
            io::UnitWriter unit = writer.begin(record.units[n]);
            std::ostringstream err;
            compare::compare_part(o, reader, {reader.layer(3), {cuts[n], cuts[n + 1]}, false},
                                  nullptr, {"random"}, tokens, {*backend, err, err, 1}, unit);
            unit.finish();
        }
        writer.finish(compare::join_layer);
        return path(name);
    };
    const std::string whole = ids("whole.h5", {0, 1030});
    const std::string cut = ids("cut.h5", {0, 1, gap, gap + 1, 700, 1030});
    EXPECT_TRUE(same_data(whole, cut, kCompares.is_summed));
    const auto rows = io::ResultsReader(cut).read<int64_t, 1>("/queries/3/token");
    EXPECT_EQ(std::vector<int64_t>(rows.data(), rows.data() + rows.size()), sample);
}

#ifdef MSA_MPIRUN
class MpiUnits : public Mpi, public testing::WithParamInterface<const Cutter*> {};

TEST_P(MpiUnits, RanksShareALayer) {
    file_ = make("a.h5", {.layers = {3}});
    const Program& program = GetParam()->program;
    const auto args = [&](const std::string& out) {
        const std::vector<std::string> more{"--unit-queries", "16"};
        return program.name == kAnalyze.name ? analyze(out, more) : compare(out, more);
    };
    const Outcome whole = program(args("whole"));
    for (int ranks : {2, 7}) {
        ASSERT_EQ(start(ranks, args(text(ranks)), {}, program.name), 0) << said();
        expect_same(text(ranks), "whole", GetParam()->files);
        EXPECT_EQ(file_text(path("out.txt")), whole.out);
    }
}

INSTANTIATE_TEST_SUITE_P(Of, MpiUnits, testing::Values(&kAnalyzes, &kCompares), cutter_name);
#endif

INSTANTIATE_TEST_SUITE_P(Of, Units, testing::Values(&kAnalyzes, &kCompares), cutter_name);

}  // namespace
}  // namespace msa::test
