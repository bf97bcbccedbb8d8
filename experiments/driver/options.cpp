// SPDX-License-Identifier: MIT
#include "experiments/driver/options.h"

#include <algorithm>
#include <cctype>
#include <iostream>
#include <sstream>

#include "core/meant.h"
#include "experiments/driver/help.h"
#include "experiments/driver/version.h"
#include "experiments/report/text.h"

namespace msa::experiments {

std::optional<int64_t> count_of(std::string_view word) {
    int shift = 0;
    if (!word.empty()) {
        if (word.back() == 'K' || word.back() == 'k') shift = 10;
        if (word.back() == 'M') shift = 20;
        if (shift > 0) word.remove_suffix(1);
    }
    const auto value = number_of<int64_t>(word);
    if (!value || *value > (INT64_MAX >> shift) || *value < -(INT64_MAX >> shift))
        return std::nullopt;
    return *value * (int64_t{1} << shift);
}

std::optional<Range> range_of(const std::string& word) {
    const size_t colon = word.find(':');
    if (colon == std::string::npos) return std::nullopt;
    const std::string left = word.substr(0, colon), right = word.substr(colon + 1);
    const Range range{count_of(left), count_of(right)};
    if ((!left.empty() && !range.begin) || (!right.empty() && !range.end)) return std::nullopt;
    return range;
}

std::ostream& operator<<(std::ostream& out, const Range& range) {
    if (range.begin) out << *range.begin;
    out << ':';
    if (range.end) out << *range.end;
    return out;
}

std::vector<std::string> split_list(const std::string& option, const std::string& list) {
    std::vector<std::string> items;
    std::istringstream stream(list);
    for (std::string item; std::getline(stream, item, ',');) {
        require(!item.empty(), "--", option, " is '", list, "', it has an empty item");
        items.push_back(item);
    }
    require(!items.empty() && list.back() != ',', "--", option, " is '", list,
            "', it has an empty item");
    return items;
}

std::vector<int64_t> integer_list(const std::string& option, const std::string& list) {
    std::vector<int64_t> numbers;
    for (const std::string& item : split_list(option, list)) {
        const std::optional<int64_t> number = count_of(item);
        require(number.has_value(), "--", option, " is '", list, "', '", item, "' is no integer");
        numbers.push_back(*number);
    }
    return numbers;
}

bool given(std::span<const std::string> args, const std::string& option) {
    return std::any_of(args.begin(), args.end(), [&](const std::string& arg) {
        return arg == "--" + option || arg.rfind("--" + option + "=", 0) == 0;
    });
}

size_t choice(const std::string& option, const std::string& value,
              const std::vector<std::string>& known) {
    const auto at = std::find(known.begin(), known.end(), value);
    require(at != known.end(), "--", option, " is '", value, "'", did_you_mean(value, known),
            ", must be one of: ", join(known));
    return static_cast<size_t>(at - known.begin());
}

std::optional<Element> element_option(const std::string& option, const std::string& value,
                                      const std::vector<Element>& known) {
    if (value.empty()) return std::nullopt;
    std::vector<std::string> names;
    for (Element element : known) names.emplace_back(to_string(element));
    return known[choice(option, value, names)];
}

void check_option(const std::string& option, int64_t value, int64_t low, int64_t high) {
    require(low <= value && value <= high, "--", option, " is ", value, ", must be from ", low,
            " to ", high);
}

void check_at_least(const std::string& option, int64_t value, int64_t low) {
    require(value >= low, "--", option, " is ", value, ", must be at least ", low);
}

void check_folder(const std::string& option, const std::filesystem::path& folder) {
    std::filesystem::path there = folder;
    while (!there.empty() && !std::filesystem::exists(there)) there = there.parent_path();
    require(there.empty() || std::filesystem::is_directory(there), "--", option, " is ",
            folder.string(), ", but ", there.string(), " is a file, not a folder");
}

/// Of letters and digits, in lower case.
static std::vector<std::string> words_in(const std::string& text) {
    std::vector<std::string> words(1);
    for (const char one : text) {
        const auto letter = static_cast<unsigned char>(one);
        if (std::isalnum(letter) != 0)
            words.back() += static_cast<char>(std::tolower(letter));
        else if (!words.back().empty())
            words.emplace_back();
    }
    if (words.back().empty()) words.pop_back();
    return words;
}

/// Has an option every word of `asked`, some in its name, others in what it is said to be? So has
/// --rotary-dim, "channels of a head that RoPE rotates", those of --rope-dim.
static bool says(const po::option_description& option, const std::vector<std::string>& asked) {
    const std::vector<std::string> name = words_in(option.long_name());
    const std::vector<std::string> text = words_in(option.description());
    const auto is_among = [](const std::vector<std::string>& words) {
        return [&words](const std::string& word) { return std::ranges::count(words, word) > 0; };
    };
    return std::ranges::any_of(asked, is_among(name)) &&
           std::ranges::all_of(asked, [&](const std::string& word) {
               return is_among(name)(word) || is_among(text)(word);
           });
}

/// What an unknown option may have been: one that begins with it or has its words, or one that is
/// spelt alike.
static std::string instead_of(const std::string& asked, const po::options_description& options) {
    std::vector<std::string> known, longer, described;
    const std::vector<std::string> words = words_in(asked);
    bool is_known = false;  // but for its signs, as --top_k
    for (const auto& option : options.options()) {
        known.push_back("--" + option->long_name());
        const bool has_words =
            asked.starts_with("--") &&
            (known.back() + '-').find(asked.substr(1) + '-') != std::string::npos;
        if (has_words || known.back().starts_with(asked)) longer.push_back(known.back());
        if (words.size() > 1 && says(*option, words)) described.push_back(known.back());
        is_known = is_known || words_in(option->long_name()) == words;
    }
    if (longer.empty() && !is_known) longer = std::move(described);
    return longer.empty() ? did_you_mean(asked, known) : ", but there is " + join(longer);
}

bool parse_command_line(const About& about, const po::options_description& options,
                        const std::string& positional, std::span<const std::string> args,
                        std::ostream& out) {
    po::options_description visible("Options", kLineWidth);
    visible.add(options);
    visible.add_options()("help,h", "")("help-all", "")("help-markdown", "")("version", "");
    po::positional_options_description positions;
    if (!positional.empty()) positions.add(positional.c_str(), -1);
    po::variables_map values;
    const auto parser = [&] {
        return po::command_line_parser(std::vector<std::string>(args.begin(), args.end()))
            .options(visible)
            .positional(positions)
            .style(po::command_line_style::unix_style & ~po::command_line_style::allow_guessing);
    };
    try {
        po::store(parser().run(), values);
        if (values.contains("help")) print_help(about, options, Length::usual, out);
        if (values.contains("help-all")) print_help(about, options, Length::all, out);
        if (values.contains("help-markdown")) print_markdown(about, options, out);
        if (values.contains("version"))
            out << about.program.name << ' ' << kVersion << " (" << kCommit << ")\n";
        for (const char* asked : {"help", "help-all", "help-markdown", "version"})
            if (values.contains(asked)) return false;
        po::notify(values);
    } catch (const po::validation_error& error) {
        const std::string option = error.get_option_name();
        const auto* known =
            visible.find_nothrow(option.substr(option.find_first_not_of('-')), false);
        const std::string form = known == nullptr ? "" : ", must be " + known->format_parameter();
        throw InputError(
            concat(error.what(), form, "; ", about.program.name, " --help-all lists the options"));
    } catch (const po::unknown_option& error) {
        throw InputError(concat(error.what(), instead_of(error.get_option_name(), visible), "; ",
                                about.program.name, " --help-all lists the options"));
    } catch (const po::multiple_occurrences& error) {
        const bool names_files = error.get_option_name() == "--" + positional;
        throw InputError(
            concat(names_files ? concat(about.program.name, " reads one input, several are named")
                               : std::string(error.what()),
                   "; ", about.program.name, " --help-all lists the options"));
    } catch (const po::error& error) {
        throw InputError(
            concat(error.what(), "; ", about.program.name, " --help-all lists the options"));
    }
    return true;
}

}  // namespace msa::experiments
