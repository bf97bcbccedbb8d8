// SPDX-License-Identifier: MIT
#include "tests/fuzz/builder.h"

#include <hdf5.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/io/h5.h"

namespace msa::fuzz {
namespace {

using io::h5::Handle;

/// The bytes as decisions; when they run out, every decision is the valid one.
class Decisions {
public:
    Decisions(const uint8_t* data, size_t size) : data_(data), size_(size) {}
    /// 0 is the valid choice; `of` choices.
    int choose(int of) { return next() % of; }
    /// `valid`, or something else.
    int64_t number(int64_t valid) {
        switch (choose(8)) {
            case 1: return 0;
            case 2: return valid + 1;
            case 3: return valid - 1;
            case 4: return -valid;
            case 5: return valid * 2;
            case 6: return next();
            default: return valid;
        }
    }
    std::string words(const std::string& valid) {
        switch (choose(8)) {
            case 1: return "";
            case 2: return valid + "x";
            case 3: return "1e400";
            case 4: return "nan";
            case 5: return std::string(300, 'a');
            case 6: return "{";
            default: return valid;
        }
    }
    uint8_t next() { return at_ < size_ ? data_[at_++] : uint8_t{0}; }

private:
    const uint8_t* data_;
    size_t size_, at_ = 0;
};

class Builder {
public:
    Builder(const uint8_t* data, size_t size) : decide_(data, size), file_(in_memory()) {}

    std::vector<uint8_t> bytes() const {
        H5Fflush(file_, H5F_SCOPE_GLOBAL);
        std::vector<uint8_t> image(
            static_cast<size_t>(std::max<ssize_t>(0, H5Fget_file_image(file_, nullptr, 0))));
        H5Fget_file_image(file_, image.data(), image.size());
        return image;
    }

    void build_results() {
        const Handle root = group("/");
        attribute(root, "format", "msa-results", false);
        attribute(root, "format_version", "3", true);
        const Handle run = group("/run");
        for (const char* name : {"program", "options", "definitions", "commit", "host", "device",
                                 "compiler", "started", "finished"})
            attribute(run, name, "{}", false);
        attribute(run, "argv", R"(["a"])", false);
        attribute(run, "inputs", R"({"a": "b"})", false);
        if (decide_.choose(8) != 1) io::h5::set_attribute(run, "seed", int64_t{1});
        if (decide_.choose(8) == 1)
            dataset("/done", {2}, decide_.choose(6));
        else
            io::h5::write_texts(file_, {"fuzz", "/done"}, {decide_.words("layer 3"), "layer 4"});
        for (const char* name : {"/metrics/oracle/3", "/select/oracle/3/ids", "/curves/oracle/3"}) {
            if (decide_.choose(4) == 1) continue;
            std::vector<hsize_t> shape{decide_.next() % 8U, decide_.next() % 8U};
            dataset(name, shape, decide_.choose(6));
            const Handle made(H5Oopen(file_, name, H5P_DEFAULT), H5Oclose);
            if (made) attribute(made, "axes", "a,b", false);
        }
        if (decide_.choose(8) == 1)
            H5Lcreate_hard(file_, "/run", file_, "/run/again", H5P_DEFAULT, H5P_DEFAULT);
    }

    void build_activations() {
        const Handle root = group("/");
        attribute(root, "format", "msa-activations", false);
        attribute(root, "format_version", "1", true);
        attribute(root, "model_id", "fuzz", false);
        attribute(root, "model_config", R"({"num_kv_heads": 2, "num_query_heads": 4})", false);
        attribute(root, "producer", "fuzz", false);
        cu_seqlens();
        if (decide_.choose(4) == 1)
            dataset("/tokens", {static_cast<hsize_t>(kTokens)}, decide_.choose(6));
        const Handle layers = group("/layers");
        layer("/layers/" + decide_.words("3"));
        if (decide_.choose(3) == 1) layer("/layers/7");
    }

private:
    static Handle in_memory() {
        const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
        constexpr size_t kGrowth = size_t{1} << 16;
        H5Pset_fapl_core(access, kGrowth, false);
        H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
        return {H5Fcreate("msalab-fuzz", H5F_ACC_TRUNC, H5P_DEFAULT, access), H5Fclose};
    }

    static void variable_text(hid_t object, const char* name, const std::string& value) {
        const Handle type(H5Tcopy(H5T_C_S1), H5Tclose), space(H5Screate(H5S_SCALAR), H5Sclose);
        H5Tset_size(type, H5T_VARIABLE);
        const Handle made(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT),
                          H5Aclose);
        const char* raw = value.c_str();
        if (made) H5Awrite(made, type, &raw);
    }

    Handle group(const std::string& name) {
        if (name == "/") return Handle(H5Gopen2(file_, "/", H5P_DEFAULT), H5Gclose);
        return Handle(H5Gcreate2(file_, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                      H5Gclose);
    }

    /// A text attribute, sometimes fixed-length, numeric, an array, or missing.
    void attribute(hid_t object, const char* name, const std::string& valid, bool numeric) {
        const int kind = decide_.choose(6);
        if (kind == 1) return;
        if (kind == 2 || (numeric && kind == 3)) {
            io::h5::set_attribute(object, name,
                                  kind == 2 ? static_cast<double>(decide_.next()) : 1.0);
            return;
        }
        const std::string value = decide_.words(valid);
        if (kind == 4) {  // fixed length, perhaps without a final 0
            const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
            H5Tset_size(type, std::max<size_t>(1, value.size()));
            const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
            const Handle made(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT),
                              H5Aclose);
            const std::string padded = value.empty() ? std::string(1, '\0') : value;
            if (made) H5Awrite(made, type, padded.data());
            return;
        }
        if (kind == 5) {
            const hsize_t three = 3;
            const double values[3] = {1, 2, 3};
            const Handle space(H5Screate_simple(1, &three, nullptr), H5Sclose);
            const Handle made(
                H5Acreate2(object, name, H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, H5P_DEFAULT),
                H5Aclose);
            if (made) H5Awrite(made, H5T_NATIVE_DOUBLE, values);
            return;
        }
        variable_text(object, name, value);
    }

    void cu_seqlens() {
        if (decide_.choose(16) == 1) return;
        std::vector<int64_t> values{decide_.number(0) == 0 ? 0 : decide_.number(0), kTokens / 3,
                                    decide_.number(kTokens)};
        if (decide_.choose(8) == 1) values.pop_back();
        if (decide_.choose(8) == 1) values = {0, int64_t{1} << 60};
        const hsize_t count = values.size();
        const Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
        const hid_t type = decide_.choose(8) == 1 ? H5T_NATIVE_DOUBLE : H5T_NATIVE_INT64;
        const Handle made(
            H5Dcreate2(file_, "/cu_seqlens", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
            H5Dclose);
        if (made) H5Dwrite(made, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    }

    void layer(const std::string& name) {
        if (io::h5::exists(file_, name) || name.back() == '/') return;
        const Handle made = group(name);
        if (!made) return;
        attribute(made, "q_state", "post_rope", false);
        attribute(made, "k_state", "post_rope", false);
        attribute(made, "softmax_scale", "0.25", true);
        if (decide_.choose(4) == 1) attribute(made, "rotary_dim", "8", true);
        for (const char* optional :
             {"rope_theta", "softcap", "sliding_window", "own_block_size", "sinks", "rope_inv_freq",
              "rope_scaling", "rope_layout", "own_attention"})
            if (decide_.choose(8) == 1) attribute(made, optional, "4", true);
        const int type = decide_.choose(6);
        field(name + "/q", {4, 16}, type);
        field(name + "/k", {2, 16}, type);
        field(name + "/v", {2, 16}, type);
        if (decide_.choose(2) == 1) field(name + "/x", {24}, type);
        if (decide_.choose(2) == 1) {
            field(name + "/index_q", {2, 16}, type);
            field(name + "/index_k", {16}, type);
        }
    }

    void field(const std::string& name, const std::vector<int64_t>& rest, int type) {
        if (decide_.choose(16) == 1) return;
        if (decide_.choose(16) == 1) {
            group(name);
            return;
        }
        std::vector<hsize_t> shape{
            static_cast<hsize_t>(std::max<int64_t>(0, decide_.number(kTokens)))};
        for (int64_t extent : rest)
            shape.push_back(static_cast<hsize_t>(std::max<int64_t>(0, decide_.number(extent))));
        if (decide_.choose(16) == 1) shape.push_back(1);
        dataset(name, shape, decide_.choose(8) == 1 ? decide_.choose(6) : type);
    }

    void dataset(const std::string& name, const std::vector<hsize_t>& shape, int type) {
        Handle stored;
        switch (type) {
            case 1: stored = io::h5::memory_type(Element::f16); break;
            case 2: stored = io::h5::memory_type(Element::bf16); break;
            case 3: stored = io::h5::memory_type(Element::f64); break;
            case 4: stored = io::h5::memory_type(Element::i32); break;
            case 5: stored = Handle(H5Tcopy(H5T_C_S1), H5Tclose); break;
            default: stored = io::h5::memory_type(Element::f32); break;
        }
        std::vector<hsize_t> chunk = shape;
        if (!chunk.empty()) chunk[0] = std::min<hsize_t>(chunk[0], 16);
        const io::h5::Place place{"fuzz", name};
        if (io::h5::exists(file_, name)) return;
        io::h5::Storage storage;
        if (decide_.choose(2) == 1) storage.chunk = chunk;
        const Handle made = io::h5::create_dataset(file_, place, stored, shape, storage);
        if (type == 2 && decide_.choose(8) != 1)
            io::h5::set_attribute(made, "logical_dtype", std::string("bfloat16"));
        hsize_t count = 1;
        for (hsize_t extent : shape) count *= extent;
        if (count == 0 || count > kMostValues || type == 5) return;
        std::vector<uint8_t> bytes(count * 8);
        for (size_t i = 0; i < std::min<size_t>(bytes.size(), 64); ++i) bytes[i] = decide_.next();
        H5Dwrite(made, stored, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data());
    }

    static constexpr hsize_t kMostValues = 1 << 16;
    static constexpr int64_t kTokens = 40;
    Decisions decide_;
    Handle file_;
};

}  // namespace

std::vector<uint8_t> build_activations(const uint8_t* data, size_t size) {
    const io::h5::Lock lock;
    Builder builder(data, size);
    try {
        builder.build_activations();
    } catch (const std::exception&) {  // HDF5 refuses to write what was decided: what there is
    }
    return builder.bytes();
}

std::vector<uint8_t> build_results(const uint8_t* data, size_t size) {
    const io::h5::Lock lock;
    Builder builder(data, size);
    try {
        builder.build_results();
    } catch (const std::exception&) {
    }
    return builder.bytes();
}

}  // namespace msa::fuzz
