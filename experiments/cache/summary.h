// SPDX-License-Identifier: MIT
// Output of msa-cache.
#pragma once

#include <iosfwd>
#include <string>

#include "experiments/cache/report.h"

namespace msa::experiments::cache {

/// Text of each number of the summary, JSON object.
std::string cache_definitions();

/// summary.json: {"format", "program", "options", "definitions", "file", sizes, "link",
/// "selectors": [{"recommended", "points", ...}], "layers": [...]}.
std::string cache_summary(const Report&, const io::RunRecord&);

/// rows.csv: the points of all selectors.
std::string cache_rows_csv(const Report&);

/// The page: recommended sizes, hit rates by size, reuse and prefetch by layer.
void print_report(const Report&, std::ostream& out);

/// Why no cache meets the time, and the time that the nearest one needs; empty if one does.
std::string nearest_text(const Report&);

}  // namespace msa::experiments::cache
