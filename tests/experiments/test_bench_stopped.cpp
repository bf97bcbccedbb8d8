// SPDX-License-Identifier: MIT
// Operands of cases behind 1M keys take minutes: a stop does not wait for the stage that needs
// them.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <ostream>

#include "core/registry.h"
#include "experiments/bench/check_rows.h"
#include "experiments/driver/program.h"

namespace msa::test {
namespace {

namespace bench = experiments::bench;

const bench::BenchOptions& float_options() {
    static const bench::BenchOptions made = [] {
        bench::BenchOptions o;
        o.index_elements = {Element::f32};
        return o;
    }();
    return made;
}

bench::Case case_of_64() { return {"square", "", square_problem(64, 2, 1, 16, 16, 16), 2, {}}; }

/// The exit code of a program that is told to stop before `work`.
template <void (*work)(Backend&, const bench::Case&)>
int told_to_stop() {
    char name[] = "msa-bench";
    char* argv[] = {name, nullptr};
    const auto run = [](std::span<const std::string>, std::ostream&, std::ostream&) {
        static_cast<void>(std::raise(SIGTERM));
        work(*make_backend("reference"), case_of_64());
        return 0;
    };
    return experiments::program_main("msa-bench", run, 1, argv);
}

void allocate_operands(Backend& backend, const bench::Case& c) {
    bench::allocate_layer(backend, c, float_options(), {.attention = true});
}
void draw_scores(Backend& backend, const bench::Case& c) { bench::make_scores(backend, c, 0); }
void plant_index(Backend& backend, const bench::Case& c) {
    bench::Layer layer = bench::allocate_layer(backend, c, float_options(), {.index = true});
    bench::fill_index(backend, c, layer, "structured", 0);
}
void fetch_rows_of_64(Backend& backend, const bench::Case&) {
    bench::fetch(backend, bench::Stored<3>(backend, {64, 1, 16}, Element::f32), 0, 64);
}

TEST(BenchStopped, WhileOperandsAreMadeAndChecked) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const auto stopped = testing::ExitedWithCode(experiments::kInterrupted);
    const char* const said = "msa-bench: stopped; --out has the stages before this one";
    EXPECT_EXIT(std::_Exit(told_to_stop<allocate_operands>()), stopped, said);
    EXPECT_EXIT(std::_Exit(told_to_stop<draw_scores>()), stopped, said);
    EXPECT_EXIT(std::_Exit(told_to_stop<plant_index>()), stopped, said);
    EXPECT_EXIT(std::_Exit(told_to_stop<fetch_rows_of_64>()), stopped, said);
}

}  // namespace
}  // namespace msa::test
