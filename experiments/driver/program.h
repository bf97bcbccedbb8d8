// SPDX-License-Identifier: MIT
// The main function of every program: turns exceptions into messages and exit codes.
#pragma once

#include <cstdio>
#include <exception>
#include <ostream>
#include <span>
#include <stdexcept>
#include <streambuf>
#include <string>

namespace msa::experiments {

/// A program's body, testable in process: results to `out`, progress and warnings to `err`.
using Run = int (*)(std::span<const std::string> args, std::ostream& out, std::ostream& err);

/// A stream that discards everything.
class Silence : private std::streambuf, public std::ostream {
public:
    Silence() : std::ostream(static_cast<std::streambuf*>(this)) {}

private:
    int overflow(int character) override { return character == EOF ? 0 : character; }
};

/// Exit codes other than 0. kRefused: bad input, an error of the operating system, or a request
/// that cannot be met, such as a target that nothing reaches.
inline constexpr int kBug = 1, kRefused = 2, kInterrupted = 130;

/// The user asked to stop (SIGINT, SIGTERM).
class Interrupted : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Whether a stop was requested. Long loops check this and throw Interrupted.
bool stop_requested();
/// Throws Interrupted if so; for use inside a unit of a run (driver/run.h).
void stop_if_asked();

/// Runs the body and returns its exit code, or for exceptions kRefused, kInterrupted (for
/// Interrupted) or kBug (for any unexpected one). Messages, after the program's name, go to
/// `failures`, or without it to `err`.
int guarded(const std::string& name, Run run, std::span<const std::string> args, std::ostream& out,
            std::ostream& err, std::ostream* failures = nullptr);

/// A complete main function: signals, arguments, standard streams, MPI. Of the processes that
/// mpirun or srun started, the first one prints, and the others print only errors.
int program_main(const std::string& name, Run run, int argc, char** argv);

/// A program's text for an error: its message and, if there is one, the option that helps (";
/// --overwrite replaces it").
std::string message_of(const std::exception&);

}  // namespace msa::experiments
