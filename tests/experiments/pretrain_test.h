// SPDX-License-Identifier: MIT
// msa-pretrain on a model and a text of a few kilobytes.
#pragma once

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/io/results.h"
#include "core/random.h"
#include "tests/experiments/report_of.h"

namespace msa::test {

using Words = std::vector<std::string>;

class Pretrain : public CliTest {
protected:
    /// Documents of words that a small model can learn, each of `bytes`.
    std::string text_file(const std::string& name, int64_t documents = 40,
                          int64_t bytes = 300) const {
        const Words words{"the ", "key ", "of a ", "block ", "is ", "near\n", "query "};
        std::ofstream file(path(name));
        for (int64_t d = 0; d < documents; ++d) {
            std::string document;
            for (int64_t w = 0; std::ssize(document) < bytes; ++w)
                document += words[mix(5, d, w) % words.size()];
            file << document.substr(0, static_cast<size_t>(bytes)) << '\0';
        }
        return path(name);
    }
    /// A short run, with `more` in the place of what is usual here.
    Words args(const std::string& out, const Words& more = {}) const {
        Words all{path("a.txt"), "--out", path(out)};
        const Words usual{
            "--model-layers",   "2",   "--model-dim",      "16", "--hidden-dim",     "16",
            "--query-heads",    "2",   "--kv-heads",       "1",  "--context",        "64",
            "--block-size",     "8",   "--top-k",          "3",  "--sequences",      "2",
            "--steps",          "12",  "--lr-warmup",      "2",  "--warmup-steps",   "4",
            "--log-every",      "2",   "--probe-every",    "4",  "--eval-every",     "5",
            "--save-every",     "3",   "--eval-sequences", "2",  "--eval-exercises", "2",
            "--held-out-share", "0.3", "--pairs",          "2",  "--questions",      "2",
            "--threads",        "1"};
        for (size_t n = 0; n < usual.size(); n += 2)
            if (std::find(more.begin(), more.end(), usual[n]) == more.end())
                all.insert(all.end(), {usual[n], usual[n + 1]});
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    Outcome run(const std::string& out, const Words& more = {}) const {
        return kPretrain(args(out, more));
    }
    nlohmann::json summary(const std::string& out) const {
        return nlohmann::json::parse(file_text(path(out + "/summary.json")));
    }
    /// What a run's last evaluation found.
    nlohmann::json evaluation(const std::string& out) const {
        const nlohmann::json tables = summary(out)["tables"];
        return {row_of(summary(out), "trained")["bits_per_byte"], tables["positions"],
                tables["files"], tables["retrieval"]};
    }
    std::vector<double> curve(const std::string& out, const std::string& name) const {
        const Tensor<double, 1> values =
            io::ResultsReader(path(out + "/results.h5")).read<double, 1>(name);
        return {values.data(), values.data() + values.size()};
    }
    /// The trained weights of two runs, bit by bit.
    testing::AssertionResult same_weights(const std::string& a, const std::string& b) const {
        return same_data(path(a + "/checkpoint.h5"), path(b + "/checkpoint.h5"));
    }
    std::string refusal(const Words& more) const {
        const Outcome outcome = run("refused", more);
        EXPECT_EQ(outcome.code, 2) << outcome.err;
        return outcome.err;
    }
    /// Interrupts a run into `out` once it has done a step; its exit code. A busy machine may need
    /// seconds until the program listens.
    int stop_at_work(const Words& more) const {
        Words words = args("out", more);
        words.emplace_back("--overwrite");
        for (auto delay = std::chrono::milliseconds(300); delay < std::chrono::minutes(2);
             delay *= 2) {
            const int code = run_for("msa-pretrain", words, delay, SIGINT);
            // What did not listen yet leaves an earlier run's checkpoint there.
            if (code < 0 || !std::filesystem::exists(path("out/checkpoint.h5"))) continue;
            const io::ResultsReader kept(path("out/checkpoint.h5"));
            if (kept.number("/state", "step") > 0) return code;
        }
        return -1;
    }
};

}  // namespace msa::test
