// SPDX-License-Identifier: MIT
#include "experiments/bench/operands.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/number/convert.h"
#include "core/random.h"
#include "core/registry.h"
#include "experiments/bench/meter.h"
#include "experiments/driver/pattern.h"

namespace msa::experiments::bench {
namespace {

constexpr int64_t kStaging = int64_t{1} << 24;  // bytes that are made on the host at a time

/// The streams of random numbers.
enum class Stream : int64_t { q = 301, k, v, index_q, index_k, scores, d_out, scales };

std::vector<char> encoded(std::span<const float> values, Element element) {
    std::vector<char> stored(values.size() * static_cast<size_t>(element_bytes(element)));
    encode(values, element, stored.data());
    return stored;
}

/// The normal values [first, first + count) of the run that `key` names.
std::vector<char> drawn(uint64_t key, int64_t first, int64_t count, Element element) {
    std::vector<float> normal(static_cast<size_t>(count));
#pragma omp parallel for
    for (int64_t i = 0; i < count; ++i)
        normal[static_cast<size_t>(i)] = static_cast<float>(random_normal(mix(key, first + i)));
    return encoded(normal, element);
}

/// Normal values. Rows (last axis) are windows of one long run at random places: a gigabyte takes
/// no minutes, and rows are as good as independent. Of a run that is longer than all rows together,
/// their windows alone are drawn. With `repeat`, what one staging holds is copied on within the
/// backend's memory.
template <int Rank>
void fill_noise(Backend& backend, const Stored<Rank>& to, uint64_t seed, Stream stream,
                bool repeat = false) {
    constexpr int64_t kRun = int64_t{1} << 20;
    const int64_t width = to.shape()[Rank - 1], rows = element_count(to.shape()) / width;
    const uint64_t key = mix(seed, static_cast<int64_t>(stream));
    const bool whole = rows * width > kRun;
    const std::vector<char> run =
        whole ? drawn(key, 0, kRun + width, to.element()) : std::vector<char>();
    const int64_t each = element_bytes(to.element()), row_bytes = width * each;
    const int64_t piece = std::min(rows, std::max<int64_t>(1, kStaging / row_bytes));
    std::vector<char> staging(static_cast<size_t>(piece * row_bytes));
    for (int64_t begin = 0; begin < rows; begin += piece) {
        stop_case_if_asked();
        const int64_t count = std::min(piece, rows - begin);
        if (repeat && begin > 0) {
            backend.copy(to.data() + begin * row_bytes, backend.space(), to.data(), backend.space(),
                         count * row_bytes);
            continue;
        }
#pragma omp parallel for
        for (int64_t row = 0; row < count; ++row) {
            const auto at = static_cast<int64_t>(mix(key, begin + row, 1) % uint64_t{kRun});
            const std::vector<char> window =
                whole ? std::vector<char>() : drawn(key, at, width, to.element());
            std::memcpy(staging.data() + row * row_bytes,
                        whole ? run.data() + at * each : window.data(),
                        static_cast<size_t>(row_bytes));
        }
        backend.copy(to.data() + begin * row_bytes, backend.space(), staging.data(), Space::host,
                     count * row_bytes);
    }
}

/// Scales of e4m3 operands; none of others.
void fill_scales(Backend& backend, const Case& c, Layer& layer, uint64_t seed) {
    const uint64_t key = mix(seed, static_cast<int64_t>(Stream::scales));
    for (Tensor<float, 2>* scales : {&layer.q_scales, &layer.k_scales, &layer.v_scales}) {
        if (scales->data() == nullptr) continue;
        Tensor<float, 2> host(scales->shape());
#pragma omp parallel for
        for (int64_t i = 0; i < host.size(); ++i)
            host.data()[i] =
                c.captured ? 1.0F : 0.5F + static_cast<float>(mix(key, i) % 1024) / 2048;
        backend.copy(scales->data(), backend.space(), host.data(), Space::host,
                     host.size() * int64_t{sizeof(float)});
    }
}

/// How many floats the scales of e4m3 operands take.
int64_t scale_count(const Problem& p) {
    return p.queries() * p.query_heads + 2 * block_starts(p).back() * p.kv_heads;
}
int64_t all_blocks(const Problem& p) { return block_starts(p).back(); }
/// Likewise of int8 index operands.
int64_t index_scale_count(const Problem& p) { return p.queries() * p.kv_heads + all_blocks(p); }

/// Stripes take the slots that sink and diagonal leave. "structured" leaves hardly any to noise;
/// "fitted" is set to what fitted Index Branches choose (docs/methods.md).
Pattern pattern_of(const Case& c, const std::string& selection, uint64_t seed) {
    Pattern pattern;
    pattern.stripes = std::max<int64_t>(1, c.top_k - 2);
    pattern.needles = 0;
    pattern.seed = seed;
    if (selection == "fitted") {
        // With more, bounds by int8 keys leave twice as many blocks open as of fitted rows.
        pattern.sink = 4;
        pattern.by_distance = true;
        pattern.longest_wave = static_cast<double>(2 * c.problem.batch.longest_keys());
        pattern.index_noise = 5.5;
    } else {
        pattern.index_noise = 0.5;  // 8 neighbouring queries share most: union_of_8 is 18 to 24
    }
    return pattern;
}

/// Planted operands of all the keys' tokens.
Source planted(const Case& c, const std::string& selection, uint64_t seed) {
    const Problem& p = c.problem;
    io::ActivationsInfo info;
    info.cu_seqlens = p.batch.cu_seqlens_k();
    io::LayerInfo sizes;
    sizes.query_heads = p.query_heads;
    sizes.kv_heads = p.kv_heads;
    sizes.head_dim = p.head_dim;
    sizes.index_dim = p.index_dim;
    const Synthesizer synthesizer(info, pattern_of(c, selection, seed));
    return [synthesizer, sizes](io::Field field, QueryRange range) {
        return synthesizer.make(sizes, field, range);
    };
}

/// The tokens [begin, end) of a field, to the rows from `row` on of every tensor.
template <int Rank>
void fill_from(Backend& backend, const std::vector<Stored<Rank>>& to, const Source& source,
               io::Field field, QueryRange tokens, int64_t row) {
    const int64_t channels = to[0].row_bytes() / element_bytes(to[0].element());
    const int64_t piece = std::max<int64_t>(1, kStaging / (channels * int64_t{sizeof(float)}));
    for (int64_t begin = tokens.begin; begin < tokens.end; begin += piece) {
        stop_case_if_asked();
        const QueryRange range{begin, std::min(tokens.end, begin + piece)};
        const Tensor<float, 3> made = source(field, range);
        for (const Stored<Rank>& one : to) {
            const std::vector<char> stored =
                encoded({made.data(), static_cast<size_t>(made.size())}, one.element());
            backend.copy(one.data() + (row + begin - tokens.begin) * one.row_bytes(),
                         backend.space(), stored.data(), Space::host, std::ssize(stored));
        }
    }
}

template <int Rank>
View<const float, 3> floats_of(const Stored<Rank>& host) {
    const int64_t width = host.shape()[Rank - 1], rows = element_count(host.shape()) / width;
    return {reinterpret_cast<const float*>(host.data()),
            {host.shape()[0], rows / std::max<int64_t>(1, host.shape()[0]), width},
            Space::host};
}

template <int Rank>
void upload_scaled(Backend& backend, const ScaledOperand<Int8>& from, const Stored<Rank>& to,
                   Tensor<float, 2>& scales) {
    MSA_CHECK(from.scales.size() == scales.size());
    backend.copy(to.data(), backend.space(), from.values.data(), Space::host, to.bytes());
    backend.copy(scales.data(), backend.space(), from.scales.data(), Space::host,
                 scales.size() * int64_t{sizeof(float)});
}

void copy_scales(Backend& backend, const Tensor<float, 2>& from, Tensor<float, 2>& to) {
    if (from.size() > 0)
        backend.copy(to.data(), backend.space(), from.data(), backend.space(),
                     from.size() * int64_t{sizeof(float)});
}

template <int Rank>
void copy_stored(Backend& backend, const Stored<Rank>& from, const Stored<Rank>& to) {
    backend.copy(to.data(), backend.space(), from.data(), backend.space(), from.bytes());
}

}  // namespace

Element output_element(const BenchOptions& o) {
    if (o.sizes.element != Element::e4m3) return o.sizes.element;
    return o.on_gpu() ? Element::bf16 : Element::f32;
}

int64_t layer_bytes(const Case& c, const BenchOptions& o, Parts parts) {
    const Problem& p = c.problem;
    int64_t bytes = 0;
    if (parts.index) {
        for (Element element : o.index_elements)
            bytes += element_bytes(element) * (p.queries() * p.kv_heads + p.keys()) * p.index_dim +
                     (element == Element::int8 ? int64_t{sizeof(float)} * index_scale_count(p) : 0);
        bytes += int64_t{sizeof(int32_t)} * p.queries() * p.kv_heads * c.top_k;
    }
    if (parts.attention)
        bytes += element_bytes(o.sizes.element) *
                     (p.queries() * p.query_heads + 2 * p.keys() * p.kv_heads) * p.head_dim +
                 element_bytes(output_element(o)) * p.queries() * p.query_heads * p.head_dim +
                 int64_t{sizeof(float)} * p.queries() * p.query_heads;
    if (parts.attention && o.sizes.element == Element::e4m3)
        bytes += int64_t{sizeof(float)} * scale_count(p);
    for (int64_t size : o.page_sizes) {
        const int64_t rows = pages_of(p, size) * size;
        if (parts.attention)
            bytes += 2 * element_bytes(o.sizes.element) * rows * p.kv_heads * p.head_dim;
        for (Element element : o.index_elements)
            if (parts.index) bytes += element_bytes(element) * rows * p.index_dim;
    }
    if (parts.gradient)
        bytes += 2 * element_bytes(o.sizes.element) *
                 (p.queries() * p.query_heads + p.keys() * p.kv_heads) * p.head_dim;
    if (parts.index_gradient)
        bytes += int64_t{sizeof(float)} *
                 (p.queries() * p.kv_heads * (p.index_dim + 1) + p.keys() * p.index_dim);
    return bytes;
}

namespace {

IndexOperands allocate_index(Backend& backend, const Problem& p, Element element) {
    IndexOperands made;
    made.q = {backend, {p.queries(), p.kv_heads, p.index_dim}, element};
    made.k = {backend, {p.keys(), p.index_dim}, element};
    if (element == Element::int8) {
        made.q_scales = backend.make<float, 2>({p.queries(), p.kv_heads});
        made.k_scales = backend.make<float, 2>({all_blocks(p), 1});
    }
    return made;
}

}  // namespace

Layer allocate_layer(Backend& backend, const Case& c, const BenchOptions& o, Parts parts) {
    const Problem& p = c.problem;
    const Shape<3> queries{p.queries(), p.query_heads, p.head_dim};
    const Shape<3> keys{p.keys(), p.kv_heads, p.head_dim};
    const auto stored = [&](const Shape<3>& shape, Element element) {
        stop_case_if_asked();  // gigabytes of a host's memory take seconds
        return Stored<3>(backend, shape, element);
    };
    Layer layer;
    if (parts.attention) {
        layer.q = stored(queries, o.sizes.element);
        layer.k = stored(keys, o.sizes.element);
        layer.v = stored(keys, o.sizes.element);
        layer.out = stored(queries, output_element(o));
        layer.lse = backend.make<float, 2>({p.queries(), p.query_heads});
        if (o.sizes.element == Element::e4m3) {
            const Shape<2> blocks{block_starts(p).back(), p.kv_heads};
            layer.q_scales = backend.make<float, 2>({p.queries(), p.query_heads});
            layer.k_scales = backend.make<float, 2>(blocks);
            layer.v_scales = backend.make<float, 2>(blocks);
        }
    }
    if (parts.gradient) {
        layer.d_out = stored(queries, o.sizes.element);
        layer.d_q = stored(queries, o.sizes.element);
        layer.d_k = stored(keys, o.sizes.element);
        layer.d_v = stored(keys, o.sizes.element);
    }
    if (parts.index) {
        for (Element element : o.index_elements)
            layer.index.push_back(allocate_index(backend, p, element));
        layer.ids = backend.make<int32_t, 3>({p.queries(), p.kv_heads, c.top_k});
    }
    for (int64_t size : o.page_sizes)
        layer.paged.push_back(allocate_pages(backend, c, o, parts, size));
    if (parts.index_gradient) {
        layer.index_lse = backend.make<float, 2>({p.queries(), p.kv_heads});
        layer.d_index_q = backend.make<float, 3>({p.queries(), p.kv_heads, p.index_dim});
        layer.d_index_k = backend.make<float, 2>({p.keys(), p.index_dim});
    }
    return layer;
}

void fill_attention(Backend& backend, const Case& c, Layer& layer, uint64_t seed) {
    fill_scales(backend, c, layer, seed);
    if (c.captured) {
        const QueryRange all{0, c.problem.keys()};
        fill_from<3>(backend, {layer.q}, c.captured, io::Field::q, all, 0);
        fill_from<3>(backend, {layer.k}, c.captured, io::Field::k, all, 0);
        fill_from<3>(backend, {layer.v}, c.captured, io::Field::v, all, 0);
        return;
    }
    fill_noise(backend, layer.q, seed, Stream::q, true);
    fill_noise(backend, layer.k, seed, Stream::k, true);
    fill_noise(backend, layer.v, seed, Stream::v, true);
}

void fill_gradient(Backend& backend, Layer& layer, uint64_t seed) {
    fill_noise(backend, layer.d_out, seed, Stream::d_out, true);
}

namespace {

void fill_int8(Backend& backend, const Case& c, IndexOperands& to, const std::string& selection,
               uint64_t seed) {
    const std::unique_ptr<Backend> host = make_backend("reference");
    Layer floats;
    IndexOperands& made = floats.index.emplace_back();
    made.q = {*host, to.q.shape(), Element::f32};
    made.k = {*host, to.k.shape(), Element::f32};
    fill_index(*host, c, floats, selection, seed);
    const auto store = [&](View<const float, 3> values, OperandScale unit) {
        return store_scaled<Int8>(c.problem, values, unit);
    };
    const IndexOperands& from = floats.index.front();
    upload_scaled(backend, store(floats_of(from.q), OperandScale::row), to.q, to.q_scales);
    upload_scaled(backend, store(floats_of(from.k), OperandScale::block), to.k, to.k_scales);
}

void fill_unscaled(Backend& backend, const Case& c,
                   const std::vector<const IndexOperands*>& unscaled, const std::string& selection,
                   uint64_t seed) {
    if (selection == "random") {
        for (const IndexOperands* index : unscaled) {
            fill_noise(backend, index->q, seed, Stream::index_q);
            fill_noise(backend, index->k, seed, Stream::index_k);
        }
        return;
    }
    const Problem& p = c.problem;
    const Source source = c.captured ? c.captured : planted(c, selection, seed);
    std::vector<Stored<3>> index_q;
    std::vector<Stored<2>> index_k;
    for (const IndexOperands* index : unscaled) {
        index_q.push_back(index->q);
        index_k.push_back(index->k);
    }
    fill_from(backend, index_k, source, io::Field::index_k, {0, p.keys()}, 0);
    for (size_t s = 1; s < p.batch.cu_seqlens_q().size(); ++s) {  // queries are the last tokens
        const int64_t first = p.batch.cu_seqlens_q()[s - 1],
                      queries = p.batch.cu_seqlens_q()[s] - first;
        const QueryRange tokens{p.batch.cu_seqlens_k()[s] - queries, p.batch.cu_seqlens_k()[s]};
        fill_from(backend, index_q, source, io::Field::index_q, tokens, first);
    }
}

}  // namespace

void fill_index(Backend& backend, const Case& c, Layer& layer, const std::string& selection,
                uint64_t seed) {
    std::vector<const IndexOperands*> unscaled;
    for (IndexOperands& index : layer.index)
        if (index.q.element() == Element::int8)
            fill_int8(backend, c, index, selection, seed);
        else
            unscaled.push_back(&index);
    if (!unscaled.empty()) fill_unscaled(backend, c, unscaled, selection, seed);
}

void copy_operands(Backend& backend, const Layer& from, Layer& to, Parts parts) {
    if (parts.attention) {
        copy_stored(backend, from.q, to.q);
        copy_stored(backend, from.k, to.k);
        copy_stored(backend, from.v, to.v);
        for (size_t n = 0; n < from.paged.size(); ++n) {
            copy_stored(backend, from.paged[n].k, to.paged[n].k);
            copy_stored(backend, from.paged[n].v, to.paged[n].v);
        }
        for (auto scales : {&Layer::q_scales, &Layer::k_scales, &Layer::v_scales})
            copy_scales(backend, from.*scales, to.*scales);
    }
    if (parts.gradient) copy_stored(backend, from.d_out, to.d_out);
    if (parts.index) {
        for (size_t n = 0; n < from.index.size(); ++n) {
            copy_stored(backend, from.index[n].q, to.index[n].q);
            copy_stored(backend, from.index[n].k, to.index[n].k);
            copy_scales(backend, from.index[n].q_scales, to.index[n].q_scales);
            copy_scales(backend, from.index[n].k_scales, to.index[n].k_scales);
        }
        for (size_t n = 0; n < from.paged.size(); ++n)
            for (size_t e = 0; e < from.paged[n].index.size(); ++e)
                copy_stored(backend, from.paged[n].index[e], to.paged[n].index[e]);
        backend.copy(to.ids.data(), backend.space(), from.ids.data(), backend.space(),
                     from.ids.size() * int64_t{sizeof(int32_t)});
    }
}

Stored<3> make_scores(Backend& backend, const Case& c, uint64_t seed) {
    Stored<3> scores(backend, {c.problem.queries(), 1, c.problem.blocks()}, Element::f32);
    fill_noise(backend, scores, seed, Stream::scores);
    return scores;
}

}  // namespace msa::experiments::bench
