// SPDX-License-Identifier: MIT
#include "experiments/driver/metrics.h"

#include <cmath>
#include <iomanip>
#include <sstream>

#include "experiments/report/text.h"

namespace msa::experiments {
namespace {

std::string csv_number(double value) {
    if (std::isnan(value)) return "";
    std::ostringstream out;
    out << std::setprecision(9) << value;
    return out.str();
}

}  // namespace

MetricsCsv::MetricsCsv(const std::vector<std::string>& names) {
    add_line(names, {"metric", "axis", "index", "value"});
}

void MetricsCsv::add(const io::ResultsReader& results, const std::string& group,
                     const std::vector<std::string>& names) {
    for (const std::string& metric : results.list(group)) {
        const std::string dataset = group + "/" + metric, axes = results.text(dataset, "axes");
        const Tensor<double, 1> values = results.read<double, 1>(dataset);
        for (int64_t n = 0; n < values.size(); ++n)
            add_line(names, {metric, axes, std::to_string(n), csv_number(values(n))});
    }
}

void MetricsCsv::add(const std::vector<std::string>& names, const std::string& metric,
                     double value) {
    add_line(names, {metric, "", "", csv_number(value)});
}

void MetricsCsv::add_line(std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    for (const std::string& word : words) text_ += report::csv_text(word) + ',';
    text_.back() = '\n';  // in place of a comma
}

}  // namespace msa::experiments
