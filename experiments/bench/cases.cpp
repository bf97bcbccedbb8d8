// SPDX-License-Identifier: MIT
#include "experiments/bench/cases.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/random.h"
#include "experiments/report/text.h"

namespace msa::experiments::bench {
namespace {

constexpr int64_t kChunk = 16384;                // queries of a prefill chunk, as engines cut it
constexpr int64_t kShortQueries[] = {171, 347};  // prompts that extend a long prefix
constexpr int64_t kPackSequences[] = {2, 16, 206};
constexpr int64_t kDecodeQueries[] = {1, 8};           // per sequence; 8: speculative decoding
constexpr int64_t kMostDecodeKeys = int64_t{8} << 20;  // 17 GB of bf16 at the paper's sizes

const std::map<std::string, std::vector<int64_t>> kTokens{
    {"square", {8 << 10, 32 << 10, 128 << 10, 1 << 20}},
    {"chunk", {32 << 10, 128 << 10, 173824}},
    {"short", {18 << 10, 132 << 10}},
    {"pack", {192 << 10}},
    {"decode", {32 << 10, 128 << 10, 1 << 20}},
    {"mixed", {1 << 20}},
    {"top-k", {128 << 10, 512 << 10}},
};

constexpr int64_t kHostTokens = 8 << 10;

/// Of a case, where --tokens does not say.
std::vector<int64_t> default_tokens(const BenchOptions& o, const std::string& kind) {
    if (!o.on_gpu()) return {kHostTokens};
    return kTokens.at(kind);
}

class Maker {
public:
    explicit Maker(const BenchOptions& options) : o_(options) {}

    void square(int64_t tokens) {
        add("square", concat("square ", count_text(tokens)), {tokens}, {tokens});
    }

    void last_queries(const std::string& kind, int64_t queries, int64_t tokens) {
        add(kind, concat(kind, ' ', count_text(queries), " over ", count_text(tokens)), {queries},
            {tokens});
    }

    void pack(int64_t sequences, int64_t tokens) {
        // Distinct cuts at random places.
        std::set<int64_t> cuts{tokens};
        for (int64_t draw = 0; std::ssize(cuts) < std::min(sequences, tokens); ++draw)
            cuts.insert(1 + static_cast<int64_t>(mix(o_.seed, 201, sequences, draw) %
                                                 static_cast<uint64_t>(tokens)));
        std::vector<int64_t> lengths;
        int64_t begin = 0;
        for (int64_t end : cuts) {
            lengths.push_back(end - begin);
            begin = end;
        }
        add("pack", concat("pack of ", sequences, ", ", count_text(tokens)), lengths, lengths);
    }

    void decode(int64_t batch, int64_t queries, int64_t tokens) {
        const auto sequences = static_cast<size_t>(batch);
        add("decode", concat("decode ", batch, " x ", queries, " over ", count_text(tokens)),
            std::vector<int64_t>(sequences, queries), std::vector<int64_t>(sequences, tokens));
    }

    /// One query each behind a long sequence and 63 short ones; and a chunk of a prompt beside 32
    /// such queries.
    void mixed(int64_t tokens) {
        const auto beside = [&](const std::string& first, int64_t queries, int64_t keys,
                                size_t others, int64_t other_keys) {
            std::vector<int64_t> all_queries(others + 1, 1), all_keys(others + 1, other_keys);
            all_queries[0] = queries, all_keys[0] = keys;
            add("mixed",
                concat(first, count_text(keys), " beside ", others, " x ", count_text(other_keys)),
                all_queries, all_keys);
        };
        const auto part = [&](int64_t of) { return std::max<int64_t>(1, tokens / of); };
        beside("1 over ", 1, tokens, 63, part(128));
        const int64_t chunk = std::min(kChunk, part(16));
        beside(concat(count_text(chunk), " over "), chunk, part(8), 32, part(32));
    }

    /// The table of the paper (tab:topk_latency): one group, every query behind all blocks.
    void top_k(int64_t factor, int64_t tokens) {
        const int64_t blocks = factor * tokens / o_.sizes.block_size;
        const int64_t k = factor * o_.sizes.top_k;
        add("top-k", concat("top-k ", k, " of ", count_text(blocks), ", ", count_text(tokens)),
            {tokens}, {blocks * o_.sizes.block_size});
        Case& added = cases.back();
        added.top_k = k;
        added.problem.query_heads = added.problem.kv_heads = 1;
        const PackedBatch& all = added.problem.batch;
        added.problem.batch = PackedBatch(
            all.cu_seqlens_q(), all.cu_seqlens_k(),
            std::vector<int64_t>(static_cast<size_t>(tokens), added.problem.keys() - 1));
    }

    void captured(const std::shared_ptr<const Captured>& file, int64_t layer) {
        const Problem p = file->problem(layer, o_.sizes.block_size);
        p.validate();
        cases.push_back({"captured", concat("layer ", layer, ", ", count_text(p.keys())), p,
                         o_.sizes.top_k, [file, layer](io::Field field, QueryRange range) {
                             return file->read(layer, field, range);
                         }});
    }

    std::vector<Case> cases;

private:
    void add(const std::string& kind, const std::string& name, const std::vector<int64_t>& queries,
             const std::vector<int64_t>& keys) {
        const analysis::LayerSizes& s = o_.sizes;
        Problem p =
            square_problem(0, s.query_heads, s.kv_heads, s.head_dim, s.index_dim, s.block_size);
        std::vector<int64_t> cu_seqlens_q{0}, cu_seqlens_k{0};
        for (size_t n = 0; n < keys.size(); ++n) {
            cu_seqlens_q.push_back(cu_seqlens_q.back() + queries[n]);
            cu_seqlens_k.push_back(cu_seqlens_k.back() + keys[n]);
        }
        p.batch = PackedBatch(std::move(cu_seqlens_q), std::move(cu_seqlens_k));
        p.validate();
        cases.push_back({kind, name, p, s.top_k, {}});
    }

    const BenchOptions& o_;
};

}  // namespace

std::vector<Case> make_cases(const BenchOptions& o) {
    Maker make(o);
    if (o.captured) {
        for (int64_t layer : o.captured->layers()) make.captured(o.captured, layer);
        return std::move(make.cases);
    }
    for (const std::string& kind : o.cases)
        for (int64_t n : o.tokens.empty() ? default_tokens(o, kind) : o.tokens) {
            if (kind == "square") make.square(n);
            if (kind == "chunk") make.last_queries(kind, std::min(kChunk, n / 2), n);
            if (kind == "short")
                for (int64_t queries : kShortQueries)
                    if (queries == kShortQueries[0] || n > kShortQueries[0])  // else the same again
                        make.last_queries(kind, std::min(queries, n), n);
            if (kind == "pack")
                for (int64_t sequences : kPackSequences) make.pack(sequences, n);
            if (kind == "decode")
                for (int64_t batch : o.batches)
                    if (!o.tokens.empty() || batch * n <= kMostDecodeKeys)
                        for (int64_t queries : kDecodeQueries) make.decode(batch, queries, n);
            if (kind == "mixed") make.mixed(n);
            if (kind == "top-k")
                for (int64_t factor : {1, 2}) make.top_k(factor, n);
        }
    return std::move(make.cases);
}

std::optional<Problem> up_to_capacity(const Case& c, const BenchOptions& o) {
    const PackedBatch& batch = c.problem.batch;
    const bool served =
        c.kind == "decode" || c.kind == "short" || c.kind == "chunk" || c.kind == "mixed";
    if (!served || o.capacity < batch.longest_keys()) return std::nullopt;
    std::vector<int64_t> starts;
    for (int64_t s = 0; s <= batch.sequences(); ++s) starts.push_back(s * o.capacity);
    Problem most = c.problem;
    most.batch = PackedBatch(batch.cu_seqlens_q(), std::move(starts));
    return most;
}

}  // namespace msa::experiments::bench
