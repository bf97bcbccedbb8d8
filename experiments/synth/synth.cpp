// SPDX-License-Identifier: MIT
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "core/utf8.h"
#include "experiments/driver/option_table.h"
#include "experiments/driver/pattern.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/driver/version.h"
#include "experiments/programs.h"
#include "experiments/report/text.h"

namespace msa::experiments::synth {
namespace {

const About kAbout{
    .program = kProgram,
    .usage = "--out FILE [options]",
    .examples = {"msa-synth --out /tmp/synth.h5 --tokens 4K",
                 "msa-synth --out /tmp/long.h5 --tokens 128K --query-heads 8 --kv-heads 2 "
                 "--needles 64 --element bf16"},
    .writes =
        "an msa-activations file with q, k, v, index_q and index_k (data/FORMAT.md).\n"
        "Strengths are logit gains in nats over noise of unit variance.",
};

constexpr int64_t kTokensPerStep = 1024;

const std::vector<Element> kElements{Element::f16, Element::bf16, Element::f32};

struct SynthOptions {
    std::filesystem::path out;
    int64_t tokens = 8192, sequences = 1, layers = 1;
    io::LayerInfo layer = [] {
        io::LayerInfo sizes;
        sizes.query_heads = 16;
        sizes.kv_heads = 4;
        sizes.head_dim = sizes.index_dim = 64;
        return sizes;
    }();
    size_t element = 0;  // of kElements
    Pattern pattern;
    bool overwrite = false;
};

/// Adds a strength or a factor; its default is shown as users write it.
void add_real(OptionTable& table, const char* flag, const char* form, double& to,
              const char* help) {
    table.real(flag, form, to, help, between(0, 100)).shown_as(concat(to));
}

OptionTable option_table(SynthOptions& o) {
    io::LayerInfo& layer = o.layer;
    Pattern& pattern = o.pattern;
    std::vector<std::string> elements;
    for (Element element : kElements) elements.emplace_back(to_string(element));
    OptionTable table(kAbout);
    table.path("out", "FILE", o.out, "file to write").required("no output: name a file with --out");
    table.count("tokens", "N", o.tokens, "N, tokens of all sequences together");
    table.count("sequences", "N", o.sequences, "sequences, of equal length", at_least(1));
    table.count("model-layers", "N", o.layers, "layers, each with its own structure",
                between(1, 4096));
    table.count("query-heads", "N", layer.query_heads, "Hq");
    table.count("kv-heads", "N", layer.kv_heads, "Hkv, GQA groups", at_least(1));
    table.count("head-dim", "N", layer.head_dim, "dh", between(kMinHeadDim, kMaxHeadDim));
    table.count("index-dim", "N", layer.index_dim, "didx; 0: no index_q and index_k");
    add_real(table, "sink-gain", "NATS", pattern.sink, "gain of token 0");
    add_real(table, "diagonal-gain", "NATS", pattern.diagonal,
             "gain of the query's own neighbourhood");
    table.count("stripes", "N", pattern.stripes, "slowly moving far targets per group",
                between(0, 256));
    add_real(table, "stripe-gain", "NATS", pattern.stripe, "gain of a stripe's target");
    table.count("needles", "N", pattern.needles,
                "single far tokens per sequence that few queries need", between(0, 4096));
    add_real(table, "needle-gain", "NATS", pattern.needle, "gain of a needle");
    add_real(table, "index-noise", "FACTOR", pattern.index_noise,
             "noise of the index branch relative to the main branch");
    table.choice("element", "TYPE", o.element, elements, "storage: f16, bf16 or f32");
    table.seed(pattern.seed, "of structure and noise");
    table.flag("overwrite", o.overwrite, "replace a file that exists");
    return table;
}

/// Hours of work would end at a full disk. Compression saves little of noise.
void check_room(const SynthOptions& o) {
    const io::LayerInfo& of = o.layer;
    const auto values =
        static_cast<double>((of.query_heads + 2 * of.kv_heads) * of.head_dim +
                            (of.index_dim > 0 ? (of.kv_heads + 1) * of.index_dim : 0));
    const double bytes = static_cast<double>(o.tokens) * static_cast<double>(o.layers) * values *
                         static_cast<double>(element_bytes(kElements[o.element]));
    std::error_code unknown;
    const std::filesystem::path folder = std::filesystem::absolute(o.out).parent_path();
    const auto free = static_cast<double>(std::filesystem::space(folder, unknown).available);
    constexpr double kGibi = 1 << 30;
    require(unknown || bytes <= free, "--tokens is ", o.tokens, ", which take ",
            fixed_text(bytes / kGibi, 1), " GiB in ", o.layers,
            o.layers == 1 ? " layer; " : " layers; ", folder.string(), " has ",
            fixed_text(free / kGibi, 1), " GiB free");
}

/// Nothing when help or version was asked for. Throws InputError.
std::optional<SynthOptions> parse(std::span<const std::string> args, std::ostream& out) {
    SynthOptions o;
    if (!option_table(o).parse(args, out)) return std::nullopt;
    check_at_least("tokens", o.tokens, o.sequences);
    const io::LayerInfo& layer = o.layer;
    require(layer.query_heads >= 1 && layer.query_heads % layer.kv_heads == 0, "--query-heads is ",
            layer.query_heads, ", must be a positive multiple of --kv-heads = ", layer.kv_heads);
    if (layer.index_dim != 0)
        check_option("index-dim", layer.index_dim, kMinIndexDim, kMaxIndexDim);
    check_room(o);
    return o;
}

io::ActivationsInfo info_of(const SynthOptions& o) {
    const Pattern& pattern = o.pattern;
    io::LayerInfo layer = o.layer;
    layer.softmax_scale = 1 / std::sqrt(static_cast<double>(layer.head_dim));
    layer.q_state = layer.k_state = io::RopeState::none;
    layer.element = kElements[o.element];
    io::ActivationsInfo info;
    for (int64_t s = 1; s <= o.sequences; ++s)
        info.cu_seqlens.push_back(o.tokens * s / o.sequences);
    for (layer.layer = 0; layer.layer < o.layers; ++layer.layer) info.layers.push_back(layer);
    info.model_id = kProgram.name;
    info.producer = concat("msa-synth ", kVersion, " (", kCommit, ")");
    info.model_config = nlohmann::ordered_json{
        {"num_query_heads", layer.query_heads},
        {"num_kv_heads", layer.kv_heads},
        {"head_dim", layer.head_dim},
        {"index_dim", layer.index_dim},
        {"sink", pattern.sink},
        {"diagonal", pattern.diagonal},
        {"stripes", pattern.stripes},
        {"stripe", pattern.stripe},
        {"needles", pattern.needles},
        {"needle", pattern.needle},
        {"index_noise", pattern.index_noise},
        {"seed",
         pattern.seed}}.dump();
    return info;
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    const std::optional<SynthOptions> parsed = parse(args, out);
    if (!parsed) return 0;
    const SynthOptions& o = *parsed;
    const io::ActivationsInfo info = info_of(o);
    const Synthesizer synthesizer(info, o.pattern);
    io::ActivationsWriter writer(o.out, info, o.overwrite);
    Progress progress(err, kProgram.name, info.tokens() * static_cast<int64_t>(info.layers.size()),
                      "tokens");
    for (const io::LayerInfo& layer : info.layers)
        for (int64_t begin = 0; begin < info.tokens(); begin += kTokensPerStep) {
            if (stop_requested()) throw Interrupted("stopped; nothing was written");
            const QueryRange range{begin, std::min(begin + kTokensPerStep, info.tokens())};
            for (io::Field field :
                 {io::Field::q, io::Field::k, io::Field::v, io::Field::index_q, io::Field::index_k})
                if (layer.has(field))
                    writer.write(layer.layer, field, begin, 0,
                                 synthesizer.make(layer, field, range));
            progress.advance(range.end - range.begin);
        }
    writer.finish();
    out << printable(o.out.string()) << ": " << info.tokens() << " tokens, " << info.layers.size()
        << (info.layers.size() == 1 ? " layer\n" : " layers\n");
    return 0;
}

}  // namespace msa::experiments::synth
