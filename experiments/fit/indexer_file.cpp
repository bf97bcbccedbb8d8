// SPDX-License-Identifier: MIT
#include "experiments/fit/indexer_file.h"

#include <algorithm>

#include "core/indexer/gate_kl.h"
#include "core/indexer/projection.h"
#include "experiments/fit/data.h"
#include "experiments/fit/options.h"
#include "experiments/fit/state.h"

namespace msa::experiments::fit {
namespace {

using io::Field;

constexpr int64_t kChunkTokens = 4096;

constexpr Field kOfMsa[] = {Field::index_q, Field::index_k};
constexpr Field kOfDsa[] = {Field::dsa_q, Field::dsa_k, Field::dsa_w};

constexpr Field kOfGate[] = {Field::gate_q, Field::gate_k};

/// The fields that the weights make.
std::span<const Field> made_by(const IndexForm& form) {
    if (form.is_gate()) return kOfGate;
    if (form.head_weights) return kOfDsa;
    return kOfMsa;
}

/// The layer in the new file: the operands of another architecture stay.
io::LayerInfo new_layer(io::LayerInfo info, const IndexForm& form, const FitOptions& o) {
    if (!o.keep_x) info.model_dim = 0;
    if (form.is_gate()) {
        info.learned.gate_dim = form.index_dim;
        info.learned.gate_block_size = o.block_size;
    } else if (form.head_weights) {
        info.learned.dsa_heads = form.groups;
        info.learned.dsa_dim = form.index_dim;
    } else {
        info.index_dim = form.index_dim;
    }
    info.own_block_size = o.block_size;
    info.own_top_k = o.rule.top_k;
    return info;
}

void write_tokens(io::ActivationsWriter& to, const io::ActivationsReader& file,
                  const io::LayerInfo& layer, const IndexWeights& weights, QueryRange range,
                  int threads) {
    const std::span<const Field> made = made_by(weights.form());
    for (Field field : io::kFields) {
        if (!layer.has(field) || field == Field::gate_k) continue;  // of blocks, not of tokens
        const bool fitted = std::find(made.begin(), made.end(), field) != made.end();
        to.write(layer.layer, field, range.begin, 0,
                 fitted ? fitted_index(file, layer.layer, weights, field, range, threads)
                        : file.read(layer.layer, field, range));
    }
}

/// q or k of tokens before RoPE, as the gate reads them.
Tensor<float, 3> before_rope(const io::ActivationsReader& file, int64_t layer, Field field,
                             QueryRange range, const IndexForm& form,
                             std::span<const int64_t> positions) {
    Tensor<float, 3> rows = file.read(layer, field, range);
    undo_rope(rows, positions, {form.undone_rope, file.layer(layer).rope_interleaved});
    return rows;
}

/// gate_k of all blocks: fitted, or the input's.
void write_gate_keys(io::ActivationsWriter& to, const io::ActivationsReader& file,
                     const io::LayerInfo& layer, const IndexWeights& weights, int threads) {
    if (!layer.has(Field::gate_k)) return;
    if (!weights.form().is_gate()) {
        const int64_t rows = file.info().rows(layer, Field::gate_k);
        to.write(layer.layer, Field::gate_k, 0, 0,
                 file.read(layer.layer, Field::gate_k, {0, rows}));
        return;
    }
    const std::vector<int64_t>& cu = file.info().cu_seqlens;
    const int64_t block = layer.learned.gate_block_size, step = kChunkTokens / block * block;
    int64_t row = 0;
    for (size_t s = 0; s + 1 < cu.size(); ++s)
        for (int64_t begin = cu[s]; begin < cu[s + 1]; begin += step) {
            const QueryRange range{begin, std::min(begin + step, cu[s + 1])};
            std::vector<int64_t> positions, first;
            for (int64_t j = range.begin; j < range.end; ++j) positions.push_back(j - cu[s]);
            for (int64_t j = range.begin; j < range.end; j += block) first.push_back(j - cu[s]);
            const Tensor<float, 2> pooled = pool_keys(
                before_rope(file, layer.layer, Field::k, range, weights.form(), positions), block);
            to.write(layer.layer, Field::gate_k, row, 0,
                     index_keys(weights, pooled.view(), first, threads));
            row += std::ssize(first);
        }
}

}  // namespace

Tensor<float, 3> fitted_index(const io::ActivationsReader& file, int64_t layer,
                              const IndexWeights& weights, Field field, QueryRange range,
                              int threads) {
    const std::span<const Field> made = made_by(weights.form());
    MSA_CHECK(std::find(made.begin(), made.end(), field) != made.end());
    const Problem queries =
        io::layer_problem(file.info(), file.layer(layer), kMaxBlockSize).with_queries(range);
    std::vector<int64_t> positions;
    for (const KeyRange& keys : visible_keys(queries)) positions.push_back(keys.count - 1);
    if (field == Field::gate_q) {
        const Tensor<float, 3> q =
            before_rope(file, layer, Field::q, range, weights.form(), positions);
        return index_queries(weights, {q.data(), {q.extent(0), q.extent(1) * q.extent(2)}},
                             positions, threads);
    }
    const Tensor<float, 3> x = file.read(layer, Field::x, range);
    const View<const float, 2> hidden(x.data(), {x.extent(0), x.extent(2)});
    if (field == Field::dsa_w) return index_head_weights(weights, hidden, threads);
    return field == made.front() ? index_queries(weights, hidden, positions, threads)
                                 : index_keys(weights, hidden, positions, threads);
}

void write_indexer_file(const std::filesystem::path& path, const io::ActivationsReader& file,
                        const io::ResultsReader& results, std::span<const int64_t> layers,
                        int threads) {
    io::ActivationsInfo info = file.info();
    info.has_tokens = false;
    info.layers.clear();
    const auto o = recorded_options<FitOptions>(results.run().options);
    std::string made;
    for (int64_t layer : layers) {
        const IndexForm form = read_weights(results, layer).form();
        info.layers.push_back(new_layer(file.layer(layer), form, o));
        made = form.is_gate()      ? "gate_q and gate_k"
               : form.head_weights ? "dsa_q, dsa_k and dsa_w"
                                   : "index_q and index_k";
    }
    info.producer += ", " + made + " by msa-fit-indexer";
    io::ActivationsWriter to(path, info, true);
    for (const io::LayerInfo& layer : info.layers) {
        const IndexWeights weights = read_weights(results, layer.layer);
        const int64_t n = info.tokens();
        for (int64_t begin = 0; begin < n; begin += kChunkTokens)
            write_tokens(to, file, layer, weights, {begin, std::min(begin + kChunkTokens, n)},
                         threads);
        write_gate_keys(to, file, layer, weights, threads);
    }
    to.finish();
}

}  // namespace msa::experiments::fit
