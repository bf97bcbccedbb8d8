// SPDX-License-Identifier: MIT
#include "experiments/driver/option_table.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/utf8.h"
#include "experiments/report/text.h"

namespace msa::experiments {
namespace {

using Json = nlohmann::ordered_json;

std::string key_of(const std::string& flag) {
    std::string key = flag;
    std::replace(key.begin(), key.end(), '-', '_');
    return key;
}

/// A number as a user writes it: -1, not -1.0.
std::string shown(const Json& number) {
    return number.is_number_float() ? msa::concat(number.get<double>()) : number.dump();
}

/// The numbers of a row: none where it has no value, one, or a list.
Json numbers_of(const Json& value) {
    if (value.is_null()) return Json::array();
    return value.is_array() ? value : Json::array({value});
}

template <typename T>
Json or_null(const std::optional<T>& value) {
    return value ? Json(*value) : Json();
}

/// A recorded value as the words that its option takes.
std::vector<std::string> words_of(const OptionRow& row, const Json& value) {
    if (row.is_switch) return {""};
    std::vector<std::string> words;
    for (const Json& one : value.is_array() ? value : Json::array({value}))
        words.push_back(one.is_string() ? one.get<std::string>() : one.dump());
    return row.repeatable ? words : std::vector<std::string>{join(words, ",")};
}

/// Throws what the command line's own parser says of a value of the wrong form.
[[noreturn]] void refuse(const std::string& flag, const std::string& value,
                         const std::string& form) {
    throw InputError(msa::concat("the argument ('", value, "') for option '--", flag,
                                 "' is invalid, must be ", form));
}

int64_t read_count(const std::string& flag, const std::string& value) {
    const std::optional<int64_t> count = count_of(value);
    if (!count) refuse(flag, value, "an integer, 128K or 1M");
    return *count;
}

/// Without the slash that a shell puts behind a directory's name when it completes it.
std::filesystem::path read_path(const std::string& value) {
    std::filesystem::path path(value);
    while (!path.has_filename() && path.has_relative_path()) path = path.parent_path();
    return path;
}

std::string last_name(const std::filesystem::path& path) {
    return valid_utf8((path.has_filename() ? path.filename() : path).string());
}

}  // namespace

OptionRow& OptionRow::unrecorded() { return as(""); }

OptionRow& OptionRow::as(std::string name) {
    key = std::move(name);
    return *this;
}

OptionRow& OptionRow::without_flag() {
    positional = true;
    return *this;
}

OptionRow& OptionRow::required(std::string message) {
    check = [this, said = std::move(message)] {
        const Json now = value();
        const bool missing = now.is_string() ? now.get<std::string>().empty() : now.empty();
        require(!missing, said);
    };
    return *this;
}

OptionRow& OptionRow::offers(std::vector<std::string> names) {
    offered = std::move(names);
    return *this;
}

OptionRow& OptionRow::shown_as(std::string text) {
    shown_default = std::move(text);
    return *this;
}

Bounds at_least(double low) {
    return {msa::concat("at least ", low), [=](double value) { return value >= low; }};
}
Bounds between(double low, double high) {
    return {msa::concat("from ", low, " to ", high),
            [=](double value) { return low <= value && value <= high; }};
}
Bounds block_count(double low) {
    constexpr double kMost = std::numeric_limits<int32_t>::max();
    return {msa::concat("at least ", low, ", at most ", static_cast<int64_t>(kMost)),
            [=](double value) { return low <= value && value <= kMost; }};
}
Bounds positive() {
    return {"above 0 and finite", [](double value) { return value > 0 && std::isfinite(value); }};
}
Bounds proper_share() {
    return {"above 0 and below 1", [](double value) { return value > 0 && value < 1; }};
}

OptionRow& OptionTable::add(OptionRow row, const Bounds& bounds) {
    row.key = key_of(row.flag);
    OptionRow& added = rows_.emplace_back(std::move(row));
    if (bounds.hold)
        added.check = [&added, bounds] {
            for (const Json& now : numbers_of(added.value()))
                require(bounds.hold(now.get<double>()), "--", added.flag, " is ", shown(now),
                        ", must be ", bounds.words);
        };
    return added;
}

OptionRow& OptionTable::flag(const std::string& flag, bool& to, const std::string& help) {
    return add({.flag = flag,
                .help = help,
                .take = [&to](const std::string&) { to = true; },
                .value = [&to] { return Json(to); },
                .is_switch = true});
}

OptionRow& OptionTable::count(const std::string& flag, const std::string& form, int64_t& to,
                              const std::string& help, const Bounds& bounds) {
    return add({flag, form, help, std::to_string(to),
                [=, &to](const std::string& value) { to = read_count(flag, value); },
                [&to] { return Json(to); }},
               bounds);
}

OptionRow& OptionTable::count(const std::string& flag, const std::string& form, int& to,
                              const std::string& help, const Bounds& bounds) {
    return add({flag, form, help, std::to_string(to),
                [=, &to](const std::string& value) {
                    const int64_t wide = read_count(flag, value);
                    if (wide != static_cast<int>(wide))
                        refuse(flag, value, "an integer of 32 bits");
                    to = static_cast<int>(wide);
                },
                [&to] { return Json(to); }},
               bounds);
}

OptionRow& OptionTable::count(const std::string& flag, const std::string& form,
                              std::optional<int64_t>& to, const std::string& help,
                              const Bounds& bounds) {
    return add({flag, form, help, to ? std::to_string(*to) : "",
                [=, &to](const std::string& value) { to = read_count(flag, value); },
                [&to] { return or_null(to); }},
               bounds);
}

OptionRow& OptionTable::seed(uint64_t& to, const std::string& help) {
    return add({"seed", "N", help, std::to_string(to),
                [&to](const std::string& value) {
                    const int64_t seed = read_count("seed", value);
                    check_at_least("seed", seed, 0);
                    to = static_cast<uint64_t>(seed);
                },
                [&to] { return Json(to); }})
        .unrecorded();
}

OptionRow& OptionTable::real(const std::string& flag, const std::string& form, double& to,
                             const std::string& help, const Bounds& bounds) {
    return add({flag, form, help, Json(to).dump(),
                [=, &to](const std::string& value) {
                    const std::optional<double> number = number_of<double>(value);
                    if (!number) refuse(flag, value, "a number");
                    to = *number;
                },
                [&to] { return Json(to); }},
               bounds);
}

OptionRow& OptionTable::real(const std::string& flag, const std::string& form,
                             std::optional<double>& to, const std::string& help,
                             const Bounds& bounds) {
    return add({flag, form, help, "",
                [=, &to](const std::string& value) {
                    to = number_of<double>(value);
                    if (!to) refuse(flag, value, "a number");
                },
                [&to] { return or_null(to); }},
               bounds);
}

OptionRow& OptionTable::text(const std::string& flag, const std::string& form, std::string& to,
                             const std::string& help) {
    return add({flag, form, help, to, [&to](const std::string& value) { to = value; },
                [&to] { return Json(to); }});
}

OptionRow& OptionTable::path(const std::string& flag, const std::string& form,
                             std::filesystem::path& to, const std::string& help) {
    return add({flag, form, help, "", [&to](const std::string& value) { to = read_path(value); },
                [&to] { return Json(last_name(to)); }});
}

OptionRow& OptionTable::paths(const std::string& flag, const std::string& form,
                              std::vector<std::filesystem::path>& to, const std::string& help) {
    OptionRow& row = add({flag, form, help, "",
                          [&to](const std::string& value) { to.push_back(read_path(value)); },
                          [&to] {
                              Json names = Json::array();
                              for (const std::filesystem::path& file : to)
                                  names.push_back(last_name(file));
                              return names;
                          }});
    row.repeatable = row.several = true;
    return row;
}

OptionRow& OptionTable::numbers(const std::string& flag, const std::string& form,
                                std::vector<int64_t>& to, const std::string& help,
                                const Bounds& bounds) {
    return add({flag, form, help, "",
                [=, &to](const std::string& value) {
                    to = integer_list(flag, value);
                    std::sort(to.begin(), to.end());
                    require(std::adjacent_find(to.begin(), to.end()) == to.end(), "--", flag,
                            " is '", value, "', it names one twice");
                },
                [&to] { return Json(to); }},
               bounds);
}

OptionRow& OptionTable::counts(const std::string& flag, const std::string& form,
                               std::vector<int64_t>& to, const std::string& help,
                               const Bounds& bounds) {
    return add({flag, form, help, join(to, ","),
                [=, &to](const std::string& value) {
                    to = integer_list(flag, value);
                    require(std::set<int64_t>(to.begin(), to.end()).size() == to.size(), "--", flag,
                            " is '", value, "', it names one twice");
                },
                [&to] { return Json(to); }},
               bounds);
}

OptionRow& OptionTable::ranges(const std::string& flag, std::vector<Range>& to,
                               const std::string& help) {
    return add({flag, "A:B,...", help, "",
                [=, &to](const std::string& value) {
                    to.clear();
                    for (const std::string& item : split_list(flag, value)) {
                        const std::optional<Range> range = range_of(item);
                        if (!range) refuse(flag, item, "A:B");
                        to.push_back(*range);
                    }
                },
                [&to] { return Json(join(to, ",")); }});
}

OptionRow& OptionTable::names(const std::string& flag, const std::string& form,
                              std::vector<std::string>& to,
                              const std::function<std::string(const std::string&)>& known,
                              const std::string& help) {
    OptionRow& row = add({flag, form, help, "",
                          [=, &to](const std::string& value) {
                              for (const std::string& item : split_list(flag, value)) {
                                  const std::string name = known(item);
                                  require(std::find(to.begin(), to.end(), name) == to.end(), "--",
                                          flag, " names '", name, "' twice");
                                  to.push_back(name);
                              }
                          },
                          [&to] { return Json(to); }});
    row.repeatable = true;
    return row;
}

OptionRow& OptionTable::element(const std::string& flag, std::optional<Element>& to,
                                const std::vector<Element>& known, const std::string& help) {
    std::vector<std::string> names;
    for (const Element one : known) names.emplace_back(to_string(one));
    return add({flag, "TYPE", help, "",
                [=, &to](const std::string& value) { to = element_option(flag, value, known); },
                [&to] { return Json(to ? to_string(*to) : "as stored"); }})
        .offers(names);
}

OptionRow& OptionTable::choice_at(const std::string& flag, const std::string& form,
                                  const std::function<size_t()>& get,
                                  const std::function<void(size_t)>& set,
                                  const std::vector<std::string>& names, const std::string& help) {
    return add({flag, form, help, names[get()],
                [=](const std::string& value) {
                    set(msa::experiments::choice(flag, value, names));
                },
                [=] { return Json(names[get()]); }})
        .offers(names);
}

bool OptionTable::parse(std::span<const std::string> args, std::ostream& out) {
    if (args.size() == 2 && args[0] == "--complete") {
        for (const OptionRow& row : rows_)
            if ("--" + row.flag == args[1])
                for (const std::string& name : row.offered) out << name << '\n';
        return false;
    }
    po::options_description description(kLineWidth);
    std::list<std::vector<std::string>> given;  // of each row; switches hold a word when set
    std::list<bool> switches;
    std::string positional;
    for (const OptionRow& row : rows_) {
        given.emplace_back();
        const char* const flag = row.flag.c_str();
        if (row.positional) positional = row.flag;
        if (row.is_switch) {
            switches.push_back(false);
            description.add_options()(flag, po::bool_switch(&switches.back()), row.help.c_str());
        } else if (row.repeatable) {
            const std::string shown =
                row.shown_default.empty() ? "" : msa::concat(" (=", row.shown_default, ")");
            auto* values = po::value(&given.back())->value_name(row.form + shown);
            if (row.several) values->multitoken();
            description.add_options()(flag, values, row.help.c_str());
        } else {
            auto* value = po::value<std::string>()->value_name(row.form)->notifier(
                [&to = given.back(), shown = row.shown_default](const std::string& text) {
                    if (text != shown || text.empty()) to.push_back(text);
                });
            if (!row.shown_default.empty()) value->default_value(row.shown_default);
            description.add_options()(flag, value, row.help.c_str());
        }
    }
    if (!parse_command_line(about_, description, positional, args, out)) return false;
    auto values = given.begin();
    auto is_set = switches.begin();
    for (OptionRow& row : rows_) {
        if (row.is_switch && *is_set++) row.take("");
        for (const std::string& value : *values) {
            require(!value.empty(), "--", row.flag, " is empty, must be ", row.form);
            row.take(value);
        }
        ++values;
    }
    for (const OptionRow& row : rows_) row.check();
    return true;
}

std::string OptionTable::record() const {
    Json all;
    for (const OptionRow& row : rows_)
        if (!row.key.empty()) all[row.key] = row.value();
    return all.dump();
}

void OptionTable::restore(const std::string& record) {
    const Json all = Json::parse(record);
    for (OptionRow& row : rows_) {
        if (row.key.empty() || !all.contains(row.key)) continue;
        const Json& value = all[row.key];
        if (value == row.value()) continue;
        for (const std::string& word : words_of(row, value)) row.take(word);
    }
}

}  // namespace msa::experiments
