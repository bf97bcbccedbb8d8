// SPDX-License-Identifier: MIT
#include "experiments/common/table.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <ostream>
#include <sstream>

#include "core/error.h"

namespace msa::experiments {
namespace {

bool is_number(const std::string& cell) {
    char* end = nullptr;
    std::strtod(cell.c_str(), &end);
    return cell == "-" || (!cell.empty() && *end == '\0');
}

}  // namespace

void Table::add(std::vector<std::string> row) {
    MSA_CHECK(row.size() == rows_[0].size());
    rows_.push_back(std::move(row));
}

void Table::print(std::ostream& out, const std::string& indent) const {
    const size_t columns = rows_[0].size();
    std::vector<size_t> width(columns, 0);
    std::vector<bool> numbers(columns, rows_.size() > 1);
    for (size_t r = 0; r < rows_.size(); ++r)
        for (size_t c = 0; c < columns; ++c) {
            width[c] = std::max(width[c], rows_[r][c].size());
            if (r > 0 && !is_number(rows_[r][c])) numbers[c] = false;
        }
    for (const std::vector<std::string>& row : rows_) {
        std::string line = indent;
        for (size_t c = 0; c < columns; ++c) {
            const std::string padding(width[c] - row[c].size(), ' ');
            line += (c > 0 ? "  " : "") + (numbers[c] ? padding + row[c] : row[c] + padding);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out << line << '\n';
    }
}

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

}  // namespace msa::experiments
