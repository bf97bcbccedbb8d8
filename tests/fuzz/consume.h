// SPDX-License-Identifier: MIT
// Reads all that a file promises; only the errors of the contract may come out.
#pragma once

#include <filesystem>

namespace msa::fuzz {

void consume_activations(const std::filesystem::path& path);
void consume_results(const std::filesystem::path& path);

/// A path of this process alone, in memory where the system has /dev/shm; removed at the end.
class TemporaryFile {
public:
    TemporaryFile();
    ~TemporaryFile();
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
};

}  // namespace msa::fuzz
