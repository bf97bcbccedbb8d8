// SPDX-License-Identifier: MIT
#include "experiments/fit/data.h"

#include <algorithm>
#include <tuple>

#include "core/cu_seqlens.h"
#include "core/error.h"
#include "core/indexer/projection.h"
#include "experiments/driver/layer_pattern.h"
#include "experiments/driver/operands.h"
#include "experiments/fit/architecture.h"
#include "experiments/fit/rope.h"
#include "experiments/report/text.h"

namespace msa::experiments::fit {
namespace {

using io::Field;

bool overlap(const std::vector<QueryRange>& some, const std::vector<QueryRange>& others) {
    for (const QueryRange& a : some)
        for (const QueryRange& b : others)
            if (a.begin < b.end && b.begin < a.end) return true;
    return false;
}

/// "0:100,200:300"
std::string text_of(const std::vector<QueryRange>& ranges) {
    std::string all;
    for (const QueryRange& range : ranges) add_item(all, ",", range.begin, ":", range.end);
    return all;
}

Tensor<float, 3> rows_of_field(const io::ActivationsReader& file, int64_t layer, Field of_gate,
                               QueryRange range, std::span<const int64_t> positions,
                               const IndexForm& form) {
    const bool x = fitted(form.architecture).reads_x;
    Tensor<float, 3> rows = file.read(layer, x ? Field::x : of_gate, range);
    if (!x) undo_rope(rows, positions, {form.undone_rope, file.layer(layer).rope_interleaved});
    return rows;
}

}  // namespace

void check_layers(const io::ActivationsReader& file, std::span<const int64_t> layers,
                  Architecture architecture) {
    const io::LayerInfo& own = file.layer(layers.front());
    require(!fitted(architecture).reads_x || own.has(Field::x), file.name(), ": /layers/",
            own.layer,
            " has no x, the input of the projections, which an Index Branch is fitted to");
    const auto window = [](const io::LayerInfo& of) {
        return of.window() ? std::to_string(*of.window()) : std::string("none");
    };
    for (int64_t number : layers) {
        const io::LayerInfo& layer = file.layer(number);
        io::require_post_rope(file, number);
        require_same_groups(file.name(), own, layer);
        for (const auto& [what, of_own, of_layer] :
             {std::tuple{"sliding_window", window(own), window(layer)},
              {"element type", std::string(to_string(own.element)),
               std::string(to_string(layer.element))}})
            require(of_own == of_layer, file.name(), ": layer ", own.layer, " has ", what, " ",
                    of_own, ", layer ", number, " has ", of_layer,
                    ": an indexer can be shared only where they agree");
    }
}

Tensor<float, 3> key_rows(const io::ActivationsReader& file, int64_t layer, QueryRange range,
                          std::span<const int64_t> positions, const IndexForm& form) {
    return rows_of_field(file, layer, Field::k, range, positions, form);
}

Tensor<float, 3> query_rows(const io::ActivationsReader& file, int64_t layer, QueryRange range,
                            std::span<const int64_t> positions, const IndexForm& form) {
    return rows_of_field(file, layer, Field::q, range, positions, form);
}

TrainingLayer read_layer(const io::ActivationsReader& file, int64_t layer, const FitOptions& o,
                         const IndexForm& form, bool with_x) {
    const FitArchitecture& of = fitted(o.architecture);
    TrainingLayer data;
    data.architecture = o.architecture;
    data.info = file.layer(layer);
    of.set_sizes({form, o.block_size}, data.info);
    data.problem = io::layer_problem(file.info(), data.info, o.block_size);
    data.problem.index_dim = o.index_dim;
    data.problem.validate();
    for (const KeyRange& seen : visible_keys(data.problem))
        data.positions.push_back(seen.count - 1);
    data.rope = model_frequencies(o, file, layer);
    const LayerReader reader(file, data.info, float_elements(data.info, o.element));
    if (with_x) {
        const Tensor<float, 3> inputs =
            query_rows(file, layer, {0, file.info().tokens()}, data.positions, form);
        data.x = Tensor<float, 3>({inputs.extent(0), 1, inputs.extent(1) * inputs.extent(2)},
                                  Fill::nothing);
        std::copy_n(inputs.data(), inputs.size(), data.x.data());
    }
    data.q = reader.all(Field::q);
    data.k = reader.all(Field::k);
    data.v = reader.all(Field::v);
    return data;
}

void pool(TrainingLayer& data, const io::ActivationsReader& file, const IndexForm& form) {
    const FitArchitecture& of = fitted(data.architecture);
    if (!of.pool) return;
    const int64_t tokens = of.key_tokens(data.info);
    const Tensor<float, 3> made =
        of.reads_x
            ? Tensor<float, 3>()
            : key_rows(file, data.info.layer, {0, data.problem.keys()}, data.positions, form);
    const View<const float, 3> rows = of.reads_x ? host_view(data.x) : host_view(made);
    const std::vector<int64_t>& cu = data.problem.batch.cu_seqlens_k();
    std::vector<Tensor<float, 2>> parts;
    for (size_t s = 0; s + 1 < cu.size(); ++s) {
        parts.push_back(of.pool(rows.slice(cu[s], cu[s + 1] - cu[s]), tokens));
        for (int64_t n = 0; n < parts.back().extent(0); ++n)
            data.pooled_positions.push_back(n * tokens);
    }
    data.pooled = Tensor<float, 2>({std::ssize(data.pooled_positions), parts.front().extent(1)},
                                   Fill::nothing);
    float* to = data.pooled.data();
    for (const Tensor<float, 2>& part : parts) to = std::copy_n(part.data(), part.size(), to);
}

Split split_queries(const FitOptions& o, const std::vector<int64_t>& cu) {
    const auto sequences = std::ssize(cu) - 1;
    constexpr const char* kCounted[] = {"positions", "sequences", "tokens"};
    const char* const what = kCounted[static_cast<size_t>(o.split)];
    const bool by_sequence = o.split == SplitBy::sequence;
    require(!by_sequence || sequences >= 2,
            "--split is sequence, must be position: there is one sequence");
    const int64_t available = by_sequence                 ? sequences
                              : o.split == SplitBy::token ? cu.back()
                                                          : longest_sequence(cu);
    const std::string of_what = concat("of ", what);
    const int64_t cut = std::max<int64_t>(1, available * 3 / 4);
    const std::vector<QueryRange> train =
        o.train.empty() ? std::vector<QueryRange>{{0, cut}}
                        : resolve_ranges("train", o.train, available, of_what);
    int64_t end = 0;
    for (const QueryRange& range : train) end = std::max(end, range.end);
    const std::vector<Range> rest{{end, std::nullopt}};
    const std::vector<QueryRange> held_out =
        resolve_ranges("eval", o.held_out.empty() ? rest : o.held_out, available, of_what);
    require(!overlap(held_out, train), "--eval is ", text_of(held_out),
            ", must share no query with --train = ", text_of(train));

    Split split;
    split.text = concat("trained on ", what, " ", text_of(train), ", held out ", text_of(held_out),
                        ", of ", count_text(sequences, "sequence"));
    for (int64_t s = 0; s < sequences; ++s)
        for (int64_t i = cu[static_cast<size_t>(s)]; i < cu[static_cast<size_t>(s) + 1]; ++i) {
            const int64_t at = by_sequence                 ? s
                               : o.split == SplitBy::token ? i
                                                           : i - cu[static_cast<size_t>(s)];
            if (within(train, at)) split.train.push_back(i);
            if (within(held_out, at)) split.held_out.push_back(i);
        }
    return split;
}

}  // namespace msa::experiments::fit
