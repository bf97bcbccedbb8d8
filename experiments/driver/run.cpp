// SPDX-License-Identifier: MIT
#include "experiments/driver/run.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <thread>

#include "experiments/driver/program.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/write_text.h"

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

void require_apart(const fs::path& input, const fs::path& output) {
    std::error_code ignored;
    const bool same = fs::equivalent(input, output, ignored);
    const fs::path inner = fs::weakly_canonical(input), outer = fs::weakly_canonical(output);
    const bool inside =
        std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
    require(!same && !inside, input.string(),
            ": is an input of this run, which would replace it as ", output.string(),
            "; choose another --out");
}

void check_unfinished(const RunOptions& o, const fs::path& what, bool unfinished) {
    require(o.resume || o.overwrite || !unfinished, what.string(),
            ": holds an unfinished run; --resume continues it, --overwrite starts afresh");
}

nlohmann::ordered_json json_number(double value) {
    return std::isnan(value) ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
}

std::vector<Unit> layer_units(
    const io::ActivationsReader& file, std::span<const int64_t> layers,
    const std::function<void(const io::LayerInfo&, const Worker&)>& work) {
    std::vector<Unit> units;
    for (int64_t number : layers) {
        const std::string name = text("layer ", number);
        units.push_back({name, [&layer = file.layer(number), name, work](const Worker& worker) {
                             worker.write(name, [&] { work(layer, worker); });
                         }});
    }
    return units;
}

UnitRun::UnitRun(const std::string& program, std::span<const std::string> args, const RunOptions& o,
                 std::vector<fs::path> inputs, std::vector<std::string> names, std::ostream& err)
    : o_(o), program_(program), inputs_(std::move(inputs)), err_(err) {
    names.emplace_back("results.h5");
    for (const fs::path& input : inputs_)
        for (const std::string& name : names)
            for (const char* suffix : {"", ".partial"}) require_apart(input, path(name + suffix));
    record = start_record(program, args, inputs_);
    record.seed = o.seed;
}

void UnitRun::begin() {
    fs::create_directories(o_.out);
    to_ = std::make_unique<io::ResultsWriter>(path("results.h5"), record,
                                              o_.overwrite ? io::IfExists::overwrite
                                              : o_.resume  ? io::IfExists::resume
                                                           : io::IfExists::refuse);
}

/// The units that wait, and what went wrong with others.
struct UnitRun::Queue {
    struct Failure {
        std::exception_ptr error;
        std::string message;
    };
    std::mutex turn;
    std::vector<const Unit*> waiting;  // the next one last
    std::vector<Failure> failures;
    OnError on_error = OnError::stop;

    const Unit* take() {
        const std::lock_guard lock(turn);
        const bool stop = on_error == OnError::stop || stop_requested();
        if (waiting.empty() || (stop && !failures.empty())) return nullptr;
        const Unit* next = waiting.back();
        waiting.pop_back();
        return next;
    }
    void fail(const char* message) {
        const std::lock_guard lock(turn);
        failures.push_back({std::current_exception(), message});
    }
};

void UnitRun::work(std::span<const Unit> units, const ComputeOptions& compute, Backend& first,
                   OnError on_error, int64_t jobs) {
    Queue queue;
    queue.on_error = on_error;
    for (const Unit& unit : units)
        if (!to_->done(unit.name)) {
            queue.waiting.insert(queue.waiting.begin(), &unit);
        } else {
            err_ << unit.name << ": done before\n";
            unit.done_before();
        }
    jobs = std::clamp<int64_t>(std::ssize(queue.waiting), 1, jobs);
    BackendOptions share = compute.backend_options;
    const int all = share.threads > 0 ? share.threads : omp_get_max_threads();
    share.threads = std::max(1, all / static_cast<int>(jobs));
    std::mutex files;
    const auto work_with = [&](Backend& backend) {
        const ThreadShare threads(share.threads);
        const Worker worker{backend, *to_, files, err_, share.threads};
        while (const Unit* unit = queue.take()) try {
                unit->work(worker);
            } catch (const std::exception& error) {
                queue.fail(error.what());
            }
    };
    if (jobs == 1) {
        work_with(first);
    } else {
        std::vector<std::jthread> workers;
        for (int64_t job = 0; job < jobs; ++job)
            workers.emplace_back([&] {
                try {
                    work_with(*make_backend(compute.backend, share));
                } catch (const std::exception& error) {
                    queue.fail(error.what());
                }
            });
    }
    if (queue.failures.empty()) return;
    for (size_t n = 1; n < queue.failures.size(); ++n)
        err_ << program_ << ": " << queue.failures[n].message << '\n';
    std::rethrow_exception(queue.failures.front().error);
}

io::ResultsReader UnitRun::finish() {
    to_->finish(utc_now());
    return io::ResultsReader(path("results.h5"));
}

void UnitRun::write(const std::string& name, const std::string& content) const {
    write_text(path(name), content);
}

}  // namespace msa::experiments
