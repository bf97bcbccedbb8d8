// SPDX-License-Identifier: MIT
#include "experiments/pretrain/curve.h"

#include <cmath>
#include <limits>
#include <ostream>

namespace msa::experiments::pretrain {

Curve::Curve(std::string group, std::vector<Column> columns)
    : group_(std::move(group)), columns_(std::move(columns)) {}

void Curve::add(std::vector<double> row) {
    size_t width = 0;
    for (const Column& column : columns_) width += column.width();
    MSA_CHECK(row.size() == width);
    rows_.push_back(std::move(row));
}

double Curve::last(const std::string& name, size_t part) const {
    size_t at = part;
    for (const Column& column : columns_) {
        if (column.name == name && !rows_.empty()) return rows_.back()[at];
        at += column.width();
    }
    return std::numeric_limits<double>::quiet_NaN();
}

void Curve::write(io::UnitWriter& to) const {
    size_t at = 0;
    for (const Column& column : columns_) {
        const size_t width = column.width();
        std::vector<double> values;
        for (const std::vector<double>& row : rows_)
            values.insert(values.end(), row.begin() + static_cast<int64_t>(at),
                          row.begin() + static_cast<int64_t>(at + width));
        const std::string name = group_ + "/" + column.name;
        if (column.axis.empty())
            to.write<double, 1>(name, {values.data(), {rows()}},
                                {"entry", column.unit, column.description});
        else
            to.write<double, 2>(name, {values.data(), {rows(), static_cast<int64_t>(width)}},
                                {"entry," + column.axis, column.unit, column.description});
        at += width;
    }
}

void Curve::read(const io::ResultsReader& from) {
    rows_.clear();
    for (const Column& column : columns_) {
        const std::string name = group_ + "/" + column.name;
        const auto append = [&](const auto& values) {
            rows_.resize(static_cast<size_t>(values.extent(0)));
            for (size_t n = 0; n < rows_.size(); ++n) {
                const double* const row = values.data() + n * column.width();
                rows_[n].insert(rows_[n].end(), row, row + column.width());
            }
        };
        if (column.axis.empty())
            append(from.read<double, 1>(name));
        else
            append(from.read<double, 2>(name));
    }
}

void Curve::print(int64_t row, std::ostream& out) const {
    const std::vector<double>& values = rows_[static_cast<size_t>(row)];
    size_t at = 1;
    for (size_t c = 1; c < columns_.size(); ++c)
        for (size_t part = 0; part < columns_[c].width(); ++part, ++at)
            if (!std::isnan(values[at]))
                out << values[0] << ',' << group_.substr(1) << ',' << columns_[c].name << ','
                    << (columns_[c].axis.empty() ? "" : columns_[c].parts[part]) << ','
                    << values[at] << '\n';
}

}  // namespace msa::experiments::pretrain
