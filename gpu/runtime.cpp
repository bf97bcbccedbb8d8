// SPDX-License-Identifier: MIT
#include "gpu/runtime.h"

namespace msa::cuda {
namespace {
constexpr int64_t kKeptScratch = int64_t{1} << 24;
}

Scratch::Scratch(std::shared_ptr<Stream> stream)
    : stream_(std::move(stream)), kept_(allocate_to_keep(stream_, kKeptScratch)) {}

std::shared_ptr<void> Scratch::take(int64_t bytes) {
    constexpr int64_t kAlignment = 256;
    if (bytes > kKeptScratch - used_) return allocate(stream_, bytes);
    std::shared_ptr<void> taken(kept_, static_cast<char*>(kept_.get()) + used_);
    used_ = ceil_div(used_ + bytes, kAlignment) * kAlignment;
    return taken;
}

}  // namespace msa::cuda
