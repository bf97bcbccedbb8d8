// SPDX-License-Identifier: MIT
// What the tests run on: the backends that can start here, in every element type.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "core/registry.h"

namespace msa::test {

/// A backend and the element types of its operands and of attention's outputs: f32, or bf16 or f16
/// like the operands.
struct Subject {
    std::string backend;
    Element element = Element::f32;
    Element stored = Element::f32;
};
std::ostream& operator<<(std::ostream&, const Subject&);

/// Every backend there is, those that cannot start here too.
std::vector<BackendInfo> known_backends();

/// Every backend that can start here with every element type that it is tested in. The others are
/// named, with the reason, by the test Backends/CanStart.
std::vector<Subject> subjects();

/// Skips the running test, with the reason, when the backend cannot start here; fails it instead
/// when the environment's MSA_REQUIRE names the backend.
#define MSA_SKIP_UNLESS_USABLE(backend)                                                     \
    do {                                                                                    \
        const ::msa::Support usable = ::msa::test::usable_here(backend);                    \
        if (!usable.yes && ::msa::test::is_required(backend))                               \
            FAIL() << "MSA_REQUIRE names " << (backend) << ", but here " << usable.why_not; \
        if (!usable.yes) GTEST_SKIP() << usable.why_not;                                    \
    } while (false)
Support usable_here(const std::string& backend);
bool is_required(const std::string& backend);

/// googletest's names have no hyphen: those of backends and selectors get an underscore.
std::string identifier(std::string name);

/// Fixture of the tests that are written once per subject.
class SubjectTest : public testing::TestWithParam<Subject> {};
std::string subject_name(const testing::TestParamInfo<Subject>&);

// Instantiates such a fixture over all subjects.
#define MSA_FOR_ALL_SUBJECTS(fixture)                                                  \
    INSTANTIATE_TEST_SUITE_P(All, fixture, testing::ValuesIn(::msa::test::subjects()), \
                             ::msa::test::subject_name)

}  // namespace msa::test
