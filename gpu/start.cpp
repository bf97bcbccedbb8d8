// SPDX-License-Identifier: MIT
#include "gpu/start.h"

#include <algorithm>
#include <cstdio>
#include <mutex>

#include "core/error.h"
#include "gpu/kernels/kernels_run_here.h"

namespace msa::cuda {
namespace {

constexpr int kOldestDevice = 80;  // compute capability, 10 major + minor

}  // namespace

std::string never_run_on(int capability) {
    if (capability == 90) return "";
    return concat("the kernels of backend cuda have never run on compute capability ",
                  capability / 10, '.', capability % 10, "; gpu/check.sh tests them");
}

std::string version(int number) { return concat(number / 1000, '.', number % 1000 / 10); }

Support usable() {
    int driver = 0, devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    cudaGetLastError();
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return Support::no("there is no NVIDIA driver");
    if (status == cudaErrorInsufficientDriver)
        return Support::no(concat("the NVIDIA driver knows CUDA ", version(driver),
                                  ", this build needs ", version(CUDART_VERSION)));
    if (status == cudaErrorNoDevice || devices == 0) return Support::no("there is no NVIDIA GPU");
    if (status != cudaSuccess) return Support::no(cudaGetErrorString(status));
    return {};
}

Device require_device(int ordinal, const Variant& variant) {
    int devices = 0, major = 0, minor = 0, sms = 0, shared = 0;
    const auto ask = [&](int& value, cudaDeviceAttr what) {
        check(cudaDeviceGetAttribute(&value, what, ordinal), "asking for the device's attributes");
    };
    check(cudaGetDeviceCount(&devices), "counting the devices");
    require(0 <= ordinal && ordinal < devices, "device is ", ordinal, ", must be from 0 to ",
            devices - 1);
    ask(major, cudaDevAttrComputeCapabilityMajor);
    ask(minor, cudaDevAttrComputeCapabilityMinor);
    ask(sms, cudaDevAttrMultiProcessorCount);
    ask(shared, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    const auto refuse = [&](const char* rule) {
        throw UnsupportedError(concat("backend cuda cannot start on device ", ordinal,
                                      ": its compute capability is ", major, '.', minor, ", ",
                                      rule));
    };
    if (10 * major + minor < kOldestDevice) refuse("must be 8.0 or later");
    check(cudaSetDevice(ordinal), "choosing the device");
    const int compiled_for = kernels_run_here();
    if (compiled_for == 0) refuse("this build has no kernels for it (CMAKE_CUDA_ARCHITECTURES)");
    static std::once_flag said;
    if (const std::string note = never_run_on(10 * major + minor); !note.empty())
        std::call_once(said, [&] { std::fprintf(stderr, "note: %s\n", note.c_str()); });
    return {.ordinal = ordinal,
            .capability = 10 * major + minor,
            .sms = sms,
            .shared_bytes = std::min(shared, variant.most_shared),
            .as_ampere = variant.as_ampere,
            .compiled_for = compiled_for};
}

}  // namespace msa::cuda
