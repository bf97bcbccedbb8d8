// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace msa::experiments {

/// Columns of a terminal that help and tables keep to.
inline constexpr unsigned kLineWidth = 100;

/// A table of text for people: columns aligned, numbers to the right, words to the left. Only the
/// header may hold line breaks; its words stand on the last of its lines.
class Table {
public:
    explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
    /// As many cells as the header has.
    void add(std::vector<std::string> row);
    bool empty() const { return rows_.size() == 1; }
    /// Every line after `indent`.
    void print(std::ostream& out, const std::string& indent = "") const;

private:
    std::vector<std::vector<std::string>> rows_;  // the header first
};

/// Prints `words` as a paragraph, no line longer than a terminal's 100 columns.
void print_paragraph(std::ostream& out, const std::string& words);

/// A number with `digits` significant digits, "-" for NaN.
std::string number_text(double value, int digits = 4);
/// A number with `decimals` decimals, "-" for NaN.
std::string fixed_text(double value, int decimals);
/// A count of tokens as Count reads it: "128K", "1M", "196609".
std::string count_text(int64_t count);

}  // namespace msa::experiments
