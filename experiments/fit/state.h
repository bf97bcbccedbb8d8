// SPDX-License-Identifier: MIT
// The state of a fit in a file of results (data/FORMAT.md): group /fit/<l>. A finished layer and a
// checkpoint have the same datasets; the checkpoint adds the optimizer's state.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "core/io/results.h"
#include "experiments/fit/training.h"

namespace msa::experiments::fit {

/// Writes curves, and the weights for plain hidden states, to the current unit.
void write_fit(io::UnitWriter&, int64_t layer, const FitState&, const IndexWeights& plain);

/// The weights of a finished layer.
IndexWeights read_weights(const io::ResultsReader&, int64_t layer);
/// The layers that its indexer is for, its own first.
std::vector<int64_t> read_layers(const io::ResultsReader&, int64_t layer);
/// Which of its evaluations is that of its weights.
size_t read_best(const io::ResultsReader&, int64_t layer);
/// Its evaluations, in order.
std::vector<Evaluation> read_evaluations(const io::ResultsReader&, int64_t layer);

/// A separate file, replaced atomically, so a kill leaves the previous one.
class Checkpoint {
public:
    Checkpoint(std::filesystem::path path, int64_t layer, io::RunRecord record)
        : path_(std::move(path)), layer_(layer), record_(std::move(record)) {}

    const std::filesystem::path& path() const { return path_; }
    void save(const FitState&, const IndexWeights& plain) const;
    /// Nothing if there is no file. Throws InputError naming the first difference if another run
    /// wrote it.
    std::optional<FitState> load() const;
    void remove() const;

private:
    FitState read() const;

    std::filesystem::path path_;
    int64_t layer_;
    io::RunRecord record_;
};

}  // namespace msa::experiments::fit
