// SPDX-License-Identifier: MIT
#include "gpu/train/cuda_ops.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/train/buffer.h"
#include "gpu/shared_stream.h"
#include "gpu/train/kernels.h"
#include "gpu/train/nccl.h"
#include "gpu/train/products.h"

namespace msa::train {
namespace {

class CudaOps final : public Ops {
public:
    CudaOps(std::unique_ptr<Backend> backend, Element element)
        : backend_(std::move(backend)),
          shared_(cuda::share_stream(*backend_)),
          element_(element),
          scratch_(shared_.stream),
          cublas_(shared_.stream) {
        require(element == Element::f32 || element == Element::bf16, "element is ",
                to_string(element), ", must be f32 or bf16");
    }

    CudaOps(const CudaOps&) = delete;
    CudaOps& operator=(const CudaOps&) = delete;
    /// What products are under way is done before the library goes.
    ~CudaOps() override { cudaStreamSynchronize(shared_.stream->get()); }

    Backend& backend() override { return *backend_; }
    Element element() const override { return element_; }
    std::string device() override { return backend_->device() + ", " + cublas_.name(); }

    void linear(In<2> x, In<2> w, Out<2> y, Sum sum) override {
        MSA_CHECK(is_ours(x) && is_ours(w) && is_ours(y));
        multiply({.left = x, .right = w, .right_transposed = true, .to = y, .sum = sum});
    }
    void linear_grad_input(In<2> d_y, In<2> w, Out<2> d_x, Sum sum) override {
        MSA_CHECK(is_ours(d_y) && is_ours(w) && is_ours(d_x));
        multiply({.left = d_y, .right = w, .to = d_x, .sum = sum});
    }
    void linear_grad_weight(In<2> d_y, In<2> x, View<float, 2> d_w) override {
        MSA_CHECK(is_ours(d_y) && is_ours(x));
        multiply({.left = d_y, .right = x, .left_transposed = true, .to = d_w, .sum = Sum::add});
    }

    void rms_norm(In<2> x, View<const float, 1> w, Out<2> y) override {
        MSA_CHECK(is_ours(x) && is_ours(y) && y.shape() == x.shape() && w.size() == x.shape()[1]);
        cuda::rms_norm(begin(), x, w.data(), y);
    }
    void rms_norm_grad(In<2> x, View<const float, 1> w, In<2> d_y, Out<2> d_x, View<float, 1> d_w,
                       Sum sum) override {
        MSA_CHECK(is_ours(x) && is_ours(d_y) && is_ours(d_x) && d_y.shape() == x.shape() &&
                  d_x.shape() == x.shape() && w.size() == x.shape()[1] && d_w.size() == w.size());
        const cudaStream_t stream = begin();
        const auto parts = take<float>(cuda::norm_parts(x.shape()[0], w.size()));
        cuda::rms_norm_grad(stream, x, w.data(), d_y, d_x, d_w.data(), sum, parts.get());
    }

    void rotate(Out<3> heads, View<const int32_t, 1> positions, View<const float, 3> table,
                bool backward) override {
        MSA_CHECK(is_ours(heads) && positions.size() == heads.shape()[0] &&
                  2 * table.extent(1) <= heads.shape()[2]);
        cuda::rotate(begin(), heads, positions.data(), table, backward);
    }

    void swiglu(In<2> gate, In<2> up, Out<2> y) override {
        MSA_CHECK(is_ours(gate) && is_ours(up) && is_ours(y) && up.shape() == gate.shape() &&
                  y.shape() == gate.shape());
        cuda::swiglu(begin(), gate, up, y);
    }
    void swiglu_grad(In<2> gate, In<2> up, In<2> d_y, Out<2> d_gate, Out<2> d_up) override {
        MSA_CHECK(is_ours(gate) && is_ours(up) && is_ours(d_y) && is_ours(d_gate) &&
                  is_ours(d_up) && up.shape() == gate.shape() && d_y.shape() == gate.shape() &&
                  d_gate.shape() == gate.shape() && d_up.shape() == gate.shape());
        cuda::swiglu_grad(begin(), gate, up, d_y, d_gate, d_up);
    }

    void embed(View<const int32_t, 1> tokens, In<2> table, Out<2> x) override {
        MSA_CHECK(is_ours(table) && is_ours(x) && tokens.size() == x.shape()[0] &&
                  table.shape()[1] == x.shape()[1]);
        cuda::copy_rows(begin(), table, tokens, x);
    }
    void embed_grad(View<const int32_t, 1> tokens, In<2> d_x, View<float, 2> d_table) override {
        MSA_CHECK(is_ours(d_x) && tokens.size() == d_x.shape()[0] &&
                  d_table.extent(1) == d_x.shape()[1]);
        const cudaStream_t stream = begin();
        const auto parts =
            take<float>(cuda::embed_parts(tokens.size(), d_table.extent(0), d_table.extent(1)));
        cuda::embed_grad(stream, tokens, d_x, d_table, parts.get());
    }

    void cross_entropy(Out<2> logits, View<const int32_t, 1> targets, View<float, 1> losses,
                       float factor, bool gradient) override {
        MSA_CHECK(is_ours(logits) && targets.size() == logits.shape()[0] &&
                  losses.size() == targets.size());
        cuda::cross_entropy(begin(), logits, targets.data(), losses.data(), factor, gradient);
    }

    void add(In<1> x, float factor, Out<1> y, Sum sum) override {
        MSA_CHECK(x.shape() == y.shape());
        cuda::add(begin(), x, factor, y, sum);
    }
    void repeat(In<2> one, Out<3> many) override {
        MSA_CHECK(is_ours(one) && is_ours(many) && one.shape()[0] == many.shape()[0] &&
                  one.shape()[1] == many.shape()[2]);
        cuda::repeat(begin(), one, many);
    }
    void sum_heads(In<3> many, Out<2> one) override {
        MSA_CHECK(is_ours(one) && is_ours(many) && one.shape()[0] == many.shape()[0] &&
                  one.shape()[1] == many.shape()[2]);
        cuda::sum_heads(begin(), many, one);
    }

    void gather_rows(In<3> from, View<const int32_t, 1> rows, Out<3> to) override {
        check_rows(from, to, rows, to);
        cuda::copy_rows(begin(), flat(from), rows, flat(to));
    }
    void add_rows(In<3> from, View<const int32_t, 1> rows, Out<3> to) override {
        check_rows(from, to, rows, from);
        cuda::add_rows(begin(), flat(from), rows, flat(to));
    }
    void merge_attention(In<3> part_out, View<const float, 2> part_lse, View<const int32_t, 1> rows,
                         Out<3> out, View<float, 2> lse) override {
        check_rows(part_out, out, rows, part_out);
        MSA_CHECK(part_lse.extent(0) == rows.size() && part_lse.extent(1) == out.shape()[1] &&
                  lse.extent(0) == out.shape()[0] && lse.extent(1) == out.shape()[1]);
        cuda::merge_attention(begin(), part_out, part_lse.data(), rows, out, lse.data());
    }

    void clear(View<float, 1> values) override {
        cuda::check(cudaMemsetAsync(values.data(), 0,
                                    static_cast<size_t>(values.size()) * sizeof(float), begin()),
                    "clearing memory");
    }
    double total(In<1> values) override {
        const cudaStream_t stream = begin();
        const auto parts = take<double>(cuda::kTotalParts), sum = take<double>(1);
        cuda::total(stream, values, parts.get(), sum.get());
        double host = 0;
        backend_->copy(&host, Space::host, sum.get(), Space::device, sizeof(host));
        return host;
    }
    std::vector<double> squared_norms(View<const float, 1> values,
                                      std::span<const int64_t> starts) override {
        const cudaStream_t stream = begin();
        if (!std::equal(starts.begin(), starts.end(), starts_.begin(), starts_.end())) {
            starts_.assign(starts.begin(), starts.end());
            starts_there_ = cuda::upload(shared_.stream, starts_);
        }
        const int64_t count = std::ssize(starts) - 1;
        const auto parts = take<double>(count * cuda::kNormTiles), sums = take<double>(count);
        cuda::squared_norms(stream, values.data(), starts_there_.data(), count, parts.get(),
                            sums.get());
        std::vector<double> host(static_cast<size_t>(count));
        backend_->copy(host.data(), Space::host, sums.get(), Space::device,
                       count * int64_t{sizeof(double)});
        return host;
    }
    void adamw(const AdamW& rule, int64_t step, double lr, double factor, View<float, 1> weights,
               View<const float, 1> gradient, View<float, 1> first,
               View<float, 1> second) override {
        MSA_CHECK(step >= 1 && gradient.size() == weights.size() &&
                  first.size() == weights.size() && second.size() == weights.size());
        cuda::adamw(begin(), rule, step, lr, factor, weights, gradient.data(), first.data(),
                    second.data());
    }
    void sum_over(const parallel::Group& workers, View<float, 1> values) override {
        if (workers.size() == 1) return;
        begin();
        if (!nccl_) nccl_ = std::make_unique<cuda::Nccl>(workers, shared_.stream);
        nccl_->sum(workers, values);
    }

private:
    /// The stream, at the beginning of an operation.
    cudaStream_t begin() {
        cuda::check(cudaSetDevice(shared_.device.ordinal), "choosing the device");
        scratch_.begin_call();
        return shared_.stream->get();
    }
    /// Scratch memory of the operation.
    template <typename T>
    std::shared_ptr<T> take(int64_t count) {
        return std::static_pointer_cast<T>(scratch_.take(count * int64_t{sizeof(T)}));
    }
    template <typename View>
    bool is_ours(const View& view) const {
        return view.element() == element_;
    }
    /// Rows of `from` and `to` are alike, and `listed` has as many of them as the list.
    template <typename Listed>
    static void check_rows(const In<3>& from, const In<3>& to, View<const int32_t, 1> rows,
                           const Listed& listed) {
        MSA_CHECK(from.element() == to.element() && from.shape()[1] == to.shape()[1] &&
                  from.shape()[2] == to.shape()[2] && rows.size() == listed.shape()[0]);
    }
    void multiply(const cuda::Product& p) {
        const Shape<2>& right = p.right.shape();
        MSA_CHECK(p.left.shape()[p.left_transposed ? 1 : 0] == p.rows() &&
                  right[p.right_transposed ? 1 : 0] == p.depth() &&
                  right[p.right_transposed ? 0 : 1] == p.columns());
        const cudaStream_t stream = begin();
        if (p.rows() == 0 || p.depth() == 0) return;  // no tokens
        if (!cublas_.run(p)) cuda::product_any(stream, p);
    }

    std::unique_ptr<Backend> backend_;
    cuda::SharedStream shared_;
    Element element_;
    cuda::Scratch scratch_;
    cuda::CublasLt cublas_;
    std::vector<int64_t> starts_;  // of the last squared_norms
    Tensor<int64_t, 1> starts_there_;
    std::unique_ptr<cuda::Nccl> nccl_;  // absent until the first sum over workers
};

}  // namespace

std::unique_ptr<Ops> make_cuda_ops(std::unique_ptr<Backend> backend, Element element) {
    return std::make_unique<CudaOps>(std::move(backend), element);
}

Support cuda_workers() {
    const std::string why_not = cuda::nccl_failure();
    return why_not.empty() ? Support{} : Support::no(why_not);
}

}  // namespace msa::train
