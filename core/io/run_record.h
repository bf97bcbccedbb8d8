// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace msa::io {

/// What a run must remember of itself. What decides the numbers becomes the attributes of /run, so
/// that two runs of the same give the same bytes; who made them, where and when, does not.
struct RunRecord {
    std::string program;             // "msa-analyze"
    std::string options = "{}";      // resolved, JSON text
    std::string definitions = "{}";  // name -> text of each metric, JSON text
    std::string commit, compiler;
    /// The types that operands have and are computed in, where there are any: attributes element,
    /// index_element and computed_in.
    std::string element, index_element, computed_in;
    uint64_t seed = 0;
    std::map<std::string, std::string> inputs;  // file name -> sha256
    std::string captures;  // the inputs that are activations, and their sequences, JSON text

    // Not in /run, but in files that were written before run.json was (data/FORMAT.md).
    std::vector<std::string> argv;
    std::string host, device;
    std::string started, finished;  // ISO 8601 UTC

    // Of a run under way alone.
    std::vector<std::string> units;                          // all of them
    std::map<std::string, std::vector<std::string>> joined;  // units of the results, their parts
    std::string shard;                     // "1/4": this folder gets the second quarter of them
    std::vector<std::string> input_paths;  // absolute
};

/// Throws InputError naming `place` and the first difference unless the two have the same program,
/// commit, compiler, options, seed and inputs: what a resumed run must agree in.
void require_same_run(const std::string& place, const RunRecord& known, const RunRecord& wanted);
/// The same of shards, of which `known` is the first and `place` names the other; and the types of
/// their operands.
void require_same_shards(const std::string& place, const RunRecord& known, const RunRecord& wanted);

/// The record of a run under way as JSON text, and back. InputError naming `place` where the text
/// is none.
std::string to_json(const RunRecord&);
RunRecord parse_record(const std::string& place, const std::string& json);

}  // namespace msa::io
