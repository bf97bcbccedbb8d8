// SPDX-License-Identifier: MIT

#include <algorithm>
#include <new>

#include "analysis/cost_model.h"
#include "analysis/selection_cost.h"
#include "experiments/bench/case_run.h"

namespace msa::experiments::bench {
namespace {

constexpr int64_t kUncached = int64_t{1} << 26;  // elements of four bytes
constexpr int64_t kUnionQueries = 65536;
constexpr int64_t kMostMassTokens = 128 << 10;  // 1M take half a minute
constexpr int64_t kPieceQueries = 8192;  // of what gives scores per block, as msa-analyze takes it

}  // namespace

CaseRun::CaseRun(Backend& backend, Meter& meter, const BenchOptions& options, const Case& c,
                 const std::function<void(const Measurement&)>& done)
    : backend_(backend),
      meter_(meter),
      o_(options),
      case_(c),
      p_(c.problem),
      most_(up_to_capacity(c, options)),
      check_(backend, c, options.seed),
      done_(done) {
    const bool dense_grad = trained() && o_.wants("dense_attention_grad");
    const bool sparse_grad = trained() && o_.wants("sparse_attention_grad");
    const bool layer_grad = trained() && o_.wants("layer_grad");
    const bool sparse =
        o_.wants("sparse_attention") || o_.wants("layer") || sparse_grad || layer_grad;
    const bool kl_grad = trained() && o_.wants("index_kl_grad");
    const bool kl = o_.wants("index_kl") || kl_grad;
    parts_.index = sparse || kl || o_.wants("index_select") || o_.wants("index_scores");
    parts_.attention =
        sparse || kl || dense_grad || o_.wants("block_mass") || o_.wants("dense_attention");
    parts_.gradient = dense_grad || sparse_grad || layer_grad;
    parts_.index_gradient = kl_grad || layer_grad;
}

void CaseRun::run() {
    if (case_.kind == "top-k") {
        if (o_.wants("select_blocks"))
            guarded({.stage = "select_blocks"}, [&](Measurement& m) { select_blocks(m); });
        return;
    }
    if (!parts_.index && !parts_.attention) return;
    Measurement all{.stage = "all stages"};
    if (!fits(all, [&] { layers_.emplace(backend_, meter_, o_, case_, parts_); })) return;
    if (o_.wants("block_mass") && studied())
        guarded({.stage = "block_mass"}, [&](Measurement& m) { block_mass(m); });
    if (o_.wants("dense_attention"))
        guarded({.stage = "dense_attention"}, [&](Measurement& m) { dense_attention(m); });
    if (o_.wants("dense_attention_grad") && trained())
        guarded({.stage = "dense_attention_grad"},
                [&](Measurement& m) { dense_attention_grad(m); });
    if (!parts_.index) return;
    for (const std::string& selection : o_.selections) with_selection(selection);
}

bool CaseRun::studied() const {
    return case_.captured ||
           (case_.kind == "square" && (!o_.tokens.empty() || p_.queries() <= kMostMassTokens));
}

bool CaseRun::trains(size_t element) const {
    return trained() && o_.index_elements[element] == o_.sizes.element;
}

bool CaseRun::fits(Measurement m, const std::function<void()>& work) {
    stop_case_if_asked();
    try {
        work();
        return true;
    } catch (const MemoryError& refused) {
        m.skipped = refused.what();
    } catch (const UnsupportedError& refused) {
        m.skipped = refused.what();
    } catch (const std::bad_alloc&) {
        m.skipped = "not enough host memory";
    }
    done_(m);
    return false;
}

void CaseRun::guarded(Measurement m, const Body& body) {
    if (fits(m, [&] { body(m); })) done_(m);
}

void CaseRun::select_blocks(Measurement& m) {
    const Stored<3> scores = make_scores(backend_, case_, o_.seed);
    auto ids = backend_.make<int32_t, 3>({p_.queries(), 1, case_.top_k});
    const In<3> in = scores;
    const auto call = [&](int64_t) {
        backend_.select_blocks(p_, {.top_k = case_.top_k}, in.as<const float>(), ids);
    };
    meter_.poison(ids.data(), ids.size() * int64_t{sizeof(int32_t)});
    call(0);
    m.answered_by = backend_.answered_by();
    m.checked_rows = check_.select_blocks(in, ids);
    m.bytes = analysis::select_blocks_bytes(p_, case_.top_k);
    // Scores that no cache holds need no copies.
    m.timing =
        meter_.time(call, element_count(in.shape()) > kUncached ? kMostLayers : 1, o_.samples);
}

void CaseRun::by_pieces(Measurement& m, const std::vector<int64_t>& queries, const PieceCall& call,
                        const RowCheck& check) {
    auto values =
        backend_.make<float, 3>({std::min(kPieceQueries, p_.queries()), p_.kv_heads, p_.blocks()});
    std::vector<std::pair<QueryRange, Problem>> pieces;
    for (int64_t begin = 0; begin < p_.queries(); begin += kPieceQueries) {
        const QueryRange range{begin, std::min(begin + kPieceQueries, p_.queries())};
        pieces.emplace_back(range, p_.with_queries(range));
    }
    meter_.poison(values.data(), values.size() * int64_t{sizeof(float)});
    for (const auto& [range, problem] : pieces) {
        stop_case_if_asked();
        call(first(), problem, range, values.view().slice(0, problem.queries()));
        for (int64_t i : queries) {
            if (i < range.begin || i >= range.end) continue;
            const Tensor<float, 3> row =
                backend_.download(std::as_const(values).view().slice(i - range.begin, 1));
            check(i, row.view()[0]);
        }
    }
    m.checked_rows = std::ssize(queries);
    m.answered_by = backend_.answered_by();
    m.timing = layers_->time([&](Layer& layer) {
        for (const auto& [range, problem] : pieces)
            call(layer, problem, range, values.view().slice(0, problem.queries()));
    });
}

void CaseRun::block_mass(Measurement& m) {
    m.flops = analysis::block_mass_flops(p_);
    m.bytes = analysis::block_mass_bytes(p_, o_.sizes.element);
    m.element = o_.sizes.element;
    by_pieces(
        m, check_.mass_queries(),
        [&](Layer& layer, const Problem& p, QueryRange range, View<float, 3> to) {
            backend_.block_mass(p, {layer.q.slice(range.begin, p.queries()), layer.k}, {to, {}});
        },
        [&](int64_t query, View<const float, 2> row) { check_.block_mass(first(), query, row); });
}

void CaseRun::index_scores(Measurement& m, size_t element) {
    const IndexOperands& index = first().index[element];
    by_pieces(
        m, check_.score_queries(),
        [&](Layer& layer, const Problem& p, QueryRange range, View<float, 3> to) {
            const IndexOperands& in = layer.index[element];
            backend_.index_scores(p, in.input(range.begin, p.queries()), to);
        },
        [&](int64_t query, View<const float, 2> row) { check_.index_scores(index, query, row); });
}

void CaseRun::dense_attention(Measurement& m) {
    const auto call = [&](Layer& layer) {
        backend_.dense_attention(p_, layer.attention(), layer.result());
    };
    layers_->poison_results();
    call(first());
    m.answered_by = backend_.answered_by();
    m.checked_rows = check_.dense_attention(first());
    m.flops = analysis::dense_attention_flops(p_);
    m.element = o_.sizes.element;
    m.bytes = analysis::dense_attention_bytes(p_, o_.sizes.element);
    m.timing = layers_->time(call);
}

double CaseRun::union_of_8(View<const int32_t, 3> ids) const {
    const int64_t count = std::min(kUnionQueries, p_.queries());
    const int64_t first = p_.queries() - count;
    return analysis::tile_reads(p_.with_queries({first, p_.queries()}), ids.slice(first, count), 8,
                                0)
        .union_blocks();
}

void CaseRun::packed_and_paged(Measurement m, const Body& body) {
    guarded(m, body);
    for (int64_t size : o_.page_sizes) {
        m.page_size = size;
        m.capacity = 0;
        guarded(m, body);
        if (!most_) continue;
        m.capacity = o_.capacity;
        guarded(m, body);
    }
}

void CaseRun::select(Layer& layer, size_t element, View<float, 2> lse, const Measurement& m) {
    const PagedKeys* const pages = layer.pages(m.page_size);
    IndexInput in =
        pages == nullptr ? layer.index[element].input() : layer.index_input(*pages, element);
    if (m.capacity > 0) in.index_k = in.index_k.with_lengths(pages->lengths.view());
    backend_.index_select(m.capacity > 0 ? *most_ : p_, {.top_k = case_.top_k}, in, layer.ids, lse);
}

void CaseRun::attend(Layer& layer, LoopOrder order, const Measurement& m) {
    const PagedKeys* const pages = layer.pages(m.page_size);
    AttentionInput in = pages == nullptr ? layer.attention() : layer.attention(*pages);
    for (msa::Keys<3>* keys : {&in.k, &in.v})
        if (m.capacity > 0) *keys = keys->with_lengths(pages->lengths.view());
    backend_.sparse_attention(m.capacity > 0 ? *most_ : p_, in, layer.ids, layer.result(), order);
}

void CaseRun::with_selection(const std::string& selection) {
    Measurement index{.stage = "index_select", .selection = selection};
    if (!fits(index, [&] { fill_index(backend_, case_, first(), selection, o_.seed); })) return;
    fill_pages(backend_, case_, first(), {.index = true});
    layers_->copy_to_others({.index = true});
    for (size_t n = 0; n < o_.index_elements.size(); ++n) {
        index.index_element = to_string(o_.index_elements[n]);
        with_index(index, n);
    }
}

void CaseRun::with_index(Measurement index, size_t element) {
    if (!fits(index, [&] {
            layers_->poison_ids();
            select(first(), element);
            index.answered_by = backend_.answered_by();
            index.checked_rows = check_.index_select(first(), first().index[element]);
        }))
        return;
    const Tensor<int32_t, 3> ids = backend_.download(std::as_const(first().ids).view());
    layers_->copy_to_others({.index = true});
    index.union_of_8 = union_of_8(ids);
    index.element = o_.index_elements[element];
    index.flops = analysis::index_scores_flops(p_);
    index.bytes = analysis::index_select_bytes(p_, index.element, case_.top_k);
    if (o_.wants("index_select"))
        packed_and_paged(index, [&](Measurement& m) { index_select(m, element, ids); });
    if (o_.wants("index_scores") && studied()) {
        Measurement scores = index;
        scores.stage = "index_scores";
        scores.bytes = analysis::index_scores_bytes(p_, index.element);
        guarded(scores, [&](Measurement& m) { index_scores(m, element); });
    }
    if (o_.wants("index_kl") && trains(element)) all_index_kl(index.selection, element);
    if (o_.wants("index_kl_grad") && trains(element))
        all_index_kl_grad(index.selection, element, ids);
    with_ids(index, element, ids);
}

void CaseRun::with_ids(const Measurement& index, size_t element, View<const int32_t, 3> ids) {
    Measurement sparse{.stage = "sparse_attention", .selection = index.selection};
    sparse.element = o_.sizes.element;
    sparse.union_of_8 = index.union_of_8;
    sparse.flops = analysis::sparse_attention_flops(p_, ids);
    const int64_t wider = element_bytes(output_element(o_)) - element_bytes(o_.sizes.element);
    sparse.bytes = analysis::sparse_attention_bytes(p_, ids, o_.sizes.element) +
                   static_cast<double>(wider * p_.queries() * p_.query_heads * p_.head_dim);
    if (o_.wants("sparse_attention") && element == 0)
        for (LoopOrder order : o_.orders) {
            sparse.order = to_string(order);
            const auto run = [&](Measurement& m) { sparse_attention(m, order); };
            if (order == LoopOrder::automatic)
                packed_and_paged(sparse, run);
            else
                guarded(sparse, run);
        }
    Measurement grad = sparse;
    grad.stage = "sparse_attention_grad";
    grad.flops = analysis::sparse_attention_grad_flops(p_, ids);
    grad.bytes = analysis::sparse_attention_grad_bytes(p_, ids, o_.sizes.element);
    if (o_.wants("sparse_attention_grad") && trained() && element == 0)
        for (LoopOrder order : o_.orders) {
            grad.order = to_string(order);
            guarded(grad, [&](Measurement& m) { sparse_attention_grad(m, ids, order); });
        }
    Measurement whole = sparse;
    whole.stage = "layer";
    whole.order = "";
    whole.index_element = index.index_element;
    whole.flops += index.flops;
    whole.bytes += index.bytes;
    if (o_.wants("layer")) packed_and_paged(whole, [&](Measurement& m) { layer(m, element, ids); });
    whole.stage = "layer_grad";
    whole.flops += grad.flops;
    whole.bytes += grad.bytes;
    if (o_.wants("layer_grad") && trains(element))
        guarded(whole, [&](Measurement& m) { layer_grad(m, element, ids); });
}

void CaseRun::index_select(Measurement& m, size_t element, View<const int32_t, 3> ids) {
    if (m.page_size > 0) {
        layers_->poison_ids();
        select(first(), element, {}, m);
        m.answered_by = backend_.answered_by();
        check_.same_ids(ids, first());
    }
    m.timing = layers_->time([&](Layer& layer) { select(layer, element, {}, m); });
}

void CaseRun::sparse_attention(Measurement& m, LoopOrder order) {
    layers_->poison_results();
    attend(first(), order, m);
    m.answered_by = backend_.answered_by();
    m.checked_rows = check_.sparse_attention(first());
    m.timing = layers_->time([&](Layer& layer) { attend(layer, order, m); });
}

void CaseRun::layer(Measurement& m, size_t element, View<const int32_t, 3> ids) {
    const auto call = [&](Layer& layer) {
        select(layer, element, {}, m);
        attend(layer, LoopOrder::automatic, m);
    };
    layers_->poison_results();
    layers_->poison_ids();
    call(first());
    m.answered_by = backend_.answered_by();
    check_.same_ids(ids, first());
    m.checked_rows = check_.sparse_attention(first());
    m.timing = layers_->time(call);
}

void run_case(Backend& backend, Meter& meter, const BenchOptions& o, const Case& c,
              const std::function<void(const Measurement&)>& done) {
    CaseRun(backend, meter, o, c, done).run();
}

}  // namespace msa::experiments::bench
