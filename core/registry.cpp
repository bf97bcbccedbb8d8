// SPDX-License-Identifier: MIT
#include "core/registry.h"

#include <utility>

#include "core/cpu/cpu_backend.h"
#include "core/error.h"
#include "core/meant.h"
#include "core/reference/reference_backend.h"

namespace msa {
namespace {

struct Registered {
    BackendInfo info;
    BackendFactory factory;
};

#ifdef MSA_CPU_AVX512
/// x86-64-v4, by its parts, which every compiler knows by name.
bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

std::vector<Registered> known_from_the_start() {
    const auto entry = [](const char* name, auto make) {
        return Registered{{name, {}}, [=](const BackendOptions& o) { return make(name, o); }};
    };
    const Registered reference{{"reference", {}}, make_reference_backend};
#ifdef MSA_CPU_AVX512
    if (has_avx512())
        return {reference, entry("cpu", make_cpu_backend_avx512),
                entry("cpu-avx2", make_cpu_backend)};
#endif
    return {reference, entry("cpu", make_cpu_backend)};
}

std::vector<Registered>& registry() {
    static std::vector<Registered> all = known_from_the_start();
    return all;
}

}  // namespace

void register_backend(BackendInfo info, BackendFactory factory) {
    std::vector<Registered>& all = registry();
    std::erase_if(all, [&](const Registered& known) { return known.info.name == info.name; });
    all.push_back({std::move(info), std::move(factory)});
}

std::vector<BackendInfo> list_backends() {
    std::vector<BackendInfo> infos;
    for (const Registered& known : registry()) infos.push_back(known.info);
    return infos;
}

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options) {
    std::vector<std::string> names;
    for (const Registered& known : registry()) {
        if (known.info.name == name) {
            if (!known.info.usable.yes)
                throw UnsupportedError(
                    concat("backend ", name, " cannot start here: ", known.info.usable.why_not));
            return known.factory(options);
        }
        names.push_back(known.info.name);
    }
    std::string list;
    for (const std::string& one : names) list += (list.empty() ? "" : ", ") + one;
    throw InputError(concat("no backend is called '", name, "'", did_you_mean(name, names),
                            "; there are: ", list));
}

}  // namespace msa
