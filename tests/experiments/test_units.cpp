// SPDX-License-Identifier: MIT
// A layer that is cut into units of some queries: the same bytes for any number of workers, and the
// numbers of the layer.
#include "core/io/results.h"
#include "experiments/compare/layer.h"
#include "experiments/driver/options.h"
#include "experiments/driver/sample.h"
#include "experiments/programs.h"
#include "tests/experiments/processes_test.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

/// A program that cuts layers.
struct Cutter {
    const Program& program;
    std::vector<std::string> options;
    std::vector<std::string> files;  // that it writes, the same bytes for any workers
    std::string unit_queries = "128";
};

const Cutter kAnalyzes{kAnalyze,
                       {"--block-size", "8", "--top-k", "4", "--selectors", "oracle,random",
                        "--dump", "outputs,scores,mass"},
                       {"results.h5", "summary.json", "metrics.csv"}};

const Cutter kCompares{
    kCompare,
    {"--block-size", "8", "--budgets", "16,32", "--selectors", "top-p,h2o-streamed,window-tokens"},
    {"results.h5", "summary.json", "metrics.csv", "compare.txt"}};

std::string cutter_name(const testing::TestParamInfo<const Cutter*>& info) {
    return info.param == &kAnalyzes ? "Analyze" : "Compare";
}

/// A summary without its options and what is of chunks: the largest bound of one.
json comparable(const std::string& summary) {
    json all = json::parse(file_text(summary));
    all["run"].erase("options");
    if (all["tables"].contains("layers"))
        for (json& layer : all["tables"]["layers"]["rows"]) layer.erase("largest_mass_bound");
    return all;
}

/// The same of the tables in results.h5.
bool of_the_cut(const std::string& dataset) {
    return dataset == "/tables/layers/largest_mass_bound";
}

/// One layer, whose 1200 queries are cut into units.
class Cut : public Processes {
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
    /// Sums are of blocks of queries, and units are whole blocks: nothing differs.
    void expect_the_layer(const Cutter& of, const std::vector<std::string>& more) const {
        const Outcome left = of.program(args(of, "layer", more));
        ASSERT_EQ(left.code, 0) << left.err;
        const Outcome right = of.program(cut(of, "cut", more));
        ASSERT_EQ(right.code, 0) << right.err;
        EXPECT_TRUE(same_data(path("layer/results.h5"), path("cut/results.h5"), of_the_cut));
        EXPECT_EQ(comparable(path("layer/summary.json")), comparable(path("cut/summary.json")));
    }
};

class Units : public Cut, public testing::WithParamInterface<const Cutter*> {
protected:
    Units() {
        file_ = make("a.h5", {.cu_seqlens = {0, 1000, 1200},
                              .layers = {3},
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
    /// What so many processes give of a cut, compared with the folder `whole`.
    void expect_processes_to_give(int count, const std::string& whole) const {
        const std::string out = concat("together", count);
        run_together(GetParam()->program.name, cut(out), count);
        expect_same(out, whole, GetParam()->files);
    }
};

TEST_P(Units, AnyNumberOfProcessesGivesTheBytesOfOne) {
    const Outcome whole = run(cut("whole"));
    ASSERT_EQ(whole.code, 0) << whole.err;
    const json units = json::parse(file_text(path("whole/run.json")))["units"];
    ASSERT_EQ(units.size(), 9U);
    EXPECT_EQ(units[8]["unit"], "layer 3, queries 1128:1200");
    EXPECT_EQ(io::ResultsReader(path("whole/results.h5")).done(),
              (std::vector<std::string>{"layer 3"}));
    for (int count : {1, 2, 5}) expect_processes_to_give(count, "whole");
}

TEST_P(Units, OfSeveralLayersStayApart) {
    file_ = make("two.h5", {.cu_seqlens = {0, 500}, .layers = {2, 10}, .rotary_dim = 8});
    ASSERT_EQ(run(cut("whole")).code, 0);
    EXPECT_EQ(io::ResultsReader(path("whole/results.h5")).done(),
              (std::vector<std::string>{"layer 2", "layer 10"}));
    expect_processes_to_give(3, "whole");
}

TEST_P(Units, AreTheLayerToTheBit) {
    expect_the_layer(*GetParam(), {});
    const io::ResultsReader a(path("layer/results.h5")), b(path("cut/results.h5"));
    for (const char* name : {"window", "tokens", "softmax_scale"})
        EXPECT_EQ(a.number("/layers/3", name), b.number("/layers/3", name)) << name;
    if (a.has("/layers/3", "mass_bound")) {
        EXPECT_EQ(a.number("/layers/3", "mass_bound"), b.number("/layers/3", "mass_bound"));
    }
    EXPECT_EQ(file_text(path("layer/metrics.csv")), file_text(path("cut/metrics.csv")));
    for (const std::string queries : {"300", "5000"}) {
        ASSERT_EQ(run(args(queries, {"--unit-queries", queries})).code, 0);
        EXPECT_TRUE(same_data(path("layer/results.h5"), path(queries + "/results.h5"), of_the_cut));
    }
}

/// A unit holds whole blocks: as few as have the queries asked for.
TEST_P(Units, EndWhereABlockDoes) {
    ASSERT_EQ(run(args("out", {"--unit-queries", "300"})).code, 0);
    const json units = json::parse(file_text(path("out/run.json")))["units"];
    std::vector<std::string> names;
    for (const json& unit : units) names.push_back(unit["unit"]);
    EXPECT_EQ(names, (std::vector<std::string>{"layer 3, queries 0:384", "layer 3, queries 384:768",
                                               "layer 3, queries 768:1128",
                                               "layer 3, queries 1128:1200"}));
}

TEST_P(Units, OfAnotherCutAreRefusedAndMissingOnesDone) {
    const auto args_of = [&](const std::string& out) {
        return cut(out, {"--backend", "reference"});
    };
    ASSERT_EQ(run(args_of("whole")).code, 0);
    {
        Process process(GetParam()->program.name, args_of("out"));
        wait_until([&] { return units("out") >= 2 || process.has_ended(); });
    }
    const Outcome other = run(args("out", {"--backend", "reference", "--unit-queries", "129"}));
    EXPECT_EQ(other.code, 2);
    EXPECT_NE(other.err.find("is of another run, options."), std::string::npos) << other.err;
    // What is missing is done, and nothing twice.
    const Outcome rest = run(args_of("out"));
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_NE(rest.err.find("layer 3, queries 0:128: done before\n"
                            "layer 3, queries 128:256: done before\n"),
              std::string::npos)
        << rest.err;
    EXPECT_EQ(rest.err.find("queries 1128:1200: done before"), std::string::npos) << rest.err;
    expect_same("out", "whole", GetParam()->files);
}

TEST_P(Units, AKilledWorkerGoesOnWithItsUnit) {
    using std::chrono::microseconds;
    const auto args = [&](const std::string& out) { return cut(out, {"--backend", "reference"}); };
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
    CompareUnits() {
        file_ = make("a.h5", {.cu_seqlens = {0, 290, 450}, .layers = {2, 3}, .rotary_dim = 8});
    }
    /// Of layer 3, with these options beside those of every run.
    void expect_choices_of_the_layer(std::vector<std::string> more) const {
        SCOPED_TRACE(experiments::join(more));
        more.insert(more.end(), {"--layers", "3", "--overwrite"});
        Cutter of = kCompares;
        of.options = {"--block-size", "8", "--budgets", "16,32"};
        expect_the_layer(of, more);
    }
};

TEST_F(CompareUnits, ChooseAsTheLayerDoes) {
    expect_choices_of_the_layer({});  // every policy, as it is next
    expect_choices_of_the_layer({"--phase", "decode", "--prompt", "140"});
    expect_choices_of_the_layer({"--share", "head", "--selectors", "oracle,h2o-oracle,dsa-tokens"});
    expect_choices_of_the_layer({"--share", "layer", "--selectors", "snapkv,h2o-oracle"});
    expect_choices_of_the_layer({"--ablation", "forced", "--selectors", "top-p,h2o-streamed"});
    expect_choices_of_the_layer({"--sample-queries", "210", "--selectors", "h2o-oracle,twilight"});
}

TEST_F(CompareUnits, TimesAddUp) {
    ASSERT_EQ(kCompare(cut(kCompares, "out")).code, 0);
    const json timing = json::parse(file_text(path("out/timing.json")))["layers"];
    const json units = json::parse(file_text(path("out/run.json")))["units"];
    ASSERT_EQ(timing.size(), 2U);
    ASSERT_EQ(units.size(), 2 * 4U);
    for (const json& layer : timing) {
        double select = 0, all = 0;
        for (const json& unit : units) {
            if (!unit["unit"].get<std::string>().starts_with(concat("layer ", layer["layer"], ",")))
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
    const std::string file = make("huge.h5", {.cu_seqlens = {0, 290}, .layers = {0}});
    poke(file, "/layers/0/q", {100, 0, 0}, 1e30F, {1, 4, 1});
    poke(file, "/layers/0/q", {270, 0, 0}, 1e30F, {1, 4, 1});
    poke(file, "/layers/0/k", {95, 0, 0}, 1e30F, {1, 2, 1});
    file_ = file;
    const Outcome outcome = kCompare(cut(kCompares, "out"));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    for (const char* says : {"layer 0, queries 0:128: attention is undefined, NaN or an overflow "
                             "in its logits, in 2 rows; the first is token 100, group 0",
                             "layer 0, queries 256:290: attention is undefined, NaN or an overflow "
                             "in its logits, in 2 rows; the first is token 270, group 0"})
        EXPECT_NE(outcome.err.find(says), std::string::npos) << outcome.err;
    const json summary = json::parse(file_text(path("out/summary.json")));
    EXPECT_EQ(rows_of_table(summary, "layers")[0]["rows_undefined"], 4);
    for (const json& row : selector_rows(summary)) EXPECT_TRUE(row["mass_kept"].is_null()) << row;
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
    const io::ActivationsReader reader(file);
    const auto backend = make_backend("cpu", {.threads = 1});
    const auto queries = compare::compared_queries(o, reader, reader.layer(3), {"random"});
    const auto ids = [&](const std::string& name, const std::vector<int64_t>& cuts) {
        io::RunRecord record;
        for (size_t n = 0; n + 1 < cuts.size(); ++n) record.units.push_back(concat("part ", n));
        record.joined["layer 3"] = record.units;
        io::ResultsWriter writer(path(name), record, io::IfExists::refuse);
        for (size_t n = 0; n + 1 < cuts.size(); ++n) {
            io::UnitWriter unit = writer.begin(record.units[n]);
            std::ostringstream err;
            compare::compare_part(o, reader, {reader.layer(3), {cuts[n], cuts[n + 1]}, false},
                                  nullptr, {"random"}, queries, {*backend, err, err, 1}, unit);
            unit.finish();
        }
        writer.finish(compare::join_layer);
        return path(name);
    };
    const std::string whole = ids("whole.h5", {0, 1030});
    const std::string cut = ids("cut.h5", {0, 128, 640, 1024, 1030});
    EXPECT_TRUE(same_data(whole, cut));
    const auto rows = io::ResultsReader(cut).read<int64_t, 1>("/queries/3/token");
    EXPECT_EQ(std::vector<int64_t>(rows.data(), rows.data() + rows.size()), sample);
}

#ifdef MSA_MPIRUN
class MpiUnits : public Mpi, public testing::WithParamInterface<const Cutter*> {};

TEST_P(MpiUnits, RanksShareALayer) {
    file_ = make("a.h5", {.cu_seqlens = {0, 1000, 1200}, .layers = {3}});
    const Program& program = GetParam()->program;
    const auto args = [&](const std::string& out) {
        const std::vector<std::string> more{"--unit-queries", "128"};
        return program.name == kAnalyze.name ? analyze(out, more) : compare(out, more);
    };
    const Outcome whole = program(args("whole"));
    for (int ranks : {2, 7}) {
        ASSERT_EQ(start(ranks, args(concat(ranks)), {}, program.name), 0) << said();
        expect_same(concat(ranks), "whole", GetParam()->files);
        EXPECT_EQ(file_text(path("out.txt")), whole.out);
    }
}

INSTANTIATE_TEST_SUITE_P(Of, MpiUnits, testing::Values(&kAnalyzes, &kCompares), cutter_name);
#endif

INSTANTIATE_TEST_SUITE_P(Of, Units, testing::Values(&kAnalyzes, &kCompares), cutter_name);

}  // namespace
}  // namespace msa::test
