// SPDX-License-Identifier: MIT
// A backend "far" whose memory the host cannot touch, for programs on a machine without a GPU. It
// answers bit for bit like cpu, from pages without any right of access but while it works itself.
// Host code that reads a result without a download ends with a segmentation fault; a view of host
// memory, passed off as one of the device, throws std::logic_error. It takes operands of every
// element, computes on their values in float, and of the teachers takes the mean alone.
#pragma once

namespace msa::test {

/// make_backend("far") works from now on.
void register_far_backend();

}  // namespace msa::test
