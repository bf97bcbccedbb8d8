// SPDX-License-Identifier: MIT
#include "tests/support/subjects.h"

#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "gpu/cuda_backend.h"

namespace msa::test {

std::ostream& operator<<(std::ostream& out, const Subject& s) {
    return out << s.backend << '_' << to_string(s.element);
}

std::vector<BackendInfo> known_backends() {
    register_cuda_backend();
    return list_backends();
}

std::vector<Subject> subjects() {
    std::vector<Subject> all;
    for (const BackendInfo& info : known_backends()) {
        // What sets cuda-unordered apart from cuda is tested in test_cuda_grad.cpp.
        if (!info.usable.yes || info.name == "cuda-unordered") continue;
        // Their float kernels are cuda's.
        if (!info.name.starts_with("cuda-")) all.push_back({info.name, Element::f32});
        if (!info.name.starts_with("cuda")) continue;
        all.push_back({info.name, Element::bf16});
        all.push_back({info.name, Element::f16});
    }
    return all;
}

Support usable_here(const std::string& backend) {
    for (const BackendInfo& info : known_backends())
        if (info.name == backend) return info.usable;
    return Support::no("it is not registered");
}

bool is_required(const std::string& backend) {
    const char* required = std::getenv("MSA_REQUIRE");
    return required != nullptr && backend == required;
}

std::string identifier(std::string name) {
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

std::string subject_name(const testing::TestParamInfo<Subject>& info) {
    return identifier(concat(info.param));
}

}  // namespace msa::test
