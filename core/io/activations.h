// SPDX-License-Identifier: MIT
// Reader and writer of `msa-activations` version 1 (data/FORMAT.md): captured Q, K, V and hidden
// states of chosen layers. Streams by layer, head and token range; values are float in memory.
//
// Every error is an InputError that names the file, the dataset or attribute, the value and the
// rule; a refusal of the operating system is a SystemError.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/io/layer_info.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa::io {

/// The square problem of a layer: every token is a query and a key of its sequence. It has the
/// layer's window and soft cap.
Problem layer_problem(const ActivationsInfo&, const LayerInfo&, int64_t block_size);
/// [Hq] The layer's learnable sinks, as in AttentionInput; absent if it has none.
Tensor<float, 1> layer_sinks(const LayerInfo&);

/// A file of a data set, and which part of the data set it holds.
struct Capture {
    std::filesystem::path path;
    int64_t first_sequence = 0, sequences = 0, first_token = 0, tokens = 0;
};

class ActivationsReader {
public:
    /// Opens and checks everything but the values. It reads one token's values, to detect K and V
    /// that were repeated to the query heads.
    explicit ActivationsReader(const std::filesystem::path& path);
    /// Several captures of one model as one data set, whose sequences are those of the first file,
    /// then those of the second, and so on. InputError naming two files, the place in them and both
    /// values where model_id, the layers, their sizes, element types or attributes differ.
    explicit ActivationsReader(std::span<const std::filesystem::path> paths);
    /// Reads a file in memory and keeps a copy; messages call it `name`.
    ActivationsReader(const std::filesystem::path& name, std::span<const uint8_t> bytes);
    ~ActivationsReader();
    ActivationsReader(ActivationsReader&&) noexcept;
    ActivationsReader& operator=(ActivationsReader&&) noexcept;

    const std::string& name() const;               // for messages: the paths, as in "a.h5, b.h5"
    const std::vector<Capture>& captures() const;  // in order
    const ActivationsInfo& info() const;           // of all; where files may differ, the first's
    /// Throws InputError naming the existing layers if `number` is not one.
    const LayerInfo& layer(int64_t number) const;

    /// Reads rows [range.begin, range.end), tokens (rows_of), of heads [first_head,
    /// first_head + head_count) into to [n, head_count, channels]. A NaN or Inf is an InputError
    /// with the count in the whole dataset and the first position.
    void read(int64_t layer, Field, QueryRange range, int64_t first_head, View<float, 3> to) const;
    /// All heads of a token range: [n, heads, channels].
    Tensor<float, 3> read(int64_t layer, Field, QueryRange range) const;
    /// All heads of the given tokens (ascending): [n, heads, channels].
    Tensor<float, 3> gather(int64_t layer, Field, std::span<const int64_t> tokens) const;
    /// Token ids, int32 [N]; throws InputError if the file has none.
    std::vector<int32_t> tokens() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Throws InputError when q or k of the layer is stored before RoPE.
void require_post_rope(const ActivationsReader& file, int64_t layer);

class ActivationsWriter {
public:
    /// Writes to `path`.partial until finish() renames it; an abandoned writer removes it.
    /// info.layers are created empty, to be filled by write(). Refuses an existing `path` unless
    /// `overwrite`, and always refuses one that is not a regular file.
    ActivationsWriter(std::filesystem::path path, const ActivationsInfo& info, bool overwrite);
    ~ActivationsWriter();
    ActivationsWriter(const ActivationsWriter&) = delete;
    ActivationsWriter& operator=(const ActivationsWriter&) = delete;

    /// Writes values [n, head_count, channels] to the tokens (rows_of) from first_token on
    /// and the heads from first_head on, rounded to nearest even.
    void write(int64_t layer, Field, int64_t first_token, int64_t first_head,
               View<const float, 3> values);
    void write_tokens(std::span<const int32_t> tokens);
    void finish();

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace msa::io
