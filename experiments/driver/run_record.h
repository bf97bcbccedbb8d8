// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <iosfwd>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/io/activations.h"
#include "core/io/results.h"

namespace msa::experiments {

/// "2026-01-31T12:00:00Z"
std::string utc_now();

/// The folder in which processes of one host share the hashes of inputs.
struct SharedHashes {
    std::filesystem::path folder{};
    bool publish = false;  // write what is not there yet
};

/// The SHA-256 of files by name; a second file of the same name is "NAME (2)". A process computes
/// that of a file once for as long as the file stays as it is: size, times and number. So do
/// processes that share a folder.
std::map<std::string, std::string> hash_inputs(const std::vector<std::filesystem::path>&,
                                               const SharedHashes& = {});

/// Starts the record of a run: program, arguments, commit, host, compiler, start time, and the
/// SHA-256 of its input files (hash_inputs). Bytes of arguments and names that are not UTF-8 become
/// \xNN (core/utf8.h). The caller sets options, definitions, device and seed.
io::RunRecord start_record(const std::string& program, std::span<const std::string> args,
                           const std::vector<std::filesystem::path>& inputs);

/// Records which sequences of the data set come from which input.
void record_captures(const io::ActivationsReader&, io::RunRecord&);
/// The number of layers of the captured model; 0 if the capture does not say.
int64_t recorded_model_layers(const io::RunRecord&);
/// "3 sequences of 2 captures: 0 to 1 of a.h5, 2 of b.h5."; nothing of one capture.
std::string captures_text(const io::RunRecord&);

}  // namespace msa::experiments
