// SPDX-License-Identifier: MIT
#include "experiments/measure/numbers_by_metric.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace msa::experiments::measure {

NumbersByMetric::NumbersByMetric(const LayerNumbers& of, const std::string& choice) {
    for (const Accumulator& one : list_accumulators()) {
        const std::string sums = one.sums_of(choice);
        if (!of.has(sums)) continue;
        for (const ChoiceNumber& number : one.numbers) add(number.metric, number.read(of, sums));
    }
}

NumbersByMetric NumbersByMetric::mean(const std::vector<const NumbersByMetric*>& all) {
    NumbersByMetric mean;
    const auto count = static_cast<double>(all.size());
    for (const One& first : all.front()->all_) {
        const bool of_all = std::ranges::all_of(
            all, [&](const NumbersByMetric* one) { return one->has(first.metric); });
        if (!of_all) continue;
        size_t draws = first.numbers.draws.size();
        for (const NumbersByMetric* one : all)
            draws = std::min(draws, one->numbers(first.metric).draws.size());
        Numbers of{0, std::vector<double>(draws)};
        for (const NumbersByMetric* one : all) {
            const Numbers& numbers = one->numbers(first.metric);
            of.all += numbers.all;
            for (size_t n = 0; n < draws; ++n) of.draws[n] += numbers.draws[n];
        }
        of.all /= count;
        for (double& drawn : of.draws) drawn /= count;
        mean.add(first.metric, std::move(of));
    }
    return mean;
}

void NumbersByMetric::add(std::string metric, Numbers of) {
    MSA_CHECK(!has(metric));
    const analysis::Estimate estimate = of.estimate();
    all_.push_back({std::move(metric), std::move(of), estimate});
}

const NumbersByMetric::One* NumbersByMetric::find(std::string_view metric) const {
    const auto found = std::ranges::find(all_, metric, &One::metric);
    return found == all_.end() ? nullptr : &*found;
}

const analysis::Estimate& NumbersByMetric::operator[](std::string_view metric) const {
    static const analysis::Estimate none{NAN, NAN, NAN};
    const One* const one = find(metric);
    return one == nullptr ? none : one->estimate;
}

const Numbers& NumbersByMetric::numbers(std::string_view metric) const {
    const One* const one = find(metric);
    MSA_CHECK(one != nullptr);
    return one->numbers;
}

std::vector<report::Column> columns_of(const Measured& measured, const std::vector<OnPage>& first) {
    std::vector<report::Column> columns;
    for (const OnPage& one : first)
        columns.push_back(report::shown(report::metric(one.metric), one.heading, one.form));
    for (const Accumulator& of : list_accumulators())
        for (const ChoiceNumber& number : of.numbers)
            if (of.is_measured(measured) &&
                std::ranges::find(columns, number.metric, &report::Column::key) == columns.end())
                columns.push_back(report::hidden(report::metric(number.metric)));
    return columns;
}

}  // namespace msa::experiments::measure
