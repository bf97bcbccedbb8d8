// SPDX-License-Identifier: MIT
// The programs, one namespace and folder each: results go to `out`, progress and warnings to `err`.
// `run` returns the exit code, or throws (driver/program.h turns exceptions into codes). `complete`
// writes and prints what follows results.h5.
#pragma once

#include <iosfwd>
#include <span>
#include <string>

namespace msa::experiments {

struct Completed;
using Arguments = std::span<const std::string>;

/// msa-advise: which setting should I use, per layer, and what does it cost?
namespace advise {
int run(Arguments args, std::ostream& out, std::ostream& err);
void complete(const Completed&);
}  // namespace advise
/// msa-analyze: what does MSA select on my activations, and what does it lose?
namespace analyze {
int run(Arguments args, std::ostream& out, std::ostream& err);
void complete(const Completed&);
}  // namespace analyze
/// msa-bench: how fast is each stage of MSA on this machine?
namespace bench {
int run(Arguments args, std::ostream& out, std::ostream& err);
}
/// msa-cache: what would a KV cache off the GPU see?
namespace cache {
int run(Arguments args, std::ostream& out, std::ostream& err);
void complete(const Completed&);
}  // namespace cache
/// msa-compare: which selector keeps most of the attention at an equal budget, and at what cost?
namespace compare {
int run(Arguments args, std::ostream& out, std::ostream& err);
void complete(const Completed&);
}  // namespace compare
/// msa-cost: what does MSA cost, and in which loop order?
namespace cost {
int run(Arguments args, std::ostream& out, std::ostream& err);
}
/// msa-fit-indexer: how good can an Index Branch get on my model?
namespace fit {
int run(Arguments args, std::ostream& out, std::ostream& err);
void complete(const Completed&);
}  // namespace fit
/// msa-inspect: is this file valid, and what is in it?
namespace inspect {
int run(Arguments args, std::ostream& out, std::ostream& err);
}
/// msa-merge: the results of shards as those of one run.
namespace merge {
int run(Arguments args, std::ostream& out, std::ostream& err);
}
/// msa-precision: which number format may the index operands and the KV cache have?
namespace precision {
int run(Arguments args, std::ostream& out, std::ostream& err);
void complete(const Completed&);
}  // namespace precision
/// msa-pretrain: what does a choice of training do to a model with MSA?
namespace pretrain {
int run(Arguments args, std::ostream& out, std::ostream& err);
}
/// msa-reuse: which layers may share a selection, and what does it lose?
namespace reuse {
int run(Arguments args, std::ostream& out, std::ostream& err);
void complete(const Completed&);
}  // namespace reuse
/// msa-synth: activations of any size with planted attention structure.
namespace synth {
int run(Arguments args, std::ostream& out, std::ostream& err);
}

}  // namespace msa::experiments
