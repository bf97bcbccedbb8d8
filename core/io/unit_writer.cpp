// SPDX-License-Identifier: MIT
#include "core/io/unit_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/io/checksum.h"
#include "core/io/claim.h"
#include "core/io/unit_file.h"

namespace msa::io {
namespace {

template <size_t Rank>
std::vector<hsize_t> sizes(const std::array<int64_t, Rank>& shape) {
    return {shape.begin(), shape.end()};
}

/// Chunks of about 256 KiB along the first axis; none for what is small.
std::vector<hsize_t> chunk_of(const std::vector<hsize_t>& shape, hid_t type) {
    constexpr hsize_t kSmall = 16384, kChunk = hsize_t{1} << 18;
    hsize_t row = H5Tget_size(type);
    for (size_t axis = 1; axis < shape.size(); ++axis) row *= shape[axis];
    if (row * shape[0] < kSmall) return {};
    std::vector<hsize_t> chunk = shape;
    chunk[0] = std::clamp<hsize_t>(kChunk / row, 1, shape[0]);
    return chunk;
}

template <typename Value>
void put(hid_t file, const h5::Place& place, const std::string& name, const Value& value) {
    const h5::Lock lock;
    const h5::Handle object =
        h5::exists(file, place.object) ? h5::open_object(file, place) : h5::make_group(file, place);
    h5::set_attribute(object, name, value);
}

void set_description(hid_t dataset, const Describe& describe) {
    h5::set_attribute(dataset, "axes", describe.axes);
    h5::set_attribute(dataset, "unit", describe.unit);
    h5::set_attribute(dataset, "description", describe.description);
}

}  // namespace

UnitWriter::Impl::Impl(std::filesystem::path unit_file, const std::string& unit, Identity of_run,
                       Done on_finish)
    : path(std::move(unit_file)),
      temporary(temporary_of(path)),
      identity(std::move(of_run)),
      done(std::move(on_finish)) {
    const h5::Lock lock;
    file = h5::create_file(temporary);
    h5::set_attribute(h5::open_object(file, at("/")), "unit", unit);
}

UnitWriter::Impl::~Impl() {
    file.reset();
    std::error_code ignored;  // a finished one has another name
    std::filesystem::remove(temporary, ignored);
}

UnitWriter::UnitWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UnitWriter::~UnitWriter() = default;
UnitWriter::UnitWriter(UnitWriter&&) noexcept = default;

void UnitWriter::Impl::create(const std::string& name, hid_t type,
                              const std::vector<hsize_t>& shape, const Describe& describe) const {
    h5::Storage storage;
    if (describe.deflated) storage.chunk = chunk_of(shape, type);
    set_description(h5::create_dataset(file, at(name), type, shape, storage), describe);
}

template <typename T, int Rank>
void UnitWriter::create(const std::string& name, const Shape<Rank>& shape,
                        const Describe& describe) {
    const h5::Lock lock;
    impl_->create(name, h5::native_type<T>(), sizes(shape), describe);
}

template <typename T, int Rank>
void UnitWriter::write_rows(const std::string& name, int64_t first_row, View<const T, Rank> rows) {
    const h5::Lock lock;
    const h5::Handle dataset = h5::open_object(impl_->file, impl_->at(name));
    h5::Slab slab{std::vector<hsize_t>(Rank, 0), sizes(rows.shape())};
    slab.offset[0] = static_cast<hsize_t>(first_row);
    h5::write(dataset, h5::native_type<T>(), slab, rows.data(), impl_->at(name));
}

template <typename T, int Rank>
void UnitWriter::write(const std::string& name, View<const T, Rank> values,
                       const Describe& describe) {
    create<T, Rank>(name, values.shape(), describe);
    write_rows<T, Rank>(name, 0, values);
}

void UnitWriter::write_texts(const std::string& name, const std::vector<std::string>& values,
                             const Describe& describe) {
    const h5::Lock lock;
    h5::write_texts(impl_->file, impl_->at(name), values);
    set_description(h5::open_object(impl_->file, impl_->at(name)), describe);
}

void UnitWriter::attribute(const std::string& object, const std::string& name, double value) {
    put(impl_->file, impl_->at(object), name, value);
}
void UnitWriter::attribute(const std::string& object, const std::string& name, int64_t value) {
    put(impl_->file, impl_->at(object), name, value);
}
void UnitWriter::attribute(const std::string& object, const std::string& name,
                           const std::string& value) {
    put(impl_->file, impl_->at(object), name, value);
}

void UnitWriter::note(const std::string& name, const std::string& text) {
    impl_->notes[name] = text;
}

void UnitWriter::finish() {
    {
        const h5::Lock lock;
        const h5::Handle root = h5::open_object(impl_->file, impl_->at("/"));
        h5::set_attribute(root, "run", impl_->identity());
        h5::set_attribute(root, "notes",
                          nlohmann::json(impl_->notes)
                              .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
    h5::close_durably(std::move(impl_->file), impl_->temporary);
    append_checksum(impl_->temporary);
    std::filesystem::rename(impl_->temporary, impl_->path);
    const h5::Lock lock;
    impl_->done();
}

#define MSA_INSTANTIATE(T, Rank)                                                      \
    template void UnitWriter::write<T, Rank>(const std::string&, View<const T, Rank>, \
                                             const Describe&);                        \
    template void UnitWriter::create<T, Rank>(const std::string&, const Shape<Rank>&, \
                                              const Describe&);                       \
    template void UnitWriter::write_rows<T, Rank>(const std::string&, int64_t, View<const T, Rank>);
#define MSA_INSTANTIATE_RANKS(T) \
    MSA_INSTANTIATE(T, 1) MSA_INSTANTIATE(T, 2) MSA_INSTANTIATE(T, 3) MSA_INSTANTIATE(T, 4)
MSA_INSTANTIATE_RANKS(float)
MSA_INSTANTIATE_RANKS(double)
MSA_INSTANTIATE_RANKS(int32_t)
MSA_INSTANTIATE_RANKS(int64_t)
#undef MSA_INSTANTIATE_RANKS
#undef MSA_INSTANTIATE

}  // namespace msa::io
