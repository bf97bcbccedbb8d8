// SPDX-License-Identifier: MIT
// The results of the loop on a layer or on a part of its queries, and how parts are joined to a
// layer.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "analysis/rows.h"
#include "core/io/dataset_reader.h"
#include "core/io/unit_writer.h"
#include "experiments/driver/run.h"
#include "experiments/measure/checks.h"
#include "experiments/measure/sums.h"

namespace msa::experiments::measure {

struct Tally {
    Sums sums;
    SelfChecks checks = {};
    /// Counts over all queries, of accumulators that are too large to be kept by block.
    std::map<std::string, analysis::State> totals = {};
    /// Metadata of the layer that the program needs to write its datasets, JSON.
    std::string about = "{}";

    struct Seconds {
        double select = 0, evaluate = 0;
    };
    std::map<std::string, Seconds> seconds = {};  // that each selector took

    /// /sums, /query_blocks and /checks.
    void write(io::UnitWriter&, const std::string& layer) const;
    /// Fills an empty accumulator with the sums over all queries.
    template <typename Accumulator>
    Accumulator total(const std::string& name, Accumulator empty) const {
        if (const auto of = totals.find(name); of != totals.end())
            empty.join(of->second);
        else
            sums.total(name, empty);
        return empty;
    }
};

/// How a program writes a layer that may be cut into parts.
struct LayerForm {
    std::vector<const char*> rows;    // groups whose datasets have one row per query
    std::vector<const char*> copied;  // groups that are equal in every part
    /// Writes the datasets made of the tally.
    void (*write)(const Tally&, const std::string& layer, io::UnitWriter&);
};

/// Writes the tally and the program's datasets; for a part of a layer the sums, and in /state what
/// join_layer needs. Warns of undefined rows.
void write_tally(const Tally&, const LayerForm&, const LayerPart&, const Worker&, io::UnitWriter&);
/// Writes a layer from the files of all its parts, given in query order. Does not need the
/// activations.
void join_layer(const std::vector<std::filesystem::path>& parts, const LayerForm&, io::UnitWriter&);

// Joins the parts of a layer (LayerPart in run.h): rows of their queries, and sums and counts over
// these. Nothing is rounded.

/// Concatenates the parts' rows of every dataset under these groups. Parts are in the order of the
/// queries. Within a part, all these datasets have equally many rows.
void join_rows(const std::vector<std::filesystem::path>& parts, std::span<const char* const> groups,
               io::UnitWriter& to);

/// Integers as a dataset, and back.
void store_list(io::UnitWriter&, const std::string& dataset, const std::vector<int64_t>& values);
std::vector<int64_t> stored_list(const io::DatasetReader&, const std::string& dataset);

/// A state as the datasets `sums` and `counts` of a group, and back.
void store_state(io::UnitWriter&, const std::string& group, const analysis::State&);
analysis::State stored_state(const io::DatasetReader&, const std::string& group);

/// Adds the seconds for which it lives to `seconds`.
class Stopwatch {
public:
    explicit Stopwatch(double& seconds) : seconds_(seconds) {}
    ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

private:
    using Clock = std::chrono::steady_clock;
    double& seconds_;
    Clock::time_point start_ = Clock::now();
};

}  // namespace msa::experiments::measure
