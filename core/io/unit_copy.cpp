// SPDX-License-Identifier: MIT
// What a unit takes from the file of another one.
#include <algorithm>

#include "core/error.h"
#include "core/io/dataset_file.h"
#include "core/io/unit_file.h"
#include "core/io/unit_writer.h"

namespace msa::io {
namespace {

std::vector<hsize_t> shape_of(hid_t dataset) {
    const std::vector<int64_t> extents = h5::extents(dataset);
    return {extents.begin(), extents.end()};
}

}  // namespace

void UnitWriter::create_like(const DatasetReader& other, const std::string& name, int64_t rows) {
    const h5::Lock lock;
    const h5::Place place = other.impl_->at(name);
    const h5::Handle like = h5::open_dataset(other.impl_->file, place);
    const h5::Handle type(H5Dget_type(like), H5Tclose);
    std::vector<hsize_t> shape = shape_of(like);
    require(!shape.empty(), place.text(), " is one value, must have rows");
    shape[0] = static_cast<hsize_t>(rows);
    const auto words = [&](const char* attribute) {
        return h5::text_attribute(like, attribute, place);
    };
    impl_->create(name, type, shape, {words("axes"), words("unit"), words("description")});
}

void UnitWriter::copy_rows(const DatasetReader& from, const std::string& name, int64_t first_row) {
    const h5::Lock lock;
    constexpr hsize_t kBytes = hsize_t{1} << 23;
    const h5::Place place = from.impl_->at(name);
    const h5::Handle source = h5::open_dataset(from.impl_->file, place);
    const h5::Handle to = h5::open_object(impl_->file, impl_->at(name));
    const h5::Handle type(H5Dget_type(source), H5Tclose);
    const std::vector<hsize_t> shape = shape_of(source), room = shape_of(to);
    require(shape.size() == room.size() && !shape.empty() &&
                std::equal(shape.begin() + 1, shape.end(), room.begin() + 1) &&
                static_cast<hsize_t>(first_row) + shape[0] <= room[0],
            place.text(), ": its rows do not fit into ", impl_->at(name).text());
    hsize_t row = H5Tget_size(type);
    for (size_t axis = 1; axis < shape.size(); ++axis) row *= shape[axis];
    const hsize_t step = std::clamp<hsize_t>(kBytes / std::max<hsize_t>(1, row), 1, kBytes);
    std::vector<std::byte> values;
    h5::Slab slab{std::vector<hsize_t>(shape.size(), 0), shape};
    for (hsize_t done = 0; done < shape[0]; done += step) {
        slab.count[0] = std::min(step, shape[0] - done);
        values.resize(slab.count[0] * row);
        slab.offset[0] = done;
        h5::read(source, type, slab, values.data(), place);
        slab.offset[0] = static_cast<hsize_t>(first_row) + done;
        h5::write(to, type, slab, values.data(), impl_->at(name));
    }
}

void UnitWriter::copy(const DatasetReader& from, const std::string& object) {
    const h5::Lock lock;
    h5::open_object(from.impl_->file, from.impl_->at(object));
    const h5::Handle parents(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
    H5Pset_create_intermediate_group(parents, 1);
    if (H5Ocopy(from.impl_->file, object.c_str(), impl_->file, object.c_str(), H5P_DEFAULT,
                parents) < 0)
        throw SystemError(concat("cannot write ", impl_->temporary.string(), ": ", object, ": ",
                                 h5::take_error()));
}

}  // namespace msa::io
