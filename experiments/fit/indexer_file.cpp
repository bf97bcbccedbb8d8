// SPDX-License-Identifier: MIT
#include "experiments/fit/indexer_file.h"

#include <algorithm>
#include <string_view>

#include "experiments/fit/architecture.h"
#include "experiments/fit/data.h"
#include "experiments/fit/options.h"
#include "experiments/fit/state.h"
#include "experiments/report/text.h"

namespace msa::experiments::fit {
namespace {

using io::Field;

constexpr int64_t kChunkTokens = 4096;

/// The layer in the new file: the operands of another architecture stay, unless its indexer is that
/// of the layer `source`.
io::LayerInfo new_layer(io::LayerInfo info, const IndexForm& form, const FitOptions& o,
                        int64_t source) {
    if (!o.keep_x) info.model_dim = 0;
    if (source != info.layer) {
        info.index_dim = 0;
        info.learned = {.source = source};
    }
    fitted(form.architecture).set_sizes({form, o.block_size}, info);
    info.own_block_size = o.block_size;
    info.own_top_k = o.rule.top_k;
    return info;
}

bool is_made(const IndexForm& form, Field field) {
    const std::span<const Field> made = fitted(form.architecture).makes;
    return std::find(made.begin(), made.end(), field) != made.end();
}

/// Whether another layer's is linked.
bool is_taken(const io::LayerInfo& layer, Field field) {
    return layer.learned.source && io::is_of_index(field);
}

bool is_of_tokens(Field field) { return std::string_view(io::rows_of(field)) == "tokens"; }

void write_tokens(io::ActivationsWriter& to, const io::ActivationsReader& file,
                  const io::LayerInfo& layer, const IndexWeights& weights, QueryRange range,
                  int threads) {
    for (Field field : io::kFields) {
        if (!layer.has(field) || !is_of_tokens(field) || is_taken(layer, field)) continue;
        to.write(layer.layer, field, range.begin, 0,
                 is_made(weights.form(), field)
                     ? fitted_index(file, layer.layer, weights, field, range, threads)
                     : file.read(layer.layer, field, range));
    }
}

/// Keys of several tokens.
void write_pooled_keys(io::ActivationsWriter& to, const io::ActivationsReader& file,
                       const io::LayerInfo& layer, const IndexWeights& weights, Field field,
                       int threads) {
    const FitArchitecture& of = fitted(weights.form().architecture);
    const std::vector<int64_t>& cu = file.info().cu_seqlens;
    const int64_t tokens = of.key_tokens(layer), step = kChunkTokens / tokens * tokens;
    int64_t row = 0;
    for (size_t s = 0; s + 1 < cu.size(); ++s)
        for (int64_t begin = cu[s]; begin < cu[s + 1]; begin += step) {
            const QueryRange range{begin, std::min(begin + step, cu[s + 1])};
            std::vector<int64_t> positions, first;
            for (int64_t j = range.begin; j < range.end; ++j) positions.push_back(j - cu[s]);
            const Tensor<float, 2> pooled = of.pool(
                host_view(key_rows(file, layer.layer, range, positions, weights.form())), tokens);
            for (int64_t n = 0; n < pooled.extent(0); ++n)
                first.push_back(positions[static_cast<size_t>(n * tokens)]);
            to.write(layer.layer, field, row, 0,
                     index_keys(weights, pooled.view(), first, threads));
            row += std::ssize(first);
        }
}

/// The operands that have no row per token: fitted, or the input's.
void write_others(io::ActivationsWriter& to, const io::ActivationsReader& file,
                  const io::LayerInfo& layer, const IndexWeights& weights, int threads) {
    for (Field field : io::kFields) {
        if (!layer.has(field) || is_of_tokens(field) || is_taken(layer, field)) continue;
        if (is_made(weights.form(), field))
            write_pooled_keys(to, file, layer, weights, field, threads);
        else
            to.write(layer.layer, field, 0, 0,
                     file.read(layer.layer, field, {0, file.info().rows(layer, field)}));
    }
}

}  // namespace

Tensor<float, 3> fitted_index(const io::ActivationsReader& file, int64_t layer,
                              const IndexWeights& weights, Field field, QueryRange range,
                              int threads) {
    const std::span<const Field> made = fitted(weights.form().architecture).makes;
    MSA_CHECK(is_made(weights.form(), field));
    const Problem queries =
        io::layer_problem(file.info(), file.layer(layer), kMaxBlockSize).with_queries(range);
    std::vector<int64_t> positions;
    for (const KeyRange& keys : visible_keys(queries)) positions.push_back(keys.count - 1);
    const Tensor<float, 3> rows = query_rows(file, layer, range, positions, weights.form());
    const View<const float, 2> inputs(rows.data(),
                                      {rows.extent(0), rows.extent(1) * rows.extent(2)});
    if (field == made.front()) return index_queries(weights, inputs, positions, threads);
    if (field == made[1]) return index_keys(weights, inputs, positions, threads);
    return index_head_weights(weights, inputs, threads);
}

FittedBranches read_branches(const std::filesystem::path& path, const io::ActivationsReader& file,
                             std::vector<int64_t>& layers) {
    const io::ResultsReader results(path);
    const std::string name = path.string();
    const std::vector<std::string> fitted =
        results.has("/fit") ? results.list("/fit") : std::vector<std::string>();
    require(!fitted.empty(), name, ": has no /fit, must be the results.h5 of msa-fit-indexer");
    if (layers.empty())
        for (const std::string& layer : fitted) layers.push_back(std::stoll(layer));
    const auto of_fit = recorded_options<FitOptions>(results.run().options);
    FittedBranches all{{}, static_cast<const SizeOptions&>(of_fit)};
    for (int64_t layer : layers) {
        require(results.has(concat("/fit/", layer)), name, ": has no layer ", layer,
                ", must be one of: ", join(fitted));
        const io::LayerInfo& info = file.layer(layer);
        const std::string at = concat(file.name(), ": /layers/", layer);
        require(info.has(Field::x), at, " has no x, which the Index Branch of ", name, " projects");
        const IndexForm form =
            all.weights.emplace(layer, read_weights(results, layer)).first->second.form();
        const auto same = [&](const char* what, int64_t value, int64_t wanted) {
            require(value == wanted, at, " has ", what, " ", value, ", ", name, " is for ", wanted);
        };
        require(form.architecture == Architecture::msa, name, ": /fit/", layer,
                " is an indexer of --architecture ", form.traits().name, ", must be of msa");
        same("d_model", info.model_dim, form.model_dim);
        same("key-value heads", info.kv_heads, form.groups);
    }
    return all;
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
        for (int64_t of : read_layers(results, layer))
            info.layers.push_back(new_layer(file.layer(of), form, o, layer));
        made.clear();
        const std::span<const Field> fields = fitted(form.architecture).makes;
        for (size_t n = 0; n < fields.size(); ++n)
            made += concat(n == 0                   ? ""
                           : n + 1 == fields.size() ? " and "
                                                    : ", ",
                           to_string(fields[n]));
    }
    info.producer += ", " + made + " by msa-fit-indexer";
    io::ActivationsWriter to(path, info, true);
    for (const io::LayerInfo& layer : info.layers) {
        const IndexWeights weights =
            read_weights(results, layer.learned.source.value_or(layer.layer));
        const int64_t n = info.tokens();
        for (int64_t begin = 0; begin < n; begin += kChunkTokens)
            write_tokens(to, file, layer, weights, {begin, std::min(begin + kChunkTokens, n)},
                         threads);
        write_others(to, file, layer, weights, threads);
    }
    to.finish();
}

}  // namespace msa::experiments::fit
