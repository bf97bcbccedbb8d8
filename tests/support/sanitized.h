// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace msa::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

/// How many times as late a program with a sanitizer is killed as another, since it takes longer to
/// come as far.
constexpr int64_t kSlowdown = kSanitized ? 4 : 1;

/// How much of what is repeated for the sake of its values a build does: programs with a sanitizer
/// look at addresses and threads, which repetition does not change, and do `some` of it.
constexpr int64_t repeated(int64_t all, int64_t some) { return kSanitized ? some : all; }

}  // namespace msa::test
