// SPDX-License-Identifier: MIT
// Writes a valid file into a folder, as the first input of fuzz_bytes: from nothing it would not
// find what makes a file one of HDF5. Its texts have fixed length, as ours have: where texts of
// variable length are damaged, HDF5 itself crashes.
#include <filesystem>
#include <iostream>

#include "core/io/activations.h"

int main(int argc, char** argv) {
    using namespace msa;
    if (argc != 2) {
        std::cerr << "usage: fuzz_seeds FOLDER\n";
        return 2;
    }
    const std::filesystem::path folder = argv[1];
    std::filesystem::create_directories(folder);
    io::LayerInfo layer;
    layer.layer = 3;
    layer.query_heads = 2;
    layer.kv_heads = 1;
    layer.head_dim = layer.index_dim = 16;
    layer.softmax_scale = 0.25;
    layer.own_attention["sliding_window"] = {4};
    const io::ActivationsInfo info{"seed", "{}", "msalab", {0, 3, 8}, {layer}, true};
    io::ActivationsWriter writer(folder / "activations.h5", info, true);
    for (const io::Field field : io::kFields)
        if (layer.has(field))
            writer.write(
                layer.layer, field, 0, 0,
                Tensor<float, 3>({info.tokens(), layer.heads(field), layer.channels(field)}));
    writer.write_tokens(std::vector<int32_t>(static_cast<size_t>(info.tokens()), 1));
    writer.finish();
    return 0;
}
