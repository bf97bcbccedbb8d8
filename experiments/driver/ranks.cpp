// SPDX-License-Identifier: MIT
#include "experiments/driver/ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"

#ifdef MSA_MPI
#include <mpi.h>
#endif

namespace msa::experiments {
namespace {

/// What launchers tell every process; a program that is started alone does not wait for MPI.
bool launched() {
    const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
    return is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMIX_RANK") || is_set("PMI_RANK");
}

}  // namespace

const Ranks& Ranks::world() {
    static const Ranks ranks = join_launched();
    return ranks;
}

const Ranks& Ranks::alone() {
    static const Ranks one(0, 1);
    return one;
}

#ifdef MSA_MPI

namespace {

/// Every rank adds up a part of the lists, the ranks' values in their order, for all.
template <typename T>
void sum_in_order(std::span<T> values, int rank, int count, MPI_Datatype type) {
    if (count == 1) return;
    MSA_CHECK(values.size() < size_t{std::numeric_limits<int>::max()});
    const auto ranks = static_cast<size_t>(count);
    std::vector<int> begins(ranks), sizes(ranks);
    for (size_t r = 0; r < ranks; ++r) {
        begins[r] = static_cast<int>(values.size() * r / ranks);
        sizes[r] = static_cast<int>(values.size() * (r + 1) / ranks) - begins[r];
    }
    const auto own = static_cast<size_t>(sizes[static_cast<size_t>(rank)]);
    std::vector<int> part_begins(ranks), part_sizes(ranks, static_cast<int>(own));
    for (size_t r = 0; r < ranks; ++r) part_begins[r] = static_cast<int>(own * r);
    MSA_CHECK(own * ranks < size_t{std::numeric_limits<int>::max()});
    std::vector<T> parts(own * ranks);
    MPI_Alltoallv(values.data(), sizes.data(), begins.data(), type, parts.data(), part_sizes.data(),
                  part_begins.data(), type, MPI_COMM_WORLD);
    const std::span mine =
        values.subspan(static_cast<size_t>(begins[static_cast<size_t>(rank)]), own);
    for (size_t i = 0; i < own; ++i) {
        T sum = parts[i];
        for (size_t r = 1; r < ranks; ++r) sum += parts[own * r + i];
        mine[i] = sum;
    }
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values.data(), sizes.data(), begins.data(),
                   type, MPI_COMM_WORLD);
}

}  // namespace

Ranks Ranks::join_launched() {
    if (!launched()) return {0, 1};
    int level = 0, rank = 0, count = 1;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    require(level >= MPI_THREAD_SERIALIZED || count == 1,
            "this MPI lets one thread of a process call it, training needs one that lets several");
    return {rank, count};
}

void Ranks::broadcast(std::span<std::byte> bytes) const {
    MSA_CHECK(bytes.size() < size_t{std::numeric_limits<int>::max()});
    if (size() > 1)
        MPI_Bcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
}

void Ranks::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
    MSA_CHECK(all.size() == mine.size() * static_cast<size_t>(size()));
    MSA_CHECK(all.size() < size_t{std::numeric_limits<int>::max()});
    const int bytes = static_cast<int>(mine.size());
    if (size() > 1)
        MPI_Allgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, MPI_COMM_WORLD);
    else
        Group::all_gather(mine, all);
}

void Ranks::all_reduce(std::span<float> values) const {
    sum_in_order(values, rank(), size(), MPI_FLOAT);
}
void Ranks::all_reduce(std::span<double> values) const {
    sum_in_order(values, rank(), size(), MPI_DOUBLE);
}

void Ranks::end(int exit_code) {
    int joined = 0, ended = 0, count = 1;
    MPI_Initialized(&joined);
    MPI_Finalized(&ended);
    if (joined == 0 || ended != 0) return;
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    if (exit_code != 0 && count > 1) {
        // mpirun forwards the message of this rank in its own time, and drops it once all are
        // ended.
        std::this_thread::sleep_for(std::chrono::seconds(1));
        MPI_Abort(MPI_COMM_WORLD, exit_code);
    }
    MPI_Finalize();
}

#else

Ranks Ranks::join_launched() {
    const char* const size = std::getenv("OMPI_COMM_WORLD_SIZE");
    require(!launched() || (size != nullptr && size == std::string("1")),
            "this program was built without MPI, by which ranks train together");
    return {0, 1};
}

void Ranks::all_reduce(std::span<float>) const {}
void Ranks::all_reduce(std::span<double>) const {}
void Ranks::broadcast(std::span<std::byte>) const {}
void Ranks::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
    Group::all_gather(mine, all);
}
void Ranks::end(int) {}

#endif

}  // namespace msa::experiments
