// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: 8 bytes with its size (little-endian), then JSON, then the
// tensors' bytes without gaps (https://github.com/huggingface/safetensors).
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/tensor_spec.h"

namespace cohort::variable {

// Where a file has a tensor. A value type.
struct SavedTensor {
  std::string dtype_name;               // as the file names it: "F32"
  std::optional<at::ScalarType> dtype;  // nullopt: LibTorch has none
  std::vector<std::int64_t> sizes;
  std::uint64_t begin = 0;  // after the header
  std::uint64_t end = 0;
  std::optional<std::uint32_t> checksum = {};  // CRC-32C of its bytes, if the file has it
};
using SavedTensors = std::map<std::string, SavedTensor>;

// The limit of the format for the JSON text.
inline constexpr std::uint64_t kHeaderBytesMax = 100'000'000;

// Reads the JSON text of a file that has `data_bytes` after it. Any text is safe. Throws data_loss
// unless it describes exactly these bytes; unimplemented for a dtype that this version does not
// know. `path` is for messages.
SavedTensors parse_header(std::string_view text, std::uint64_t data_bytes, const std::string& path);

// The JSON text of a new file that has the bytes of these tensors in this order, padded so that
// they are aligned if none has larger elements than the one before. `checksums`: of the bytes of
// each tensor, or none. Throws invalid_argument for a key that is no UTF-8, "__metadata__", and a
// dtype that the format does not have.
std::string header_text(std::span<const std::pair<std::string, TensorSpec>> in_order,
                        const std::map<std::string, std::uint32_t>& checksums = {});

// The tensors of a new file in the order of their bytes, and header_text() for them, whose errors
// it throws.
struct NewHeader {
  std::vector<std::string> order;
  std::string text;
};
NewHeader make_header(const std::map<std::string, TensorSpec>& tensors,
                      const std::map<std::string, std::uint32_t>& checksums = {});

}  // namespace cohort::variable
