// SPDX-License-Identifier: MIT
// The library speaks of matrices by columns. A row-major matrix [rows, columns] is to it the
// transpose, [columns, rows] with `columns` elements from one to the next; so to = left right is
// asked for as to^T = right^T left^T, with the operands as they lie.
#include "gpu/train/products.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <bit>
#include <map>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace msa::cuda {
namespace {

constexpr int64_t kWorkspace = int64_t{32} << 20;  // what NVIDIA asks for on Hopper
constexpr uint32_t kMostAlignment = 256;

/// The functions that are called.
struct Functions {
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtGetVersion) version;
    decltype(&cublasLtGetStatusString) status_string;
    decltype(&cublasLtMatmul) matmul;
    decltype(&cublasLtMatmulDescCreate) desc_create;
    decltype(&cublasLtMatmulDescDestroy) desc_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
};

/// The functions of the library, opened once; or what is wrong.
struct Opened {
    Functions f{};
    std::string failure;

    Opened() {
        const std::string file = concat("libcublasLt.so.", CUBLAS_VER_MAJOR);
        void* const library = dlopen(file.c_str(), RTLD_NOW);
        if (library == nullptr) {
            failure = dlerror();
            return;
        }
        const auto find = [&](auto& function, const char* name) {
            function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
            if (function == nullptr) failure = concat(file, " lacks ", name);
        };
        find(f.create, "cublasLtCreate");
        find(f.destroy, "cublasLtDestroy");
        find(f.version, "cublasLtGetVersion");
        find(f.status_string, "cublasLtGetStatusString");
        find(f.matmul, "cublasLtMatmul");
        find(f.desc_create, "cublasLtMatmulDescCreate");
        find(f.desc_destroy, "cublasLtMatmulDescDestroy");
        find(f.desc_set, "cublasLtMatmulDescSetAttribute");
        find(f.layout_create, "cublasLtMatrixLayoutCreate");
        find(f.layout_destroy, "cublasLtMatrixLayoutDestroy");
        find(f.preference_create, "cublasLtMatmulPreferenceCreate");
        find(f.preference_destroy, "cublasLtMatmulPreferenceDestroy");
        find(f.preference_set, "cublasLtMatmulPreferenceSetAttribute");
        find(f.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    }
};

const Opened& opened() {
    static const Opened once;
    return once;
}

void check_cublas(cublasStatus_t status, const char* what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw SystemError(concat("cuda: cuBLASLt: ", what, ": ", opened().f.status_string(status)));
}

/// The largest power of two that the address is a multiple of, as far as it matters.
uint32_t alignment(const void* at) {
    const auto address = reinterpret_cast<uintptr_t>(at) | kMostAlignment;
    return uint32_t{1} << std::countr_zero(address);
}

/// What the choice of a kernel depends on.
struct Key {
    int64_t rows, columns, depth;
    bool left_transposed, right_transposed;
    Element operands, to;
    uint32_t left_alignment, right_alignment, to_alignment;
    auto all() const {
        return std::tie(rows, columns, depth, left_transposed, right_transposed, operands, to,
                        left_alignment, right_alignment, to_alignment);
    }
    bool operator<(const Key& other) const { return all() < other.all(); }
};

Key key_of(const Product& p) {
    return {p.rows(),
            p.columns(),
            p.depth(),
            p.left_transposed,
            p.right_transposed,
            p.left.element(),
            p.to.element(),
            alignment(p.left.data()),
            alignment(p.right.data()),
            alignment(p.to.data())};
}

cudaDataType_t type_of(Element element) {
    return element == Element::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

/// A kernel and its description of a product.
struct Plan {
    bool found = false;
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t right = nullptr, left = nullptr, to = nullptr;
    cublasLtMatmulAlgo_t algorithm{};

    Plan(cublasLtHandle_t handle, const Key& key) {
        const Functions& f = opened().f;
        check_cublas(f.desc_create(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
        const auto transpose = [&](cublasLtMatmulDescAttributes_t which, bool transposed) {
            const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
            check_cublas(f.desc_set(product, which, &operation, sizeof(operation)), "a product");
        };
        transpose(CUBLASLT_MATMUL_DESC_TRANSA, key.right_transposed);
        transpose(CUBLASLT_MATMUL_DESC_TRANSB, key.left_transposed);
        const auto layout = [&](cublasLtMatrixLayout_t& made, Element element, bool transposed,
                                int64_t height, int64_t width) {
            if (transposed) std::swap(height, width);
            check_cublas(f.layout_create(&made, type_of(element), static_cast<uint64_t>(width),
                                         static_cast<uint64_t>(height), width),
                         "a matrix");
        };
        layout(right, key.operands, key.right_transposed, key.depth, key.columns);
        layout(left, key.operands, key.left_transposed, key.rows, key.depth);
        layout(to, key.to, false, key.rows, key.columns);
        choose(handle, key);
    }
    ~Plan() {
        const Functions& f = opened().f;
        for (cublasLtMatrixLayout_t layout : {right, left, to})
            if (layout != nullptr) f.layout_destroy(layout);
        if (product != nullptr) f.desc_destroy(product);
    }
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

private:
    /// The first kernel that the library proposes whose partial sums, if it cuts the depth, are
    /// float and added up in order.
    void choose(cublasLtHandle_t handle, const Key& key) {
        const Functions& f = opened().f;
        cublasLtMatmulPreference_t preference = nullptr;
        check_cublas(f.preference_create(&preference), "a preference");
        const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
            check_cublas(f.preference_set(preference, which, &value, sizeof(value)),
                         "a preference");
        };
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspace});
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
               uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.right_alignment);
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.left_alignment);
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.to_alignment);
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.to_alignment);
        cublasLtMatmulHeuristicResult_t result{};
        int count = 0;
        const cublasStatus_t status =
            f.heuristic(handle, product, right, left, to, to, preference, 1, &result, &count);
        f.preference_destroy(preference);
        found =
            status == CUBLAS_STATUS_SUCCESS && count > 0 && result.state == CUBLAS_STATUS_SUCCESS;
        algorithm = result.algo;
    }
};

}  // namespace

struct CublasLt::Library {
    std::shared_ptr<Stream> stream;
    cublasLtHandle_t handle = nullptr;
    std::shared_ptr<void> workspace;
    std::map<Key, std::unique_ptr<Plan>> plans;

    explicit Library(std::shared_ptr<Stream> of)
        : stream(std::move(of)), workspace(allocate(stream, kWorkspace)) {
        check_cublas(opened().f.create(&handle), "starting");
    }
    ~Library() {
        plans.clear();
        if (handle != nullptr) opened().f.destroy(handle);
    }
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    Plan& plan_of(const Key& key) {
        std::unique_ptr<Plan>& plan = plans[key];
        if (!plan) plan = std::make_unique<Plan>(handle, key);
        return *plan;
    }
};

CublasLt::CublasLt(std::shared_ptr<Stream> stream) {
    if (!opened().failure.empty()) {
        name_ = "no cuBLASLt: " + opened().failure;
        return;
    }
    library_ = std::make_unique<Library>(std::move(stream));
    const size_t version = opened().f.version();  // 130100: 13.1.0
    name_ = concat("cuBLASLt ", version / 10000, '.', version / 100 % 100, '.', version % 100);
}

CublasLt::~CublasLt() = default;

bool CublasLt::run(const Product& p) {
    if (!library_) return false;
    Plan& plan = library_->plan_of(key_of(p));
    if (!plan.found) return false;
    const float alpha = 1, beta = p.sum == Sum::add ? 1.0F : 0.0F;
    const cublasStatus_t status = opened().f.matmul(
        library_->handle, plan.product, &alpha, p.right.data(), plan.right, p.left.data(),
        plan.left, &beta, p.to.data(), plan.to, p.to.data(), plan.to, &plan.algorithm,
        library_->workspace.get(), kWorkspace, library_->stream->get());
    plan.found = status != CUBLAS_STATUS_NOT_SUPPORTED;
    if (plan.found) check_cublas(status, "a product");
    return plan.found;
}

}  // namespace msa::cuda
