// SPDX-License-Identifier: MIT
#include "core/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>

namespace msa {
namespace {

/// Sanitizers see the use of freed memory only where it is freed.
#ifdef MSA_SANITIZED
constexpr bool kKeeps = false;
#else
constexpr bool kKeeps = true;
#endif

/// Large blocks of memory, kept for the next tensor of the same size: fresh pages of the system
/// cost more than most of what is done with them, and threads wait for each other there. Freed
/// memory stays with the process, at most kMostKept of it. Tensors and what is kept for them never
/// take more than tensors alone once did; what else a process takes is not counted.
class HostMemory {
public:
    void* take(size_t bytes) {
        std::unique_lock lock(turn_);
        used_ += bytes;
        const auto same = std::find_if(kept_.rbegin(), kept_.rend(), [bytes](const Block& block) {
            return block.bytes == bytes;
        });
        if (same != kept_.rend()) {
            void* const memory = same->memory;
            kept_.erase(std::next(same).base());
            kept_bytes_ -= bytes;
            return memory;
        }
        keep(std::max(most_, used_) - used_, lock);
        void* memory = std::aligned_alloc(kAlignment, bytes);
        if (memory == nullptr) {
            keep(0, lock);
            memory = std::aligned_alloc(kAlignment, bytes);
        }
        if (memory == nullptr) {
            used_ -= bytes;
            throw std::bad_alloc();
        }
        most_ = std::max(most_, used_);
        return memory;
    }
    void give_back(void* memory, size_t bytes) {
        std::unique_lock lock(turn_);
        used_ -= bytes;
        kept_.push_back({memory, bytes});
        kept_bytes_ += bytes;
        keep(kMostKept, lock);
    }

    static constexpr size_t kAlignment = 64, kLeast = size_t{1} << 20;

private:
    static constexpr size_t kMostKept = size_t{8} << 30;
    struct Block {
        void* memory;
        size_t bytes;
    };
    /// Frees the oldest until `most` bytes are left; others have their turn meanwhile.
    void keep(size_t most, std::unique_lock<std::mutex>& lock) {
        while (kept_bytes_ > most) {
            const Block oldest = kept_.front();
            kept_.pop_front();
            kept_bytes_ -= oldest.bytes;
            lock.unlock();
            std::free(oldest.memory);
            lock.lock();
        }
    }

    std::mutex turn_;
    std::deque<Block> kept_;  // oldest first
    size_t used_ = 0, kept_bytes_ = 0, most_ = 0;
};

/// Tensors may outlive all other statics.
HostMemory& host_memory() {
    static auto* const memory = new HostMemory;
    return *memory;
}

}  // namespace

const char* to_string(Space space) { return space == Space::host ? "host" : "device"; }

const char* to_string(Element element) {
    switch (element) {
        case Element::f32: return "f32";
        case Element::f64: return "f64";
        case Element::f16: return "f16";
        case Element::bf16: return "bf16";
        case Element::e4m3: return "e4m3";
        case Element::int8: return "int8";
        case Element::i32: return "i32";
    }
    return "?";
}

int64_t element_bytes(Element element) {
    switch (element) {
        case Element::f64: return 8;
        case Element::f32:
        case Element::i32: return 4;
        case Element::f16:
        case Element::bf16: return 2;
        case Element::e4m3:
        case Element::int8: return 1;
    }
    return 0;
}

std::shared_ptr<void> allocate_host(int64_t bytes, Fill fill) {
    constexpr size_t kAlignment = HostMemory::kAlignment;
    MSA_CHECK(bytes >= 0);
    // At least one cache line, so that an empty tensor is present (non-null) all the same.
    const size_t padded = (static_cast<size_t>(bytes) / kAlignment + 1) * kAlignment;
    const bool large = kKeeps && padded >= HostMemory::kLeast;
    void* const memory =
        large ? host_memory().take(padded) : std::aligned_alloc(kAlignment, padded);
    if (memory == nullptr) throw std::bad_alloc();
    if (fill == Fill::zeros) std::memset(memory, 0, padded);
    if (!large) return {memory, std::free};
    return {memory, [padded](void* old) { host_memory().give_back(old, padded); }};
}

}  // namespace msa
