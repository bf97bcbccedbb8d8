// SPDX-License-Identifier: MIT
#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "core/utf8.h"
#include "experiments/driver/options.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/driver/version.h"
#include "experiments/programs.h"
#include "experiments/synth/pattern.h"

namespace msa::experiments::synth {
namespace {

const About kAbout{
    .name = "msa-synth",
    .question = "How do selectors and kernels behave on attention whose structure I know?",
    .usage = "--out FILE [options]",
    .examples = {"msa-synth --out /tmp/synth.h5 --tokens 4K",
                 "msa-synth --out /tmp/long.h5 --tokens 128K --query-heads 8 --kv-heads 2 "
                 "--needles 64 --element bf16"},
    .writes =
        "an msa-activations file with q, k, v, index_q and index_k (data/FORMAT.md).\n"
        "Strengths are logit gains in nats over noise of unit variance.",
};

constexpr int64_t kTokensPerStep = 1024;

struct SynthOptions {
    std::string out;
    io::ActivationsInfo info;
    Pattern pattern;
    bool overwrite = false;
};

Element parse_element(const std::string& name) {
    for (Element element : {Element::f16, Element::bf16, Element::f32})
        if (name == to_string(element)) return element;
    throw InputError("--element is '" + name + "', must be one of: f16, bf16, f32");
}

std::optional<SynthOptions> parse(std::span<const std::string> args, std::ostream& out) {
    SynthOptions o;
    Count tokens{8192}, seed;
    int64_t sequences = 1, layers = 1;
    io::LayerInfo layer;
    layer.query_heads = 16;
    layer.kv_heads = 4;
    layer.head_dim = layer.index_dim = 64;
    std::string element = "f16";
    Pattern& pattern = o.pattern;
    const auto integer = [](int64_t& value) {
        return po::value(&value)->default_value(value)->value_name("N");
    };
    const auto nats = [](double& value) {
        return po::value(&value)->default_value(value, text(value))->value_name("NATS");
    };
    po::options_description d;
    d.add_options()                                                      //
        ("out", po::value(&o.out)->value_name("FILE"), "file to write")  //
        ("tokens", po::value(&tokens)->default_value(tokens)->value_name("N"),
         "N, tokens of all sequences together")                                        //
        ("sequences", integer(sequences), "sequences, of equal length")                //
        ("layers", integer(layers), "layers, each with its own structure")             //
        ("query-heads", integer(layer.query_heads), "Hq")                              //
        ("kv-heads", integer(layer.kv_heads), "Hkv, GQA groups")                       //
        ("head-dim", integer(layer.head_dim), "dh")                                    //
        ("index-dim", integer(layer.index_dim), "didx; 0: no index_q and index_k")     //
        ("sink", nats(pattern.sink), "gain of token 0")                                //
        ("diagonal", nats(pattern.diagonal), "gain of the query's own neighbourhood")  //
        ("stripes", integer(pattern.stripes), "slowly moving far targets per group")   //
        ("stripe", nats(pattern.stripe), "gain of a stripe's target")                  //
        ("needles", integer(pattern.needles),
         "single far tokens per sequence that few queries need")  //
        ("needle", nats(pattern.needle), "gain of a needle")      //
        ("index-noise",
         po::value(&pattern.index_noise)->default_value(1.0, "1")->value_name("FACTOR"),
         "noise of the index branch relative to the main branch")  //
        ("element", po::value(&element)->default_value(element)->value_name("TYPE"),
         "storage: f16, bf16 or f32")  //
        ("seed", po::value(&seed)->default_value(seed)->value_name("N"),
         "of structure and noise")  //
        ("overwrite", po::bool_switch(&o.overwrite), "replace a file that exists");
    if (!parse_command_line(kAbout, d, "", args, out)) return std::nullopt;

    require(!o.out.empty(), "no output: name a file with --out");
    check_at_least("sequences", sequences, 1);
    check_at_least("tokens", tokens.value, sequences);
    check_option("layers", layers, 1, 4096);
    check_at_least("kv-heads", layer.kv_heads, 1);
    require(layer.query_heads >= 1 && layer.query_heads % layer.kv_heads == 0, "--query-heads is ",
            layer.query_heads, ", must be a positive multiple of --kv-heads = ", layer.kv_heads);
    check_option("head-dim", layer.head_dim, kMinHeadDim, kMaxHeadDim);
    if (layer.index_dim != 0) check_option("index-dim", layer.index_dim, kMinHeadDim, kMaxHeadDim);
    check_at_least("stripes", pattern.stripes, 0);
    check_option("needles", pattern.needles, 0, 4096);
    check_at_least("seed", seed.value, 0);
    pattern.seed = static_cast<uint64_t>(seed.value);
    for (const auto& [name, value] : {std::pair{"sink", pattern.sink},
                                      {"diagonal", pattern.diagonal},
                                      {"stripe", pattern.stripe},
                                      {"needle", pattern.needle},
                                      {"index-noise", pattern.index_noise}})
        require(std::isfinite(value) && value >= 0 && value <= 100, "--", name, " is ", value,
                ", must be from 0 to 100");

    layer.softmax_scale = 1 / std::sqrt(static_cast<double>(layer.head_dim));
    layer.q_state = layer.k_state = io::RopeState::none;
    layer.element = parse_element(element);
    for (int64_t s = 1; s <= sequences; ++s)
        o.info.cu_seqlens.push_back(tokens.value * s / sequences);
    for (layer.layer = 0; layer.layer < layers; ++layer.layer) o.info.layers.push_back(layer);
    o.info.model_id = "msa-synth";
    o.info.producer = text("msa-synth ", kVersion, " (", kCommit, ")");
    o.info.model_config = nlohmann::ordered_json{
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
    return o;
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    const std::optional<SynthOptions> parsed = parse(args, out);
    if (!parsed) return 0;
    const SynthOptions& o = *parsed;
    const Synthesizer synthesizer(o.info, o.pattern);
    io::ActivationsWriter writer(o.out, o.info, o.overwrite);
    Progress progress(err, "msa-synth",
                      o.info.tokens() * static_cast<int64_t>(o.info.layers.size()), "tokens");
    for (const io::LayerInfo& layer : o.info.layers)
        for (int64_t begin = 0; begin < o.info.tokens(); begin += kTokensPerStep) {
            if (stop_requested()) throw Interrupted("stopped; nothing was written");
            const QueryRange range{begin, std::min(begin + kTokensPerStep, o.info.tokens())};
            for (io::Field field :
                 {io::Field::q, io::Field::k, io::Field::v, io::Field::index_q, io::Field::index_k})
                if (layer.has(field))
                    writer.write(layer.layer, field, begin, 0,
                                 synthesizer.make(layer, field, range));
            progress.advance(range.end - range.begin);
        }
    writer.finish();
    out << printable(o.out) << ": " << o.info.tokens() << " tokens, " << o.info.layers.size()
        << (o.info.layers.size() == 1 ? " layer\n" : " layers\n");
    return 0;
}

}  // namespace msa::experiments::synth
