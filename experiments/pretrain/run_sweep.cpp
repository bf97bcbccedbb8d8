// SPDX-License-Identifier: MIT
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <sstream>

#include "core/error.h"
#include "core/io/partial_file.h"
#include "core/io/results.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/program.h"
#include "experiments/driver/queue.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/table.h"
#include "experiments/pretrain/sweep.h"
#include "experiments/pretrain/training.h"
#include "experiments/programs.h"

namespace msa::experiments::pretrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// Of a run's answer, what sweep.json repeats.
constexpr const char* kNumbers[] = {"last_step", "parameters", "loss", "bits_per_byte"};
constexpr const char* kTables[] = {"tasks", "layers"};
constexpr const char* kDiverged = "diverged.json";

/// What a run has left: it diverged, or its summary. Nothing where it is not done.
std::optional<ordered_json> left_by(const SweepRun& run) {
    for (const char* name : {kDiverged, "summary.json"}) {
        std::ifstream stream(run.folder / name);
        if (!stream.good()) continue;
        ordered_json json = ordered_json::parse(stream, nullptr, false);
        require(!json.is_discarded(), (run.folder / name).string(), ": is no JSON");
        return json;
    }
    return std::nullopt;
}

/// A run that one process is at, from its first file to its last.
class Claim {
public:
    explicit Claim(const fs::path& folder)
        : lock_((fs::create_directories(folder), folder / "sweep.lock"), folder) {}
    ~Claim() { lock_.remove(); }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

private:
    io::LockedFile lock_;
};

void do_run(const SweepRun& run, std::span<const std::string> words, const Train& train,
            const Ranks& ranks, std::ostream& said, std::ostream& progress) {
    std::optional<Claim> claim;
    if (ranks.is_first()) claim.emplace(run.folder);
    const fs::path diverged = run.folder / kDiverged;
    if (ranks.broadcast_value(fs::exists(diverged))) return;
    try {
        train(words, ranks, progress);
    } catch (const Diverged& error) {
        said << run.name() << ": " << error.what() << '\n';
        write_text(diverged, ordered_json{{"diverged_after", error.step()}}.dump() + "\n");
    }
}

using Chains = std::vector<std::vector<size_t>>;

/// One worker's chains. `alone`: where it writes as it goes; null where others work beside it.
void work_on(const std::vector<SweepRun>& runs, const Chains& chains, const BackendOptions& own,
             const Train& train, WorkQueue& queue, std::ostream* alone) {
    Silence silent;
    for (int64_t number = queue.take(); number >= 0; number = queue.take()) {
        bool failed = false;
        for (size_t n : chains[static_cast<size_t>(number)]) {
            std::ostringstream said;
            if (alone != nullptr) *alone << runs[n].name() << '\n';
            try {
                do_run(runs[n], runs[n].words_on(own), train, Ranks::alone(), said,
                       alone != nullptr ? *alone : silent);
            } catch (const std::exception& error) {
                queue.fail(message_of(error));
                failed = true;
                said << runs[n].name() << ": not finished\n";
            }
            queue.count_done(said.str());
            if (failed) break;
        }
    }
}

/// Every worker has a chain of its own.
void spread(const std::vector<SweepRun>& runs, const Chains& chains, const PretrainOptions& o,
            const Train& train, std::ostream& err) {
    const Ranks& ranks = Ranks::world();
    const std::vector<BackendOptions> shares =
        shares_of(o, std::clamp<int64_t>(std::ssize(chains), 1, o.count_devices()));
    WorkQueue queue(ranks, std::ssize(chains), OnError::stop, err);
    if (shares.size() == 1 && ranks.size() == 1) {
        work_on(runs, chains, shares.front(), train, queue, &err);
    } else {
        int64_t total = 0;
        for (const std::vector<size_t>& chain : chains) total += std::ssize(chain);
        if (ranks.is_first()) queue.show_bar(total, "runs");
        queue.spread(shares, [&](const BackendOptions& own) {
            work_on(runs, chains, own, train, queue, nullptr);
        });
    }
    queue.end(kProgram.name);
}

/// Those of this process's part; all, where the ranks train each model together.
Chains part_of(const Chains& chains, const PretrainOptions& o, const Ranks& ranks) {
    const Shard part = o.shard.value_or(o.together ? Shard{} : Shard{ranks.rank(), ranks.size()});
    Chains mine;
    for (auto n = static_cast<size_t>(part.index); n < chains.size();
         n += static_cast<size_t>(part.count))
        mine.push_back(chains[n]);
    return mine;
}

int64_t count_missing(const std::vector<SweepRun>& runs) {
    return std::count_if(runs.begin(), runs.end(),
                         [](const SweepRun& run) { return !left_by(run).has_value(); });
}

/// Nobody has done it with other options, inputs or another program. `like`: a run before it.
void check_record(const SweepRun& run, PretrainOptions own, std::optional<io::RunRecord>& like) {
    const io::ResultsReader results(run.folder / "results.h5");
    io::RunRecord wanted = start_record(kProgram.name, {}, own.inputs());
    wanted.options = option_table(own).record();
    wanted.seed = run.seed;
    if (!like) like = results.run();
    wanted.element = like->element;
    wanted.index_element = like->index_element;
    wanted.computed_in = like->computed_in;
    io::require_same_run(run.folder.string(), results.run(), wanted);
}

/// Shards that end at the same time write the same bytes.
void write_results(const fs::path& path, const std::string& content) {
    try {
        write_text(path, content);
    } catch (const InputError&) {
        if (!fs::is_regular_file(path) && fs::exists(path)) throw;
    }
}

/// All runs are there.
void write_sweep(const std::vector<SweepRun>& runs, const fs::path& path, std::ostream& out) {
    ordered_json all = ordered_json::array();
    std::optional<io::RunRecord> like;
    for (const SweepRun& run : runs) {
        const ordered_json left = left_by(run).value();
        ordered_json entry{{"arm", run.arm}, {"seed", run.seed}};
        if (left.contains("diverged_after")) {
            entry.update(left);
            out << run.name() << ": diverged after " << left["diverged_after"].dump() << " steps\n";
        } else {
            check_record(run, run.options, like);
            const ordered_json& answer = left.at("tables");
            const ordered_json& trained = answer.at("trained").at("rows").at(0);
            for (const char* name : kNumbers) entry[name] = trained.at(name);
            for (const char* name : kTables) entry[name] = answer.at(name).at("rows");
            const ordered_json& bits = trained.at("bits_per_byte");
            out << run.name() << ": " << (bits.is_null() ? "no" : number_text(bits))
                << " bits per byte\n";
        }
        all.push_back(std::move(entry));
    }
    write_results(path, ordered_json{{"format", "msa-sweep"}, {"runs", all}}.dump(2) + "\n");
}

}  // namespace

void run_sweep(const PretrainOptions& o, std::span<const std::string> args, const Train& train,
               std::ostream& out, std::ostream& err) {
    const Ranks& ranks = Ranks::world();
    require(!o.shard || ranks.size() == 1,
            "--shard is given, and so are several ranks: one of the two spreads a run");
    const std::vector<SweepRun> runs = runs_of(read_sweep(o.sweep), o, args);
    const Chains mine = part_of(chains_of(runs), o, ranks);
    const fs::path path = o.out / "sweep.json";
    if (ranks.is_first() && count_missing(runs) > 0) fs::remove(path);
    if (o.together) {
        for (const std::vector<size_t>& chain : mine)
            for (size_t n : chain) {
                err << runs[n].name() << '\n';
                do_run(runs[n], runs[n].words, train, ranks, err, err);
            }
    } else {
        spread(runs, mine, o, train, err);
    }
    if (!ranks.is_first()) return;
    const int64_t missing = count_missing(runs);
    if (missing == 0) {
        write_sweep(runs, path, out);
        return;
    }
    if (!o.shard)
        throw SystemError(
            concat(o.out.string(), ": ", missing,
                   " runs were done by ranks that write elsewhere: --out must lie in a "
                   "file system that all hosts share"));
    err << "shard " << o.shard->text() << ": its runs are done, " << missing << " of the sweep's "
        << runs.size() << " are still missing in " << o.out.string()
        << "; who ends last writes sweep.json\n";
}

}  // namespace msa::experiments::pretrain
