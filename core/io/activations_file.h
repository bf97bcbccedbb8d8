// SPDX-License-Identifier: MIT
// One file of activations, open and checked. ActivationsReader reads one or several of them.
// Callers hold h5::Lock.
#pragma once

#include <filesystem>
#include <span>

#include "core/io/activations.h"
#include "core/io/h5.h"

namespace msa::io {

class ActivationsFile {
public:
    /// Checks everything but the values, like ActivationsReader.
    ActivationsFile(std::filesystem::path path, h5::Handle opened);

    const std::filesystem::path& path() const { return path_; }
    const ActivationsInfo& info() const { return info_; }

    /// As ActivationsReader::read, for tokens of this file. The caller has checked the arguments.
    void read(const LayerInfo&, Field, QueryRange, int64_t first_head, View<float, 3> to) const;
    /// The token ids of this file, as many as it has tokens.
    void read_tokens(std::span<int32_t> to) const;

private:
    h5::Handle open(const LayerInfo&, Field) const;
    void read_raw(const LayerInfo&, Field, QueryRange, int64_t first_head, View<float, 3> to) const;
    [[noreturn]] void report_non_finite(const LayerInfo&, Field) const;
    void check_not_repeated(const LayerInfo&) const;

    std::filesystem::path path_;
    h5::Handle file_;
    ActivationsInfo info_;
};

}  // namespace msa::io
