// SPDX-License-Identifier: MIT
// Names, ranks and chunks of the two formats (data/FORMAT.md), shared by readers and writers.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/io/activations.h"
#include "core/io/h5.h"

namespace msa::io {

inline constexpr const char* kActivationsFormat = "msa-activations";
inline constexpr const char* kResultsFormat = "msa-results";
inline constexpr int64_t kActivationsVersion = 1, kResultsVersion = 3;
inline constexpr int64_t kChunkTokens = 1024;

/// The root group of a file, whose attributes must name `format` and `version`.
inline h5::Handle open_root(hid_t file, const h5::Place& root, std::string_view format,
                            int64_t version) {
    h5::Handle group = h5::open_object(file, root);
    const std::string named = h5::text_attribute(group, "format", root);
    require(named == format, root.text(), " attribute format is '", named, "', must be '", format,
            "'");
    const double found = h5::number_attribute(group, "format_version", root);
    require(found == static_cast<double>(version), root.text(), " attribute format_version is ",
            found, ", this program reads ", version);
    return group;
}

/// x, index_k, dsa_k, dsa_w and qsa_k have no head axis in the file.
inline bool has_head_axis(Field field) {
    return field != Field::x && field != Field::index_k && field != Field::dsa_k &&
           field != Field::dsa_w && field != Field::qsa_k;
}
inline size_t field_rank(Field field) { return has_head_axis(field) ? 3 : 2; }

inline h5::Place field_place(const std::filesystem::path& file, int64_t layer, Field field) {
    return {file, concat("/layers/", layer, "/", to_string(field))};
}

/// Where values of memory shape [n, heads, channels] lie in the file.
inline h5::Slab field_slab(Field field, int64_t first_token, int64_t first_head,
                           const Shape<3>& shape) {
    const auto at = [](int64_t value) { return static_cast<hsize_t>(value); };
    if (!has_head_axis(field)) return {{at(first_token), 0}, {at(shape[0]), at(shape[2])}};
    return {{at(first_token), at(first_head), 0}, {at(shape[0]), at(shape[1]), at(shape[2])}};
}

}  // namespace msa::io
