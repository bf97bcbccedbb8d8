// SPDX-License-Identifier: MIT
#include "experiments/inspect/ids.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>

#include "core/error.h"
#include "core/selection.h"
#include "experiments/driver/program.h"

namespace msa::experiments::inspect {
namespace {

/// What the file says of a layer whose ids it has.
struct Seen {
    int64_t blocks = std::numeric_limits<int32_t>::max();  // that ids may name
    int64_t block_size = 0;
    std::string positions;  // dataset [Nq]; empty: not told
};

Seen seen_by(const io::ResultsReader& file, const std::string& layer, int64_t queries) {
    Seen seen;
    const std::string group = "/layers/" + layer, positions = "/queries/" + layer + "/position";
    for (const char* size : {"tokens", "blocks"})  // no block is smaller than a token
        if (file.has(group, size)) seen.blocks = static_cast<int64_t>(file.number(group, size));
    if (!file.has(group, "block_size") || !file.has(positions)) return seen;
    seen.block_size = static_cast<int64_t>(file.number(group, "block_size"));
    for (const io::DatasetInfo& dataset : file.datasets("/queries/" + layer))
        if (dataset.path == positions && dataset.shape == std::vector<int64_t>{queries})
            seen.positions = positions;
    return seen;
}

}  // namespace

void check_ids(const io::ResultsReader& file, const std::string& path,
               const io::DatasetInfo& dataset, const std::string& layer, int64_t at_once) {
    require(dataset.shape.size() == 3 && dataset.type == "int32", path, ": ", dataset.path,
            " must be int32 of rank 3");
    const int64_t queries = dataset.shape[0];
    const Seen seen = seen_by(file, layer, queries);
    const auto check_row = [&](std::span<const int32_t> ids, int64_t i, int64_t r,
                               std::optional<int64_t> position) {
        int64_t last = kNoBlock;
        bool ended = false;
        for (size_t slot = 0; slot < ids.size(); ++slot) {
            const int64_t id = ids[slot];
            const bool padding = id == kNoBlock;
            const auto rule = [&](bool holds, const auto&... words) {
                require(holds, path, ": ", dataset.path, "[", i, ",", r, ",", slot, "] is ", id,
                        words...);
            };
            rule(padding || (!ended && last < id && id < seen.blocks), " after ",
                 ended ? int64_t{kNoBlock} : last, "; ids must ascend below ", seen.blocks,
                 " blocks, with ", kNoBlock, " at the end only");
            rule(padding || !position || id * seen.block_size <= *position,
                 "; its query, at position ", position.value_or(0), ", does not see a block of ",
                 seen.block_size, " tokens that begins at ", id * seen.block_size);
            ended = padding;
            last = padding ? last : id;
        }
    };
    for (int64_t begin = 0; begin < queries; begin += at_once) {
        if (stop_requested()) throw Interrupted("interrupted");
        const int64_t count = std::min(at_once, queries - begin);
        const auto ids = file.read_rows<int32_t, 3>(dataset.path, begin, count);
        Tensor<int64_t, 1> position;
        if (!seen.positions.empty())
            position = file.read_rows<int64_t, 1>(seen.positions, begin, count);
        for (int64_t i = 0; i < count; ++i)
            for (int64_t r = 0; r < ids.extent(1); ++r)
                check_row({&ids(i, r, 0), static_cast<size_t>(ids.extent(2))}, begin + i, r,
                          seen.positions.empty() ? std::optional<int64_t>() : position(i));
    }
}

}  // namespace msa::experiments::inspect
