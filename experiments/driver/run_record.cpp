// SPDX-License-Identifier: MIT
#include "experiments/driver/run_record.h"

#include <sys/stat.h>
#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "core/io/claim.h"
#include "core/io/sha256.h"
#include "core/utf8.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/program.h"
#include "experiments/driver/version.h"
#include "experiments/report/text.h"

namespace msa::experiments {
namespace {

using nlohmann::ordered_json;

/// Names of files in their order, the second of a name as "NAME (2)".
std::vector<std::string> names_of(const std::vector<std::filesystem::path>& files) {
    std::vector<std::string> names;
    for (const std::filesystem::path& file : files) {
        const std::string name = valid_utf8(file.filename().string());
        std::string own = name;
        for (int n = 2; std::find(names.begin(), names.end(), own) != names.end(); ++n)
            own = concat(name, " (", n, ")");
        names.push_back(own);
    }
    return names;
}

/// The computer's name.
std::string host_name() {
    utsname system{};
    uname(&system);
    return system.nodename;
}

/// What changes with a file's bytes, on one host: device, number, size and times. Empty for a file
/// that changed in the last seconds: it may change again within the same tick of its times.
std::string stamp_of(const std::filesystem::path& path) {
    constexpr time_t kSettled = 3;
    struct stat s {};
    if (::stat(path.c_str(), &s) != 0 || std::time(nullptr) - s.st_ctim.tv_sec < kSettled)
        return "";
    return concat(s.st_dev, '-', s.st_ino, '-', s.st_size, '-', s.st_mtim.tv_sec, '.',
                  s.st_mtim.tv_nsec, '-', s.st_ctim.tv_sec, '.', s.st_ctim.tv_nsec);
}

/// The hash in a file that a process of this host wrote; empty where there is none.
std::string read_hash(const std::filesystem::path& file) {
    constexpr size_t kDigits = 64;
    std::ifstream stream(file);
    std::string host, hash;
    stream >> host >> hash;
    return host == host_name() && hash.size() == kDigits ? hash : "";
}

/// The hash of a file with this stamp, in `file`: the first process writes it there, the others
/// wait for it. Empty where the folder takes no file.
std::string published_hash(const std::filesystem::path& path, const std::string& stamp,
                           const std::filesystem::path& file) {
    constexpr std::chrono::milliseconds kTurn{5};
    for (; std::filesystem::exists(file.parent_path()); std::this_thread::sleep_for(kTurn)) {
        stop_if_asked();
        const std::optional<io::Claim> claim = io::Claim::take(file.string() + ".claim");
        if (std::string known = read_hash(file); !known.empty()) return known;
        if (!claim) continue;
        std::string hash = io::sha256_of_file(path);
        if (stamp_of(path) == stamp) io::replace_file(file, concat(host_name(), ' ', hash, '\n'));
        return hash;
    }
    return "";
}

std::string hash_of(const std::filesystem::path& path, const std::string& stamp,
                    const SharedHashes& shared) {
    if (shared.folder.empty()) return io::sha256_of_file(path);
    const std::filesystem::path file = shared.folder / ("input-" + stamp);
    try {
        std::string known = read_hash(file);
        if (known.empty() && shared.publish) known = published_hash(path, stamp, file);
        if (!known.empty()) return known;
    } catch (const SystemError&) {  // no other process learns it
    }
    return io::sha256_of_file(path);
}

/// The runs of a sweep, and the check of their records, have the same inputs.
std::string hash_once(const std::filesystem::path& path, const SharedHashes& shared) {
    static std::mutex turn;
    static std::map<std::string, std::string> known;
    const std::string stamp = stamp_of(path);
    if (stamp.empty()) return io::sha256_of_file(path);
    {
        const std::lock_guard lock(turn);
        if (const auto found = known.find(stamp); found != known.end()) return found->second;
    }
    std::string hash = hash_of(path, stamp, shared);
    if (stamp_of(path) == stamp) {
        const std::lock_guard lock(turn);
        known[stamp] = hash;
    }
    return hash;
}

}  // namespace

std::string utc_now() {
    using std::chrono::system_clock;
    const system_clock::time_point now = system_clock::now();
    const std::time_t second = system_clock::to_time_t(now);
    const auto thousandths =
        std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() %
        1000;
    std::tm utc{};
    gmtime_r(&second, &utc);
    char text[32];
    std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S.", &utc);
    return concat(text, std::to_string(1000 + thousandths).substr(1), "Z");
}

std::map<std::string, std::string> hash_inputs(const std::vector<std::filesystem::path>& inputs,
                                               const SharedHashes& shared) {
    const std::vector<std::string> names = names_of(inputs);
    std::map<std::string, std::string> hashes;
    for (size_t n = 0; n < names.size(); ++n) hashes[names[n]] = hash_once(inputs[n], shared);
    return hashes;
}

io::RunRecord start_record(const std::string& program, std::span<const std::string> args,
                           const std::vector<std::filesystem::path>& inputs) {
    io::RunRecord record;
    record.program = program;
    for (const std::string& arg : args) record.argv.push_back(valid_utf8(arg));
    record.commit = kCommit;
    record.compiler = kCompiler;
    utsname system{};
    uname(&system);
    record.host = std::string(system.nodename) + ", " + system.sysname + " " + system.release +
                  ", " + system.machine;
    record.started = utc_now();
    record.inputs = hash_inputs(inputs);
    return record;
}

void record_captures(const io::ActivationsReader& data, io::RunRecord& record) {
    std::vector<std::filesystem::path> paths;
    for (const io::Capture& capture : data.captures()) paths.push_back(capture.path);
    const std::vector<std::string> names = names_of(paths);
    std::vector<int64_t> captured;
    for (const io::LayerInfo& layer : data.info().layers) captured.push_back(layer.layer);
    ordered_json all = ordered_json::array();
    for (size_t n = 0; n < names.size(); ++n) {
        const io::Capture& of = data.captures()[n];
        all.push_back({{"input", names[n]},
                       {"model", valid_utf8(data.info().model_id)},
                       {"first_sequence", of.first_sequence},
                       {"sequences", of.sequences},
                       {"first_token", of.first_token},
                       {"tokens", of.tokens}});
        if (const auto layers = model_layers(data.info(), captured))
            all.back()["model_layers"] = *layers;
    }
    record.captures = all.dump();
}

int64_t recorded_model_layers(const io::RunRecord& record) {
    if (record.captures.empty()) return 0;
    const ordered_json captures = ordered_json::parse(record.captures);
    return captures.empty() ? 0 : captures.front().value("model_layers", int64_t{0});
}

std::string captures_text(const io::RunRecord& record) {
    if (record.captures.empty()) return "";
    const ordered_json captures = ordered_json::parse(record.captures);
    if (captures.size() < 2) return "";
    int64_t sequences = 0;
    std::string parts;
    for (const ordered_json& of : captures) {
        const auto first = of["first_sequence"].get<int64_t>(),
                   last = first + of["sequences"].get<int64_t>() - 1;
        sequences = last + 1;
        add_item(parts, ", ", first, last > first ? concat(" to ", last) : "", " of ",
                 printable(of["input"].get<std::string>()));
    }
    return concat(sequences, " sequences of ", captures.size(), " captures: ", parts, ".");
}

}  // namespace msa::experiments
