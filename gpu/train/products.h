// SPDX-License-Identifier: MIT
// Products of matrices by cuBLASLt, which is opened at run time.
#pragma once

#include <memory>
#include <string>

#include "gpu/train/kernels.h"

namespace msa::cuda {

class CublasLt {
public:
    /// `stream` is where all products go.
    explicit CublasLt(std::shared_ptr<Stream> stream);
    ~CublasLt();
    CublasLt(const CublasLt&) = delete;
    CublasLt& operator=(const CublasLt&) = delete;

    /// "cuBLASLt 13.1.0", or why there is none.
    const std::string& name() const { return name_; }
    /// False where there is no library, or none of its kernels takes this product.
    bool run(const Product&);

private:
    struct Library;
    std::unique_ptr<Library> library_;  // absent where it could not be opened
    std::string name_;
};

}  // namespace msa::cuda
