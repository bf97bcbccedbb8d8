// SPDX-License-Identifier: MIT
#include "experiments/driver/completed.h"

#include <ostream>

#include "core/io/partial_file.h"

namespace msa::experiments {

void write_summary(const Completed& run, const std::string& summary, const std::string& page) {
    write_text(run.out / "summary.json", summary);
    run.print << (run.json ? summary : page);
}

void write_page(const Completed& run, const std::string& name, const std::string& page,
                const std::string& summary) {
    write_text(run.out / name, page);
    write_summary(run, summary, page);
}

void write_text(const std::filesystem::path& path, const std::string& content) {
    io::PartialFile file(path, true);
    file.write(content);
    file.finish();
}

}  // namespace msa::experiments
