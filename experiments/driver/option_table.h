// SPDX-License-Identifier: MIT
// The options of a program as one table. A row defines an option completely: flag, help, default,
// allowed values, the variable that it sets, and whether it decides the results. The rows give the
// parser, --help, experiments/CLI.md, the checks, and the record of a run that --resume compares.
#pragma once

#include <filesystem>
#include <functional>
#include <list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/driver/options.h"

namespace msa::experiments {

/// One option. `form` is the name of its value in the help ("TOKENS").
struct OptionRow {
    std::string flag{}, form{}, help{};
    std::string shown_default{};                     // empty: none is shown
    std::function<void(const std::string&)> take{};  // a value from the command line
    std::function<nlohmann::ordered_json()> value{};
    std::function<void()> check = [] {};  // after all values are taken
    std::string key{};                    // its name in the record; empty: not recorded
    bool is_switch = false, repeatable = false, positional = false;
    bool several = false;  // values may follow one flag, as when a shell expands *.txt
    std::vector<std::string> offered{};  // names that a shell completes, alone or in a list

    /// Marks an option that does not decide the results.
    OptionRow& unrecorded();
    /// Sets its name in the record, if that is not the flag with '_' for '-'.
    OptionRow& as(std::string name);
    /// A positional argument, named without its flag.
    OptionRow& without_flag();
    /// InputError with this message if it is not given.
    OptionRow& required(std::string message);
    /// Names that a shell completes, each alone or in a list.
    OptionRow& offers(std::vector<std::string> names);
    /// Replaces what the help shows as the default.
    OptionRow& shown_as(std::string text);
};

/// What a number, or each of a list, must be: "at least 1".
struct Bounds {
    std::string words{};
    std::function<bool(double)> hold{};
};
Bounds at_least(double low);
Bounds between(double low, double high);  // both allowed
Bounds positive();                        // and finite
Bounds block_count(double low);           // up to the ids of blocks: sums of them stay exact
Bounds proper_share();                    // neither nothing nor all

class OptionTable {
public:
    explicit OptionTable(About about) : about_(std::move(about)) {}

    // Rows. The initial value of `to` is the default, and the given value goes there. The record is
    // also taken from there, so values that a program resolves later are recorded resolved. `to`
    // must outlive the table.

    OptionRow& flag(const std::string& flag, bool& to, const std::string& help);
    /// An integer that may have a binary suffix; nothing if the option is not given.
    OptionRow& count(const std::string& flag, const std::string& form, int64_t& to,
                     const std::string& help, const Bounds& bounds = {});
    OptionRow& count(const std::string& flag, const std::string& form, int& to,
                     const std::string& help, const Bounds& bounds = {});
    OptionRow& count(const std::string& flag, const std::string& form, std::optional<int64_t>& to,
                     const std::string& help, const Bounds& bounds = {});
    /// The seed, which the run itself records.
    OptionRow& seed(uint64_t& to, const std::string& help);
    OptionRow& real(const std::string& flag, const std::string& form, double& to,
                    const std::string& help, const Bounds& bounds = {});
    OptionRow& real(const std::string& flag, const std::string& form, std::optional<double>& to,
                    const std::string& help, const Bounds& bounds = {});
    OptionRow& text(const std::string& flag, const std::string& form, std::string& to,
                    const std::string& help);
    OptionRow& path(const std::string& flag, const std::string& form, std::filesystem::path& to,
                    const std::string& help);
    /// Repeatable; recorded as file names.
    OptionRow& paths(const std::string& flag, const std::string& form,
                     std::vector<std::filesystem::path>& to, const std::string& help);
    /// Integers A,B,... without repeats, ascending.
    OptionRow& numbers(const std::string& flag, const std::string& form, std::vector<int64_t>& to,
                       const std::string& help, const Bounds& bounds = {});
    /// Integers A,B,... in the order given.
    OptionRow& counts(const std::string& flag, const std::string& form, std::vector<int64_t>& to,
                      const std::string& help, const Bounds& bounds = {});
    /// Ranges A:B,C:D,...
    OptionRow& ranges(const std::string& flag, std::vector<Range>& to, const std::string& help);
    /// Names A,B,... without repeats, repeatable; `known` returns the name to keep, or throws.
    OptionRow& names(const std::string& flag, const std::string& form, std::vector<std::string>& to,
                     const std::function<std::string(const std::string&)>& known,
                     const std::string& help);
    OptionRow& element(const std::string& flag, std::optional<Element>& to,
                       const std::vector<Element>& known, const std::string& help);
    /// One of `names`; `to` is its number among them, as bool, integer or enum.
    template <typename To>
    OptionRow& choice(const std::string& flag, const std::string& form, To& to,
                      const std::vector<std::string>& names, const std::string& help) {
        return choice_at(
            flag, form, [&to] { return static_cast<size_t>(to); },
            [&to](size_t at) { to = static_cast<To>(at); }, names, help);
    }

    /// The same, absent until given, for a default that depends on other options.
    template <typename To>
    OptionRow& choice(const std::string& flag, const std::string& form, std::optional<To>& to,
                      const std::vector<std::string>& names, const std::string& help) {
        return choice_at(
            flag, form, [&to] { return static_cast<size_t>(to.value_or(To{})); },
            [&to](size_t at) { to = static_cast<To>(at); }, names, help);
    }

    /// Parses the arguments into the variables of the rows. Returns false if help or version was
    /// requested and written to `out`, or, with `--complete --FLAG`, the names that a shell
    /// completes there. InputError for empty values and for what the rows do not allow.
    bool parse(std::span<const std::string> args, std::ostream& out);
    /// The current recorded values, JSON text.
    std::string record() const;
    /// Sets the values of a record. An option that it lacks keeps its value. Of a path, only the
    /// file name is recorded.
    void restore(const std::string& record);

private:
    OptionRow& add(OptionRow row, const Bounds& bounds = {});
    OptionRow& choice_at(const std::string& flag, const std::string& form,
                         const std::function<size_t()>& get, const std::function<void(size_t)>& set,
                         const std::vector<std::string>& names, const std::string& help);

    About about_;
    std::list<OptionRow> rows_;  // in order; references to rows stay valid
};

/// The options of a program from a run's record (RunRecord::options), read by the same table that
/// wrote it.
template <typename Options>
Options recorded_options(const std::string& record) {
    Options o;
    option_table(o).restore(record);
    return o;
}

}  // namespace msa::experiments
