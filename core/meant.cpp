// SPDX-License-Identifier: MIT
#include "core/meant.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace msa {
namespace {

constexpr size_t kMost = 3;       // names that are offered
constexpr size_t kOfLetters = 3;  // one in so many may be wrong

std::string folded(std::string_view word) {
    std::string to(word);
    std::transform(to.begin(), to.end(), to.begin(), [](unsigned char letter) {
        return letter == '_' ? '-' : static_cast<char>(std::tolower(letter));
    });
    return to;
}

/// Letters that are replaced, left out, added, or swapped with the next one (optimal string
/// alignment).
size_t distance(const std::string& a, const std::string& b) {
    std::array<std::vector<size_t>, 3> row;  // of i - 2, i - 1, i
    row.fill(std::vector<size_t>(b.size() + 1));
    for (size_t j = 0; j <= b.size(); ++j) row[2][j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        std::rotate(row.begin(), row.begin() + 1, row.end());
        row[2][0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t other = a[i - 1] == b[j - 1] ? 0 : 1;
            row[2][j] = std::min({row[1][j] + 1, row[2][j - 1] + 1, row[1][j - 1] + other});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[2][j] = std::min(row[2][j], row[0][j - 2] + 1);
        }
    }
    return row[2][b.size()];
}

}  // namespace

std::vector<std::string> nearest_names(std::string_view word,
                                       const std::vector<std::string>& known) {
    const std::string asked = folded(word);
    std::vector<std::string> nearest;
    size_t least = SIZE_MAX;
    for (const std::string& name : known) {
        const std::string its = folded(name);
        const size_t longer = std::max(asked.size(), its.size());
        const size_t shorter = std::min(asked.size(), its.size());
        if ((longer - shorter) * kOfLetters > longer) continue;  // also bounds the time
        const size_t off = distance(asked, its);
        if (off * kOfLetters > longer || off > least) continue;
        if (off < least) nearest.clear();
        least = off;
        if (nearest.size() < kMost) nearest.push_back(name);
    }
    return nearest;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
    std::string names;
    for (const std::string& name : nearest_names(word, known))
        names += (names.empty() ? "'" : " or '") + name + "'";
    return names.empty() ? "" : " (did you mean " + names + "?)";
}

}  // namespace msa
