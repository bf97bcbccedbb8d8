// SPDX-License-Identifier: MIT
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/io/h5.h"
#include "core/io/layout.h"
#include "core/io/results.h"

namespace msa::io {

struct ResultsReader::Impl {
    std::filesystem::path path;
    h5::Handle file;
    RunRecord run;
    std::vector<std::string> done;

    h5::Place at(const std::string& object) const { return {path, object}; }
};

ResultsReader::ResultsReader(std::filesystem::path path) : impl_(new Impl) {
    impl_->file = h5::open_file(path);
    impl_->path = std::move(path);
    const h5::Place root = impl_->at("/");
    const h5::Handle group = h5::open_object(impl_->file, root);
    const std::string format = h5::text_attribute(group, "format", root);
    require(format == kResultsFormat, root.text(), " attribute format is '", format, "', must be '",
            kResultsFormat, "'");
    const double version = h5::number_attribute(group, "format_version", root);
    require(version == kFormatVersion, root.text(), " attribute format_version is ", version,
            ", this program reads ", kFormatVersion);

    const h5::Handle run = h5::open_object(impl_->file, impl_->at("/run"));
    const auto words = [&](const char* name) {
        return h5::text_attribute(run, name, impl_->at("/run"));
    };
    RunRecord& r = impl_->run;
    try {
        r.argv = nlohmann::json::parse(words("argv")).get<std::vector<std::string>>();
        r.inputs = nlohmann::json::parse(words("inputs")).get<std::map<std::string, std::string>>();
    } catch (const nlohmann::json::exception& error) {
        throw InputError(impl_->at("/run").text() +
                         " argv and inputs must be JSON: " + error.what());
    }
    r.program = words("program");
    r.options = words("options");
    r.definitions = words("definitions");
    r.commit = words("commit");
    r.host = words("host");
    r.device = words("device");
    r.compiler = words("compiler");
    r.started = words("started");
    r.finished = words("finished");
    r.seed = static_cast<uint64_t>(number("/run", "seed"));
    impl_->done = h5::read_texts(impl_->file, impl_->at("/done"));
}

ResultsReader::~ResultsReader() = default;

const RunRecord& ResultsReader::run() const { return impl_->run; }
const std::vector<std::string>& ResultsReader::done() const { return impl_->done; }

bool ResultsReader::has(const std::string& object) const { return h5::exists(impl_->file, object); }

std::vector<std::string> ResultsReader::list(const std::string& group) const {
    return h5::links(h5::open_object(impl_->file, impl_->at(group)));
}

template <typename T, int Rank>
Tensor<T, Rank> ResultsReader::read_rows(const std::string& name, int64_t first_row,
                                         int64_t count) const {
    const h5::Place place = impl_->at(name);
    const h5::Handle dataset = h5::open_object(impl_->file, place);
    const std::vector<int64_t> extents = h5::extents(dataset);
    require(extents.size() == Rank, place.text(), " has rank ", extents.size(), ", must be ", Rank);
    require(0 <= first_row && 0 <= count && first_row + count <= extents[0], place.text(),
            ": rows ", first_row, ":", first_row + count, " asked for, it has ", extents[0]);
    Shape<Rank> shape;
    std::copy(extents.begin(), extents.end(), shape.begin());
    shape[0] = count;
    h5::Slab slab{std::vector<hsize_t>(Rank, 0), {shape.begin(), shape.end()}};
    slab.offset[0] = static_cast<hsize_t>(first_row);
    Tensor<T, Rank> values(shape);
    h5::read(dataset, h5::native_type<T>(), slab, values.data(), place);
    return values;
}

template <typename T, int Rank>
Tensor<T, Rank> ResultsReader::read(const std::string& name) const {
    const h5::Handle dataset = h5::open_object(impl_->file, impl_->at(name));
    const std::vector<int64_t> extents = h5::extents(dataset);
    return read_rows<T, Rank>(name, 0, extents.empty() ? 0 : extents[0]);
}

double ResultsReader::number(const std::string& object, const std::string& attribute) const {
    return h5::number_attribute(h5::open_object(impl_->file, impl_->at(object)), attribute,
                                impl_->at(object));
}

std::string ResultsReader::words(const std::string& object, const std::string& attribute) const {
    return h5::text_attribute(h5::open_object(impl_->file, impl_->at(object)), attribute,
                              impl_->at(object));
}

#define MSA_INSTANTIATE(T, Rank)                                                            \
    template Tensor<T, Rank> ResultsReader::read<T, Rank>(const std::string&) const;        \
    template Tensor<T, Rank> ResultsReader::read_rows<T, Rank>(const std::string&, int64_t, \
                                                               int64_t) const;
#define MSA_INSTANTIATE_RANKS(T) \
    MSA_INSTANTIATE(T, 1) MSA_INSTANTIATE(T, 2) MSA_INSTANTIATE(T, 3) MSA_INSTANTIATE(T, 4)
MSA_INSTANTIATE_RANKS(float)
MSA_INSTANTIATE_RANKS(double)
MSA_INSTANTIATE_RANKS(int32_t)
MSA_INSTANTIATE_RANKS(int64_t)

}  // namespace msa::io
