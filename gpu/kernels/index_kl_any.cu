// SPDX-License-Identifier: MIT
// eq:msa-pp and eq:msa-kl. Phase 1 makes the lse of the main and the index heads. Phase 2, one
// thread block per query and group, makes the row's KL, d_index_q and the score gradients t - p,
// which are kept for a piece of the queries; the maximum as teacher has a pass before, for its sum.
// Phase 3, one thread block per 32 keys, sums d_index_k over the queries in order. Every sum has
// one owner and one order.
#include "gpu/device/max_or_nan.cuh"
#include "gpu/device/support.cuh"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/pieces.h"

namespace msa::cuda {
namespace {

constexpr int kWarps = kPlainTileRows / kRowsPerWarp;
constexpr int kThreads = kWarps * kWarp;
static_assert(kThreads >= kMaxHeadDim, "a thread owns a dimension");

template <typename T>
struct RowArguments {
    Heads<T> main, index;
    KeySupport support;
    const float *main_lse, *index_lse;  // [Nq, Hq], [Nq, Hkv]
    const float* head_weights;          // [Nq, Hq] of the teacher's heads; null: all alike
    float gradient;                     // score_scale / rows of the whole problem
    double* kl;                         // [Nq, Hkv]
    float* d_index_q;                   // [Nq, Hkv, didx], may be absent
    float* d_scores;                    // [Nq, Hkv, slot_keys], likewise
    int64_t slot_keys;
};

/// Shared memory of index_kl_rows_kernel.
struct KlTiles {
    TileStack stack;
    int main_rows, main_keys, index_row, index_keys;

    __host__ __device__ KlTiles(int head_dim, int index_dim)
        : main_rows(stack.push(kPlainTileRows, head_dim)),
          main_keys(stack.push(kPlainTileKeys, head_dim)),
          index_row(stack.push(1, index_dim)),
          index_keys(stack.push(kPlainTileKeys, index_dim)) {}
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
        const float above = sinks[h] - lse[h];
        weights[h] = above > 0 ? -above - log1pf(expf(-above)) : -log1pf(expf(above));
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
    const int first_row = warp_id() * kRowsPerWarp;
    const int parts = static_cast<int>(ceil_div(in.heads, kPlainTileRows));
    for (int part = 0; part < parts; ++part) {
        const auto head_of = [&](int r) { return int64_t{part} * kPlainTileRows + r; };
        if (first_step || parts > 1) {
            __syncthreads();
            stage(rows, kPlainTileRows, in.width, [&](int r) {
                return head_of(r) < in.heads ? in.query(query, group * in.heads + head_of(r))
                                             : nullptr;
            });
        }
        __syncthreads();
        float dots[kRowsPerWarp] = {}, joined = 0;
        if (head_of(first_row) < in.heads)  // small groups leave most warps without a row
            dot_products(rows + first_row * tile_stride(in.width), keys, in.width, dots);
#pragma unroll
        for (int r = 0; r < kRowsPerWarp; ++r) {
            const int64_t head = head_of(first_row + r);
            const int64_t number = query * in.row_heads + group * in.heads + head;
            if (head < in.heads && hidden <= lane_id() && lane_id() < seen)
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
                 *const main_keys = &shared[0].x + tiles.main_keys,
                 *const index_row = &shared[0].x + tiles.index_row,
                 *const index_keys = &shared[0].x + tiles.index_keys;
    stage(index_row, 1, a.index.width, [&](int) { return a.index.query(query, group); });
    bool first_step = true;
    const KeyRange visible = a.support.visible[query];
    const int64_t window = visible.first + window_start(visible.count, a.main.window);
    // Else its window shows no key of its support.
    const bool taught = a.main_lse[query * a.main.row_heads + group * a.main.heads] != -INFINITY;
    const auto teach = [&](int64_t first, int seen) {  // into `teacher`, for warp 0
        join_heads<By>(a.main, a.main_lse, a.head_weights, query, group, keys_before(window, first),
                       seen, first_step, main_rows, main_keys, teacher);
        first_step = false;
    };
    float teacher_sum = 1;
    if (By == Teacher::max) {
        double sum = 0;  // of the lane's keys, in warp 0
        for_each_step(a, query, group, main_keys, [&](int64_t first, int seen, int64_t) {
            teach(first, seen);
            if (warp_id() == 0) sum += double{teacher[lane_id()]};
        });
        teacher_sum = static_cast<float>(warp_sum(sum));
    }
    double kl = 0;      // of the lane's keys, in warp 0
    float d_query = 0;  // dimension d
    for_each_step(a, query, group, main_keys, [&](int64_t first, int seen, int64_t place) {
        stage(index_keys, kPlainTileKeys, a.index.width,
              [&](int j) { return j < seen ? a.index.key(first + j, group) : nullptr; });
        teach(first, seen);
        if (warp_id() == 0) {
            float dot[1];
            dot_products(index_row, index_keys, a.index.width, dot);
            const float log_t = a.index.scale * dot[0] - a.index_lse[row];
            const float p = teacher[lane_id()] / teacher_sum;
            if (lane_id() < seen) {
                if (taught && !(p <= 0)) kl += double{p} * (double{logf(p)} - double{log_t});
                d_score[lane_id()] = taught ? expf(log_t) - p : 0.0F;
                if (a.d_scores != nullptr)
                    a.d_scores[row * a.slot_keys + place + lane_id()] = d_score[lane_id()];
            }
        }
        __syncthreads();
        if (d < a.index.width)
            for (int j = 0; j < seen; ++j) d_query += d_score[j] * index_keys[j * index_stride + d];
    });
    if (warp_id() == 0) {
        kl = warp_sum(kl);
        if (lane_id() == 0) a.kl[row] = kl;
    }
    if (a.d_index_q != nullptr && d < a.index.width)
        a.d_index_q[row * a.index.width + d] = a.gradient * d_query;
}

/// A key block, and the queries of the piece that belong to its sequence.
struct KeyBlock {
    KeyRange keys;  // packed
    int64_t block;  // in its sequence
    QueryRange queries;
};

std::vector<KeyBlock> key_blocks(const Problem& p) {
    std::vector<KeyBlock> all;
    for (size_t s = 0; s + 1 < p.batch.cu_seqlens_k().size(); ++s) {
        const int64_t first = p.batch.cu_seqlens_k()[s], end = p.batch.cu_seqlens_k()[s + 1];
        for (int64_t b = 0; first + b * p.block_size < end; ++b) {
            const int64_t at = first + b * p.block_size;
            all.push_back({{at, std::min(p.block_size, end - at)},
                           b,
                           {p.batch.cu_seqlens_q()[s], p.batch.cu_seqlens_q()[s + 1]}});
        }
    }
    return all;
}

/// Where a row's score gradients of `block` begin in its slot_keys; -1 if it is not selected.
__device__ int64_t place_of_block(const KeySupport& support, int64_t row, int64_t block) {
    if (support.ids == nullptr) return block * support.block_size;
    const int32_t* ids = support.ids + row * support.top_k;
    for (int64_t slot = 0; slot < support.top_k && ids[slot] != kNoBlock; ++slot)
        if (ids[slot] == block) return slot * support.block_size;
    return -1;
}

/// d_index_k of 32 keys of a block takes in the queries of a piece; thread d owns dimension d.
template <typename T>
__global__ void index_kl_keys_kernel(Heads<T> index, KeySupport support, const KeyBlock* blocks,
                                     const float* d_scores, int64_t slot_keys, float gradient,
                                     float* d_index_k) {
    __shared__ int64_t place[kThreads];  // of the block in each of the next rows
    const KeyBlock block = blocks[blockIdx.x];
    const int64_t at = int64_t{blockIdx.y} * kPlainTileKeys;  // in the block
    if (at >= block.keys.count) return;
    const int d = static_cast<int>(threadIdx.x);
    const int64_t begin = block.queries.begin * support.kv_heads;
    const int64_t end = block.queries.end * support.kv_heads;
    float sums[kPlainTileKeys] = {};
    for (int64_t row = begin; row < end; row += kThreads) {
        __syncthreads();
        place[d] = row + d < end ? place_of_block(support, row + d, block.block) : -1;
        __syncthreads();
        for (int n = 0; n < kThreads && row + n < end; ++n) {
            const KeyRange visible = support.visible[(row + n) / support.kv_heads];
            const int seen = keys_before(visible.first + visible.count, block.keys.first + at);
            if (place[n] < 0 || seen == 0) continue;
            const float mine = lane_id() < min(seen, static_cast<int>(block.keys.count - at))
                                   ? d_scores[(row + n) * slot_keys + place[n] + at + lane_id()]
                                   : 0.0F;
            const float of_query =
                d < index.width ? load(index.q + (row + n) * index.width + d) : 0.0F;
#pragma unroll
            for (int j = 0; j < kPlainTileKeys; ++j) {
                const float d_score = __shfl_sync(kAllLanes, mine, j);
                if (j < seen) sums[j] += d_score * of_query;  // the query may be NaN
            }
        }
    }
    if (d >= index.width) return;
#pragma unroll
    for (int j = 0; j < kPlainTileKeys; ++j)
        if (at + j < block.keys.count)
            d_index_k[(block.keys.first + at + j) * index.width + d] += gradient * sums[j];
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

template <typename T>
void run_piece(const Call& call, RowArguments<T> a, Teacher by, View<const float, 1> sinks,
               float* main_lse, float* index_lse, const IndexKlOutput& to) {
    const Problem& p = call.problem;
    attend_to_support(call, a.main, a.support, {}, main_lse);
    attend_to_support(call, a.index, a.support, {}, index_lse);
    const Tensor<float, 2> weights = weigh_heads(call, main_lse, sinks, by);
    a.head_weights = weights.data();
    const int bytes = KlTiles(a.main.width, a.index.width).stack.bytes();
    const dim3 rows(static_cast<unsigned>(p.queries()), static_cast<unsigned>(p.kv_heads));
    const auto rows_kernel = by == Teacher::mean ? index_kl_rows_kernel<T, Teacher::mean>
                                                 : index_kl_rows_kernel<T, Teacher::max>;
    allow_shared(rows_kernel, bytes);
    rows_kernel<<<rows, kThreads, bytes, call.stream()>>>(a);
    check_launch("index_kl_any, rows");
    const std::vector<KeyBlock> blocks = key_blocks(p);
    if (!to.d_index_k || blocks.empty()) return;
    const Tensor<KeyBlock, 1> here = call.upload(blocks);
    const dim3 keys(static_cast<unsigned>(blocks.size()),
                    static_cast<unsigned>(ceil_div(p.block_size, kPlainTileKeys)));
    index_kl_keys_kernel<<<keys, kThreads, 0, call.stream()>>>(
        a.index, a.support, here.data(), a.d_scores, a.slot_keys, a.gradient, to.d_index_k.data());
    check_launch("index_kl_any, keys");
}

}  // namespace

void index_kl_any(const Call& call, const IndexKlInput& in, const IndexKlOutput& to) {
    const Problem& whole = call.problem;
    const View<const int32_t, 3>& ids = in.ids;
    if (to.d_index_k)
        check(cudaMemsetAsync(to.d_index_k.data(), 0,
                              static_cast<size_t>(to.d_index_k.size()) * sizeof(float),
                              call.stream()),
              "clearing d_index_k");
    const int64_t slot_keys = whole.block_size * (ids ? ids.extent(2) : whole.blocks());
    const int64_t row_bytes = whole.kv_heads * slot_keys * int64_t{sizeof(float)};
    for_each_piece(call, row_bytes, [&](const Call& piece, QueryRange queries) {
        const Problem& p = piece.problem;
        const int64_t count = p.queries();
        Tensor<float, 2> main_lse = piece.scratch<float, 2>({count, p.query_heads});
        Tensor<float, 2> index_lse = piece.scratch<float, 2>({count, p.kv_heads});
        Tensor<float, 3> d_scores;
        if (to.d_index_q) d_scores = piece.scratch<float, 3>({count, p.kv_heads, slot_keys});
        const View<const int32_t, 3> ids_here = ids ? ids.slice(queries.begin, count) : ids;
        by_element(in.q.element(), [&]<typename T>() {
            const RowArguments<T> arguments{
                main_heads<T>(p, slice(in.q, queries), in.k, {}),
                index_heads<T>(p, {slice(in.index.index_q, queries), in.index.index_k}),
                key_support(piece, ids_here),
                main_lse.data(),
                index_lse.data(),
                nullptr,
                static_cast<float>(p.index_scale() /
                                   static_cast<double>(whole.queries() * whole.kv_heads)),
                to.kl.slice(queries.begin, count).data(),
                to.d_index_q ? to.d_index_q.slice(queries.begin, count).data() : nullptr,
                d_scores.data(),
                slot_keys};
            run_piece(piece, arguments, in.teacher, in.sinks, main_lse.data(), index_lse.data(),
                      to);
        });
    });
}

}  // namespace msa::cuda
