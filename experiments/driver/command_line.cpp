// SPDX-License-Identifier: MIT
#include "experiments/driver/command_line.h"

#include <algorithm>
#include <array>
#include <ostream>
#include <sstream>

#include "experiments/driver/table.h"
#include "experiments/driver/version.h"

namespace msa::experiments {
namespace {

using Values = std::vector<std::vector<std::string>>;

/// "TOKENS (=128)"
std::string form_of(const OptionRow& row) {
    if (row.shown_default.empty()) return row.form;
    return concat(row.form, " (=", row.shown_default, ")");
}

std::string question(const About& about) {
    return about.does.empty() ? about.program.question
                              : concat(about.program.question, ' ', about.does);
}

/// "  --option FORM  " and its help beside it, which begins in column `indent` of every line.
void print_option(const std::string& name, const std::string& form, const std::string& help,
                  size_t indent, std::ostream& out) {
    std::string line = concat("  ", name, form.empty() ? "" : " ", form);
    if (line.size() + 1 > indent) {
        out << line << '\n';
        line.clear();
    }
    line.resize(indent, ' ');
    std::istringstream words(help);
    bool first = true;
    for (std::string word; words >> word; first = false) {
        if (!first && line.size() + 1 + word.size() > kLineWidth) {
            out << line << '\n';
            line = std::string(indent, ' ');
            first = true;
        }
        line += (first ? "" : " ") + word;
    }
    out << line << '\n';
}

/// Those of every program.
constexpr std::array<std::array<const char*, 2>, 3> kOwn{
    {{"--help", "print this help; -h, too"},
     {"--help-markdown", "print the help as Markdown"},
     {"--version", "print version and commit"}}};

void print_help(const About& about, const std::list<OptionRow>& rows, std::ostream& out) {
    constexpr size_t kMostIndent = kLineWidth / 2;
    size_t indent = 0;
    const auto widen = [&](size_t width) {
        if (width <= kMostIndent) indent = std::max(indent, width);
    };
    for (const auto& [name, help] : kOwn) widen(std::string(name).size() + 4);
    for (const OptionRow& row : rows) widen(row.flag.size() + form_of(row).size() + 7);
    out << about.program.name << ": " << question(about) << "\n\nusage: " << about.program.name
        << ' ' << about.usage << "\n\nOptions:\n";
    for (const auto& [name, help] : kOwn) print_option(name, "", help, indent, out);
    out << '\n';
    for (const OptionRow& row : rows)
        print_option("--" + row.flag, form_of(row), row.help, indent, out);
    out << "\nCounts take the suffixes K = 2^10 and M = 2^20. Ranges are half open.\n";
    if (!about.writes.empty()) out << "\nWrites " << about.writes << '\n';
    out << "\nExamples:\n";
    for (const std::string& example : about.examples) out << "  " << example << '\n';
}

void print_markdown(const About& about, const std::list<OptionRow>& rows, std::ostream& out) {
    out << "## " << about.program.name << "\n\n"
        << question(about) << "\n\n    " << about.program.name << ' ' << about.usage
        << "\n\n| option | meaning |\n|---|---|\n";
    for (const OptionRow& row : rows) {
        const std::string form = form_of(row);
        out << "| `--" << row.flag << (form.empty() ? "" : " ") << form << "` | " << row.help
            << " |\n";
    }
    if (!about.writes.empty()) out << "\nWrites " << about.writes << '\n';
    out << "\n```\n";
    for (const std::string& example : about.examples) out << example << '\n';
    out << "```\n";
}

/// What the words say.
class Reading {
public:
    Reading(const About& about, const std::list<OptionRow>& rows)
        : about_(about), rows_(rows), values_(rows.size()) {}

    void read(std::span<const std::string> args) {
        bool only_values = false;
        for (size_t n = 0; n < args.size(); ++n) {
            const std::string& word = args[n];
            if (only_values || word.size() < 2 || word.front() != '-') {
                add_input(word);
            } else if (word == "--") {
                only_values = true;
            } else {
                const size_t equals = std::min(word.find('='), word.size());
                const std::string name = word.substr(0, equals);
                if (is_own(word)) continue;
                const size_t at = row_of(name);
                const OptionRow& row = *std::next(rows_.begin(), static_cast<int64_t>(at));
                const bool given = equals < word.size();
                if (row.is_switch && given) fail("option '", name, "' does not take any arguments");
                if (row.is_switch) {
                    add(at, row, "");
                } else if (given) {
                    add(at, row, word.substr(equals + 1));
                } else {
                    if (n + 1 == args.size() || find(args[n + 1]) < rows_.size())
                        fail("the required argument for option '", name, "' is missing");
                    add(at, row, args[++n]);
                }
            }
        }
    }
    bool asked(size_t own) const { return asked_[own]; }
    const Values& values() const { return values_; }

private:
    template <typename... Words>
    [[noreturn]] void fail(const Words&... words) const {
        throw InputError(concat(words..., "; ", about_.program.name, " --help lists the options"));
    }

    bool is_own(const std::string& word) {
        for (size_t own = 0; own < kOwn.size(); ++own)
            if (word == kOwn[own][0] || (own == 0 && word == "-h")) return asked_[own] = true;
        return false;
    }
    /// The number of rows where none has the name.
    size_t find(const std::string& name) const {
        const auto row = std::find_if(rows_.begin(), rows_.end(), [&](const OptionRow& one) {
            return name == "--" + one.flag;
        });
        return static_cast<size_t>(std::distance(rows_.begin(), row));
    }
    size_t row_of(const std::string& name) const {
        const size_t at = find(name);
        if (at < rows_.size()) return at;
        std::vector<std::string> meant;
        for (const OptionRow& row : rows_)
            if (name.size() > 2 && ("--" + row.flag).starts_with(name))
                meant.push_back("--" + row.flag);
        fail("unrecognised option '", name, "'", meant.empty() ? "" : ", but there is ",
             join(meant));
    }
    void add_input(const std::string& word) {
        size_t at = 0;
        for (const OptionRow& row : rows_) {
            if (row.positional) return add(at, row, word);
            ++at;
        }
        fail("too many positional options have been specified on the command line");
    }
    void add(size_t at, const OptionRow& row, const std::string& value) {
        if (!row.repeatable && !values_[at].empty()) {
            if (row.positional) fail(about_.program.name, " reads one input, several are named");
            fail("option '--", row.flag, "' cannot be specified more than once");
        }
        values_[at].push_back(value);
    }

    const About& about_;
    const std::list<OptionRow>& rows_;
    Values values_;
    std::array<bool, kOwn.size()> asked_{};
};

}  // namespace

std::optional<Values> read_command_line(const About& about, const std::list<OptionRow>& rows,
                                        std::span<const std::string> args, std::ostream& out) {
    Reading reading(about, rows);
    reading.read(args);
    if (reading.asked(0)) print_help(about, rows, out);
    if (reading.asked(1)) print_markdown(about, rows, out);
    if (reading.asked(2)) out << about.program.name << ' ' << kVersion << " (" << kCommit << ")\n";
    if (reading.asked(0) || reading.asked(1) || reading.asked(2)) return std::nullopt;
    return reading.values();
}

}  // namespace msa::experiments
