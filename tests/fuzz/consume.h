// SPDX-License-Identifier: MIT
// Reads all that a file promises; only the errors of the contract may come out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace msa::fuzz {

/// Of the bytes of a file.
void consume_activations(std::span<const uint8_t> bytes);
void consume_results(std::span<const uint8_t> bytes);
/// A text that may be no UTF-8.
void consume_words(const std::string& words);
/// The names of two objects.
void consume_names(const std::string& left, const std::string& right);

/// Takes up a run of which the input damaged a file: the run must go on to the results of an
/// undamaged one, or be refused.
void consume_run(const uint8_t* data, size_t size);

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
