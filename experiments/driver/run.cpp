// SPDX-License-Identifier: MIT
#include "experiments/driver/run.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <sstream>

#include "core/io/file_error.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/program.h"
#include "experiments/driver/queue.h"
#include "experiments/driver/run_record.h"

namespace msa::experiments {
namespace {

namespace fs = std::filesystem;

/// The threads of loops that take their number from the thread that runs them, for a worker's life.
class ThreadShare {
public:
    explicit ThreadShare(int threads) : before_(omp_get_max_threads()) {
        if (threads > 0) omp_set_num_threads(threads);
    }
    ~ThreadShare() { omp_set_num_threads(before_); }
    ThreadShare(const ThreadShare&) = delete;
    ThreadShare& operator=(const ThreadShare&) = delete;

private:
    int before_;
};

}  // namespace

bool lies_in(const fs::path& file, const fs::path& folder) {
    const fs::path inner = fs::weakly_canonical(file), outer = fs::weakly_canonical(folder);
    return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first ==
           outer.end();
}

void require_apart(const fs::path& input, const fs::path& output) {
    std::error_code ignored;
    const bool same = fs::equivalent(input, output, ignored);
    require(!same && !lies_in(input, output), input.string(),
            ": is an input of this run, which would replace it as ", output.string(),
            "; choose another --out");
}

void check_unfinished(const RunOptions& o, const fs::path& what, bool unfinished) {
    if (unfinished && !o.resume && !o.overwrite)
        throw io::FileError(what.string() + ": holds an unfinished run",
                            io::FileProblem::unfinished_run);
}

void check_shard(const RunOptions& o, const Ranks& ranks) {
    require(!o.shard || ranks.size() == 1,
            "--shard is given, and so are several ranks: one of the two spreads a run");
}

nlohmann::ordered_json json_number(double value) {
    return std::isnan(value) ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
}

std::vector<Unit> layer_units(
    const io::ActivationsReader& file, std::span<const int64_t> layers,
    const std::function<void(const io::LayerInfo&, const Worker&, io::UnitWriter&)>& work) {
    std::vector<Unit> units;
    for (int64_t number : layers)
        units.push_back({concat("layer ", number), [&layer = file.layer(number), work](
                                                       const Worker& worker, io::UnitWriter& to) {
                             work(layer, worker, to);
                         }});
    return units;
}

std::string LayerPart::name() const {
    const std::string whole = concat("layer ", layer.layer);
    return is_whole ? whole : concat(whole, ", queries ", queries.begin, ":", queries.end);
}

std::vector<Unit> query_units(
    const io::ActivationsReader& file, std::span<const int64_t> layers, int64_t unit_queries,
    const std::function<std::vector<int64_t>(const io::LayerInfo&)>& begins,
    const std::function<void(const LayerPart&, const Worker&, io::UnitWriter&)>& work) {
    std::vector<Unit> units;
    for (int64_t number : layers) {
        const io::LayerInfo& layer = file.layer(number);
        const std::string whole = concat("layer ", number);
        std::vector<QueryRange> pieces{{0, 0}};
        for (int64_t end : begins(layer)) {
            const int64_t queries = pieces.back().end - pieces.back().begin;
            if (unit_queries > 0 && queries >= unit_queries && end > pieces.back().end)
                pieces.push_back({pieces.back().end, end});
            pieces.back().end = end;
        }
        for (const QueryRange piece : pieces) {
            const LayerPart part{layer, piece, unit_queries == 0};
            units.push_back({part.name(), [part, work](const Worker& worker, io::UnitWriter& to) {
                                 work(part, worker, to);
                             }});
            if (!part.is_whole) units.back().whole = whole;
        }
    }
    return units;
}

UnitRun::UnitRun(const std::string& program, std::span<const std::string> args, const RunOptions& o,
                 std::vector<fs::path> inputs, std::vector<std::string> names, std::ostream& err,
                 const Ranks& ranks)
    : o_(o), program_(program), inputs_(std::move(inputs)), err_(err), ranks_(ranks) {
    check_folder("out", o_.out);
    names.insert(names.end(), {"results.h5", "run.json"});
    for (const fs::path& input : inputs_)
        for (const std::string& name : names)
            for (const char* suffix : {"", ".partial"}) require_apart(input, path(name + suffix));
    record = start_record(program, args, {});
    record.seed = o.seed;
    hashes_ = std::async(std::launch::async, hash_inputs, inputs_).share();
}

const io::RunRecord& UnitRun::record_with_inputs() {
    record.inputs = hashes_.get();
    return record;
}

/// One process, and nothing that another run has left: nobody compares the record with another.
bool UnitRun::starts_afresh() const {
    return ranks_.size() == 1 && !fs::exists(path("results.h5")) &&
           !fs::exists(path("results.h5.partial"));
}

/// A unit that is finished can be resumed, so the record must be whole before: until the hashes are
/// there, the units that are computed wait.
void UnitRun::finish_computed(bool wait, WorkQueue& queue) const {
    constexpr size_t kMostOpen = 64;  // files
    std::unique_lock lock(recording_);
    wait = wait || computed_.size() >= kMostOpen;
    if (inputs_later_) {
        if (!wait && hashes_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
        to_->record_inputs(hashes_.get());
        inputs_later_ = false;
    }
    while (!computed_.empty()) {
        auto [unit, results] = std::move(computed_.back());
        computed_.pop_back();
        lock.unlock();
        try {
            results.finish();
            unit->done();
        } catch (const std::exception& error) {  // of this unit, not of those behind it
            queue.fail(message_of(error));
        }
        lock.lock();
    }
}

void UnitRun::describe(const OptionTable& options, const std::string& definitions,
                       const std::string& device) {
    record.options = options.record();
    record.definitions = definitions;
    record.device = device;
}

void UnitRun::describe(const OptionTable& options, const std::string& definitions,
                       const Backend& backend, const io::ActivationsReader& file,
                       const ElementChoice& elements) {
    describe(options, definitions, backend.device());
    record_elements(backend, file, o_.layers, elements, record);
    record_captures(file, record);
}

void UnitRun::begin(std::vector<Unit> units) {
    std::error_code none;
    for (const fs::directory_entry& entry : fs::directory_iterator(o_.out, none)) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with("checkpoint") && name.ends_with(".h5"))
            io::require_program(entry.path(), program_);
    }
    units_ = std::move(units);
    std::set<std::string> names(record.units.begin(), record.units.end());
    for (const Unit& unit : units_) {
        MSA_CHECK(names.insert(unit.name).second);
        record.units.push_back(unit.name);
        if (!unit.whole.empty()) record.joined[unit.whole].push_back(unit.name);
    }
    for (const fs::path& input : inputs_)
        record.input_paths.push_back(fs::absolute(input).lexically_normal().string());
    check_shard(o_, ranks_);
    if (o_.shard) record.shard = o_.shard->text();
    inputs_later_ = starts_afresh() && record.inputs.empty();
    if (!inputs_later_) record_with_inputs();
    const auto open = [&](io::IfExists if_exists) {
        std::exception_ptr error;
        try {
            fs::create_directories(o_.out);
            to_ = std::make_unique<io::ResultsWriter>(path("results.h5"), record, if_exists);
        } catch (...) {
            error = std::current_exception();
        }
        return error;
    };
    const io::IfExists rule = o_.overwrite ? io::IfExists::overwrite
                              : o_.resume  ? io::IfExists::resume
                                           : io::IfExists::refuse;
    std::exception_ptr error;
    if (ranks_.is_first()) error = open(rule);
    if (error && inputs_later_) {  // a run that has just ended left its record: compare all of it
        inputs_later_ = false;
        record_with_inputs();
        error = open(rule);
    }
    ranks_.barrier(error);
    if (!ranks_.is_first()) error = open(io::IfExists::join);
    ranks_.barrier(error);
}

bool UnitRun::is_done() const {
    return std::all_of(units_.begin(), units_.end(),
                       [&](const Unit& unit) { return to_->done(unit.name); });
}

std::vector<const Unit*> UnitRun::waiting() const {
    const Shard part = o_.shard.value_or(Shard{});
    std::vector<const Unit*> units;
    for (size_t n = 0; n < units_.size(); ++n) {
        const Unit& unit = units_[n];
        if (static_cast<int64_t>(n) % part.count != part.index) continue;
        if (!to_->done(unit.name)) {
            units.push_back(&unit);
        } else {
            err_ << unit.name << ": done before\n";
            if (ranks_.is_first()) unit.done();
        }
    }
    ranks_.barrier();  // all have the same list: nothing in it has been done since by another rank
    std::vector<const Unit*> mine;
    for (size_t n = static_cast<size_t>(ranks_.rank()); n < units.size();
         n += static_cast<size_t>(ranks_.size()))
        mine.push_back(units[n]);
    return mine;
}

void UnitRun::do_unit(const Unit& unit, const Worker& worker, WorkQueue& queue) const {
    io::UnitWriter to = to_->begin(unit.name);
    to.note("host", record.host);
    to.note("device", worker.backend.device());
    to.note("started", utc_now());
    unit.work(worker, to);
    to.note("finished", utc_now());
    {
        const std::lock_guard lock(recording_);
        computed_.emplace_back(&unit, std::move(to));
    }
    finish_computed(false, queue);
}

void UnitRun::work_with(Backend& backend, int threads, const std::vector<const Unit*>& units,
                        bool counted, WorkQueue& queue) const {
    const ThreadShare share(threads);
    Silence silent;
    for (int64_t number = queue.take(); number >= 0; number = queue.take()) {
        std::ostringstream said;  // several workers do not write into each other's lines
        try {
            const Worker worker{backend, counted ? said : err_, counted ? silent : err_, threads};
            do_unit(*units[static_cast<size_t>(number)], worker, queue);
        } catch (const std::exception& error) {
            queue.fail(message_of(error));
        }
        queue.count_done(said.str());
    }
}

bool UnitRun::end_shard(int64_t done) const {
    if (to_->complete()) return true;
    to_->keep_units();
    err_ << "shard " << o_.shard->text() << ": its " << done << " of the run's " << units_.size()
         << " units are in " << o_.out.string() << "; msa-merge joins it with the others\n";
    return false;
}

bool UnitRun::work(const ComputeOptions& compute, Backend& first, OnError on_error) {
    const std::vector<const Unit*> units = waiting();
    const std::vector<BackendOptions> shares = shares_of(
        compute, std::clamp<int64_t>(std::ssize(units), 1, o_.jobs * compute.count_devices()),
        ranks_);
    const bool alone = shares.size() == 1 && ranks_.size() == 1;
    WorkQueue queue(ranks_, std::ssize(units), on_error, err_);
    const bool counted = !alone || !record.joined.empty();
    if (counted && ranks_.is_first()) queue.show_bar(std::ssize(units), "units");
    if (alone)
        work_with(first, shares.front().threads, units, counted, queue);
    else
        queue.spread(shares, [&](const BackendOptions& own) {
            work_with(*make_backend(compute.backend, own), own.threads, units, counted, queue);
        });
    try {
        finish_computed(true, queue);
    } catch (const std::exception& error) {
        queue.fail(message_of(error));
    }
    queue.end(program_);
    if (o_.shard) return end_shard(std::ssize(units));
    return ranks_.is_first();
}

int UnitRun::run(std::vector<Unit> units, const ComputeOptions& compute, Backend& backend,
                 std::string (*complete)(const Completed&), std::ostream& out,
                 const io::ResultsWriter::JoinParts& join) {
    begin(std::move(units));
    if (!work(compute, backend, OnError::stop)) return 0;
    const std::string nearest = complete({finish(join), o_.out, o_.files, o_.json, 0, out});
    if (nearest.empty()) return 0;
    err_ << program_ << ": " << nearest << '\n';
    return kRefused;
}

io::ResultsReader UnitRun::finish(const io::ResultsWriter::JoinParts& join) {
    if (!to_->complete()) to_->count_finished();
    for (const Unit& unit : units_)
        if (!to_->done(unit.name))
            throw SystemError(concat(path("results.h5").string(), ": ", unit.name,
                                     " was done by a rank that writes elsewhere: --out must lie in "
                                     "a file system that all hosts share"));
    return finish_run(*to_, o_.out, record, join);
}

io::ResultsReader finish_run(io::ResultsWriter& to, const fs::path& out,
                             const io::RunRecord& record,
                             const io::ResultsWriter::JoinParts& join) {
    using nlohmann::ordered_json;
    if (!to.complete()) {
        ordered_json units = ordered_json::array();
        for (const io::ResultsWriter::Notes& notes : to.notes()) {
            units.push_back({{"unit", notes.unit}});
            for (const auto& [name, value] : notes.texts) {
                const ordered_json parsed = ordered_json::parse(value, nullptr, false);
                units.back()[name] = parsed.is_object() ? parsed : ordered_json(value);
            }
        }
        const ordered_json about{{"format", "msa-run"},       {"format_version", 1},
                                 {"program", record.program}, {"argv", record.argv},
                                 {"host", record.host},       {"started", record.started},
                                 {"finished", utc_now()},     {"units", units}};
        write_text(out / "run.json",
                   about.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
    }
    fs::remove(out / "summary.json");
    to.finish(join);
    return io::ResultsReader(out / "results.h5");
}

}  // namespace msa::experiments
