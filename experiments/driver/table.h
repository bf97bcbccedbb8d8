// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace msa::experiments {

/// Width of help and tables in columns.
inline constexpr unsigned kLineWidth = 100;

/// A text table with aligned columns, numbers to the right, words to the left. Only the header may
/// have line breaks; shorter headings stand on its last line.
class Table {
public:
    explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
    /// As many cells as the header has.
    void add(std::vector<std::string> row);
    bool empty() const { return rows_.size() == 1; }
    /// Every line begins with `indent`.
    void print(std::ostream& out, const std::string& indent = "") const;

private:
    std::vector<std::vector<std::string>> rows_;  // the header first
};

/// Prints `words` as a paragraph of at most kLineWidth columns.
void print_paragraph(std::ostream& out, const std::string& words);

/// A number with `digits` significant digits, "-" for NaN.
std::string number_text(double value, int digits = 4);
/// A number with `decimals` decimals, "-" for NaN.
std::string fixed_text(double value, int decimals);
/// A count of tokens as options take it: "128K", "1M", "196609".
std::string count_text(int64_t count);

inline constexpr double kTera = 1e12, kGiga = 1e9, kMega = 1e6, kMilli = 1e-3, kMicro = 1e-6;
inline constexpr double kMebi = 1 << 20;

}  // namespace msa::experiments
