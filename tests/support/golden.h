// SPDX-License-Identifier: MIT
// A file of answers that this project did not make (tests/goldens).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/io/h5.h"
#include "core/tensor.h"

namespace msa::test {

class Golden {
public:
    explicit Golden(const std::string& name)
        : path_(std::string(MSA_GOLDENS_DIR) + "/" + name),
          file_(io::h5::open_file(path_)),
          config_(nlohmann::json::parse(
              io::h5::text_attribute(io::h5::open_object(file_, at("/")), "config", at("/")))) {}

    template <typename T, int Rank>
    Tensor<T, Rank> read(const std::string& object) const {
        const io::h5::Handle dataset = io::h5::open_object(file_, at(object));
        const std::vector<int64_t> extents = io::h5::extents(dataset);
        EXPECT_EQ(extents.size(), size_t{Rank}) << object;
        Shape<Rank> shape;
        std::copy_n(extents.begin(), Rank, shape.begin());
        Tensor<T, Rank> values(shape);
        io::h5::read(dataset, io::h5::native_type<T>(),
                     {std::vector<hsize_t>(Rank, 0), {shape.begin(), shape.end()}}, values.data(),
                     at(object));
        return values;
    }
    const nlohmann::json& config() const { return config_; }
    int64_t size(const char* name) const { return config_.at(name).get<int64_t>(); }
    double number(const char* name) const { return config_.at(name).get<double>(); }
    int64_t first_query() const {
        return static_cast<int64_t>(
            io::h5::number_attribute(io::h5::open_object(file_, at("/")), "first_query", at("/")));
    }

private:
    io::h5::Place at(const std::string& object) const { return {path_, object}; }
    std::filesystem::path path_;
    io::h5::Handle file_;
    nlohmann::json config_;
};

}  // namespace msa::test
