// SPDX-License-Identifier: MIT
#include "core/cpu/cpu_backend.h"

#include <fstream>
#include <string>

#include "core/cpu/block_attention.h"
#include "core/error.h"
#include "core/host_backend.h"
#include "core/threads.h"

namespace msa {
namespace {

/// "AMD EPYC 9R14", from the kernel's own table.
std::string cpu_model() {
    std::ifstream table("/proc/cpuinfo");
    for (std::string line; std::getline(table, line);)
        if (line.starts_with("model name"))
            if (const size_t colon = line.find(": "); colon != std::string::npos)
                return line.substr(colon + 2);
    return "unknown CPU";
}

/// What the compiler was allowed to use.
constexpr const char* instruction_set() {
#if defined(__AVX512F__)
    return "AVX-512";
#elif defined(__AVX2__) && defined(__FMA__)
    return "AVX2";
#else
    return "baseline instructions";
#endif
}

class CpuBackend final : public HostBackend {
public:
    CpuBackend(std::string_view name, int threads) : name_(name), threads_(threads) {}

    std::string_view name() const override { return name_; }
    std::string device() const override {
        return concat(cpu_model(), ", ", threads_, threads_ == 1 ? " thread, " : " threads, ",
                      instruction_set());
    }

    int host_threads() const override { return threads_; }

    Support supports(const Problem&, const Request& request) const override {
        return takes_elements(request);
    }

protected:
    void do_dense_attention(const Problem& p, const AttentionInput& in,
                            const AttentionOutput& to) override {
        cpu::dense_attention(p, in.q.as<const float>(), {p, in.k}, {p, in.v}, to.out.as<float>(),
                             to.lse, threads_);
        cpu::add_sinks(in.sinks, to.out.as<float>(), to.lse, threads_);
    }
    void do_index_scores(const Problem& p, const IndexInput& in, View<float, 3> scores) override {
        cpu::index_scores(p, FloatIndexInput(p, in), scores, threads_);
    }
    void do_select_blocks(const Problem& p, const SelectionRule& rule, View<const float, 3> scores,
                          View<int32_t, 3> ids) override {
        cpu::select_blocks(p, rule, scores, ids, threads_);
    }
    void do_index_select(const Problem& p, const SelectionRule& rule, const IndexInput& in,
                         View<int32_t, 3> ids, View<float, 2> lse) override {
        cpu::index_select(p, rule, FloatIndexInput(p, in), ids, lse, threads_);
    }
    void do_sparse_attention(const Problem& p, const AttentionInput& in, View<const int32_t, 3> ids,
                             const AttentionOutput& to, LoopOrder order) override {
        const auto run = [order] {
            switch (order) {
                case LoopOrder::q_outer: return cpu::sparse_attention_q_outer;
                case LoopOrder::kv_outer: return cpu::sparse_attention_kv_outer;
                case LoopOrder::automatic:
                case LoopOrder::tile_union: break;
            }
            return cpu::sparse_attention_union;
        }();
        const FloatOperands floats(p, in, threads_);
        const AttentionInput& here = floats.view();
        run(p, here.q.as<const float>(), {p, here.k}, {p, here.v}, ids, to.out.as<float>(), to.lse,
            threads_);
        cpu::add_sinks(in.sinks, to.out.as<float>(), to.lse, threads_);
    }
    void do_dense_attention_grad(const Problem& p, const AttentionInput& in,
                                 const AttentionSaved& saved,
                                 const AttentionGradient& to) override {
        cpu::dense_attention_grad(p, in, saved, to, threads_);
    }
    void do_sparse_attention_grad(const Problem& p, const AttentionInput& in,
                                  View<const int32_t, 3> ids, const AttentionSaved& saved,
                                  const AttentionGradient& to, LoopOrder order) override {
        cpu::sparse_attention_grad(p, in, ids, saved, to, order, threads_);
    }
    void do_block_mass(const Problem& p, const BlockMassInput& in,
                       const BlockMassOutput& to) override {
        cpu::block_mass(p, in.q.as<const float>(), {p, in.k}, in.sinks, to, threads_);
    }
    void do_index_kl(const Problem& p, const IndexKlInput& in, const IndexKlOutput& to) override {
        cpu::index_kl(p, in, to, threads_);
    }

private:
    std::string_view name_;
    int threads_;
};

}  // namespace

#ifdef MSA_CPU_COPY_AVX512
std::unique_ptr<Backend> make_cpu_backend_avx512(std::string_view name,
                                                 const BackendOptions& options) {
#else
std::unique_ptr<Backend> make_cpu_backend(std::string_view name, const BackendOptions& options) {
#endif
    require(options.threads >= 0, "threads is ", options.threads,
            ", must be positive, or 0 for as many as OpenMP starts");
    return std::make_unique<CpuBackend>(name, threads_or_all(options.threads));
}

}  // namespace msa
