// SPDX-License-Identifier: MIT
// What every program's main does: turn exceptions into messages and exit codes.
#pragma once

#include <cstdio>
#include <ostream>
#include <span>
#include <stdexcept>
#include <streambuf>
#include <string>

namespace msa::experiments {

/// A program's body, testable in process: results to `out`, progress and warnings to `err`.
using Run = int (*)(std::span<const std::string> args, std::ostream& out, std::ostream& err);

/// A stream that takes everything and shows nothing.
class Silence : private std::streambuf, public std::ostream {
public:
    Silence() : std::ostream(static_cast<std::streambuf*>(this)) {}

private:
    int overflow(int character) override { return character == EOF ? 0 : character; }
};

/// Exit codes beside 0. kRefused: bad input, a refusal of the system, or a request that cannot be
/// answered, as a target that nothing reaches.
inline constexpr int kBug = 1, kRefused = 2, kInterrupted = 130;

/// The user asked to stop (SIGINT, SIGTERM).
class Interrupted : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Has a stop been asked for? Long loops look at it and throw Interrupted.
bool stop_requested();
/// Throws Interrupted where it has, inside a unit of a run (driver/run.h).
void stop_if_asked();

/// Runs the body and returns the exit code: 0, or that of the body; kRefused, kInterrupted for
/// Interrupted, kBug for any other exception. Messages go to `failures`, to `err` without, after
/// the program's name.
int guarded(const std::string& name, Run run, std::span<const std::string> args, std::ostream& out,
            std::ostream& err, std::ostream* failures = nullptr);

/// The whole of a main function: signals, arguments, standard streams, MPI. Of several ranks
/// (driver/ranks.h) the first one speaks, the others say what stops them.
int program_main(const std::string& name, Run run, int argc, char** argv);

}  // namespace msa::experiments
