// SPDX-License-Identifier: MIT
// What several processes agree on in a folder that they share. No result depends on it: a claim
// only saves doing work twice, and temporary files have names of their own.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace msa::io {

/// `path`.HOST-PROCESS-NUMBER.tmp, another one at every call.
std::filesystem::path temporary_of(const std::filesystem::path& path);
/// Removes the temporary files of `folder` whose process ran on this host and has ended; `of`:
/// those of this file alone.
void remove_abandoned(const std::filesystem::path& folder, const std::string& of = "");
/// Writes a small file durably and by a rename. Several processes may write the same one: the last
/// rename stays. SystemError naming file and reason.
void replace_file(const std::filesystem::path& path, const std::string& content);
/// The same, unless the file is there. Of several processes, one writes it.
void create_file(const std::filesystem::path& path, const std::string& content);

/// A file that says which process does a piece of work: host, process id and time. The process
/// renews it until it ends. A claim is stale if its process ran on this host and has ended, or if
/// it was not renewed for kStaleClaim.
class Claim {
public:
    /// Takes what is free or stale. Nothing if another process has it or if there is no folder.
    /// SystemError naming file and reason if the claim cannot be written.
    static std::optional<Claim> take(const std::filesystem::path& file);
    /// "process 12 of HOST" has it; empty if it is free or stale.
    static std::string holder(const std::filesystem::path& file);

    Claim(Claim&&) noexcept;
    Claim& operator=(Claim&&) noexcept;
    /// Gives it back.
    ~Claim();
    /// Whether no other process took it for stale.
    bool is_held() const;

private:
    struct Held;
    explicit Claim(std::unique_ptr<Held> held);
    std::unique_ptr<Held> held_;
};

}  // namespace msa::io
