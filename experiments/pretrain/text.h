// SPDX-License-Identifier: MIT
// Training text as bytes: documents, split into training and held-out ones.
//
// Documents are separated by kSeparator, the byte 0, which no text contains; a file without it is
// one document. Empty documents are skipped. A byte is a token, so the vocabulary is kBytes.
//
// A document's bytes alone decide whether it is held out. So adding, removing or reordering files
// moves no document to the other side, and copies of a document are on one side.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace msa::experiments::pretrain {

inline constexpr char kSeparator = '\0';
inline constexpr int64_t kBytes = 256;

/// Documents of one side, in file order. They refer to memory of a Text.
class Documents {
public:
    /// `name`: for messages.
    explicit Documents(std::string name = "the text") : name_(std::move(name)) {}

    const std::string& name() const { return name_; }
    int64_t count() const { return std::ssize(documents_); }
    std::string_view operator[](int64_t i) const { return documents_[static_cast<size_t>(i)]; }
    /// Bytes of all documents.
    int64_t bytes() const { return ends_.empty() ? 0 : ends_.back(); }
    /// Bytes of the longest document; 0 without any.
    int64_t longest() const { return longest_; }
    /// Depends on every byte and on the order.
    uint64_t fingerprint() const { return fingerprint_; }

    /// At most `longest` bytes of a document, a function of `bits`. A byte of all documents is
    /// drawn uniformly; if its document is longer, it is cut, at a random place or from its start.
    /// There must be documents.
    std::string_view cut(int64_t longest, uint64_t bits, bool from_start = false) const;
    /// Number of the document that cut() draws.
    int64_t drawn(uint64_t bits) const;
    /// Stems of the documents' files ("english" for english.txt).
    const std::vector<std::string>& files() const { return files_; }
    /// Number of the file of document i.
    int64_t file_of(int64_t i) const { return file_of_[static_cast<size_t>(i)]; }
    /// The documents of more than `bytes` bytes.
    Documents longer_than(int64_t bytes) const;

    /// Documents added from now on are from this file.
    void begin_file(std::string stem) { files_.push_back(std::move(stem)); }
    /// Does not copy: `document`, not empty, must stay in memory.
    void add(std::string_view document, uint64_t hash);

private:
    std::string name_;
    std::vector<std::string_view> documents_;
    std::vector<uint64_t> hashes_;
    std::vector<std::string> files_;
    std::vector<int64_t> file_of_;
    std::vector<int64_t> ends_;  // cumulative bytes of the documents
    int64_t longest_ = 0;
    uint64_t fingerprint_ = 0;
};

/// 64 bits that depend on every byte.
uint64_t document_hash(std::string_view document);

/// Owns the bytes of its files; moves, does not copy.
class Text {
public:
    /// Holds out each document with the probability `held_out_share`, from 0 to 1, by its hash.
    /// InputError naming the file if one cannot be read or has no document, or if 0 < share < 1 and
    /// one side gets no documents.
    Text(const std::vector<std::filesystem::path>& files, double held_out_share);
    /// Trains on `files` and holds out `held_out`. Documents in both are held out. InputErrors
    /// likewise.
    Text(const std::vector<std::filesystem::path>& files,
         const std::vector<std::filesystem::path>& held_out);

    const Documents& train() const { return train_; }
    const Documents& held_out() const { return held_out_; }

private:
    /// Reads a file and returns its bytes, which this keeps.
    std::string_view keep(const std::filesystem::path& file);

    std::vector<std::unique_ptr<char[]>> files_;
    Documents train_, held_out_;
};

}  // namespace msa::experiments::pretrain
