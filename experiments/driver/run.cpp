// SPDX-License-Identifier: MIT
#include "experiments/driver/run.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <sstream>
#include <thread>

#include "core/io/file_error.h"
#include "experiments/driver/launch.h"
#include "experiments/driver/patience.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/driver/run_record.h"
#include "experiments/report/text.h"

namespace msa::experiments {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAssembling = "results";  // claimed as a unit is

/// The threads of loops that take their number from the thread that runs them.
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

int threads_of(const ComputeOptions& o) {
    return o.backend_options.threads > 0 ? o.backend_options.threads : launched_threads();
}

}  // namespace

std::unique_ptr<Backend> make_own_backend(const ComputeOptions& o) {
    BackendOptions own = o.backend_options;
    own.threads = threads_of(o);
    return make_backend(o.backend, own);
}

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

UnitRun::UnitRun(const std::string& program, std::span<const std::string> args, const RunOptions& o,
                 std::vector<fs::path> inputs, std::vector<std::string> names, std::ostream& err)
    : o_(o), program_(program), inputs_(std::move(inputs)), err_(err) {
    check_folder("out", o_.out);
    names.insert(names.end(), {"results.h5", "run.json"});
    for (const std::string& name : names)
        if (name.ends_with(".txt")) page_ = name;
    for (const fs::path& input : inputs_)
        for (const std::string& name : names)
            for (const char* suffix : {"", ".partial"}) require_apart(input, path(name + suffix));
    record = start_record(program, args, {});
    record.seed = o.seed;
}

void UnitRun::begin_hashes(bool publish) {
    hashes_ = std::async(std::launch::async, hash_inputs, inputs_,
                         SharedHashes{path("results.h5.partial"), publish})
                  .share();
}

const io::RunRecord& UnitRun::record_with_inputs() {
    if (!hashes_.valid()) begin_hashes(false);
    record.inputs = hashes_.get();
    return record;
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

void UnitRun::begin(std::vector<Unit> units, Others others) {
    others_ = others;
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
    inputs_later_ = others == Others::join && record.inputs.empty() &&
                    !fs::exists(path("results.h5")) && !has_units();
    if (!inputs_later_) record_with_inputs();
    const bool joins = others == Others::join;
    const io::IfExists rule = o_.overwrite
                                  ? (joins ? io::IfExists::replace : io::IfExists::overwrite)
                              : joins     ? io::IfExists::join
                              : o_.resume ? io::IfExists::resume
                                          : io::IfExists::refuse;
    fs::create_directories(o_.out);
    const auto open = [&] {
        to_ = std::make_unique<io::ResultsWriter>(path("results.h5"), record, rule);
    };
    if (!inputs_later_) {
        open();
    } else {
        try {
            open();
        } catch (const InputError&) {  // a run that has just ended left its record: compare all
            inputs_later_ = false;
            record_with_inputs();
            open();
        }
    }
    if (inputs_later_) begin_hashes(true);
    for (const Unit& unit : units_)
        if (to_->done(unit.name)) {
            err_ << unit.name << ": done before\n";
            unit.done();
        }
}

/// Whether a unit of an unfinished run is there.
bool UnitRun::has_units() const {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(path("results.h5.partial"), none))
        if (entry.path().extension() == ".h5") return true;
    return false;
}

bool UnitRun::is_done() const {
    return std::all_of(units_.begin(), units_.end(),
                       [&](const Unit& unit) { return to_->done(unit.name); });
}

/// All units, from that at which this process begins.
std::vector<const Unit*> UnitRun::in_turn() const {
    std::vector<const Unit*> units;
    for (const Unit& unit : units_) units.push_back(&unit);
    if (!units.empty())
        std::rotate(units.begin(), units.begin() + launched_number() % std::ssize(units),
                    units.end());
    return units;
}

/// A unit that nobody does or has done. `all_done`: but for those of this process, all are.
std::optional<UnitRun::Taken> UnitRun::take(const std::vector<const Unit*>& units,
                                            bool& all_done) const {
    all_done = true;
    for (const Unit* unit : units) {
        const bool is_computed = std::ranges::any_of(
            computed_, [&](const Done& done) { return done.taken.unit == unit; });
        if (is_computed || failed_.contains(unit) || to_->done(unit->name)) continue;
        if (others_ == Others::refused) return Taken{unit, std::nullopt};
        all_done = false;
        std::optional<io::Claim> claim = to_->claim(unit->name);
        if (claim && !to_->done(unit->name)) return Taken{unit, std::move(claim)};
    }
    return std::nullopt;
}

/// Notes the current exception; whether the others are still to be done. None if another process
/// has finished the unit.
bool UnitRun::fail(const Unit* unit) {
    try {
        throw;
    } catch (const std::exception& error) {
        failures_.push_back({std::current_exception(), message_of(error)});
    }
    if (unit == nullptr) return false;
    try {
        if (others_ == Others::join) to_->look();
        if (to_->done(unit->name)) {
            failures_.pop_back();
            return true;
        }
    } catch (const std::exception&) {  // the unit's own error is reported
        return false;
    }
    failed_.insert(unit);
    return !stop_requested();
}

/// A unit that is finished belongs to a run, so the record must be whole before: until the hashes
/// are there, the units that are computed wait. Whether other units are still to be done.
bool UnitRun::finish_computed(bool wait) {
    constexpr size_t kMostOpen = 64;  // files
    if (inputs_later_ && (wait || !computed_.empty())) {
        wait = wait || computed_.size() >= kMostOpen;
        if (!wait && hashes_.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
            return true;
        try {
            record.inputs = hashes_.get();
            to_->record_inputs(record.inputs);
        } catch (const std::exception&) {
            return fail(nullptr);
        }
        inputs_later_ = false;
    }
    bool go_on = true;
    for (; !computed_.empty(); computed_.pop_back()) {
        Done& done = computed_.back();
        try {
            done.results.finish();
            done.taken.unit->done();
        } catch (const std::exception&) {  // of this unit, not of those behind it
            go_on = fail(done.taken.unit) && go_on;
        }
    }
    return go_on;
}

void UnitRun::do_unit(Taken taken, const Worker& worker) {
    io::UnitWriter to = to_->begin(taken.unit->name);
    to.note("host", record.host);
    to.note("device", worker.backend.device());
    to.note("started", utc_now());
    taken.unit->work(worker, to);
    to.note("finished", utc_now());
    computed_.push_back({std::move(taken), std::move(to)});
}

void UnitRun::work(const ComputeOptions& compute, Backend& backend, OnError on_error) {
    const ThreadShare share(threads_of(compute));
    const std::vector<const Unit*> units = in_turn();
    std::optional<Progress> bar;
    if (!record.joined.empty()) bar.emplace(err_, "units", std::ssize(units), "units");
    Silence silent;
    const Worker worker{backend, err_, bar ? silent : err_, threads_of(compute)};
    Patience patience;
    for (bool go_on = true, all_done = false; go_on;) {
        if (others_ == Others::join) to_->look();
        std::optional<Taken> taken = take(units, all_done);
        if (!taken) {
            if (!finish_computed(true) || all_done || !failures_.empty()) break;
            patience.wait(
                [&] {
                    std::string waited;
                    for (const Unit* unit : units)
                        if (std::string holder = to_->holder(unit->name); !holder.empty())
                            add_item(waited, "; ", unit->name, ", ", holder);
                    return "waits for what others do: " + waited;
                },
                err_);
            continue;
        }
        patience.reset();
        const Unit* const unit = taken->unit;
        try {
            do_unit(std::move(*taken), worker);
        } catch (const std::exception&) {
            go_on = fail(unit);
        }
        go_on = finish_computed(false) && go_on;
        if (bar) bar->advance(1);
        if (on_error == OnError::stop && !failures_.empty()) go_on = false;
    }
    finish_computed(true);
    for (size_t n = 1; n < failures_.size(); ++n)
        if (failures_[n].message != failures_.front().message)  // several may wait for one input
            err_ << program_ << ": " << failures_[n].message << '\n';
    if (!failures_.empty()) std::rethrow_exception(failures_.front().error);
}

int UnitRun::run(std::vector<Unit> units, const ComputeOptions& compute, Backend& backend,
                 MakeAnswer make, std::ostream& out, const io::ResultsWriter::JoinParts& join) {
    begin(std::move(units));
    work(compute, backend, OnError::stop);
    const std::string nearest = end(make, out, 0, join);
    if (nearest.empty()) return 0;
    err_ << program_ << ": " << nearest << '\n';
    return kRefused;
}

std::string UnitRun::end(MakeAnswer make, std::ostream& out, int threads,
                         const io::ResultsWriter::JoinParts& join) {
    for (Patience patience;;) {
        to_->look();
        std::optional<io::Claim> claim;
        if (!to_->complete()) {
            claim = to_->claim(kAssembling);
            to_->look();
            if (!to_->complete() && !claim) {
                patience.wait(
                    [&] { return "waits for the results of " + to_->holder(kAssembling); }, err_);
                continue;
            }
        }
        try {
            const bool assembles = !to_->complete();
            std::optional<std::string> nearest;
            if (!assembles) nearest = print_answer(o_.out, page_, o_.json, out);
            if (!nearest) {
                const RunAnswer answer =
                    assembles ? finish(make, join) : make(io::ResultsReader(path("results.h5")));
                const io::ResultsReader results(path("results.h5"));
                nearest = write_answer({results, o_.out, inputs_, o_.json, threads, out}, answer);
            }
            for (const Unit& unit : units_) unit.done();
            if (assembles) to_->end();
            return *nearest;
        } catch (const std::exception&) {
            if (!claim || claim->is_held()) throw;  // else another process took over, and completes
        }
    }
}

RunAnswer UnitRun::finish(MakeAnswer make, const io::ResultsWriter::JoinParts& join) {
    using nlohmann::ordered_json;
    if (!to_->complete()) {
        ordered_json units = ordered_json::array();
        for (const io::ResultsWriter::Notes& notes : to_->notes()) {
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
        write_text(path("run.json"),
                   about.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
    }
    fs::remove(path("summary.json"));
    std::optional<RunAnswer> answer;
    to_->finish(join, [&](const io::ResultsReader& results, io::UnitWriter& to) {
        answer = make(results);
        report::write(answer->report, to);
    });
    return answer ? *std::move(answer) : make(io::ResultsReader(path("results.h5")));
}

}  // namespace msa::experiments
