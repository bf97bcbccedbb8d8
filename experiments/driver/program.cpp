// SPDX-License-Identifier: MIT
#include "experiments/driver/program.h"

#include <csignal>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <vector>

#include "core/error.h"
#include "core/io/file_error.h"
#include "core/threads.h"
#include "core/utf8.h"
#include "experiments/driver/launch.h"
#include "experiments/driver/ranks.h"

namespace msa::experiments {
namespace {

volatile std::sig_atomic_t stop_signal = 0;

}  // namespace

bool stop_requested() { return stop_signal != 0; }

void stop_if_asked() {
    if (stop_requested())
        throw Interrupted("stopped; what is finished is kept, the same command continues");
}

int guarded(const std::string& name, Run run, std::span<const std::string> args, std::ostream& out,
            std::ostream& err, std::ostream* failures) {
    const auto fail = [&](const std::string& message, int code) {
        // At once: the lines of several ranks do not mix.
        const std::string line = concat(name, ": ", printable(message, "\n\t"), '\n');
        (failures != nullptr ? *failures : err) << line << std::flush;
        return code;
    };
    try {
        const int code = run(args, out, err);
        if (!out.flush()) throw SystemError("cannot write the standard output");
        return code;
    } catch (const InputError& error) {
        return fail(message_of(error), kRefused);
    } catch (const UnsupportedError& error) {
        return fail(error.what(), kRefused);
    } catch (const SystemError& error) {
        return fail(error.what(), kRefused);
    } catch (const std::filesystem::filesystem_error& error) {
        return fail(concat(error.path1().string(), ": ", error.code().message()), kRefused);
    } catch (const std::system_error& error) {
        return fail(error.what(), kRefused);
    } catch (const parallel::GroupStopped&) {
        return kRefused;
    } catch (const Interrupted& error) {
        return fail(error.what(), kInterrupted);
    } catch (const std::bad_alloc&) {
        return fail("out of memory", kRefused);
    } catch (const std::exception& error) {
        return fail(concat("internal error, please report it: ", error.what()), kBug);
    }
}

int program_main(const std::string& name, Run run, int argc, char** argv) {
    for (int signal : {SIGINT, SIGTERM})
        std::signal(signal, [](int raised) {
            // A second request ends the program at once.
            if (stop_signal != 0) std::_Exit(kInterrupted);
            stop_signal = raised;
        });
    std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error of the write, not a kill
    const std::vector<std::string> args(argv + 1, argv + argc);
    const auto start = [](std::span<const std::string>, std::ostream&, std::ostream&) {
        threads_or_all(0);  // refuses an OMP_NUM_THREADS that OpenMP would end the process by
        return 0;
    };
    if (const int code = guarded(name, start, args, std::cout, std::cerr); code != 0) return code;
    const int64_t rank = launched_rank();
    int code = 0;
    if (rank == 0) {
        code = guarded(name, run, args, std::cout, std::cerr);
    } else {
        Silence silent;
        code = guarded(concat(name, ", rank ", rank), run, args, silent, silent, &std::cerr);
    }
    Ranks::end(code);
    return code;
}

namespace {

std::string advice(const io::FileError& error) {
    switch (error.problem()) {
        case io::FileProblem::exists: return "; --overwrite replaces it";
        case io::FileProblem::unfinished_run:
            return "; --resume continues it, --overwrite starts afresh";
        case io::FileProblem::other_run: return "; --overwrite starts afresh";
        case io::FileProblem::other_program: return "; choose another --out";
        case io::FileProblem::damaged_unit:
            return "; where it is removed, the command of its run does it again";
        case io::FileProblem::arrays:
            return concat("; msalab convert ", error.file(), " --state post_rope --out ",
                          std::filesystem::path(error.file()).replace_extension(".h5").string(),
                          " makes one (layouts, names of arrays: python/README.md)");
        case io::FileProblem::before_rope:
            return concat("; msalab convert ", error.file(), " --apply-rope --out FILE rotates it");
    }
    return "";
}

}  // namespace

std::string message_of(const std::exception& error) {
    const auto* const file = dynamic_cast<const io::FileError*>(&error);
    return file == nullptr ? error.what() : error.what() + advice(*file);
}

}  // namespace msa::experiments
