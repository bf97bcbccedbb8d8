// SPDX-License-Identifier: MIT
// Errors of the library. It never exits, aborts or prints; it throws one of these.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace msa {

/// The caller's data or request breaks a rule. The message names what, its value and the rule.
class InputError : public std::invalid_argument {
public:
    using std::invalid_argument::invalid_argument;
};

/// The request is valid, but this backend does not support it; the text is Support::why_not.
class UnsupportedError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// The operating system refused: disk full, permission denied, device lost.
class SystemError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// There is not enough memory, on the host or on a device.
class MemoryError : public SystemError {
public:
    using SystemError::SystemError;
};

/// Joins its arguments with operator<< : concat("k is ", 0, ", must be at least 1").
template <typename... Parts>
std::string concat(const Parts&... parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
}

/// Throws InputError(concat(parts...)) unless `holds`.
template <typename... Parts>
void require(bool holds, const Parts&... parts) {
    if (!holds) throw InputError(concat(parts...));
}

}  // namespace msa

/// An invariant of our own code; a failure is our bug.
#define MSA_CHECK(condition)                                                                 \
    do {                                                                                     \
        if (!(condition))                                                                    \
            throw std::logic_error(                                                          \
                ::msa::concat(__FILE__, ":", __LINE__, ": broken invariant: ", #condition)); \
    } while (false)
