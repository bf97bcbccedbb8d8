// SPDX-License-Identifier: MIT
#include "gpu/train/nccl.h"

#include <dlfcn.h>
#include <nccl.h>

#include <cstdlib>
#include <thread>
#include <utility>

#include "core/error.h"

namespace msa::cuda {
namespace {

/// The functions that are called.
struct Functions {
    decltype(&ncclGetUniqueId) unique_id;
    decltype(&ncclCommInitRank) join;
    decltype(&ncclAllReduce) all_reduce;
    decltype(&ncclCommGetAsyncError) async_error;
    decltype(&ncclCommAbort) abort;
    decltype(&ncclGetErrorString) error_string;
    decltype(&ncclGetLastError) last_error;
};

/// The functions of the library, opened once; or what is wrong.
struct Opened {
    Functions f{};
    std::string failure;

    Opened() {
        constexpr int kKeep = 0;  // what is set stays
        setenv("NCCL_NVLS_ENABLE", "0", kKeep);
        setenv("NCCL_P2P_DIRECT_DISABLE", "1", kKeep);
        constexpr const char* kFile = "libnccl.so.2";
        void* const library = dlopen(kFile, RTLD_NOW);
        if (library == nullptr) {
            failure = dlerror();
            return;
        }
        const auto find = [&](auto& function, const char* name) {
            function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
            if (function == nullptr) failure = concat(kFile, " lacks ", name);
        };
        find(f.unique_id, "ncclGetUniqueId");
        find(f.join, "ncclCommInitRank");
        find(f.all_reduce, "ncclAllReduce");
        find(f.async_error, "ncclCommGetAsyncError");
        find(f.abort, "ncclCommAbort");
        find(f.error_string, "ncclGetErrorString");
        find(f.last_error, "ncclGetLastError");
    }
};

const Opened& opened() {
    static const Opened once;
    return once;
}

void check_nccl(ncclResult_t result, const char* what) {
    if (result == ncclSuccess) return;
    const Functions& f = opened().f;
    throw SystemError(concat("cuda: NCCL: ", what, ": ", f.error_string(result), "; ",
                             f.last_error(nullptr), "; NCCL_DEBUG=WARN says more"));
}

}  // namespace

struct Nccl::Connection {
    std::shared_ptr<Stream> stream;
    ncclComm_t comm = nullptr;

    explicit Connection(std::shared_ptr<Stream> of) : stream(std::move(of)) {}
    ~Connection() { close(); }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    bool is_through() const {
        const cudaError_t status = cudaStreamQuery(stream->get());
        if (status == cudaErrorNotReady) {
            cudaGetLastError();  // it is none
            return false;
        }
        check(status, "adding up over GPUs");
        return true;
    }
    /// Without waiting for the others, who may not come; a sum that waits for them ends.
    void close() {
        if (comm != nullptr) opened().f.abort(std::exchange(comm, nullptr));
    }
};

std::string nccl_failure() { return opened().failure; }

Nccl::Nccl(const parallel::Group& workers, std::shared_ptr<Stream> stream)
    : connection_(std::make_unique<Connection>(std::move(stream))) {
    MSA_CHECK(nccl_failure().empty());
    const Functions& f = opened().f;
    ncclUniqueId id{};
    if (workers.is_first()) check_nccl(f.unique_id(&id), "starting");
    id = workers.broadcast_value(id);
    check_nccl(f.join(&connection_->comm, workers.size(), id, workers.rank()),
               "connecting the GPUs, each of another worker");
}

Nccl::~Nccl() = default;

void Nccl::sum(const parallel::Group& workers, View<float, 1> values) {
    const Functions& f = opened().f;
    Connection& c = *connection_;
    MSA_CHECK(c.comm != nullptr && values.space() == Space::device);
    try {
        check_nccl(f.all_reduce(values.data(), values.data(), static_cast<size_t>(values.size()),
                                ncclFloat32, ncclSum, c.comm, c.stream->get()),
                   "adding up");
        while (!c.is_through()) {
            workers.check();
            ncclResult_t result = ncclSuccess;
            check_nccl(f.async_error(c.comm, &result), "asking for errors");
            check_nccl(result, "adding up");
            std::this_thread::yield();
        }
    } catch (...) {
        c.close();
        throw;
    }
}

}  // namespace msa::cuda
