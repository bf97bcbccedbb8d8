// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace msa::io {

/// The record of a run. What decides the numbers becomes the attributes of /run, so two equal runs
/// give the same bytes. Who ran it, where and when is kept elsewhere.
struct RunRecord {
    std::string program;             // "msa-analyze"
    std::string options = "{}";      // resolved, JSON text
    std::string definitions = "{}";  // name -> text of each metric, JSON text
    std::string commit, compiler;
    /// Element types of the operands and of the computation, if any: attributes element,
    /// index_element and computed_in.
    std::string element, index_element, computed_in;
    uint64_t seed = 0;
    std::map<std::string, std::string> inputs;  // file name -> sha256
    std::string captures;  // the inputs that are activations, and their sequences, JSON text

    // Not in /run, except in files written before run.json existed (data/FORMAT.md).
    std::vector<std::string> argv;
    std::string host, device;
    std::string started, finished;  // ISO 8601 UTC

    // Only of a run in progress.
    std::vector<std::string> units;                          // all of them
    std::map<std::string, std::vector<std::string>> joined;  // units of the results, their parts
};

/// Throws InputError naming `place` and the first difference unless program, commit, compiler,
/// options, seed, inputs and element types are the same; element types that `known` has none of are
/// not compared.
void require_same_run(const std::string& place, const RunRecord& known, const RunRecord& wanted);
/// What is compared, as JSON text, for the files of a run.
std::string identity_text(const RunRecord&);
/// The same as require_same_run, of a file with this text.
void require_of_run(const std::string& place, const std::string& identity, const RunRecord& wanted);

/// The record of a run in progress as JSON text, and back. InputError naming `place` if the text is
/// not such a record.
std::string to_json(const RunRecord&);
RunRecord parse_record(const std::string& place, const std::string& json);

}  // namespace msa::io
