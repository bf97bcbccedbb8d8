// SPDX-License-Identifier: MIT
// The file of a unit, written by UnitWriter and read by ResultsWriter.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/io/h5.h"
#include "core/io/run_record.h"
#include "core/io/unit_writer.h"

namespace msa::io {

struct UnitWriter::Impl {
    /// identity: of the run, asked for when the unit is finished; on_finish: called after that.
    using Identity = std::function<std::string()>;
    using Done = std::function<void()>;
    Impl(std::filesystem::path unit_file, const std::string& unit, Identity of_run, Done on_finish);
    ~Impl();
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    h5::Place at(const std::string& object) const { return {temporary, object}; }
    void create(const std::string& name, hid_t type, const std::vector<hsize_t>& shape,
                const Describe& describe) const;

    std::filesystem::path path, temporary;
    h5::Handle file;
    std::map<std::string, std::string> notes;
    Identity identity;
    Done done;
};

/// The name of a unit's file, different for each unit: "layer 3" has unit-layer-3.h5.
std::string file_name_of_unit(const std::string& unit);
/// The name of the unit in a file. InputError if the file is incomplete or of another run.
std::string unit_of_file(const std::filesystem::path& path, const RunRecord& run);
std::map<std::string, std::string> notes_of_file(const std::filesystem::path& path);

}  // namespace msa::io
