// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/tensor.h"

namespace msa::io {

/// How a dataset describes itself: attributes `axes` ("query,group,slot"), `unit`, `description`.
struct Describe {
    std::string axes, unit, description;
};

class DatasetReader;

/// The datasets of one unit, a file of its own. Several may be written at a time, each by a thread
/// of its own. A unit that is not finished leaves nothing.
class UnitWriter {
public:
    ~UnitWriter();
    UnitWriter(UnitWriter&&) noexcept;
    UnitWriter& operator=(UnitWriter&&) = delete;

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

    /// Makes `dataset` with `rows` rows, in all else like the one of another file.
    void create_like(const DatasetReader& other, const std::string& dataset, int64_t rows);
    /// Copies all rows of the `dataset` of another file to where they begin in this one, some MiB
    /// at a time.
    void copy_rows(const DatasetReader& from, const std::string& dataset, int64_t first_row);
    /// Copies a group or dataset of another file as it is, into groups made on the way.
    void copy(const DatasetReader& from, const std::string& object);

    /// What is to be known of how the unit was made (ResultsWriter::notes); not in the results.
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
