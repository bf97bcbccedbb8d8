// SPDX-License-Identifier: MIT
#include "core/schedule.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/selection.h"

namespace msa {

KvOuterSchedule schedule_kv_outer(const Problem& p, View<const int32_t, 3> ids,
                                  int64_t chunk_queries) {
    MSA_CHECK(chunk_queries >= 1);
    const std::vector<int64_t> first_block = block_starts(p), sequence = query_sequences(p);
    const int64_t blocks = first_block.back();
    const auto row = [&](int64_t query, int64_t group, int64_t block) {
        const int64_t s = sequence[static_cast<size_t>(query)];
        return static_cast<size_t>(group * blocks + first_block[static_cast<size_t>(s)] + block);
    };
    const auto for_each_pair = [&](auto visit) {
        for (int64_t i = 0; i < p.queries(); ++i)
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                int32_t slot = 0;
                for (int32_t b : selected(ids, i, r)) visit(row(i, r, b), i, slot++);
            }
    };

    KvOuterSchedule schedule;
    schedule.starts.assign(static_cast<size_t>(p.kv_heads * blocks) + 1, 0);
    for_each_pair([&](size_t at, int64_t, int32_t) { ++schedule.starts[at + 1]; });
    std::partial_sum(schedule.starts.begin(), schedule.starts.end(), schedule.starts.begin());
    schedule.queries.resize(static_cast<size_t>(schedule.starts.back()));
    std::vector<int64_t> next = schedule.starts;
    for_each_pair([&](size_t at, int64_t query, int32_t slot) {
        schedule.queries[static_cast<size_t>(next[at]++)] = {query, slot};
    });

    for (int64_t r = 0; r < p.kv_heads; ++r)
        for (int64_t s = 0; s < p.sequences(); ++s)
            for (int64_t b = first_block[static_cast<size_t>(s)];
                 b < first_block[static_cast<size_t>(s) + 1]; ++b) {
                const auto at = static_cast<size_t>(r * blocks + b);
                for (int64_t i = schedule.starts[at]; i < schedule.starts[at + 1];
                     i += chunk_queries)
                    schedule.chunks.push_back(
                        {r, b - first_block[static_cast<size_t>(s)], s, i,
                         std::min(i + chunk_queries, schedule.starts[at + 1])});
            }
    return schedule;
}

}  // namespace msa
