// SPDX-License-Identifier: MIT
#include <algorithm>
#include <iostream>
#include <set>

#include "core/io/results.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/option_table.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/programs.h"

namespace msa::experiments::merge {
namespace {

namespace fs = std::filesystem;

const About kAbout{
    .program = kProgram,
    .usage = "DIR... --out DIR [options]",
    .examples = {"msa-merge results/shard-0 results/shard-1 --out results/merged"},
    .writes =
        "what the run itself writes without --shard, byte by byte: DIR/results.h5, "
        "DIR/summary.json\n"
        "and the program's other files; also DIR/run.json, which says who did which unit. Shards "
        "of\n"
        "msalab evaluate are merged by `msalab merge`.",
};

struct MergeOptions {
    std::vector<fs::path> shards;
    fs::path out;
    bool overwrite = false, json = false;
};

OptionTable option_table(MergeOptions& o) {
    OptionTable table(kAbout);
    table.paths("shard", "DIR", o.shards, "the --out of each run with --shard (positional)")
        .without_flag()
        .required("no shards: name their directories; --help shows how");
    table.path("out", "DIR", o.out, "directory for the results")
        .required("no output: name a directory with --out");
    table.flag("overwrite", o.overwrite, "replace existing results");
    table.flag("json", o.json, "print summary.json instead of the table");
    return table;
}

const Merge& merge_of(std::string_view shard, std::string_view name) {
    for (const Program& program : programs())
        if (program.name == name && program.merge.complete != nullptr) return program.merge;
    throw InputError(concat(shard, ": is of ", name, ", whose runs have no shards"));
}

std::vector<io::UnitFolder> open_shards(const MergeOptions& o) {
    std::vector<io::UnitFolder> shards;
    std::set<fs::path> known;
    for (const fs::path& folder : o.shards) {
        require(fs::is_directory(folder), folder.string(), ": is no directory");
        require(!fs::exists(folder / "results.h5"), folder.string(),
                ": holds the results.h5 of a whole run, it is no shard");
        require(!fs::exists(folder / "results.h5.partial/plan.json"), folder.string(),
                ": is a shard of msalab evaluate, which `msalab merge` joins with the others");
        require(known.insert(fs::canonical(folder)).second, folder.string(), ": is named twice");
        require(fs::weakly_canonical(o.out) != fs::canonical(folder), folder.string(),
                ": is a shard; choose another --out");
        shards.push_back(io::open_units(folder / "results.h5"));
        io::require_same_shards(concat(folder.string(), " (against ", o.shards[0].string(), ")"),
                                shards.front().record, shards.back().record);
    }
    return shards;
}

/// Throws InputError naming each unit that is in no shard, or the first that is in two.
void check_units(const std::vector<io::UnitFolder>& shards) {
    std::map<std::string, const io::UnitFolder*> found;
    for (const io::UnitFolder& shard : shards)
        for (const auto& [unit, file] : shard.units) {
            const auto [at, is_new] = found.insert({unit, &shard});
            require(is_new, at->second->path.parent_path().string(), " and ",
                    shard.path.parent_path().string(), ": both hold ", unit);
        }
    const io::RunRecord& run = shards.front().record;
    const std::string of_first = run.shard.substr(run.shard.find('/') + 1);
    std::string missing;
    for (size_t n = 0; n < run.units.size(); ++n) {
        if (found.contains(run.units[n])) continue;
        const size_t count = run.shard.empty() ? 1 : std::stoull(of_first);
        missing += concat(missing.empty() ? "" : ", ", run.units[n], " (of --shard ", n % count,
                          "/", count, ")");
    }
    require(missing.empty(), shards.front().path.parent_path().string(),
            " and the others: ", "not finished in any of them: ", missing);
}

/// Throws InputError unless the inputs are where the run found them, as they were.
std::vector<fs::path> find_inputs(const io::RunRecord& run) {
    std::vector<fs::path> inputs(run.input_paths.begin(), run.input_paths.end());
    for (const fs::path& input : inputs)
        require(fs::exists(input), input.string(), ": is not there; ", run.program,
                " reads its inputs once more to complete a run");
    const auto now = hash_inputs(inputs);
    for (const auto& [name, digest] : run.inputs)
        require(now.contains(name) && now.at(name) == digest, name,
                ": has changed since the shards read it, its SHA-256 was ", digest);
    return inputs;
}

void warn_of_devices(const std::vector<io::ResultsWriter::Notes>& units, std::ostream& err) {
    std::set<std::string> devices;
    std::string all;
    for (const auto& [unit, notes] : units)
        if (const auto device = notes.find("device"); device != notes.end())
            if (devices.insert(device->second).second)
                all += (all.empty() ? "" : "; ") + device->second;
    if (devices.size() > 1)
        err << "note: the shards ran on several devices: " << all
            << ". Where these are of one kind, so are the last bits of their numbers\n";
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    MergeOptions o;
    if (!option_table(o).parse(args, out)) return 0;
    check_folder("out", o.out);
    const std::vector<io::UnitFolder> shards = open_shards(o);
    io::RunRecord record = shards.front().record;
    const Merge& merge = merge_of(o.shards.front().string(), record.program);
    check_units(shards);
    const std::vector<fs::path> inputs =
        merge.inputs == Inputs::read_again ? find_inputs(record) : std::vector<fs::path>();

    fs::create_directories(o.out);
    record.shard.clear();
    io::ResultsWriter to(o.out / "results.h5", record,
                         o.overwrite ? io::IfExists::overwrite : io::IfExists::refuse);
    for (const io::UnitFolder& shard : shards)
        for (const auto& [unit, file] : shard.units) to.add(file);
    warn_of_devices(to.notes(), err);
    io::RunRecord about = start_record(record.program, args, {});
    about.argv.insert(about.argv.begin(), kProgram.name);
    merge.complete({finish_run(to, o.out, about, merge.join), o.out, inputs, o.json, 0, out});
    return 0;
}

}  // namespace msa::experiments::merge
