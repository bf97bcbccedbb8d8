// SPDX-License-Identifier: MIT
#include <algorithm>
#include <ostream>

#include "experiments/driver/option_table.h"
#include "experiments/driver/rows.h"
#include "experiments/programs.h"

namespace msa::experiments::count {
namespace {

const About kAbout{
    .program = kProgram,
    .usage = "[options]",
    .examples = {"msa-count --context 128K --top-k 16"},
    .writes = "",
};

struct CountOptions {
    int64_t context = 1 << 17, block_size = 128, top_k = 16;
};

OptionTable option_table(CountOptions& o) {
    OptionTable table(kAbout);
    table.count("context", "N", o.context, "tokens of the sequence").at_least(1);
    table.count("block-size", "TOKENS", o.block_size, "Bk, tokens of a key block").at_least(1);
    table.count("top-k", "BLOCKS", o.top_k, "k, blocks kept per query and group").at_least(1);
    return table;
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream&) {
    CountOptions o;
    if (!option_table(o).parse(args, out)) return 0;
    const int64_t blocks = (o.context + o.block_size - 1) / o.block_size;
    Rows rows({{"blocks", "blocks"}, {"kept", "kept"}});
    rows.add({blocks, std::min(blocks, o.top_k)});
    rows.print(out);
    return 0;
}

}  // namespace msa::experiments::count
