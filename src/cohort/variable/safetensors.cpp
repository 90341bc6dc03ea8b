// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/safetensors.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/variable/strict_json.h"

namespace cohort::variable {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
// In the metadata, before the key of a tensor: the CRC-32C of its bytes, as a decimal number.
constexpr std::string_view kChecksum = "crc32c:";
constexpr std::size_t kDimensionsMax = 64;  // of LibTorch's loops
constexpr std::size_t kAlignment = 8;

struct SavedType {
  std::string_view name;
  std::uint64_t bytes;
  std::optional<at::ScalarType> type = {};
};
// The last ones have no type here, but a known size.
constexpr std::array kTypes = std::to_array<SavedType>({
    {"BOOL", 1, at::kBool},
    {"U8", 1, at::kByte},
    {"I8", 1, at::kChar},
    {"I16", 2, at::kShort},
    {"I32", 4, at::kInt},
    {"I64", 8, at::kLong},
    {"F16", 2, at::kHalf},
    {"BF16", 2, at::kBFloat16},
    {"F32", 4, at::kFloat},
    {"F64", 8, at::kDouble},
    {"U16", 2},
    {"U32", 4},
    {"U64", 8},
    {"C64", 8},
    {"F8_E5M2", 1},
    {"F8_E4M3", 1},
    {"F8_E8M0", 1},
});

// Throws data_loss.
class Damage {
 public:
  explicit Damage(const std::string& path) : path_(path) {}

  template <class... Parts>
  void check(bool condition, const Parts&... parts) const {
    if (condition) return;
    internal::throw_error(ErrorCode::data_loss, "[variable.saved_values] expected file '", path_,
                          "' to be a safetensors file, got ", parts...,
                          "; it is damaged, or another program's");
  }

 private:
  const std::string& path_;
};

// Refuses what a JSON text may have twice, so that two readers cannot see different files.
Json parsed(std::string_view text, const Damage& damage) {
  auto [json, has_repeated_key] = parse_strict<Json>(text);
  damage.check(text.starts_with('{') && json.is_object(), "a header that is no JSON object");
  damage.check(!has_repeated_key, "a header with a key that occurs twice");
  return std::move(json);
}

// nullopt unless it is an integer that int64 can hold and that is not negative.
std::optional<std::uint64_t> size_of(const Json& json) {
  if (!json.is_number_unsigned()) return std::nullopt;
  const auto size = json.get<std::uint64_t>();
  if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return std::nullopt;
  return size;
}

std::vector<std::int64_t> sizes_of(const Json& json, const std::string& key, const Damage& damage) {
  damage.check(json.is_array(), "no shape of '", key, "'");
  damage.check(json.size() <= kDimensionsMax, json.size(), " dimensions of '", key, "'");
  std::vector<std::int64_t> sizes;
  for (const Json& each : json) {
    const std::optional<std::uint64_t> size = size_of(each);
    damage.check(size.has_value(), "a size of '", key, "' that is no number of elements");
    sizes.push_back(static_cast<std::int64_t>(*size));
  }
  return sizes;
}

// The number of bytes. LibTorch computes strides with sizes of 0 as if they were 1, so those must
// not overflow either.
std::uint64_t bytes_of(const std::vector<std::int64_t>& sizes, std::uint64_t item,
                       const std::string& key, const Damage& damage) {
  std::int64_t strided = static_cast<std::int64_t>(item);
  bool is_empty = false;
  for (const std::int64_t size : sizes) {
    is_empty |= size == 0;
    damage.check(!__builtin_mul_overflow(strided, std::max<std::int64_t>(size, 1), &strided),
                 "a shape of '", key, "' with too many elements");
  }
  return is_empty ? 0 : static_cast<std::uint64_t>(strided);
}

SavedTensor tensor_of(const std::string& key, const Json& json, const std::string& path) {
  const Damage damage(path);
  const bool is_whole = json.is_object() && json.size() == 3 && json.contains("dtype") &&
                        json.contains("shape") && json.contains("data_offsets");
  damage.check(is_whole && json["dtype"].is_string(),
               "no dtype, shape and data_offsets, or more than those, of '", key, "'");
  const auto name = json["dtype"].get<std::string>();
  const auto* const type = std::find_if(kTypes.begin(), kTypes.end(),
                                        [&](const SavedType& each) { return each.name == name; });
  COHORT_CHECK(type != kTypes.end(), ErrorCode::unimplemented,
               "[variable.saved_values] expected a dtype that this version knows, got '", name,
               "' of '", key, "' in file '", path, "'; save the value as F32");
  SavedTensor tensor{
      .dtype_name = name, .dtype = type->type, .sizes = sizes_of(json["shape"], key, damage)};
  const Json& offsets = json["data_offsets"];
  const bool is_pair = offsets.is_array() && offsets.size() == 2;
  const auto begin = is_pair ? size_of(offsets[0]) : std::nullopt;
  const auto end = is_pair ? size_of(offsets[1]) : std::nullopt;
  damage.check(begin && end && *begin <= *end, "no two data_offsets of '", key, "'");
  tensor.begin = *begin;
  tensor.end = *end;
  const std::uint64_t bytes = bytes_of(tensor.sizes, type->bytes, key, damage);
  damage.check(*end - *begin == bytes, *end - *begin, " bytes of '", key, "', whose shape has ",
               bytes);
  return tensor;
}

// Throws data_loss unless the tensors cover the data without gaps.
void check_covers(const SavedTensors& tensors, std::uint64_t data_bytes, const Damage& damage) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> parts;
  for (const auto& [key, tensor] : tensors) parts.emplace_back(tensor.begin, tensor.end);
  std::sort(parts.begin(), parts.end());
  std::uint64_t covered = 0;
  for (const auto& [begin, end] : parts) {
    damage.check(begin == covered, "a tensor at byte ", begin, " after one that ends at ", covered);
    covered = end;
  }
  damage.check(covered == data_bytes, data_bytes, " bytes of data, but tensors with ", covered);
}

void check_metadata(const Json& json, const Damage& damage) {
  const bool is_text =
      json.is_object() &&
      std::all_of(json.begin(), json.end(), [](const Json& value) { return value.is_string(); });
  damage.check(is_text, "__metadata__ that is no map of texts");
}

// Takes the checksums out of the metadata.
void read_checksums(const Json& metadata, SavedTensors& tensors, const Damage& damage) {
  for (const auto& [name, value] : metadata.items()) {
    if (!name.starts_with(kChecksum)) continue;
    const auto tensor = tensors.find(name.substr(kChecksum.size()));
    const std::string& text = value.get_ref<const std::string&>();
    std::uint32_t checksum = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), checksum);
    damage.check(
        tensor != tensors.end() && error == std::errc() && end == text.data() + text.size(),
        "a checksum '", name, "' of nothing or that is no number");
    tensor->second.checksum = checksum;
  }
}

const SavedType& saved_type_of(const std::string& key, const TensorSpec& spec) {
  const auto* const type = std::find_if(
      kTypes.begin(), kTypes.end(), [&](const SavedType& each) { return each.type == spec.dtype; });
  COHORT_CHECK(type != kTypes.end(), ErrorCode::invalid_argument,
               "[variable.save_values] expected a dtype that safetensors has, got ",
               spec.to_string(), " ('", key, "'); save it in another dtype");
  return *type;
}

}  // namespace

SavedTensors parse_header(std::string_view text, std::uint64_t data_bytes,
                          const std::string& path) {
  const Damage damage(path);
  SavedTensors tensors;
  const Json json = parsed(text, damage);
  for (const auto& [key, value] : json.items()) {
    if (key == kMetadata) {
      check_metadata(value, damage);
    } else {
      tensors.emplace(key, tensor_of(key, value, path));
    }
  }
  check_covers(tensors, data_bytes, damage);
  if (json.contains(kMetadata)) read_checksums(json[std::string(kMetadata)], tensors, damage);
  return tensors;
}

std::string header_text(std::span<const std::pair<std::string, TensorSpec>> in_order,
                        const std::map<std::string, std::uint32_t>& checksums) {
  Json json = {{kMetadata, {{"format", "pt"}}}};
  for (const auto& [key, checksum] : checksums)
    json[std::string(kMetadata)][std::string(kChecksum) + key] = std::to_string(checksum);
  std::uint64_t offset = 0;
  for (const auto& [key, spec] : in_order) {
    COHORT_CHECK(key != kMetadata, ErrorCode::invalid_argument,
                 "[variable.save_values] expected a key of a variable, got '", key,
                 "', which safetensors keeps for itself");
    const auto end = offset + static_cast<std::uint64_t>(spec.byte_count());
    json[key] = {{"dtype", saved_type_of(key, spec).name},
                 {"shape", *spec.sizes},
                 {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const Json::type_error&) {
    internal::throw_error(ErrorCode::invalid_argument,
                          "[variable.save_values] expected keys of valid UTF-8, got others");
  }
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  COHORT_CHECK(text.size() <= kHeaderBytesMax, ErrorCode::invalid_argument,
               "[variable.save_values] expected a header of at most ", kHeaderBytesMax,
               " bytes, got ", text.size(), "; save fewer variables in one file");
  return text;
}

NewHeader make_header(const std::map<std::string, TensorSpec>& tensors,
                      const std::map<std::string, std::uint32_t>& checksums) {
  std::vector<std::pair<std::string, TensorSpec>> in_order;
  // The largest elements first, so that each tensor is aligned.
  for (const std::uint64_t bytes : {8U, 4U, 2U, 1U}) {
    for (const auto& [key, spec] : tensors)
      if (saved_type_of(key, spec).bytes == bytes) in_order.emplace_back(key, spec);
  }
  NewHeader header{.order = {}, .text = header_text(in_order, checksums)};
  for (const auto& [key, spec] : in_order) header.order.push_back(key);
  return header;
}

}  // namespace cohort::variable
