// SPDX-License-Identifier: MIT
#include "gpu/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/error.h"
#include "gpu/half_types.h"
#include "gpu/runtime.h"

namespace msa::cuda {
namespace {

constexpr int64_t kBoxBytes = 128;

/// The driver's encoder, asked for at run time so that nothing links to the driver.
auto encoder() {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    constexpr unsigned kSince = 12000;  // CUDA version
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince,
                                           cudaEnableDefault, &result),
          "asking the driver for tensor maps");
    if (found == nullptr) throw SystemError("cuda: the driver has no tensor maps");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

/// Extents and boxes fastest axis first. `row`: elements from a row to the next; 0: as many as the
/// row has.
CUtensorMap encode(const void* data, Element element, const std::vector<int64_t>& extents,
                   const std::vector<int64_t>& box, int64_t row = 0) {
    static const auto encode_tiled = encoder();
    const CUtensorMapDataType type = element == Element::bf16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                     : element == Element::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                               : CU_TENSOR_MAP_DATA_TYPE_UINT8;
    MSA_CHECK(is_half(element) || element_bytes(element) == 1);
    const size_t rank = extents.size();
    std::array<cuuint64_t, 3> sizes{}, strides{};
    std::array<cuuint32_t, 3> boxes{}, steps{1, 1, 1};
    int64_t bytes = element_bytes(element);
    for (size_t axis = 0; axis < rank; ++axis) {
        sizes[axis] = static_cast<cuuint64_t>(extents[axis]);
        boxes[axis] = static_cast<cuuint32_t>(box[axis]);
        bytes *= axis == 0 && row > 0 ? row : extents[axis];
        strides[axis] = static_cast<cuuint64_t>(bytes);  // of the next axis
    }
    CUtensorMap map{};
    const CUresult status =
        encode_tiled(&map, type, static_cast<cuuint32_t>(rank), const_cast<void*>(data),
                     sizes.data(), strides.data(), boxes.data(), steps.data(),
                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS)
        throw SystemError(concat("cuda: encoding a tensor map failed with code ", int(status)));
    return map;
}

}  // namespace

CUtensorMap tensor_map(const void* data, Element element, int64_t rows, int64_t columns,
                       int64_t box_rows) {
    return encode(data, element, {columns, rows}, {kBoxBytes / element_bytes(element), box_rows});
}

template <int Rank>
CUtensorMap tensor_map(const Keys<Rank>& keys, int64_t box_rows) {
    int64_t columns = element_count(keys.shape()) / std::max<int64_t>(1, keys.shape()[0]);
    if (!keys.paged())
        return tensor_map(keys.data(), keys.element(), keys.shape()[0], columns, box_rows);
    const Shape<Rank>& strides = keys.strides();
    if (Rank == 3) columns = (keys.shape()[1] - 1) * strides[Rank - 1] + keys.shape()[Rank - 1];
    const int64_t rows = (keys.pages() - 1) * (strides[0] / strides[1]) + keys.page_size();
    return encode(keys.data(), keys.element(), {columns, rows},
                  {kBoxBytes / element_bytes(keys.element()), box_rows}, strides[1]);
}
template CUtensorMap tensor_map(const Keys<2>&, int64_t);
template CUtensorMap tensor_map(const Keys<3>&, int64_t);

CUtensorMap tensor_map(const void* data, Element element, int64_t planes, int64_t rows,
                       int64_t columns, int64_t box_planes, int64_t box_rows) {
    return encode(data, element, {columns, rows, planes},
                  {kBoxBytes / element_bytes(element), box_rows, box_planes});
}

}  // namespace msa::cuda
