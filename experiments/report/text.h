// SPDX-License-Identifier: MIT
// What programs print, as text: numbers, lists, paragraphs, aligned columns, CSV cells.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "analysis/bootstrap.h"
#include "core/error.h"

namespace msa::experiments::report {

/// Width of help, paragraphs and tables in columns.
inline constexpr unsigned kLineWidth = 100;

inline constexpr double kTera = 1e12, kGiga = 1e9, kMega = 1e6, kMilli = 1e-3, kMicro = 1e-6;
inline constexpr double kMebi = 1 << 20;

/// A number with `digits` significant digits, "-" for NaN.
std::string number_text(double value, int digits = 4);
/// A number with `decimals` decimals, "-" for NaN.
std::string fixed_text(double value, int decimals);
/// "0.9500 [0.9400, 0.9600]"
std::string text_of(const analysis::Estimate&);
/// "12.5 us"
std::string time_text(double seconds);
/// A count of tokens as options take it: "128K", "1M", "196609".
std::string count_text(int64_t count);
/// "1 layer", "2 layers"
std::string count_text(int64_t count, const char* one);

/// Adds an item, made of all parts, to a list. `between` goes before every item but the first.
template <typename... Parts>
void add_item(std::string& list, const char* between, const Parts&... parts) {
    list += concat(list.empty() ? "" : between, parts...);
}
/// "mass, max-logit": all items, with `between` between two of them.
template <typename Items>
std::string join(const Items& items, const char* between = ", ") {
    std::string list;
    for (const auto& item : items) add_item(list, between, item);
    return list;
}
/// "layer 3", "layers 0, 3"
std::string layers_text(const std::vector<int64_t>& layers);

/// A cell of a CSV file, in quotes if a reader needs them.
std::string csv_text(const std::string& cell);

/// Prints `words` as a paragraph of at most kLineWidth columns.
void print_paragraph(std::ostream& out, const std::string& words);

/// Text in aligned columns: numbers to the right, words to the left. Only the header may have line
/// breaks; shorter headings are on its last line.
class AlignedColumns {
public:
    explicit AlignedColumns(std::vector<std::string> header) : rows_{std::move(header)} {}
    /// As many cells as the header has.
    void add(std::vector<std::string> row);
    /// Every line begins with `indent`.
    void print(std::ostream& out, const std::string& indent = "") const;

private:
    std::vector<std::vector<std::string>> rows_;  // the header first
};

}  // namespace msa::experiments::report

namespace msa::experiments {

// Programs and driver/ use these without a prefix.
using report::add_item, report::count_text, report::fixed_text, report::join, report::kGiga,
    report::kLineWidth, report::kMebi, report::kMega, report::kMicro, report::kMilli, report::kTera,
    report::layers_text, report::number_text, report::text_of, report::time_text;

}  // namespace msa::experiments
