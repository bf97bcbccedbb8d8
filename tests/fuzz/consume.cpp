// SPDX-License-Identifier: MIT
#include "tests/fuzz/consume.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "core/error.h"
#include "core/io/activations.h"
#include "core/io/h5.h"
#include "core/io/results.h"
#include "core/utf8.h"

namespace msa::fuzz {
namespace {

constexpr int64_t kMostTokens = 4096;  // read of one field
constexpr int64_t kMostValues = 1 << 20;

void consume_field(const io::ActivationsReader& reader, const io::LayerInfo& layer,
                   io::Field field) {
    if (!layer.has(field)) return;
    const int64_t row = layer.heads(field) * layer.channels(field);
    const int64_t rows = reader.info().rows(layer, field);
    const int64_t some = std::min({rows, kMostTokens, kMostValues / std::max<int64_t>(1, row)});
    reader.read(layer.layer, field, {0, some});
    std::vector<int64_t> spread{0, rows / 2, rows - 1};
    reader.gather(layer.layer, field, spread);
}

}  // namespace

void consume_activations(std::span<const uint8_t> bytes) {
    try {
        const io::ActivationsReader reader("fuzz", bytes);
        if (reader.info().has_tokens && reader.info().tokens() <= kMostTokens) reader.tokens();
        for (const io::LayerInfo& layer : reader.info().layers) {
            for (io::Field field : io::kFields) {
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

void consume_results(std::span<const uint8_t> bytes) {
    try {
        const io::ResultsReader reader("fuzz", bytes);
        reader.done();
        for (const io::DatasetInfo& dataset : reader.datasets("/")) {
            try {
                double sum = 0;
                if (dataset.numeric())
                    reader.visit(dataset, [&](std::span<const double> values) {
                        sum = std::accumulate(values.begin(), values.end(), sum);
                    });
                reader.read<int32_t, 2>(dataset.path);
            } catch (const InputError&) {
            }
        }
    } catch (const InputError&) {
    }
}

void consume_words(const std::string& words) {
    const std::string shown = printable(words, "\n");
    MSA_CHECK(valid_utf8(shown) == shown);
    for (char c : shown) MSA_CHECK(static_cast<uint8_t>(c) >= ' ' || c == '\n');
}

void consume_names(const std::string& left, const std::string& right) {
    const bool before = io::h5::natural_less(left, right);
    const bool after = io::h5::natural_less(right, left);
    MSA_CHECK(left == right ? !before && !after : before != after);
}

namespace {

io::RunRecord fuzzed_run() {
    io::RunRecord record;
    record.program = "fuzz";
    record.options = record.definitions = "{}";
    return record;
}

void write_unit(io::ResultsWriter& writer, const std::string& unit) {
    if (writer.done(unit)) return;
    Tensor<int32_t, 1> values({5});
    values(3) = 7;
    io::UnitWriter to = writer.begin(unit);
    to.write<int32_t, 1>("/" + unit, values.view(), {"a", "b", "c"});
    to.finish();
}

}  // namespace

void consume_run(const uint8_t* data, size_t size) {
    const TemporaryFile file;
    const std::filesystem::path folder = file.path().string() + ".partial";
    {
        io::ResultsWriter writer(file.path(), fuzzed_run(), io::IfExists::overwrite);
        write_unit(writer, "one");
    }
    for (; size >= 4; data += 4, size -= 4) {  // which file, where (2 bytes), what
        const std::filesystem::path damaged =
            folder / (data[0] % 4 == 0 ? "run.json" : "unit-one.h5");
        std::error_code gone;
        const auto bytes = std::filesystem::file_size(damaged, gone);
        if (gone || bytes == 0) continue;
        const auto at = (data[1] + 256U * data[2]) % bytes;
        if (data[0] % 16 == 7) {
            std::filesystem::remove(damaged);
        } else if (data[0] % 16 == 6) {
            std::filesystem::resize_file(damaged, at);
        } else {
            std::fstream stream(damaged, std::ios::binary | std::ios::in | std::ios::out);
            stream.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(data[3]));
        }
    }
    try {
        io::ResultsWriter writer(file.path(), fuzzed_run(), io::IfExists::resume);
        write_unit(writer, "one");
        write_unit(writer, "two");
        writer.finish();
    } catch (const InputError&) {
        std::filesystem::remove_all(folder);
        return;
    }
    const io::ResultsReader reader(file.path());
    for (const char* name : {"/one", "/two"}) {
        const Tensor<int32_t, 1> values = reader.read<int32_t, 1>(name);
        MSA_CHECK(values.size() == 5 && values(2) == 0 && values(3) == 7);
    }
}

TemporaryFile::TemporaryFile()
    : path_(std::filesystem::exists("/dev/shm") ? "/dev/shm"
                                                : std::filesystem::temp_directory_path()) {
    path_ /= concat("msalab-fuzz-", getpid(), ".h5");
}

TemporaryFile::~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
}

}  // namespace msa::fuzz
