// SPDX-License-Identifier: MIT
// A column of a table: its key in files, its unit and definition, its form on the page, and how its
// value is taken from a row's struct.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "analysis/bootstrap.h"

namespace msa::experiments::report {

/// A value of a column, which may be missing.
using Value = std::variant<std::monostate, bool, int64_t, double, std::string, analysis::Estimate>;
/// The type of a column's values; a real number and the three numbers of an estimate may be NaN,
/// which files have as null.
enum class Type : uint8_t { truth, integer, real, text, estimate };
const char* to_string(Type);

/// How the page shows an estimate: "0.95", "0.95 [0.94, 0.96]", or one end, "0.95 (0.94)".
enum class Shown : uint8_t { value, interval, low, high };

/// How the page shows a number: as value * times / per with `decimals` decimals, or with -decimals
/// significant digits if that is negative. `words`, if set, writes the value instead.
struct Form {
    int decimals = 4;
    double times = 1, per = 1;
    Shown shown = Shown::value;
    std::string (*words)(double) = nullptr;  // of integers, too
};
inline constexpr Form kPercent{.decimals = 1, .times = 100};

struct Column {
    std::string key;         // in files, snake_case; it means the same in every table
    std::string unit;        // "" of names, counts and yes or no
    std::string definition;  // one sentence or less
    std::string heading{};  // on the page; may have line breaks; empty: the column is only in files
    Form form{};
    std::string null{};  // why a value may be missing; required of std::optional values
    Type type{};         // set by ColumnOf
};
/// A count of tokens as options take it: "128K".
std::string tokens_text(double);
/// The column of a metric of analysis/metrics.h, with one word of the heading per line.
Column metric(const char* name, Form form = {});
/// The same column under another heading and in another form on the page.
Column shown(Column column, std::string heading, Form form = {});
/// The same column, only in files.
Column hidden(Column column);

/// Throws std::logic_error unless the column has a snake_case key and a definition. It must say
/// what null means if its values are optional, and only then.
void check_column(const Column&, bool may_be_null);

template <typename T>
inline constexpr bool is_optional = false;
template <typename T>
inline constexpr bool is_optional<std::optional<T>> = true;

/// A column, and the member or function that gives its value for a row's struct. The column has the
/// type of that value.
template <typename Row>
struct ColumnOf {
    Column column;
    std::function<Value(const Row&)> value;

    template <typename Get>
    ColumnOf(Column of, Get get) : column(std::move(of)) {
        using Given = std::remove_cvref_t<std::invoke_result_t<Get, const Row&>>;
        column.type = type_of<Given>();
        value = [get](const Row& row) { return value_of(std::invoke(get, row)); };
        check_column(column, is_optional<Given>);
    }

private:
    template <typename T>
    static constexpr Type type_of() {
        if constexpr (is_optional<T>)
            return type_of<typename T::value_type>();
        else if constexpr (std::same_as<T, bool>)
            return Type::truth;
        else if constexpr (std::integral<T>)
            return Type::integer;
        else if constexpr (std::floating_point<T>)
            return Type::real;
        else if constexpr (std::same_as<T, analysis::Estimate>)
            return Type::estimate;
        else
            return Type::text;
    }
    template <typename T>
    static Value value_of(const T& value) {
        if constexpr (is_optional<T>)
            return value ? value_of(*value) : Value();
        else if constexpr (type_of<T>() == Type::text)
            return std::string(value);
        else if constexpr (type_of<T>() == Type::integer)
            return static_cast<int64_t>(value);
        else
            return value;
    }
};

}  // namespace msa::experiments::report
