// SPDX-License-Identifier: MIT
#include "core/io/claim.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "core/io/partial_file.h"

namespace msa::io {
namespace {

namespace fs = std::filesystem;

using std::chrono::seconds;
constexpr seconds kRenewClaim{30}, kStaleClaim{300};
constexpr seconds kStaleEmpty{10};  // that of a process that was killed before it wrote its name

const std::string& host_name() {
    static const std::string name = [] {
        char text[256] = {};
        ::gethostname(text, sizeof text - 1);
        return std::string(text);
    }();
    return name;
}

std::string content_of(const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

/// When a process of this host began, in ticks since the host did; 0 if it has ended.
int64_t start_of(int64_t process) {
    std::string text = content_of(concat("/proc/", process, "/stat"));
    const size_t name_end = text.rfind(')');
    if (name_end == std::string::npos) return 0;
    std::istringstream words(text.substr(name_end + 1));
    std::string state, word;
    words >> state;
    constexpr int kBefore = 18;  // numbers between the state and the start
    for (int n = 0; n < kBefore; ++n) words >> word;
    int64_t start = 0;
    words >> start;
    return state == "Z" || state == "X" ? 0 : start;
}

struct Holder {
    std::string host;
    int64_t process = 0, start = 0;
};

Holder holder_in(const std::string& claim) {
    const auto json = nlohmann::json::parse(claim, nullptr, false);
    Holder holder;
    if (!json.is_object()) return holder;  // it is being written
    if (json.contains("host") && json["host"].is_string()) holder.host = json["host"];
    for (const auto& [name, to] :
         {std::pair{"process", &holder.process}, {"process_start", &holder.start}})
        if (json.contains(name) && json[name].is_number_integer()) *to = json[name];
    return holder;
}

std::string own_claim() {
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    ::gmtime_r(&now, &utc);
    char time[32] = {};
    std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ", &utc);
    const nlohmann::ordered_json claim{{"host", host_name()},
                                       {"process", int64_t{::getpid()}},
                                       {"process_start", start_of(::getpid())},
                                       {"time", time}};
    return claim.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// Seconds since `file` changed by the clock of its file system: those of hosts may differ.
std::optional<int64_t> age_of(const fs::path& file) {
    struct stat then {
    }, now{};
    if (::stat(file.c_str(), &then) != 0) return std::nullopt;
    const fs::path clock = temporary_of(file);
    const int descriptor = ::open(clock.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) return 0;
    const bool known = ::fstat(descriptor, &now) == 0;
    ::close(descriptor);
    ::unlink(clock.c_str());
    return known ? now.st_mtim.tv_sec - then.st_mtim.tv_sec : 0;
}

bool is_stale(const fs::path& file, const std::string& claim) {
    const Holder holder = holder_in(claim);
    if (holder.host == host_name()) {
        const int64_t start = start_of(holder.process);
        return start == 0 || start != holder.start;
    }
    const std::optional<int64_t> age = age_of(file);
    return age && *age > (claim.empty() ? kStaleEmpty : kStaleClaim).count();
}

}  // namespace

fs::path temporary_of(const fs::path& path) {
    static std::atomic<int64_t> number = 0;
    return concat(path.string(), ".", host_name(), "-", int64_t{::getpid()}, "-", number++, ".tmp");
}

void remove_abandoned(const fs::path& folder, const std::string& of) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
        const std::string name = entry.path().filename().string();
        if (!name.starts_with(of) || entry.path().extension() != ".tmp") continue;
        const std::string words = entry.path().stem().string();
        const size_t number = words.rfind('-');
        const size_t process = number == std::string::npos ? number : words.rfind('-', number - 1);
        if (process == std::string::npos || !words.substr(0, process).ends_with("." + host_name()))
            continue;
        const std::string id = words.substr(process + 1, number - process - 1);
        const bool is_number = !id.empty() && id.size() < 19 &&
                               id.find_first_not_of("0123456789") == std::string::npos;
        if (is_number && start_of(std::stoll(id)) == 0) fs::remove(entry.path(), ignored);
    }
}

namespace {

/// Gives a file with this content, whose bytes are on the device, its name by `put_in_place`, which
/// returns an errno.
void write_file(const fs::path& path, const std::string& content,
                int (*put_in_place)(const fs::path& from, const fs::path& to)) {
    check_output(path, true);
    remove_abandoned(path.parent_path().empty() ? "." : path.parent_path(),
                     path.filename().string() + ".");
    const fs::path temporary = temporary_of(path);
    const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int reason = file < 0 ? errno : 0;
    for (size_t at = 0; at < content.size() && reason == 0;) {
        const ssize_t written = ::write(file, content.data() + at, content.size() - at);
        if (written >= 0)
            at += static_cast<size_t>(written);
        else if (errno != EINTR)
            reason = errno;
    }
    if (reason == 0 && ::fsync(file) != 0) reason = errno;
    if (file >= 0) ::close(file);
    if (reason == 0) reason = put_in_place(temporary, path);
    ::unlink(temporary.c_str());
    if (reason != 0)
        throw SystemError(concat("cannot write ", path.string(), ": ", std::strerror(reason)));
}

int rename_to(const fs::path& from, const fs::path& to) {
    return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

/// Where the file system has no links, a file that another process writes now is replaced.
int link_to(const fs::path& from, const fs::path& to) {
    if (::link(from.c_str(), to.c_str()) == 0 || errno == EEXIST) return 0;
    return errno == ENOENT ? ENOENT : rename_to(from, to);
}

}  // namespace

void replace_file(const fs::path& path, const std::string& content) {
    write_file(path, content, rename_to);
}

void create_file(const fs::path& path, const std::string& content) {
    write_file(path, content, link_to);
}

struct Claim::Held {
    Held(fs::path claim, std::string text) : file(std::move(claim)), content(std::move(text)) {
        renewal = std::jthread([this](const std::stop_token& end) {
            std::unique_lock lock(turn);
            while (!wake.wait_for(lock, end, kRenewClaim, [&] { return end.stop_requested(); }))
                ::utimensat(AT_FDCWD, file.c_str(), nullptr, 0);
        });
    }
    ~Held() {
        renewal.request_stop();
        renewal.join();
        if (content_of(file) == content) ::unlink(file.c_str());
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

    fs::path file;
    std::string content;
    std::mutex turn;
    std::condition_variable_any wake;
    std::jthread renewal;
};

Claim::Claim(std::unique_ptr<Held> held) : held_(std::move(held)) {}
Claim::Claim(Claim&&) noexcept = default;
Claim& Claim::operator=(Claim&&) noexcept = default;
Claim::~Claim() = default;

bool Claim::is_held() const { return held_ && content_of(held_->file) == held_->content; }

std::optional<Claim> Claim::take(const fs::path& file) {
    constexpr int kTries = 3;  // a stale one may go, or be taken, meanwhile
    for (int n = 0; n < kTries; ++n) {
        const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0) {
            const std::string content = own_claim();
            const bool written = ::write(descriptor, content.data(), content.size()) ==
                                 static_cast<ssize_t>(content.size());
            const int reason = errno;
            ::close(descriptor);
            if (written) return Claim(std::make_unique<Held>(file, content));
            ::unlink(file.c_str());
            throw SystemError(concat("cannot write ", file.string(), ": ", std::strerror(reason)));
        }
        if (errno == ENOENT) return std::nullopt;
        if (errno != EEXIST)
            throw SystemError(concat("cannot write ", file.string(), ": ", std::strerror(errno)));
        const std::string found = content_of(file);
        if (!is_stale(file, found)) return std::nullopt;
        if (content_of(file) == found) ::unlink(file.c_str());
    }
    return std::nullopt;
}

std::string Claim::holder(const fs::path& file) {
    if (!fs::exists(file)) return "";
    const std::string found = content_of(file);
    if (is_stale(file, found)) return "";
    const Holder holder = holder_in(found);
    return holder.host.empty() ? "another process"
                               : concat("process ", holder.process, " of ", holder.host);
}

}  // namespace msa::io
