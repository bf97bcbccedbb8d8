// SPDX-License-Identifier: MIT
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/io/dataset_file.h"
#include "core/io/layout.h"
#include "core/io/results.h"

namespace msa::io {
namespace {

/// Whether `captures` is what record_captures() of experiments/driver writes.
bool is_list_of_captures(const nlohmann::json& captures) {
    const auto has = [](const nlohmann::json& of, const char* name) {
        return of.contains(name) && of[name].is_number_integer();
    };
    return captures.is_array() && std::ranges::all_of(captures, [&](const nlohmann::json& of) {
               return of.is_object() && of.contains("input") && of["input"].is_string() &&
                      has(of, "first_sequence") && has(of, "sequences") && has(of, "first_token") &&
                      has(of, "tokens") &&
                      (!of.contains("model_layers") || has(of, "model_layers"));
           });
}

}  // namespace

/// The run that made the file, as its attributes describe it.
struct ResultsReader::About {
    RunRecord run;
    std::vector<std::string> done;
    int64_t version = 0;

    explicit About(const DatasetReader::Impl& of) {
        const h5::Handle root = open_root(of.file, of.at("/"), kResultsFormat, kResultsVersion);
        version = static_cast<int64_t>(h5::number_attribute(root, "format_version", of.at("/")));

        const h5::Handle about = h5::open_object(of.file, of.at("/run"));
        const auto words = [&](const char* name) {
            return h5::text_attribute(about, name, of.at("/run"));
        };
        RunRecord& r = run;
        try {
            if (h5::has_attribute(about, "argv"))
                r.argv = nlohmann::json::parse(words("argv")).get<std::vector<std::string>>();
            r.inputs =
                nlohmann::json::parse(words("inputs")).get<std::map<std::string, std::string>>();
        } catch (const nlohmann::json::exception& error) {
            throw InputError(of.at("/run").text() +
                             " argv and inputs must be JSON: " + error.what());
        }
        const auto json = [&](const char* name) {
            std::string value = words(name);
            require(nlohmann::json::accept(value), of.at("/run").text(), " attribute ", name,
                    " is not JSON");
            return value;
        };
        r.program = words("program");
        r.options = json("options");
        r.definitions = json("definitions");
        if (h5::has_attribute(about, "captures")) r.captures = json("captures");
        require(r.captures.empty() || is_list_of_captures(nlohmann::json::parse(r.captures)),
                of.at("/run").text(), " attribute captures is ", r.captures,
                ", must be a list of captures with input, first_sequence, sequences, first_token "
                "and tokens");
        r.commit = words("commit");
        r.compiler = words("compiler");
        for (const auto& [name, value] :
             {std::pair{"element", &r.element}, std::pair{"index_element", &r.index_element},
              std::pair{"computed_in", &r.computed_in}, std::pair{"host", &r.host},
              std::pair{"device", &r.device}, std::pair{"started", &r.started},
              std::pair{"finished", &r.finished}})
            if (h5::has_attribute(about, name)) *value = words(name);
        r.seed = static_cast<uint64_t>(h5::integer_attribute(about, "seed", of.at("/run")));
        done = h5::read_texts(of.file, of.at("/done"));
    }
};

ResultsReader::ResultsReader(DatasetReader opened) : DatasetReader(std::move(opened)) {
    const h5::Lock lock;
    about_ = std::make_unique<About>(*impl_);
}

ResultsReader::ResultsReader(const std::filesystem::path& path)
    : ResultsReader(DatasetReader(path)) {}

ResultsReader::ResultsReader(const std::filesystem::path& name, std::span<const uint8_t> bytes)
    : ResultsReader(DatasetReader(name, bytes)) {}

ResultsReader::~ResultsReader() = default;

int64_t ResultsReader::version() const { return about_->version; }
const RunRecord& ResultsReader::run() const { return about_->run; }
const std::vector<std::string>& ResultsReader::done() const { return about_->done; }

}  // namespace msa::io
