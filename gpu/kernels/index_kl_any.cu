// SPDX-License-Identifier: MIT
// eq:msa-pp and eq:msa-kl, in three phases.
//   1  the lse of the main and the index heads, unless they are given
//   2  one thread block per query and group: the row's KL, d_index_q and the score gradients t - p,
//      which are kept for a piece of the queries. Teacher::max needs a pass before it, for its sum.
//   3  one thread block per 32 keys: d_index_k, summed in order over the queries that the reverse
//      index of ids lists
// Every sum has one owner and one order.
#include <optional>

#include "gpu/device/max_or_nan.cuh"
#include "gpu/device/sink_share.cuh"
#include "gpu/device/support.cuh"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/pieces.h"
#include "gpu/kernels/reverse_index.h"
#include "gpu/layout.h"
#include "gpu/query_tile.h"

namespace msa::cuda {
namespace {

constexpr int kThreads = kTileThreads, kWarps = kThreads / kWarp;
static_assert(kThreads >= kMaxIndexDim, "a thread owns a dimension of the Index Branch");

template <typename T>
struct RowArguments {
    Heads<T> main, index;
    KeySupport support;
    const float *main_lse, *index_lse;  // [Nq, Hq], [Nq, Hkv]
    const float* head_weights;          // [Nq, Hq] of the teacher's heads; null: all alike
    float gradient;                     // index_scale times that of a KL
    double* kl;                         // [Nq, Hkv], may be absent
    float* d_index_q;                   // [Nq, Hkv, didx], may be absent
    float* d_scores;                    // [Nq, Hkv, slot_keys], likewise
    int64_t slot_keys;
};

/// Shared memory of index_kl_rows_kernel. The index keys of a step take the place of its main keys.
struct KlTiles {
    TileStack stack;
    int main_rows, index_row, keys;

    __host__ __device__ KlTiles(int head_dim, int index_dim)
        : main_rows(stack.push(tile_rows(head_dim), head_dim)),
          index_row(stack.push(1, index_dim)),
          keys(stack.push(kPlainTileKeys, head_dim < index_dim ? index_dim : head_dim)) {}
};

/// Weights of the heads of one query and group: heads count by what their sinks leave of them. The
/// mean's add up to 1, the maximum's are at most 1.
__global__ void weigh_heads_kernel(const float* lse, const float* sinks, int64_t rows,
                                   int64_t kv_heads, int64_t heads, Teacher by, float* weights) {
    const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const int64_t group = row % kv_heads;
    lse += row * heads;
    weights += row * heads;
    sinks += group * heads;
    float most = -INFINITY, sum = 0;
    for (int64_t h = 0; h < heads; ++h) {  // the logarithm of what is left
        weights[h] = log_share(sinks[h], lse[h]);
        most = max_or_nan(most, weights[h]);
    }
    for (int64_t h = 0; h < heads; ++h) {
        weights[h] = expf(weights[h] - most);
        sum += weights[h];
    }
    if (by == Teacher::mean)
        for (int64_t h = 0; h < heads; ++h) weights[h] /= sum;
}

/// The group's heads of 32 keys as one, in `teacher` [32]: the mean of their probabilities, in
/// order, or the largest, of the keys from `hidden` to `seen`. The keys are staged; the rows too
/// where `parts` is 1.
template <Teacher By, typename T>
__device__ void join_heads(const Heads<T>& in, const float* lse, const float* weights,
                           int64_t query, int64_t group, int hidden, int seen, bool first_step,
                           float* rows, const float* keys, float* teacher) {
    const auto join = [&](float so_far, float next) {
        return By == Teacher::mean ? so_far + next : max_or_nan(so_far, next);
    };
    const bool alike = weights == nullptr;
    const float divisor = By == Teacher::mean && alike ? static_cast<float>(in.heads) : 1.0F;
    __shared__ float warp_teacher[kWarps][kPlainTileKeys];
    const int tile = tile_rows(in.width), first_row = warp_id() * kRowsPerWarp;
    const bool has_rows = first_row < tile;  // a wide tile leaves most warps without one
    const int parts = static_cast<int>(ceil_div(in.heads, tile));
    for (int part = 0; part < parts; ++part) {
        const auto head_of = [&](int r) { return int64_t{part} * tile + r; };
        if (first_step || parts > 1) {
            __syncthreads();
            stage(rows, tile, in.width, [&](int r) {
                return head_of(r) < in.heads ? in.query(query, group * in.heads + head_of(r))
                                             : nullptr;
            });
        }
        __syncthreads();
        float dots[kRowsPerWarp] = {}, joined = 0;
        if (has_rows && head_of(first_row) < in.heads)  // so do small groups
            dot_products(rows + first_row * tile_stride(in.width), keys, in.width, dots);
#pragma unroll
        for (int r = 0; r < kRowsPerWarp; ++r) {
            const int64_t head = head_of(first_row + r);
            const int64_t number = query * in.row_heads + group * in.heads + head;
            if (has_rows && head < in.heads && hidden <= lane_id() && lane_id() < seen)
                joined = join(joined, expf(in.logit(dots[r]) - lse[number]) *
                                          (alike ? 1.0F : weights[number]));
        }
        warp_teacher[warp_id()][lane_id()] = joined;
        __syncthreads();
        if (warp_id() == 0) {
            float total = part == 0 ? 0 : teacher[lane_id()];
            for (const auto& of_warp : warp_teacher)
                total = join(total, of_warp[lane_id()] / divisor);
            teacher[lane_id()] = total;
        }
    }
}

/// Visits the support 32 keys at a time, the main keys staged: visit(first of them, how many, their
/// place among the row's slot_keys).
template <typename T, typename Visit>
__device__ void for_each_step(const RowArguments<T>& a, int64_t query, int64_t group,
                              float* main_keys, Visit visit) {
    for (int64_t slot = 0; slot < a.support.spans(); ++slot) {
        const KeyRange span = a.support.span(query, group, slot);
        for (int64_t at = 0; at < span.count; at += kPlainTileKeys) {
            const int seen = keys_before(span.count, at);
            const int64_t first = span.first + at;
            __syncthreads();
            stage(main_keys, kPlainTileKeys, a.main.width,
                  [&](int j) { return j < seen ? a.main.key(first + j, group) : nullptr; });
            visit(first, seen, slot * a.support.block_size + at);
        }
    }
}

template <typename T, Teacher By>
__global__ void index_kl_rows_kernel(RowArguments<T> a) {
    extern __shared__ float4 shared[];
    __shared__ float teacher[kPlainTileKeys], d_score[kPlainTileKeys];
    const int64_t query = blockIdx.x, group = blockIdx.y, row = query * gridDim.y + group;
    const int d = static_cast<int>(threadIdx.x);
    const int index_stride = tile_stride(a.index.width);
    const KlTiles tiles(a.main.width, a.index.width);
    float *const main_rows = &shared[0].x + tiles.main_rows,
                 *const index_row = &shared[0].x + tiles.index_row,
                 *const keys = &shared[0].x + tiles.keys;
    stage(index_row, 1, a.index.width, [&](int) { return a.index.query(query, group); });
    bool first_step = true;
    const KeyRange visible = a.support.visible[query];
    const int64_t window = visible.first + window_start(visible.count, a.main.window);
    // Else its window shows no key of its support.
    const bool has_target =
        a.main_lse[query * a.main.row_heads + group * a.main.heads] != -INFINITY;
    const auto teach = [&](int64_t first, int seen) {  // into `teacher`, for warp 0
        join_heads<By>(a.main, a.main_lse, a.head_weights, query, group, keys_before(window, first),
                       seen, first_step, main_rows, keys, teacher);
        first_step = false;
    };
    float teacher_sum = 1;
    if (By == Teacher::max) {
        double sum = 0;  // of the lane's keys, in warp 0
        for_each_step(a, query, group, keys, [&](int64_t first, int seen, int64_t) {
            teach(first, seen);
            if (warp_id() == 0) sum += double{teacher[lane_id()]};
        });
        teacher_sum = static_cast<float>(warp_sum(sum));
    }
    double kl = 0;      // of the lane's keys, in warp 0
    float d_query = 0;  // dimension d
    for_each_step(a, query, group, keys, [&](int64_t first, int seen, int64_t place) {
        teach(first, seen);  // behind its last barrier nobody reads the main keys
        stage(keys, kPlainTileKeys, a.index.width,
              [&](int j) { return j < seen ? a.index.key(first + j, group) : nullptr; });
        __syncthreads();
        if (warp_id() == 0) {
            float dot[1];
            dot_products(index_row, keys, a.index.width, dot);
            const float log_t = a.index.scale * dot[0] - a.index_lse[row];
            const float p = teacher[lane_id()] / teacher_sum;
            if (lane_id() < seen) {
                if (has_target && !(p <= 0)) kl += double{p} * (double{logf(p)} - double{log_t});
                d_score[lane_id()] = has_target ? expf(log_t) - p : 0.0F;
                if (a.d_scores != nullptr)
                    a.d_scores[row * a.slot_keys + place + lane_id()] = d_score[lane_id()];
            }
        }
        __syncthreads();
        if (d < a.index.width)
            for (int j = 0; j < seen; ++j) d_query += d_score[j] * keys[j * index_stride + d];
    });
    if (warp_id() == 0) {
        kl = warp_sum(kl);
        if (lane_id() == 0 && a.kl != nullptr) a.kl[row] = kl;
    }
    if (a.d_index_q != nullptr && d < a.index.width)
        a.d_index_q[row * a.index.width + d] = a.gradient * d_query;
}

/// Where the score gradients of `block`, which the row uses, begin in its slot_keys.
__device__ int64_t place_of_block(const KeySupport& support, int64_t row, int64_t block) {
    if (support.ids == nullptr) return block * support.block_size;
    const int32_t* ids = support.ids + row * support.top_k;
    int64_t slot = 0;
    while (ids[slot] != block) ++slot;
    return slot * support.block_size;
}

/// The uses of a block by queries of the piece: of a list of the whole problem, or its queries.
__device__ QueryRange uses_in(const ReverseIndex& index, int64_t list, const SequenceBlock& block,
                              QueryRange piece) {
    if (index.starts == nullptr)
        return {max(block.queries.begin, piece.begin), min(block.queries.end, piece.end)};
    const auto first_from = [&](int64_t query) {
        int64_t begin = index.starts[list], end = index.starts[list + 1];
        while (begin < end) {
            const int64_t middle = (begin + end) / 2;
            if (index.queries[middle] < query)
                begin = middle + 1;
            else
                end = middle;
        }
        return begin;
    };
    return {first_from(piece.begin), first_from(piece.end)};
}

/// d_index_k of 32 keys of a block takes in the queries of a piece that use it; thread d owns
/// dimension d.
template <typename T>
__global__ void index_kl_keys_kernel(Heads<T> index, KeySupport support,
                                     const SequenceBlock* blocks, ReverseIndex reverse,
                                     QueryRange piece, const float* d_scores, int64_t slot_keys,
                                     float gradient, float* d_index_k) {
    __shared__ int64_t row[kThreads], place[kThreads];  // of the next uses
    const SequenceBlock block = blocks[blockIdx.x];
    const int64_t at = int64_t{blockIdx.y} * kPlainTileKeys;  // in the block
    if (at >= block.keys) return;
    const int d = static_cast<int>(threadIdx.x);
    float sums[kPlainTileKeys] = {};
    for (int64_t group = 0; group < support.kv_heads; ++group) {
        const QueryRange uses = uses_in(reverse, group * gridDim.x + blockIdx.x, block, piece);
        for (int64_t first = uses.begin; first < uses.end; first += kThreads) {
            __syncthreads();
            if (const int64_t use = first + d; use < uses.end) {
                const int64_t query = reverse.starts == nullptr ? use : reverse.queries[use];
                row[d] = (query - piece.begin) * support.kv_heads + group;
                place[d] = place_of_block(support, row[d], block.block);
            }
            __syncthreads();
            for (int n = 0; n < kThreads && first + n < uses.end; ++n) {
                const KeyRange visible = support.visible[row[n] / support.kv_heads];
                const int seen = keys_before(visible.first + visible.count, block.key + at);
                if (seen == 0) continue;
                const float mine = lane_id() < min(seen, static_cast<int>(block.keys - at))
                                       ? d_scores[row[n] * slot_keys + place[n] + at + lane_id()]
                                       : 0.0F;
                const float of_query =
                    d < index.width ? load(index.q + row[n] * index.width + d) : 0.0F;
#pragma unroll
                for (int j = 0; j < kPlainTileKeys; ++j) {
                    const float d_score = __shfl_sync(kAllLanes, mine, j);
                    // The query may be NaN, and a row without a teacher has no part in this.
                    if (j < seen && d_score != 0) sums[j] += d_score * of_query;
                }
            }
        }
    }
    if (d >= index.width) return;
#pragma unroll
    for (int j = 0; j < kPlainTileKeys; ++j)
        if (at + j < block.keys)
            d_index_k[(block.key + at + j) * index.width + d] += gradient * sums[j];
}

/// The heads' weights [Nq, Hq]; absent without sinks.
Tensor<float, 2> weigh_heads(const Call& call, const float* main_lse, View<const float, 1> sinks,
                             Teacher by) {
    if (!sinks) return {};
    const Problem& p = call.problem;
    Tensor<float, 2> weights = call.scratch<float, 2>({p.queries(), p.query_heads});
    const int64_t rows = p.queries() * p.kv_heads;
    weigh_heads_kernel<<<static_cast<unsigned>(ceil_div(rows, kThreads)), kThreads, 0,
                         call.stream()>>>(main_lse, sinks.data(), rows, p.kv_heads, p.group_size(),
                                          by, weights.data());
    check_launch("index_kl_any, weights of the heads");
    return weights;
}

/// The lse of the piece's rows on their support: the caller's, or made here.
template <typename T>
const float* lse_of(const Call& call, const Heads<T>& heads, const KeySupport& support,
                    View<const float, 2> given, Tensor<float, 2>& made, int64_t all_heads) {
    if (given) return given.data();
    made = call.scratch<float, 2>({call.problem.queries(), all_heads});
    attend_to_support(call, heads, support, {}, made.data());
    return made.data();
}

/// What the pieces share.
struct Whole {
    const Call& call;
    const IndexKlInput& in;
    const IndexKlOutput& to;
    float gradient;
    int64_t slot_keys;
    ReverseIndex reverse;
};

template <typename T>
void run_piece(const Whole& whole, const Call& call, QueryRange queries) {
    const Problem& p = call.problem;
    const IndexKlInput& in = whole.in;
    const IndexKlOutput& to = whole.to;
    const auto rows = [&](const auto& view) {
        return view ? view.slice(queries.begin, p.queries()) : view;
    };
    Tensor<float, 2> main_made, index_made;
    Tensor<float, 3> d_scores;
    if (to.d_index_q) d_scores = call.scratch<float, 3>({p.queries(), p.kv_heads, whole.slot_keys});
    RowArguments<T> a{
        .main = main_heads<T>(p, nullptr, slice(in.q, queries), in.k, {}),
        .index = index_heads<T>(p, nullptr, {slice(in.index.index_q, queries), in.index.index_k}),
        .support = key_support(call, rows(in.ids)),
        .main_lse = nullptr,
        .index_lse = nullptr,
        .head_weights = nullptr,
        .gradient = whole.gradient,
        .kl = rows(to.kl).data(),
        .d_index_q = rows(to.d_index_q).data(),
        .d_scores = d_scores.data(),
        .slot_keys = whole.slot_keys};
    // A given lse has the sinks in it, the weights take the lse of the logits alone.
    const View<const float, 2> main_given = in.sinks ? View<const float, 2>() : rows(in.main_lse);
    a.main_lse = lse_of(call, a.main, a.support, main_given, main_made, p.query_heads);
    a.index_lse = lse_of(call, a.index, a.support, rows(in.index_lse), index_made, p.kv_heads);
    const Tensor<float, 2> weights = weigh_heads(call, a.main_lse, in.sinks, in.teacher);
    a.head_weights = weights.data();
    const int bytes = KlTiles(a.main.width, a.index.width).stack.bytes();
    const dim3 grid(static_cast<unsigned>(p.queries()), static_cast<unsigned>(p.kv_heads));
    const auto rows_kernel = in.teacher == Teacher::mean ? index_kl_rows_kernel<T, Teacher::mean>
                                                         : index_kl_rows_kernel<T, Teacher::max>;
    allow_shared(rows_kernel, bytes);
    rows_kernel<<<grid, kThreads, bytes, call.stream()>>>(a);
    check_launch("index_kl_any, rows");
    const Tensor<SequenceBlock, 1>& blocks = whole.call.layout->key_blocks();
    if (!to.d_index_k || blocks.size() == 0) return;
    const dim3 keys(static_cast<unsigned>(blocks.size()),
                    static_cast<unsigned>(ceil_div(p.block_size, kPlainTileKeys)));
    index_kl_keys_kernel<<<keys, kThreads, 0, call.stream()>>>(
        a.index, a.support, blocks.data(), whole.reverse, queries, a.d_scores, a.slot_keys,
        a.gradient, to.d_index_k.data());
    check_launch("index_kl_any, keys");
}

}  // namespace

void index_kl_any(const Call& call, const IndexKlInput& in, const IndexKlOutput& to) {
    const Problem& p = call.problem;
    if (to.d_index_k)
        check(cudaMemsetAsync(to.d_index_k.data(), 0,
                              static_cast<size_t>(to.d_index_k.size()) * sizeof(float),
                              call.stream()),
              "clearing d_index_k");
    const int64_t slot_keys = p.block_size * (in.ids ? in.ids.extent(2) : p.blocks());
    const int64_t row_bytes = p.kv_heads * slot_keys * int64_t{sizeof(float)};
    const double gradient =
        in.gradient_scale.value_or(1 / static_cast<double>(p.queries() * p.kv_heads));
    std::optional<SortedUses> uses;
    if (to.d_index_k && in.ids.size() > 0) uses.emplace(call, in.ids);
    const Whole whole{call,      in,
                      to,        static_cast<float>(gradient * p.index_scale()),
                      slot_keys, uses ? uses->index() : ReverseIndex{}};
    for_each_piece(call, row_bytes, [&](const Call& piece, QueryRange queries) {
        by_element(in.q.element(), [&]<typename T>() { run_piece<T>(whole, piece, queries); });
    });
}

}  // namespace msa::cuda
