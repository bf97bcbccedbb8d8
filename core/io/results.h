// SPDX-License-Identifier: MIT
// Reader and writer of `msa-results` version 1 (data/FORMAT.md). A run is a list of units (one
// layer, say). Each finished unit is a file of its own under `<path>.partial/`, made complete by a
// rename, so that a kill at any moment loses the unit under way and nothing else; finish()
// assembles the units into `path`, again by a rename. All these files end with their checksum.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace msa::io {

/// What a run must remember of itself; becomes the attributes of /run.
struct RunRecord {
    std::string program;  // "msa-analyze"
    std::vector<std::string> argv;
    std::string options;      // resolved, JSON text
    std::string definitions;  // name -> text of each metric, JSON text
    std::string commit, host, device, compiler;
    /// The types that operands have and are computed in, where there are any: attributes element,
    /// index_element and computed_in.
    std::string element, index_element, computed_in;
    std::string started, finished;  // ISO 8601 UTC
    uint64_t seed = 0;
    std::map<std::string, std::string> inputs;  // file name -> sha256
};

/// InputError when the bytes of a file of results do not match the checksum at its end; a file
/// without one passes.
void require_whole(const std::filesystem::path& path);

/// Throws InputError naming `place` and the first difference unless the two have the same program,
/// commit, options, seed and inputs: what a resumed run must agree in.
void require_same_run(const std::string& place, const RunRecord& known, const RunRecord& wanted);

enum class IfExists : uint8_t { refuse, overwrite, resume };

/// How a dataset describes itself: attributes `axes` ("query,group,slot"), `unit`, `description`.
struct Describe {
    std::string axes, unit, description;
};

class ResultsWriter {
public:
    /// refuse: InputError if `path` exists or an unfinished run is beside it (naming --overwrite
    /// and --resume). overwrite: starts afresh; `path` stays as it is until finish(). resume:
    /// keeps the finished units of a run with the same program, commit, options, seed and inputs,
    /// all of them if `path` is that run already and nobody had begun to replace it; InputError
    /// naming the first difference, or the damaged unit, otherwise; starts afresh where there is
    /// nothing. InputError while another process is writing `path` (see core/io/partial_file.h).
    ResultsWriter(std::filesystem::path path, RunRecord record, IfExists if_exists);
    /// Without finish(): keeps the finished units, removes what holds none.
    ~ResultsWriter();
    ResultsWriter(const ResultsWriter&) = delete;
    ResultsWriter& operator=(const ResultsWriter&) = delete;

    bool done(const std::string& unit) const;

    /// Starts a unit; datasets go to it until end_unit() makes it durable.
    void begin_unit(const std::string& unit);
    void end_unit();

    /// A whole dataset at an absolute HDF5 path, in groups made on the way. T: float, double,
    /// int32_t, int64_t. Integers and floats of 16 KiB and more are chunked, shuffled, deflated.
    template <typename T, int Rank>
    void write(const std::string& dataset, View<const T, Rank> values, const Describe& describe);
    /// A dataset of the given shape, to be filled by rows (slices of the first axis).
    template <typename T, int Rank>
    void create(const std::string& dataset, const Shape<Rank>& shape, const Describe& describe);
    template <typename T, int Rank>
    void write_rows(const std::string& dataset, int64_t first_row, View<const T, Rank> rows);
    /// A number or text on a group or dataset that exists in this unit (groups are made).
    void attribute(const std::string& object, const std::string& name, double value);
    void attribute(const std::string& object, const std::string& name, int64_t value);
    void attribute(const std::string& object, const std::string& name, const std::string& value);

    /// Assembles all units, adds /run (finished at `now`) and /done, renames to `path`, removes the
    /// unit files.
    void finish(const std::string& now);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// A dataset as it stands in a file.
struct DatasetInfo {
    std::string path;            // "/select/oracle/3/ids"
    std::vector<int64_t> shape;  // empty: one value
    std::string type;            // "int32", "float64", "text"
    Describe describe;           // empty where the dataset does not say
    bool numeric() const { return type != "text" && type != "other"; }
};

class ResultsReader {
public:
    explicit ResultsReader(const std::filesystem::path& path);
    /// Of a file in memory, which `name` stands for in messages. Keeps a copy.
    ResultsReader(const std::filesystem::path& name, std::span<const uint8_t> bytes);
    ~ResultsReader();

    const RunRecord& run() const;
    const std::vector<std::string>& done() const;
    bool has(const std::string& object) const;
    bool has(const std::string& object, const std::string& attribute) const;
    /// Names directly under a group, ascending, numbers by value.
    std::vector<std::string> list(const std::string& group) const;
    /// Every dataset under a group, in natural order. InputError where groups are 32 deep.
    std::vector<DatasetInfo> datasets(const std::string& group) const;
    /// Streams the values of a numeric dataset of any rank from 1 as doubles, some MiB at a time.
    using Visitor = std::function<void(std::span<const double>)>;
    void visit(const DatasetInfo& dataset, const Visitor& visitor) const;
    template <typename T, int Rank>
    Tensor<T, Rank> read(const std::string& dataset) const;
    template <typename T, int Rank>
    Tensor<T, Rank> read_rows(const std::string& dataset, int64_t first_row, int64_t count) const;
    double number(const std::string& object, const std::string& attribute) const;
    std::string words(const std::string& object, const std::string& attribute) const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace msa::io
