// SPDX-License-Identifier: MIT
#include "tests/fuzz/consume.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/io/activations.h"
#include "core/io/results.h"

namespace msa::fuzz {
namespace {

constexpr int64_t kMostTokens = 4096;  // read of one field
constexpr int64_t kMostValues = 1 << 20;

void consume_field(const io::ActivationsReader& reader, const io::LayerInfo& layer,
                   io::Field field) {
    if (!layer.has(field)) return;
    const int64_t row = layer.heads(field) * layer.channels(field);
    const int64_t tokens =
        std::min({reader.info().tokens(), kMostTokens, kMostValues / std::max<int64_t>(1, row)});
    reader.read(layer.layer, field, {0, tokens});
    std::vector<int64_t> spread{0, reader.info().tokens() / 2, reader.info().tokens() - 1};
    reader.gather(layer.layer, field, spread);
}

}  // namespace

void consume_activations(const std::filesystem::path& path) {
    try {
        const io::ActivationsReader reader(path);
        if (reader.info().has_tokens && reader.info().tokens() <= kMostTokens) reader.tokens();
        for (const io::LayerInfo& layer : reader.info().layers) {
            for (io::Field field : {io::Field::x, io::Field::q, io::Field::k, io::Field::v,
                                    io::Field::index_q, io::Field::index_k}) {
                try {
                    consume_field(reader, layer, field);
                } catch (const InputError&) {  // NaN, damaged chunk: the next field may be well
                }
            }
            io::require_post_rope(reader, layer.layer);
        }
    } catch (const InputError&) {
    }
}

void consume_results(const std::filesystem::path& path) {
    try {
        const io::ResultsReader reader(path);
        for (const std::string& name : reader.list("/")) reader.has("/" + name);
        reader.done();
    } catch (const InputError&) {
    }
}

TemporaryFile::TemporaryFile()
    : path_(std::filesystem::exists("/dev/shm") ? "/dev/shm"
                                                : std::filesystem::temp_directory_path()) {
    path_ /= text("msalab-fuzz-", getpid(), ".h5");
}

TemporaryFile::~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
}

}  // namespace msa::fuzz
