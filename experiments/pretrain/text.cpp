// SPDX-License-Identifier: MIT
#include "experiments/pretrain/text.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <unordered_set>

#include "core/error.h"
#include "core/io/file_format.h"
#include "core/random.h"

namespace msa::experiments::pretrain {

namespace {

/// Calls use(document) for every document of a file's bytes.
template <typename Use>
void split_documents(std::string_view bytes, const Use& use) {
    while (!bytes.empty()) {
        const size_t end = std::min(bytes.find(kSeparator), bytes.size());
        if (end > 0) use(bytes.substr(0, end));
        bytes.remove_prefix(std::min(end + 1, bytes.size()));
    }
}

/// "a.txt and 2 more files"
std::string names_of(const std::vector<std::filesystem::path>& files) {
    require(!files.empty(), "no file with text is given");
    if (files.size() == 1) return files.front().string();
    return concat(files.front().string(), " and ", files.size() - 1, " more");
}

}  // namespace

uint64_t document_hash(std::string_view document) {
    uint64_t hash = mix(document.size());
    for (size_t at = 0; at < document.size(); at += sizeof(uint64_t)) {
        uint64_t word = 0;
        std::memcpy(&word, document.data() + at, std::min(sizeof word, document.size() - at));
        hash = mix(hash ^ word);
    }
    return hash;
}

void Documents::add(std::string_view document, uint64_t hash) {
    documents_.push_back(document);
    hashes_.push_back(hash);
    file_of_.push_back(std::ssize(files_) - 1);
    ends_.push_back(bytes() + std::ssize(document));
    longest_ = std::max<int64_t>(longest_, std::ssize(document));
    fingerprint_ = mix(fingerprint_ ^ hash);
}

int64_t Documents::drawn(uint64_t bits) const {
    const auto at = static_cast<int64_t>(bits % static_cast<uint64_t>(bytes()));
    return std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin();
}

std::string_view Documents::cut(int64_t longest, uint64_t bits, bool from_start) const {
    const std::string_view document = documents_[static_cast<size_t>(drawn(bits))];
    const size_t length = std::min(document.size(), static_cast<size_t>(longest));
    return document.substr(from_start ? 0 : mix(bits) % (document.size() - length + 1), length);
}

Documents Documents::longer_than(int64_t bytes) const {
    Documents those;
    those.files_ = files_;
    for (size_t i = 0; i < documents_.size(); ++i) {
        if (std::ssize(documents_[i]) <= bytes) continue;
        those.add(documents_[i], hashes_[i]);
        those.file_of_.back() = file_of_[i];
    }
    return those;
}

std::string_view Text::keep(const std::filesystem::path& path) {
    io::require_file(path);  // a pipe would be waited for
    std::error_code error;
    std::ifstream file(path, std::ios::binary);
    const uintmax_t size = file ? std::filesystem::file_size(path, error) : 0;
    require(file && !error, path.string(), ": cannot be read");
    files_.push_back(std::make_unique_for_overwrite<char[]>(size));
    file.read(files_.back().get(), static_cast<std::streamsize>(size));
    require(static_cast<uintmax_t>(file.gcount()) == size, path.string(), ": cannot be read");
    const std::string_view bytes(files_.back().get(), size);
    require(bytes.find_first_not_of(kSeparator) != std::string_view::npos, path.string(),
            ": is empty, must hold text");
    return bytes;
}

Text::Text(const std::vector<std::filesystem::path>& files, double held_out_share)
    : train_(names_of(files)), held_out_(names_of(files)) {
    require(held_out_share >= 0 && held_out_share <= 1, "the held-out share is ", held_out_share,
            ", must be from 0 to 1");
    for (const std::filesystem::path& file : files) {
        train_.begin_file(file.stem().string());
        held_out_.begin_file(file.stem().string());
        split_documents(keep(file), [&](std::string_view document) {
            const uint64_t hash = document_hash(document);
            (random_uniform(hash) < held_out_share ? held_out_ : train_).add(document, hash);
        });
    }
    const int64_t documents = train_.count() + held_out_.count();
    require(held_out_.count() > 0 || held_out_share == 0, train_.name(), ": of ", documents,
            " documents none is held out at a share of ", held_out_share,
            "; give more documents, or files to hold out");
    require(train_.count() > 0 || held_out_share == 1, train_.name(), ": of ", documents,
            " documents none is left to train at a held-out share of ", held_out_share);
}

Text::Text(const std::vector<std::filesystem::path>& files,
           const std::vector<std::filesystem::path>& held_out)
    : train_(names_of(files)), held_out_(names_of(held_out)) {
    std::unordered_set<std::string_view> seen;
    for (const std::filesystem::path& file : held_out) {
        held_out_.begin_file(file.stem().string());
        split_documents(keep(file), [&](std::string_view document) {
            seen.insert(document);
            held_out_.add(document, document_hash(document));
        });
    }
    for (const std::filesystem::path& file : files) {
        train_.begin_file(file.stem().string());
        split_documents(keep(file), [&](std::string_view document) {
            if (!seen.contains(document)) train_.add(document, document_hash(document));
        });
    }
    require(train_.count() > 0, train_.name(), ": has no document that is not held out, too");
}

}  // namespace msa::experiments::pretrain
