// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace msa::io {

/// How a dataset describes itself: attributes `axes` ("query,group,slot"), `unit`, `description`.
struct Describe {
    std::string axes, unit, description;
    bool deflated = true;  // false: numbers that deflate makes hardly smaller, as those of weights
};

class DatasetReader;

/// Writes the datasets of one unit to a file of its own. Several units may be written at a time,
/// one thread each. An unfinished unit leaves nothing behind.
class UnitWriter {
public:
    ~UnitWriter();
    UnitWriter(UnitWriter&&) noexcept;
    UnitWriter& operator=(UnitWriter&&) = delete;

    /// Writes a whole dataset at an absolute HDF5 path and creates its groups. T: float, double,
    /// int32_t, int64_t. Datasets of 16 KiB and more are chunked, shuffled, deflated,
    /// unless `describe` says otherwise.
    template <typename T, int Rank>
    void write(const std::string& dataset, View<const T, Rank> values, const Describe& describe);
    /// Creates a dataset of the given shape, to be filled by rows (slices of the first axis).
    template <typename T, int Rank>
    void create(const std::string& dataset, const Shape<Rank>& shape, const Describe& describe);
    template <typename T, int Rank>
    void write_rows(const std::string& dataset, int64_t first_row, View<const T, Rank> rows);
    /// A list of texts, of variable length.
    void write_texts(const std::string& dataset, const std::vector<std::string>& values,
                     const Describe& describe);
    /// Sets a number or text on a dataset of this unit or on a group, which is created if missing.
    void attribute(const std::string& object, const std::string& name, double value);
    void attribute(const std::string& object, const std::string& name, int64_t value);
    void attribute(const std::string& object, const std::string& name, const std::string& value);

    /// Creates `dataset` with `rows` rows, otherwise like that of another file.
    void create_like(const DatasetReader& other, const std::string& dataset, int64_t rows);
    /// Copies all rows of another file's `dataset` to first_row and on, some MiB at a time.
    void copy_rows(const DatasetReader& from, const std::string& dataset, int64_t first_row);
    /// Copies a group or dataset of another file unchanged and creates its groups.
    void copy(const DatasetReader& from, const std::string& object);

    /// Notes how the unit was made (ResultsWriter::notes); not part of the results.
    void note(const std::string& name, const std::string& text);

    /// Makes the unit durable, under its name.
    void finish();

private:
    friend class ResultsWriter;
    struct Impl;
    explicit UnitWriter(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace msa::io
