// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/io/unit_writer.h"
#include "core/tensor.h"

namespace msa::io {

/// A dataset as it stands in a file.
struct DatasetInfo {
    std::string path;            // "/select/oracle/3/ids"
    std::vector<int64_t> shape;  // empty: one value
    std::string type;            // "int32", "float64", "text"
    Describe describe;           // empty where the dataset does not say
    bool numeric() const { return type != "text" && type != "other"; }
};

/// Reads the datasets and attributes of a file of results, or of one of its units.
class DatasetReader {
public:
    explicit DatasetReader(const std::filesystem::path& path);
    /// Reads a file in memory and keeps a copy; messages call it `name`.
    DatasetReader(const std::filesystem::path& name, std::span<const uint8_t> bytes);
    ~DatasetReader();
    DatasetReader(DatasetReader&&) noexcept;
    DatasetReader& operator=(DatasetReader&&) = delete;

    bool has(const std::string& object) const;
    bool has(const std::string& object, const std::string& attribute) const;
    /// Names directly under a group, ascending, numbers by value.
    std::vector<std::string> list(const std::string& group) const;
    /// Every dataset under a group, in natural order. InputError if groups are nested 32 deep.
    std::vector<DatasetInfo> datasets(const std::string& group) const;
    /// Streams the values of a numeric dataset of any rank from 1 as doubles, some MiB at a time.
    /// Other threads may read while the visitor works.
    using Visitor = std::function<void(std::span<const double>)>;
    void visit(const DatasetInfo& dataset, const Visitor& visitor) const;
    template <typename T, int Rank>
    Tensor<T, Rank> read(const std::string& dataset) const;
    template <typename T, int Rank>
    Tensor<T, Rank> read_rows(const std::string& dataset, int64_t first_row, int64_t count) const;
    double number(const std::string& object, const std::string& attribute) const;
    std::string text(const std::string& object, const std::string& attribute) const;

private:
    friend class ResultsReader;
    friend class UnitWriter;
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace msa::io
