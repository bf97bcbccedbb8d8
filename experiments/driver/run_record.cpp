// SPDX-License-Identifier: MIT
#include "experiments/driver/run_record.h"

#include <sys/utsname.h>

#include <chrono>
#include <ctime>

#include "core/io/sha256.h"
#include "core/utf8.h"
#include "experiments/driver/version.h"

namespace msa::experiments {

std::string utc_now() {
    const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    std::tm utc{};
    gmtime_r(&now, &utc);
    char text[32];
    std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
    return text;
}

std::map<std::string, std::string> hash_inputs(const std::vector<std::filesystem::path>& inputs) {
    std::map<std::string, std::string> hashes;
    for (const std::filesystem::path& input : inputs) {
        const std::string name = valid_utf8(input.filename().string());
        std::string key = name;
        for (int n = 2; hashes.contains(key); ++n) key = text(name, " (", n, ")");
        hashes[key] = io::sha256_of_file(input);
    }
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

}  // namespace msa::experiments
