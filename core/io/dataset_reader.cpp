// SPDX-License-Identifier: MIT
#include "core/io/dataset_reader.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/error.h"
#include "core/io/dataset_file.h"

namespace msa::io {

DatasetReader::DatasetReader(const std::filesystem::path& path) {
    const h5::Lock lock;
    impl_ = std::make_unique<Impl>(Impl{path, h5::open_file(path)});
}

DatasetReader::DatasetReader(const std::filesystem::path& name, std::span<const uint8_t> bytes) {
    const h5::Lock lock;
    impl_ = std::make_unique<Impl>(Impl{name, h5::open_bytes(name, bytes)});
}

DatasetReader::~DatasetReader() = default;
DatasetReader::DatasetReader(DatasetReader&&) noexcept = default;

bool DatasetReader::has(const std::string& object) const {
    const h5::Lock lock;
    return h5::exists(impl_->file, object);
}

bool DatasetReader::has(const std::string& object, const std::string& attribute) const {
    const h5::Lock lock;
    return has(object) &&
           h5::has_attribute(h5::open_object(impl_->file, impl_->at(object)), attribute);
}

std::vector<std::string> DatasetReader::list(const std::string& group) const {
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

std::vector<DatasetInfo> DatasetReader::datasets(const std::string& group) const {
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

void DatasetReader::visit(const DatasetInfo& dataset, const Visitor& visitor) const {
    constexpr int64_t kValues = int64_t{1} << 20;
    const h5::Place place = impl_->at(dataset.path);
    if (dataset.shape.empty() || element_total(dataset.shape) == 0) return;
    const int64_t rows = dataset.shape[0], row = element_total(dataset.shape) / rows;
    const int64_t step = std::clamp<int64_t>(kValues / row, 1, rows);
    h5::Slab slab{std::vector<hsize_t>(dataset.shape.size(), 0),
                  {dataset.shape.begin(), dataset.shape.end()}};
    std::vector<double> values;
    for (int64_t first = 0; first < rows; first += step) {
        const int64_t count = std::min(step, rows - first);
        slab.offset[0] = static_cast<hsize_t>(first);
        slab.count[0] = static_cast<hsize_t>(count);
        {
            const h5::Lock lock;
            const h5::Handle opened = h5::open_dataset(impl_->file, place);
            values.resize(static_cast<size_t>(count * row));
            h5::read(opened, H5T_NATIVE_DOUBLE, slab, values.data(), place);
        }
        visitor(values);
    }
}

template <typename T, int Rank>
Tensor<T, Rank> DatasetReader::read_rows(const std::string& name, int64_t first_row,
                                         int64_t count) const {
    const h5::Lock lock;
    const h5::Place place = impl_->at(name);
    const h5::Handle dataset = h5::open_dataset(impl_->file, place);
    const std::vector<int64_t> extents = h5::extents(dataset);
    require(extents.size() == Rank, place.text(), " has rank ", extents.size(), ", must be ", Rank);
    require(0 <= first_row && 0 <= count && first_row + count <= extents[0], place.text(),
            ": rows ", first_row, ":", first_row + count, " asked for, it has ", extents[0]);
    Shape<Rank> shape;
    std::copy_n(extents.begin(), Rank, shape.begin());
    shape[0] = count;
    h5::Slab slab{std::vector<hsize_t>(Rank, 0), {shape.begin(), shape.end()}};
    slab.offset[0] = static_cast<hsize_t>(first_row);
    Tensor<T, Rank> values(shape);
    h5::read(dataset, h5::native_type<T>(), slab, values.data(), place);
    return values;
}

template <typename T, int Rank>
Tensor<T, Rank> DatasetReader::read(const std::string& name) const {
    const h5::Lock lock;
    const h5::Handle dataset = h5::open_dataset(impl_->file, impl_->at(name));
    const std::vector<int64_t> extents = h5::extents(dataset);
    return read_rows<T, Rank>(name, 0, extents.empty() ? 0 : extents[0]);
}

double DatasetReader::number(const std::string& object, const std::string& attribute) const {
    const h5::Lock lock;
    return h5::number_attribute(h5::open_object(impl_->file, impl_->at(object)), attribute,
                                impl_->at(object));
}

std::string DatasetReader::text(const std::string& object, const std::string& attribute) const {
    const h5::Lock lock;
    return h5::text_attribute(h5::open_object(impl_->file, impl_->at(object)), attribute,
                              impl_->at(object));
}

#define MSA_INSTANTIATE(T, Rank)                                                            \
    template Tensor<T, Rank> DatasetReader::read<T, Rank>(const std::string&) const;        \
    template Tensor<T, Rank> DatasetReader::read_rows<T, Rank>(const std::string&, int64_t, \
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
