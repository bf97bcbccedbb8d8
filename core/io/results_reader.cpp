// SPDX-License-Identifier: MIT
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/error.h"
#include "core/io/h5.h"
#include "core/io/layout.h"
#include "core/io/results.h"

namespace msa::io {

struct ResultsReader::Impl {
    std::filesystem::path path;
    h5::Handle file;
    RunRecord run;
    std::vector<std::string> done;
    int64_t version = 0;

    Impl(std::filesystem::path file_name, h5::Handle opened)
        : path(std::move(file_name)), file(std::move(opened)) {
        const h5::Handle root = open_root(file, at("/"), kResultsFormat, kResultsVersion);
        version = static_cast<int64_t>(h5::number_attribute(root, "format_version", at("/")));

        const h5::Handle about = h5::open_object(file, at("/run"));
        const auto words = [&](const char* name) {
            return h5::text_attribute(about, name, at("/run"));
        };
        RunRecord& r = run;
        try {
            if (h5::has_attribute(about, "argv"))
                r.argv = nlohmann::json::parse(words("argv")).get<std::vector<std::string>>();
            r.inputs =
                nlohmann::json::parse(words("inputs")).get<std::map<std::string, std::string>>();
        } catch (const nlohmann::json::exception& error) {
            throw InputError(at("/run").text() + " argv and inputs must be JSON: " + error.what());
        }
        r.program = words("program");
        r.options = words("options");
        r.definitions = words("definitions");
        r.commit = words("commit");
        r.compiler = words("compiler");
        for (const auto& [name, value] :
             {std::pair{"element", &r.element}, std::pair{"index_element", &r.index_element},
              std::pair{"computed_in", &r.computed_in}, std::pair{"captures", &r.captures},
              std::pair{"host", &r.host}, std::pair{"device", &r.device},
              std::pair{"started", &r.started}, std::pair{"finished", &r.finished}})
            if (h5::has_attribute(about, name)) *value = words(name);
        r.seed = static_cast<uint64_t>(h5::integer_attribute(about, "seed", at("/run")));
        done = h5::read_texts(file, at("/done"));
    }

    h5::Place at(const std::string& object) const { return {path, object}; }
};

ResultsReader::ResultsReader(const std::filesystem::path& path)
    : impl_([&] {
          const h5::Lock lock;
          return std::make_unique<Impl>(path, h5::open_file(path));
      }()) {}

ResultsReader::ResultsReader(const std::filesystem::path& name, std::span<const uint8_t> bytes)
    : impl_([&] {
          const h5::Lock lock;
          return std::make_unique<Impl>(name, h5::open_bytes(name, bytes));
      }()) {}

ResultsReader::~ResultsReader() = default;

int64_t ResultsReader::version() const { return impl_->version; }
const RunRecord& ResultsReader::run() const { return impl_->run; }
const std::vector<std::string>& ResultsReader::done() const { return impl_->done; }

bool ResultsReader::has(const std::string& object) const {
    const h5::Lock lock;
    return h5::exists(impl_->file, object);
}

bool ResultsReader::has(const std::string& object, const std::string& attribute) const {
    const h5::Lock lock;
    return has(object) &&
           h5::has_attribute(h5::open_object(impl_->file, impl_->at(object)), attribute);
}

std::vector<std::string> ResultsReader::list(const std::string& group) const {
    const h5::Lock lock;
    return h5::links(h5::open_object(impl_->file, impl_->at(group)));
}

namespace {

std::string type_name(hid_t dataset) {
    const h5::Handle type(H5Dget_type(dataset), H5Tclose);
    const std::string bits = std::to_string(8 * H5Tget_size(type));
    switch (H5Tget_class(type)) {
        case H5T_INTEGER: return "int" + bits;
        case H5T_FLOAT: return "float" + bits;
        case H5T_STRING: return "text";
        default: return "other";
    }
}

int64_t element_total(const std::vector<int64_t>& shape) {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

std::vector<DatasetInfo> ResultsReader::datasets(const std::string& group) const {
    const h5::Lock lock;
    constexpr int64_t kDeepest = 32;
    require(std::count(group.begin(), group.end(), '/') < kDeepest, impl_->at(group).text(),
            " lies ", kDeepest, " groups deep, does a group hold itself?");
    std::vector<DatasetInfo> found;
    for (const std::string& name : list(group)) {
        const h5::Place place = impl_->at((group == "/" ? "" : group) + "/" + name);
        const h5::Handle object = h5::open_object(impl_->file, place);
        if (H5Iget_type(object) == H5I_GROUP) {
            for (DatasetInfo& inner : datasets(place.object)) found.push_back(std::move(inner));
            continue;
        }
        require(H5Iget_type(object) == H5I_DATASET, place.text(), " must be a group or dataset");
        const auto words_of = [&](const char* attribute) {
            return h5::has_attribute(object, attribute)
                       ? h5::text_attribute(object, attribute, place)
                       : std::string();
        };
        found.push_back({place.object,
                         h5::extents(object),
                         type_name(object),
                         {words_of("axes"), words_of("unit"), words_of("description")}});
    }
    return found;
}

void ResultsReader::visit(const DatasetInfo& dataset, const Visitor& visitor) const {
    const h5::Lock lock;
    constexpr int64_t kValues = int64_t{1} << 20;
    const h5::Place place = impl_->at(dataset.path);
    const h5::Handle opened = h5::open_dataset(impl_->file, place);
    if (dataset.shape.empty() || element_total(dataset.shape) == 0) return;
    const int64_t rows = dataset.shape[0], row = element_total(dataset.shape) / rows;
    const int64_t step = std::clamp<int64_t>(kValues / row, 1, rows);
    h5::Slab slab{std::vector<hsize_t>(dataset.shape.size(), 0),
                  {dataset.shape.begin(), dataset.shape.end()}};
    std::vector<double> values(static_cast<size_t>(step * row));
    for (int64_t first = 0; first < rows; first += step) {
        const int64_t count = std::min(step, rows - first);
        slab.offset[0] = static_cast<hsize_t>(first);
        slab.count[0] = static_cast<hsize_t>(count);
        h5::read(opened, H5T_NATIVE_DOUBLE, slab, values.data(), place);
        visitor(std::span(values).first(static_cast<size_t>(count * row)));
    }
}

template <typename T, int Rank>
Tensor<T, Rank> ResultsReader::read_rows(const std::string& name, int64_t first_row,
                                         int64_t count) const {
    const h5::Lock lock;
    const h5::Place place = impl_->at(name);
    const h5::Handle dataset = h5::open_dataset(impl_->file, place);
    const std::vector<int64_t> extents = h5::extents(dataset);
    require(extents.size() == Rank, place.text(), " has rank ", extents.size(), ", must be ", Rank);
    require(0 <= first_row && 0 <= count && first_row + count <= extents[0], place.text(),
            ": rows ", first_row, ":", first_row + count, " asked for, it has ", extents[0]);
    Shape<Rank> shape;
    std::copy(extents.begin(), extents.end(), shape.begin());
    shape[0] = count;
    h5::Slab slab{std::vector<hsize_t>(Rank, 0), {shape.begin(), shape.end()}};
    slab.offset[0] = static_cast<hsize_t>(first_row);
    Tensor<T, Rank> values(shape);
    h5::read(dataset, h5::native_type<T>(), slab, values.data(), place);
    return values;
}

template <typename T, int Rank>
Tensor<T, Rank> ResultsReader::read(const std::string& name) const {
    const h5::Lock lock;
    const h5::Handle dataset = h5::open_object(impl_->file, impl_->at(name));
    const std::vector<int64_t> extents = h5::extents(dataset);
    return read_rows<T, Rank>(name, 0, extents.empty() ? 0 : extents[0]);
}

double ResultsReader::number(const std::string& object, const std::string& attribute) const {
    const h5::Lock lock;
    return h5::number_attribute(h5::open_object(impl_->file, impl_->at(object)), attribute,
                                impl_->at(object));
}

std::string ResultsReader::text(const std::string& object, const std::string& attribute) const {
    const h5::Lock lock;
    return h5::text_attribute(h5::open_object(impl_->file, impl_->at(object)), attribute,
                              impl_->at(object));
}

#define MSA_INSTANTIATE(T, Rank)                                                            \
    template Tensor<T, Rank> ResultsReader::read<T, Rank>(const std::string&) const;        \
    template Tensor<T, Rank> ResultsReader::read_rows<T, Rank>(const std::string&, int64_t, \
                                                               int64_t) const;
#define MSA_INSTANTIATE_RANKS(T) \
    MSA_INSTANTIATE(T, 1) MSA_INSTANTIATE(T, 2) MSA_INSTANTIATE(T, 3) MSA_INSTANTIATE(T, 4)
MSA_INSTANTIATE_RANKS(float)
MSA_INSTANTIATE_RANKS(double)
MSA_INSTANTIATE_RANKS(int32_t)
MSA_INSTANTIATE_RANKS(int64_t)
#undef MSA_INSTANTIATE_RANKS
#undef MSA_INSTANTIATE

}  // namespace msa::io
