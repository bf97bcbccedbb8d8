// SPDX-License-Identifier: MIT
// Small texts for the tests of pretraining.
#pragma once

#include <string>
#include <vector>

#include "core/random.h"
#include "experiments/pretrain/text.h"
#include "tests/experiments/cli.h"

namespace msa::test {

/// Words of capital letters and lines of a few of them, so that no key of an exercise is among
/// them; a function of its arguments.
std::string prose(int64_t bytes, int64_t seed);

/// Documents in memory, as Text would give them.
class MadeDocuments {
public:
    explicit MadeDocuments(std::vector<std::string> documents) : bytes_(std::move(documents)) {
        for (const std::string& document : bytes_)
            all_.add(document, experiments::pretrain::document_hash(document));
    }
    MadeDocuments(const MadeDocuments&) = delete;
    MadeDocuments& operator=(const MadeDocuments&) = delete;
    const experiments::pretrain::Documents& all() const { return all_; }

private:
    std::vector<std::string> bytes_;
    experiments::pretrain::Documents all_;
};

}  // namespace msa::test
