// SPDX-License-Identifier: MIT
#include "tests/support/far_backend.h"

#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>

#include "core/number/convert.h"
#include "core/registry.h"
#include "tests/support/in_float.h"

namespace msa::test {
namespace {

/// Pages that are locked but while an Open lives.
class Pages {
public:
    void* take(size_t bytes) {
        void* memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        sizes_[static_cast<char*>(memory)] = bytes;
        return memory;
    }
    void give_back(void* memory) {
        const auto at = sizes_.find(static_cast<char*>(memory));
        munmap(at->first, at->second);
        sizes_.erase(at);
    }
    /// Throws unless all of [data, data + bytes) is ours.
    void check(const void* data, int64_t bytes) const {
        const auto* first = static_cast<const char*>(data);
        auto after = sizes_.upper_bound(const_cast<char*>(first));
        if (after == sizes_.begin()) throw std::logic_error("host memory is given as far memory");
        --after;
        if (first + bytes > after->first + after->second)
            throw std::logic_error("a view is not within far memory");
    }
    void protect(int rights) const {
        for (const auto& [memory, bytes] : sizes_)
            if (mprotect(memory, bytes, rights) != 0) throw std::runtime_error("mprotect failed");
    }

private:
    std::map<char*, size_t> sizes_;
};

class Open {
public:
    explicit Open(const Pages& pages) : pages_(pages) { pages_.protect(PROT_READ | PROT_WRITE); }
    ~Open() { pages_.protect(PROT_NONE); }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

private:
    const Pages& pages_;
};

class FarBackend final : public Backend {
public:
    explicit FarBackend(const BackendOptions& options) : cpu_(make_backend("cpu", options)) {}

    std::string_view name() const override { return "far"; }
    std::string device() const override { return "far from " + cpu_->device(); }
    Space space() const override { return Space::device; }
    Support supports(const Problem& p, const Request& request) const override {
        const auto* kl = std::get_if<IndexKlRequest>(&request);
        if (kl != nullptr && kl->teacher != Teacher::mean)
            return Support::no("it takes the mean teacher alone");
        if (page_size(request) > 0) return Support::no("it takes packed keys alone");
        return cpu_->supports(p, in_float(request));
    }
    std::shared_ptr<void> allocate(int64_t bytes) override {
        void* memory = pages_->take(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
        return {memory, [pages = pages_](void* of) { pages->give_back(of); }};
    }
    void copy(void* to, Space to_space, const void* from, Space from_space,
              int64_t bytes) override {
        if (bytes == 0) return;
        if (to_space == Space::device) pages_->check(to, bytes);
        if (from_space == Space::device) pages_->check(from, bytes);
        const Open open(*pages_);
        std::memcpy(to, from, static_cast<size_t>(bytes));
    }
    void finish() override {}

protected:
    void do_dense_attention(const Problem& p, const AttentionInput& in,
                            const AttentionOutput& to) override {
        attend(p, in, to, [&](const AttentionInput& here, const AttentionOutput& there) {
            cpu_->dense_attention(p, here, there);
        });
    }
    void do_index_scores(const Problem& p, const IndexInput& in, View<float, 3> scores) override {
        const Open open(*pages_);
        const NearIn<3> q = near(in.index_q);
        const NearIn<2> k = near(in.index_k);
        cpu_->index_scores(p, {q, k}, near(scores));
    }
    void do_select_blocks(const Problem& p, const SelectionRule& rule, View<const float, 3> scores,
                          View<int32_t, 3> ids) override {
        const Open open(*pages_);
        cpu_->select_blocks(p, rule, near(scores), near(ids));
    }
    void do_index_select(const Problem& p, const SelectionRule& rule, const IndexInput& in,
                         View<int32_t, 3> ids, View<float, 2> lse) override {
        const Open open(*pages_);
        const NearIn<3> q = near(in.index_q);
        const NearIn<2> k = near(in.index_k);
        cpu_->index_select(p, rule, {q, k}, near(ids), near(lse));
    }
    void do_sparse_attention(const Problem& p, const AttentionInput& in, View<const int32_t, 3> ids,
                             const AttentionOutput& to, LoopOrder order) override {
        attend(p, in, to, [&](const AttentionInput& here, const AttentionOutput& there) {
            cpu_->sparse_attention(p, here, near(ids), there, order);
        });
    }
    void do_dense_attention_grad(const Problem& p, const AttentionInput& in,
                                 const AttentionSaved& saved,
                                 const AttentionGradient& to) override {
        attend_grad(in, saved, to,
                    [&](const auto&... here) { cpu_->dense_attention_grad(p, here...); });
    }
    void do_sparse_attention_grad(const Problem& p, const AttentionInput& in,
                                  View<const int32_t, 3> ids, const AttentionSaved& saved,
                                  const AttentionGradient& to, LoopOrder order) override {
        attend_grad(in, saved, to,
                    [&](const AttentionInput& here, const AttentionSaved& given,
                        const AttentionGradient& there) {
                        cpu_->sparse_attention_grad(p, here, near(ids), given, there, order);
                    });
    }
    void do_block_mass(const Problem& p, const BlockMassInput& in,
                       const BlockMassOutput& to) override {
        const Open open(*pages_);
        const NearIn<3> q = near(in.q), k = near(in.k);
        cpu_->block_mass(p, {q, k, near(in.sinks)}, {near(to.mass), near(to.max_logit)});
    }
    void do_append(const Problem&, const In<3>&, const Keys<3>&) override {
        throw UnsupportedError("backend far takes packed keys alone");
    }
    void do_index_kl(const Problem& p, const IndexKlInput& in, const IndexKlOutput& to) override {
        const Open open(*pages_);
        const NearIn<3> index_q = near(in.index.index_q), q = near(in.q), k = near(in.k);
        const NearIn<2> index_k = near(in.index.index_k);
        cpu_->index_kl(p,
                       {{index_q, index_k},
                        q,
                        k,
                        near(in.ids),
                        in.teacher,
                        near(in.sinks),
                        near(in.main_lse),
                        near(in.index_lse),
                        in.gradient_scale},
                       {near(to.kl), near(to.d_index_q), near(to.d_index_k)});
    }

private:
    /// The view as cpu takes it; absent stays absent.
    template <typename T, int Rank>
    View<T, Rank> near(const View<T, Rank>& view) const {
        if (!view) return {};
        pages_->check(view.data(), view.size() * int64_t{sizeof(T)});
        return {view.data(), view.shape()};
    }
    /// An operand as cpu takes it: in place, or its values in float.
    template <int Rank>
    struct NearIn {
        Tensor<float, Rank> values;
        In<Rank> view;
        operator In<Rank>() const { return view; }
    };
    template <int Rank>
    NearIn<Rank> near(const In<Rank>& view) const {
        const int64_t count = element_count(view.shape());
        pages_->check(view.data(), count * element_bytes(view.element()));
        NearIn<Rank> in{{}, {view.data(), view.shape(), view.element(), Space::host}};
        if (view.element() == Element::f32) return in;
        in.values = Tensor<float, Rank>(view.shape());
        decode(view.data(), view.element(), {in.values.data(), static_cast<size_t>(count)});
        in.view = in.values.view();
        return in;
    }
    /// Runs attention with an output as cpu gives it, and stores that.
    void attend(const Problem& p, const AttentionInput& in, const AttentionOutput& to,
                const std::function<void(const AttentionInput&, const AttentionOutput&)>& run) {
        const Open open(*pages_);
        const NearIn<3> q = near(in.q), k = near(in.k), v = near(in.v);
        const int64_t count = element_count(to.out.shape());
        pages_->check(to.out.data(), count * element_bytes(to.out.element()));
        Tensor<float, 3> out({p.queries(), p.query_heads, p.head_dim});
        if (in.scales) {  // as they are: cpu knows what scales are of
            const auto here = [](const In<3>& view) {
                return In<3>{view.data(), view.shape(), view.element(), Space::host};
            };
            run({here(in.q),
                 here(in.k),
                 here(in.v),
                 near(in.sinks),
                 {near(in.scales.q), near(in.scales.k), near(in.scales.v)}},
                {out, near(to.lse)});
        } else {
            run({q, k, v, near(in.sinks)}, {out, near(to.lse)});
        }
        encode({out.data(), static_cast<size_t>(count)}, to.out.element(), to.out.data());
    }

    /// Stores what cpu gives in float.
    void take(const Tensor<float, 3>& values, const Out<3>& to) const {
        const auto count = static_cast<size_t>(values.size());
        pages_->check(to.data(), values.size() * element_bytes(to.element()));
        encode({values.data(), count}, to.element(), to.data());
    }
    /// The same for a gradient: run(input, saved, gradient).
    template <typename Run>
    void attend_grad(const AttentionInput& in, const AttentionSaved& saved,
                     const AttentionGradient& to, const Run& run) {
        const Open open(*pages_);
        const NearIn<3> q = near(in.q), k = near(in.k), v = near(in.v);
        const NearIn<3> out = near(saved.out), d_out = near(saved.d_out);
        Tensor<float, 3> d_q(in.q.shape()), d_k(in.k.shape()), d_v(in.v.shape());
        run(AttentionInput{q, k, v, near(in.sinks)}, AttentionSaved{out, near(saved.lse), d_out},
            AttentionGradient{d_q, d_k, d_v, near(to.d_sinks)});
        take(d_q, to.d_q);
        take(d_k, to.d_k);
        take(d_v, to.d_v);
    }

    std::shared_ptr<Pages> pages_ = std::make_shared<Pages>();
    std::unique_ptr<Backend> cpu_;
};

}  // namespace

void register_far_backend() {
    register_backend({"far", {}}, [](const BackendOptions& options) {
        return std::make_unique<FarBackend>(options);
    });
}

}  // namespace msa::test
