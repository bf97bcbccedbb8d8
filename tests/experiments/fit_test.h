// SPDX-License-Identifier: MIT
// What the tests of msa-fit-indexer share: small files whose attention is a linear function of x.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/experiments/report_of.h"
#include "tests/support/truth.h"

namespace msa::test {

/// Attention of random x through random projections, with RoPE on some channels.
struct Linear {
    std::vector<int64_t> cu_seqlens{0, 192};
    std::vector<int64_t> layers{3};
    int64_t query_heads = 4, kv_heads = 2, head_dim = 16, rotary_dim = 8, model_dim = 24;
    io::RopeState state = io::RopeState::post_rope;
    bool interleaved = false;  // RoPE turns channels 2c and 2c + 1
    bool with_x = true;
    bool constant = false;   // the first channel of x is 1, of which the others are independent
    uint64_t stream = 1;     // of x
    bool alike = false;      // all layers are as layer 3 is
    int64_t window_of = -1;  // layer with a sliding window of 64
    int64_t loud_pair = -1;  // of RoPE, which has most of the energy of queries and keys
};

/// How far two right fits may differ.
struct FitBounds {
    Bounds step;      // of one step's operations
    double gradient;  // of a number of the first step's gradient
    double loss;      // of the losses along the curve
};

class Fit : public CliTest {
protected:
    std::string write(const std::string& name, const Linear& spec = {}) const;
    Outcome run(const std::vector<std::string>& files, const std::string& out,
                const std::vector<std::string>& more = {}) const {
        return kFit(args(files, out, more));
    }
    /// Arguments of a short fit, `more` before what is usual here.
    std::vector<std::string> args(std::vector<std::string> all, const std::string& out,
                                  const std::vector<std::string>& more = {}) const;
    /// Of fits like `out` of a file of `spec`, with the options of args() but for --teacher and as
    /// many steps.
    FitBounds bounds_of(const std::string& out, const Linear& spec, Teacher = Teacher::mean,
                        double steps = 12) const;
    /// /fit/3/<name> of the results.
    std::vector<double> curve(const std::string& out, const std::string& name) const;
    nlohmann::json row(const std::string& out) const;
};

/// Fits of an --architecture.
class FitArchitecture : public Fit {
protected:
    explicit FitArchitecture(std::string name) : architecture_{"--architecture", std::move(name)} {}
    Outcome fit(const std::string& file, const std::string& out,
                std::vector<std::string> more = {}) const;
    static nlohmann::json rows_of(const Outcome& outcome);
    /// k of all blocks trains as the warm-up does; a smaller k does not.
    void expect_every_block_selected_is_the_full_support() const;
    /// A fit with `options` writes the same results with any number of threads, and where it was
    /// interrupted and resumed.
    void expect_threads_and_resume_change_no_bit(const std::vector<std::string>& options) const;

private:
    std::vector<std::string> architecture_;
};

}  // namespace msa::test
