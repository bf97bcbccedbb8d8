// SPDX-License-Identifier: MIT
// Text to train on, as bytes: documents, split into those that train and those that are held out.
//
// Documents are separated by kSeparator, the byte 0, which no text contains; a file without it is
// one document. Empty documents are left out. A byte is a token, so the vocabulary is kBytes.
//
// Whether a document is held out follows from its bytes alone, so that more files, fewer files or
// another order move no document to the other side, and copies of a document are on one side.
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

/// Documents of one side, in the order of files and in them. They refer to memory of a Text.
class Documents {
public:
    /// `name`: whose documents these are, for messages.
    explicit Documents(std::string name = "the text") : name_(std::move(name)) {}

    const std::string& name() const { return name_; }
    int64_t count() const { return std::ssize(documents_); }
    std::string_view operator[](int64_t i) const { return documents_[static_cast<size_t>(i)]; }
    /// Of all documents.
    int64_t bytes() const { return ends_.empty() ? 0 : ends_.back(); }
    /// Bytes of the longest document; 0 without any.
    int64_t longest() const { return longest_; }
    /// Depends on every byte and on the order.
    uint64_t fingerprint() const { return fingerprint_; }

    /// At most `longest` bytes of a document, a function of `bits`: a byte of all documents is
    /// drawn, each as likely, and its document is cut where it is longer, at a random place or from
    /// its start. There must be documents.
    std::string_view cut(int64_t longest, uint64_t bits, bool from_start = false) const;
    /// Number of the document that it is a part of.
    int64_t drawn(uint64_t bits) const;
    /// Stems of the files that the documents are from ("english" of english.txt).
    const std::vector<std::string>& files() const { return files_; }
    /// Number of the file that document i is from.
    int64_t file_of(int64_t i) const { return file_of_[static_cast<size_t>(i)]; }
    /// Those of more than `bytes` bytes.
    Documents longer_than(int64_t bytes) const;

    /// Documents added from now on are from this file.
    void begin_file(std::string stem) { files_.push_back(std::move(stem)); }
    /// Does not copy: `document`, not empty, must stay where it is.
    void add(std::string_view document, uint64_t hash);

private:
    std::string name_;
    std::vector<std::string_view> documents_;
    std::vector<uint64_t> hashes_;
    std::vector<std::string> files_;
    std::vector<int64_t> file_of_;
    std::vector<int64_t> ends_;  // bytes of the documents up to each, itself included
    int64_t longest_ = 0;
    uint64_t fingerprint_ = 0;
};

/// 64 bits that depend on every byte.
uint64_t document_hash(std::string_view document);

/// Owns the bytes of its files, once; moves, does not copy.
class Text {
public:
    /// Holds out each document with the probability `held_out_share`, from 0 to 1, by its hash.
    /// InputError naming the file where one cannot be read or holds no document, or where both
    /// sides are to have documents (0 < share < 1) and one gets none.
    Text(const std::vector<std::filesystem::path>& files, double held_out_share);
    /// Trains on all of `files` and holds out all of `held_out`, but for documents that both have:
    /// those do not train. InputErrors likewise.
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
