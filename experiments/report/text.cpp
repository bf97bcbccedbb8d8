// SPDX-License-Identifier: MIT
#include "experiments/report/text.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <ostream>
#include <sstream>

namespace msa::experiments::report {
namespace {

bool is_number(const std::string& cell) {
    char* end = nullptr;
    std::strtod(cell.c_str(), &end);
    return cell == "-" || (!cell.empty() && *end == '\0');
}

/// The header's lines as rows, each cell at the bottom.
std::vector<std::vector<std::string>> header_lines(const std::vector<std::string>& header) {
    std::vector<std::vector<std::string>> lines;
    for (size_t c = 0; c < header.size(); ++c) {
        std::istringstream stream(header[c]);
        std::vector<std::string> words;
        for (std::string word; std::getline(stream, word);) words.push_back(word);
        while (lines.size() < words.size()) lines.emplace(lines.begin(), header.size());
        for (size_t w = 0; w < words.size(); ++w)
            lines[lines.size() - words.size() + w][c] = words[w];
    }
    return lines;
}

}  // namespace

std::string number_text(double value, int digits) {
    if (std::isnan(value)) return "-";
    std::ostringstream text;
    text << std::setprecision(digits) << value;
    return text.str();
}

std::string fixed_text(double value, int decimals) {
    if (std::isnan(value)) return "-";
    std::ostringstream text;
    text << std::fixed << std::setprecision(decimals) << value;
    return text.str();
}

std::string text_of(const analysis::Estimate& estimate) {
    constexpr int kDecimals = 4;
    return concat(fixed_text(estimate.value, kDecimals), " [", fixed_text(estimate.low, kDecimals),
                  ", ", fixed_text(estimate.high, kDecimals), "]");
}

std::string time_text(double seconds) {
    return seconds < kMilli ? number_text(seconds / kMicro) + " us"
                            : number_text(seconds / kMilli) + " ms";
}

std::string count_text(int64_t count) {
    for (const auto& [unit, suffix] : {std::pair{1 << 20, "M"}, {1 << 10, "K"}})
        if (count > 0 && count % unit == 0) return std::to_string(count / unit) + suffix;
    return std::to_string(count);
}

std::string count_text(int64_t count, const char* one) {
    return concat(count, ' ', one, count == 1 ? "" : "s");
}

std::string layers_text(const std::vector<int64_t>& layers) {
    return concat(layers.size() == 1 ? "layer " : "layers ", join(layers));
}

std::string csv_text(const std::string& cell) {
    if (cell.find_first_of(",\"\r\n ") == cell.npos) return cell;
    std::string quoted = "\"";
    for (char letter : cell) quoted += letter == '"' ? "\"\"" : std::string(1, letter);
    return quoted + '"';
}

void AlignedColumns::add(std::vector<std::string> row) {
    MSA_CHECK(row.size() == rows_[0].size());
    rows_.push_back(std::move(row));
}

void AlignedColumns::print(std::ostream& out, const std::string& indent) const {
    const size_t columns = rows_[0].size();
    std::vector<std::vector<std::string>> lines = header_lines(rows_[0]);
    const size_t first = lines.size();
    lines.insert(lines.end(), rows_.begin() + 1, rows_.end());
    std::vector<size_t> width(columns, 0);
    std::vector<bool> numbers(columns, rows_.size() > 1);
    for (size_t r = 0; r < lines.size(); ++r)
        for (size_t c = 0; c < columns; ++c) {
            width[c] = std::max(width[c], lines[r][c].size());
            if (r >= first && !is_number(lines[r][c])) numbers[c] = false;
        }
    for (const std::vector<std::string>& row : lines) {
        std::string line = indent;
        for (size_t c = 0; c < columns; ++c) {
            const std::string padding(width[c] - row[c].size(), ' ');
            line += (c > 0 ? "  " : "") + (numbers[c] ? padding + row[c] : row[c] + padding);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out << line << '\n';
    }
}

void print_paragraph(std::ostream& out, const std::string& words) {
    std::istringstream stream(words);
    size_t column = 0;
    for (std::string word; stream >> word; column += word.size()) {
        const bool first = column == 0, fits = column + 1 + word.size() <= kLineWidth;
        if (!first) out << (fits ? ' ' : '\n');
        column = fits && !first ? column + 1 : 0;
        out << word;
    }
    out << '\n';
}

}  // namespace msa::experiments::report
