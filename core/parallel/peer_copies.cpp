// SPDX-License-Identifier: MIT
#include "core/parallel/peer_copies.h"

#include <span>

#include "core/error.h"

namespace msa::parallel {
namespace {

class Copies final : public PeerCopies {
public:
    using PeerCopies::PeerCopies;

    SharedMemory share(int64_t bytes) override {
        SharedMemory memory{backend().allocate(bytes),
                            std::vector<const void*>(static_cast<size_t>(ranks()))};
        const void* const own = memory.own.get();
        group().all_gather(std::as_bytes(std::span(&own, 1)),
                           std::as_writable_bytes(std::span(memory.of_rank)));
        return memory;
    }
    void open() override { meet(); }
    void fetch(const SharedMemory& memory, int from, int64_t offset, int64_t bytes) override {
        const Space here = backend().space();
        backend().copy(static_cast<char*>(memory.own.get()) + offset, here,
                       static_cast<const char*>(memory.of_rank[static_cast<size_t>(from)]) + offset,
                       here, bytes);
    }
    void await() override {}
    void close() override { meet(); }

private:
    void meet() {
        backend().finish();
        group().barrier();
    }
};

}  // namespace

std::unique_ptr<PeerCopies> make_peer_copies(const Group& group, Backend& backend) {
    return std::make_unique<Copies>(group, backend);
}

}  // namespace msa::parallel
