// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/error.h"

namespace msa::io {

/// Problems with a file that the user can solve. A program adds to the message how to solve them.
enum class FileProblem : uint8_t {
    exists,          // the output exists already
    unfinished_run,  // the output is that of a run that has not ended
    other_run,       // it belongs to a run that this one cannot continue
    other_program,   // it belongs to another program
    damaged_unit,    // a finished part of a run is damaged
    arrays,          // it is a file of arrays (npy, npz, safetensors), not HDF5
    before_rope,     // its q or k are stored before RoPE
};

class FileError : public InputError {
public:
    FileError(const std::string& message, FileProblem problem, std::string file = {})
        : InputError(message), problem_(problem), file_(std::move(file)) {}
    FileProblem problem() const { return problem_; }
    /// Only for FileProblem::arrays and FileProblem::before_rope.
    const std::string& file() const { return file_; }

private:
    FileProblem problem_;
    std::string file_;
};

}  // namespace msa::io
