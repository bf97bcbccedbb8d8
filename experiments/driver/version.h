// SPDX-License-Identifier: MIT
#pragma once

namespace msa::experiments {

extern const char* const kVersion;   // of the project
extern const char* const kCommit;    // of the source tree, "-dirty" when changed, or "unknown"
extern const char* const kCompiler;  // with the flags that matter

}  // namespace msa::experiments
