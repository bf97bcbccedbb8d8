// SPDX-License-Identifier: MIT
#include "experiments/measure/sums.h"

#include "analysis/recall.h"
#include "core/error.h"
#include "experiments/measure/queries.h"
#include "experiments/measure/tally.h"

namespace msa::experiments::measure {

std::string sums_group(const std::string& layer, const std::string& name) {
    return "/sums/" + layer + "/" + name;
}

void write_block_sums(io::UnitWriter& to, const std::string& group, const analysis::BlockSums& of) {
    const Tensor<double, 2> sums = of.sums();
    const Tensor<int64_t, 2> counts = of.counts();
    if (sums.size() > 0)
        to.write<double, 2>(group + "/sums", sums.view(),
                            {"block,number", "", "sums over the queries of each block"});
    to.write<int64_t, 2>(group + "/counts", counts.view(),
                         {"block,number", "", "how many values are in each sum"});
}

void KeptMass::add(std::span<const analysis::RowKind> kinds, View<const int32_t, 3> ids,
                   View<const float, 3> mass) {
    for (int64_t i = 0; i < ids.extent(0); ++i)
        if (kinds[static_cast<size_t>(i)] == analysis::RowKind::counted)
            for (int64_t r = 0; r < ids.extent(1); ++r)
                means[static_cast<size_t>(r)].add(
                    analysis::mass_of(mass[i][r], selected(ids, i, r)));
}

Sums::Sums(const analysis::QueryBlocks& blocks, QueryRange part) : first_(blocks.at(part.begin)) {
    for (int64_t b = first_; b < blocks.at(part.end); ++b) {
        sequences_.push_back(blocks.sequences[static_cast<size_t>(b)]);
        rows_.push_back(blocks.rows[static_cast<size_t>(b)]);
    }
}

void Sums::add(const std::string& name, int64_t block, const analysis::State& state) {
    of_.try_emplace(name, std::ssize(rows_)).first->second.add(block - first_, state);
}

void Sums::write(io::UnitWriter& to, const std::string& layer) const {
    analysis::QueryBlocks blocks;
    blocks.sequences = sequences_;
    blocks.rows = rows_;
    write_query_blocks(to, "/query_blocks/" + layer, blocks);
    for (const auto& [name, of] : of_) write_block_sums(to, sums_group(layer, name), of);
}

void Sums::append(const io::DatasetReader& part, const std::string& layer) {
    const auto extend = [&](std::vector<int64_t>& list, const char* name) {
        const std::vector<int64_t> more = stored_list(part, "/query_blocks/" + layer + "/" + name);
        list.insert(list.end(), more.begin(), more.end());
    };
    extend(sequences_, "sequence");
    extend(rows_, "rows");
    const std::string prefix = "/sums/" + layer + "/", suffix = "/counts";
    for (const io::DatasetInfo& dataset : part.datasets("/sums/" + layer)) {
        if (!dataset.path.ends_with(suffix)) continue;
        const std::string group = dataset.path.substr(0, dataset.path.size() - suffix.size());
        const auto counts = part.read<int64_t, 2>(dataset.path);
        const auto sums = part.has(group + "/sums") ? part.read<double, 2>(group + "/sums")
                                                    : Tensor<double, 2>({counts.extent(0), 0});
        of_[group.substr(prefix.size())].append({sums.view(), counts.view()});
    }
}

}  // namespace msa::experiments::measure
