// SPDX-License-Identifier: MIT
// Products of matrices with cuBLASLt, which is opened at run time.
#pragma once

#include <memory>
#include <string>

#include "gpu/train/kernels.h"

namespace msa::cuda {

class CublasLt {
public:
    /// All products run on `stream`.
    explicit CublasLt(std::shared_ptr<Stream> stream);
    ~CublasLt();
    CublasLt(const CublasLt&) = delete;
    CublasLt& operator=(const CublasLt&) = delete;

    /// "cuBLASLt 13.1.0", or why the library cannot be used.
    const std::string& name() const { return name_; }
    /// False if there is no library, or if none of its kernels supports this product.
    bool run(const Product&);

private:
    struct Library;
    std::unique_ptr<Library> library_;  // null if it could not be opened
    std::string name_;
};

}  // namespace msa::cuda
