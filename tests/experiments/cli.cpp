// SPDX-License-Identifier: MIT
#include "tests/experiments/cli.h"

#include <fcntl.h>
#include <hdf5.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/io/results.h"
#include "experiments/programs.h"
#include "tests/support/random.h"
#include "tests/support/sanitized.h"

namespace msa::test {

const std::vector<Program>& programs() {
    static const std::vector<Program> all = [] {
        std::vector<Program> named;
        for (const experiments::Program& one : experiments::programs())
            named.push_back({one.name, one.run});
        return named;
    }();
    return all;
}

const Program& program(const std::string& name) {
    for (const Program& one : programs())
        if (one.name == name) return one;
    throw std::invalid_argument(name + ": no program of that name");
}

Outcome Program::operator()(const std::vector<std::string>& args) const {
    std::ostringstream out, err;
    const int code = experiments::guarded(name, run, args, out, err);
    return {code, out.str(), err.str()};
}

CliTest::CliTest() {
    const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
    directory_ = std::filesystem::temp_directory_path() /
                 ("msalab-" + std::to_string(getpid()) + "-" + test.name());
    std::filesystem::create_directories(directory_);
}

CliTest::~CliTest() { std::filesystem::remove_all(directory_); }

std::string CliTest::make(const std::string& name, const Activations& spec) const {
    io::ActivationsInfo info{"test", spec.model_config, "msalab tests", spec.cu_seqlens, {}, false};
    for (int64_t number : spec.layers) {
        io::LayerInfo layer;
        layer.layer = number;
        layer.query_heads = spec.query_heads;
        layer.kv_heads = spec.kv_heads;
        layer.head_dim = spec.head_dim;
        layer.index_dim = spec.index_dim;
        layer.q_state = spec.q_state;
        layer.softmax_scale = 0.5;  // sharper than 1/sqrt(dh): blocks differ
        layer.element = Element::f32;
        layer.own_attention = spec.own_attention;
        layer.rotary_dim = spec.rotary_dim;
        if (spec.rotary_dim) layer.rope_theta = 1e4;
        info.layers.push_back(layer);
    }
    io::ActivationsWriter writer(path(name), info, true);
    uint64_t stream = 0;
    for (const io::LayerInfo& layer : info.layers)
        for (io::Field field :
             {io::Field::q, io::Field::k, io::Field::v, io::Field::index_q, io::Field::index_k}) {
            if (!layer.has(field)) continue;
            const Tensor<float, 3> values =
                normal<3>({info.tokens(), layer.heads(field), layer.channels(field)}, ++stream);
            writer.write(layer.layer, field, 0, 0, values);
        }
    writer.finish();
    return path(name);
}

void poke(const std::string& path, const std::string& name, const Shape<3>& at, float value,
          const Shape<3>& extent) {
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    const hid_t dataset = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
    const std::vector<hsize_t> first(at.begin(), at.end()), counts(extent.begin(), extent.end());
    const std::vector<float> values(static_cast<size_t>(element_count(extent)), value);
    const hid_t space = H5Dget_space(dataset), memory = H5Screate_simple(3, counts.data(), nullptr);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, first.data(), nullptr, counts.data(), nullptr);
    EXPECT_GE(H5Dwrite(dataset, H5T_NATIVE_FLOAT, memory, space, H5P_DEFAULT, values.data()), 0);
    H5Sclose(memory);
    H5Sclose(space);
    H5Dclose(dataset);
    H5Fclose(file);
}

std::string file_text(const std::filesystem::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

Process::Process(const std::string& program, const std::vector<std::string>& args,
                 const std::vector<std::string>& environment) {
    std::vector<std::string> words{std::string(MSA_BIN_DIR) + "/" + program}, variables;
    words.insert(words.end(), args.begin(), args.end());
    for (char** one = environ; *one != nullptr; ++one) {
        const std::string text = *one, name = text.substr(0, text.find('=') + 1);
        if (std::ranges::none_of(environment,
                                 [&](const std::string& other) { return other.starts_with(name); }))
            variables.push_back(text);
    }
    variables.insert(variables.end(), environment.begin(), environment.end());
    const auto pointers = [](std::vector<std::string>& texts) {
        std::vector<char*> all;
        for (std::string& text : texts) all.push_back(text.data());
        all.push_back(nullptr);
        return all;
    };
    out_ = memfd_create("out", MFD_CLOEXEC);
    err_ = memfd_create("err", MFD_CLOEXEC);
    // No fork: it would copy the page tables of all that the tests have allocated.
    posix_spawn_file_actions_t streams;
    posix_spawn_file_actions_init(&streams);
    posix_spawn_file_actions_adddup2(&streams, out_, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&streams, err_, STDERR_FILENO);
    // A shell starts what runs in the background with SIGINT ignored, and so would the tests.
    posix_spawnattr_t listening;
    posix_spawnattr_init(&listening);
    sigset_t signals;
    sigemptyset(&signals);
    for (int number : {SIGINT, SIGTERM}) sigaddset(&signals, number);
    posix_spawnattr_setsigdefault(&listening, &signals);
    posix_spawnattr_setflags(&listening, POSIX_SPAWN_SETSIGDEF);
    const int refused = posix_spawn(&id_, words[0].c_str(), &streams, &listening,
                                    pointers(words).data(), pointers(variables).data());
    posix_spawnattr_destroy(&listening);
    posix_spawn_file_actions_destroy(&streams);
    if (refused != 0) outcome_ = Outcome{127, "", std::strerror(refused)};
}

Process::Process(Process&& other) noexcept
    : out_(std::exchange(other.out_, -1)),
      err_(std::exchange(other.err_, -1)),
      id_(std::exchange(other.id_, 0)),
      outcome_(std::move(other.outcome_)) {}

Process::~Process() {
    if (id_ > 0 && !has_ended()) {
        signal(SIGKILL);
        end();
    }
    for (int file : {out_, err_})
        if (file >= 0) close(file);
}

void Process::signal(int number) const {
    if (!outcome_) kill(id_, number);
}

bool Process::has_ended() {
    int status = 0;
    if (!outcome_ && waitpid(id_, &status, WNOHANG) == id_) collect(status);
    return outcome_.has_value();
}

Outcome Process::end() {
    int status = 0;
    if (!outcome_ && waitpid(id_, &status, 0) == id_) collect(status);
    return outcome_.value();
}

void Process::collect(int status) {
    const auto text = [](int file) {
        std::string all(static_cast<size_t>(lseek(file, 0, SEEK_END)), '\0');
        const ssize_t count = pread(file, all.data(), all.size(), 0);
        all.resize(static_cast<size_t>(std::max<ssize_t>(0, count)));
        return all;
    };
    outcome_ = Outcome{WIFEXITED(status) ? WEXITSTATUS(status) : -1, text(out_), text(err_)};
}

void wait_until(const std::function<bool()>& event) {
    while (!event()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::vector<Outcome> run_together(const std::string& program, const std::vector<std::string>& args,
                                  int count) {
    std::vector<Process> processes;
    for (int n = 0; n < count; ++n) processes.emplace_back(program, args);
    std::vector<Outcome> outcomes;
    for (Process& process : processes) {
        outcomes.push_back(process.end());
        EXPECT_EQ(outcomes.back().code, 0) << outcomes.back().err;
        EXPECT_EQ(outcomes.back().out, outcomes.front().out);
    }
    return outcomes;
}

int run_for(const std::string& program, const std::vector<std::string>& args,
            std::chrono::microseconds delay, int signal) {
    Process process(program, args);
    std::this_thread::sleep_for(delay * kSlowdown);
    process.signal(signal);
    return process.end().code;
}

#ifdef MSA_MPIRUN
int run_ranks(const std::string& program, int ranks, const std::vector<std::string>& args,
              const std::string& out, const std::string& err, const std::function<bool()>& kills) {
    std::vector<std::string> words{MSA_MPIRUN, "--oversubscribe", "-n", std::to_string(ranks),
                                   MSA_BIN_DIR "/" + program};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        const bool ready = freopen(out.c_str(), "w", stdout) != nullptr &&
                           freopen(err.c_str(), "w", stderr) != nullptr;
        if (ready) execv(argv[0], argv.data());
        _exit(127);
    }
    int status = 0;
    bool ended = false;
    const auto ends_before = [&](const std::function<bool()>& event) {
        while (!ended && !event()) {
            ended = waitpid(child, &status, WNOHANG) == child;
            if (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return ended;
    };
    bool killed = false;
    if (kills && !ends_before(kills)) {
        const std::string pid = std::to_string(child);
        pid_t last = 0;
        const auto has_ranks = [&] {  // on a busy machine they start late
            std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
            for (pid_t of_child = 0; children >> of_child;) last = of_child;
            return last > 0;
        };
        killed = !ends_before(has_ranks) && kill(last, SIGKILL) == 0;
    }
    // Open MPI 4.1's mpirun may wait for a lock of its own, for ever, once a rank has been killed.
    const auto limit = std::chrono::steady_clock::now() +
                       (killed ? std::chrono::seconds(30) : std::chrono::minutes(5));
    if (!ends_before([&] { return std::chrono::steady_clock::now() >= limit; })) {
        EXPECT_TRUE(killed) << program << " on " << ranks << " ranks does not end";
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
#endif

namespace {

std::vector<double> contents(const io::ResultsReader& file, const io::DatasetInfo& dataset) {
    std::vector<double> all;
    if (dataset.numeric())
        file.visit(dataset, [&](std::span<const double> values) {
            all.insert(all.end(), values.begin(), values.end());
        });
    return all;
}

/// Is it a column that depends on how long the run took?
bool is_of_time(const std::string& path) {
    return path.ends_with("/tokens_per_second") || path.ends_with("/mfu");
}

}  // namespace

testing::AssertionResult same_data(const std::string& left, const std::string& right,
                                   const std::function<bool(const std::string&)>& but) {
    const io::ResultsReader a(left), b(right);
    const auto datasets_a = a.datasets("/"), datasets_b = b.datasets("/");
    if (datasets_a.size() != datasets_b.size())
        return testing::AssertionFailure()
               << datasets_a.size() << " datasets, the other has " << datasets_b.size();
    for (size_t n = 0; n < datasets_a.size(); ++n) {
        const io::DatasetInfo &of_a = datasets_a[n], &of_b = datasets_b[n];
        if (of_a.path != of_b.path || of_a.shape != of_b.shape || of_a.type != of_b.type)
            return testing::AssertionFailure() << of_a.path << " against " << of_b.path;
        if (but && but(of_a.path)) continue;
        const std::vector<double> in_a = contents(a, of_a), in_b = contents(b, of_b);
        if (!in_a.empty() &&
            std::memcmp(in_a.data(), in_b.data(), in_a.size() * sizeof(double)) != 0)
            return testing::AssertionFailure() << of_a.path << " differs";
    }
    if (a.done() != b.done()) return testing::AssertionFailure() << "/done differs";
    return testing::AssertionSuccess();
}

testing::AssertionResult same_results(const std::string& left, const std::string& right) {
    if (auto data = same_data(left, right, is_of_time); !data) return data;
    const io::ResultsReader a(left), b(right);
    if (a.run().inputs != b.run().inputs || a.run().options != b.run().options)
        return testing::AssertionFailure() << "/run differs";
    return testing::AssertionSuccess();
}

}  // namespace msa::test
