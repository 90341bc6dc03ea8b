// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/graph/nest_codec.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "cohort/core/error.h"

namespace cohort::data {
namespace {

constexpr int kDepthMax = 64;
constexpr std::size_t kDimensionsMax = 64;

// Part of the format: never renumber.
enum Tag : std::uint8_t {
  null = 0,
  integer = 1,
  real = 2,
  boolean_false = 3,
  boolean_true = 4,
  text = 5,
  tensor = 6,
  list = 7,
  tuple = 8,
  map = 9,
  strings = 10,
};

bool is_known_dtype(std::int64_t code) {
  return code >= 0 && code <= static_cast<std::int64_t>(at::ScalarType::BFloat16) &&
         !c10::isQIntType(static_cast<at::ScalarType>(code)) &&
         static_cast<at::ScalarType>(code) != at::ScalarType::ComplexHalf;
}

void write_strings(ByteWriter& writer, const StringTensor& strings) {
  const std::vector<std::int64_t> sizes = strings.sizes();
  writer.sizes(sizes);
  for (std::int64_t i = 0; i < strings.numel(); ++i) writer.text(strings[i]);
}

StringTensor read_strings(ByteReader& reader) {
  std::vector<std::int64_t> sizes = reader.sizes();
  if (sizes.size() > kDimensionsMax) reader.fail("a tensor of at most 64 dimensions");
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) {
      reader.fail("sizes of a string tensor");
    }
  }
  std::vector<std::string> values;
  for (; count > 0; --count) values.push_back(reader.text());
  return {std::move(sizes), values};
}

void write_tensor(ByteWriter& writer, const at::Tensor& tensor) {
  COHORT_CHECK(tensor.defined() && tensor.layout() == at::kStrided && tensor.is_cpu() &&
                   is_known_dtype(static_cast<std::int64_t>(tensor.scalar_type())),
               ErrorCode::invalid_argument,
               "[data.serialize] expected a dense tensor in host memory, got ", tensor.toString());
  const at::Tensor dense = tensor.contiguous();
  writer.u8(static_cast<std::uint8_t>(dense.scalar_type()));
  writer.sizes(std::span(dense.sizes().data(), dense.sizes().size()));
  writer.blob(std::span(static_cast<const std::byte*>(dense.data_ptr()), dense.nbytes()));
}

at::Tensor read_tensor(ByteReader& reader) {
  const std::uint8_t code = reader.u8();
  if (!is_known_dtype(code)) reader.fail("a dtype");
  const auto dtype = static_cast<at::ScalarType>(code);
  const std::vector<std::int64_t> sizes = reader.sizes();
  if (sizes.size() > kDimensionsMax) reader.fail("a tensor of at most 64 dimensions");
  const std::span<const std::byte> data = reader.blob();
  if (value_bytes(dtype, sizes, data.size()) != data.size()) reader.fail("a tensor's bytes");
  const at::Tensor tensor = at::empty(sizes, dtype);
  if (!data.empty()) std::memcpy(tensor.data_ptr(), data.data(), data.size());
  return tensor;
}

void write_leaf(ByteWriter& writer, const at::Tensor& leaf) {
  const bool is_string = StringTensor::is(leaf);
  writer.u8(is_string ? strings : tensor);
  if (is_string) return write_strings(writer, StringTensor::of(leaf));
  write_tensor(writer, leaf);
}

at::Tensor read_leaf(ByteReader& reader) {
  switch (reader.u8()) {
    case tensor:
      return read_tensor(reader);
    case strings:
      return read_strings(reader);
    default:
      reader.fail("a tensor");
  }
}

void write_items(ByteWriter& writer, Tag tag, const Nest::Items& items, const LeaveOut& leave_out) {
  writer.u8(tag);
  writer.varint(items.size());
  for (const Nest& item : items) write_nest(writer, item, leave_out);
}

Nest read_at(ByteReader& reader, int depth);

Nest::Items read_items(ByteReader& reader, int depth) {
  Nest::Items items;
  for (std::size_t left = reader.count(); left > 0; --left) {
    items.push_back(read_at(reader, depth + 1));
  }
  return items;
}

Nest read_map(ByteReader& reader, int depth) {
  Nest::Map entries;
  for (std::size_t left = reader.count(2); left > 0; --left) {
    std::string key = reader.text();
    if (!entries.empty() && key <= entries.rbegin()->first) reader.fail("keys in ascending order");
    entries.emplace(std::move(key), read_at(reader, depth + 1));
  }
  return Nest::map(std::move(entries));
}

Nest read_at(ByteReader& reader, int depth) {
  if (depth > kDepthMax) reader.fail("a nest of at most 64 levels");
  switch (reader.u8()) {
    case null:
      return Nest();
    case integer:
      return Nest(reader.zigzag());
    case real:
      return Nest(reader.f64());
    case boolean_false:
      return Nest(false);
    case boolean_true:
      return Nest(true);
    case text:
      return Nest(reader.text());
    case tensor:
      return Nest(read_tensor(reader));
    case strings:
      return Nest(read_strings(reader));
    case list:
      return Nest::list(read_items(reader, depth));
    case tuple:
      return Nest::tuple(read_items(reader, depth));
    case map:
      return read_map(reader, depth);
    default:
      reader.fail("a kind of value");
  }
}

[[noreturn]] void broken_spec(const char* expected) {
  internal::throw_error(ErrorCode::data_loss, "[data.deserialize] expected ", expected,
                        " in an element spec");
}

std::int64_t expect_integer(const Nest& nest, const char* what) {
  if (nest.kind() != Nest::Kind::integer) broken_spec(what);
  return nest.integer();
}

Nest nest_of_field(const TensorSpec& field) {
  Nest sizes;
  if (field.sizes) sizes = Nest::list({field.sizes->begin(), field.sizes->end()});
  return Nest::list({Nest(static_cast<std::int64_t>(field.dtype)), std::move(sizes)});
}

TensorSpec field_of(const Nest& nest) {
  if (nest.kind() != Nest::Kind::list || nest.items().size() != 2) broken_spec("[dtype, sizes]");
  const std::int64_t code = expect_integer(nest.items()[0], "a dtype");
  if (!is_known_dtype(code) && code != static_cast<std::int64_t>(kString)) broken_spec("a dtype");
  TensorSpec spec{static_cast<at::ScalarType>(code), std::nullopt};
  const Nest& sizes = nest.items()[1];
  if (sizes.is_null()) return spec;
  if (sizes.kind() != Nest::Kind::list || sizes.items().size() > kDimensionsMax) {
    broken_spec("at most 64 sizes");
  }
  spec.sizes.emplace();
  for (const Nest& size : sizes.items()) {
    const std::int64_t value = expect_integer(size, "a size");
    if (value < -1) broken_spec("a size of at least -1");
    spec.sizes->push_back(value);
  }
  return spec;
}

}  // namespace

std::optional<std::size_t> value_bytes(at::ScalarType dtype, std::span<const std::int64_t> sizes,
                                       std::size_t available) {
  const bool is_empty = std::ranges::find(sizes, 0) != sizes.end();
  // LibTorch also multiplies the other sizes of an empty tensor, so they must not overflow.
  const std::size_t most = is_empty ? std::numeric_limits<std::int64_t>::max() : available;
  std::size_t bytes = c10::elementSize(dtype);
  for (const std::int64_t size : sizes) {
    if (size == 0) continue;
    if (size < 0 || static_cast<std::size_t>(size) > most / bytes) return std::nullopt;
    bytes *= static_cast<std::size_t>(size);
  }
  return is_empty ? 0 : bytes;
}

void write_nest(ByteWriter& writer, const Nest& nest, const LeaveOut& leave_out) {
  switch (nest.kind()) {
    case Nest::Kind::null:
      return writer.u8(null);
    case Nest::Kind::integer:
      writer.u8(integer);
      return writer.zigzag(nest.integer());
    case Nest::Kind::real:
      writer.u8(real);
      return writer.f64(nest.real());
    case Nest::Kind::boolean:
      return writer.u8(nest.boolean() ? boolean_true : boolean_false);
    case Nest::Kind::text:
      writer.u8(text);
      return writer.text(nest.text());
    case Nest::Kind::tensor:
      if (leave_out && leave_out(nest.tensor())) return;
      return write_leaf(writer, nest.tensor());
    case Nest::Kind::list:
      return write_items(writer, list, nest.items(), leave_out);
    case Nest::Kind::tuple:
      return write_items(writer, tuple, nest.items(), leave_out);
    case Nest::Kind::map:
      writer.u8(map);
      writer.varint(nest.entries().size());
      for (const auto& [key, value] : nest.entries()) {
        writer.text(key);
        write_nest(writer, value, leave_out);
      }
      return;
    case Nest::Kind::handle:
      break;
  }
  internal::throw_error(ErrorCode::invalid_argument,
                        "[data.serialize] expected tensors and host values, got a ",
                        nest.handle()->handle_kind(), ", which cannot leave this process");
}

Nest read_nest(ByteReader& reader) { return read_at(reader, 0); }

void write_fields(ByteWriter& writer, const Fields& fields) {
  writer.varint(fields.size());
  for (const at::Tensor& field : fields) write_leaf(writer, field);
}

Fields read_fields(ByteReader& reader) {
  Fields fields;
  for (std::size_t left = reader.count(3); left > 0; --left) fields.push_back(read_leaf(reader));
  return fields;
}

Nest nest_of(const ElementSpec& spec) {
  Nest::Items fields;
  for (const TensorSpec& field : spec.fields) fields.push_back(nest_of_field(field));
  return Nest::map({{"fields", Nest::list(std::move(fields))}, {"structure", spec.structure}});
}

ElementSpec spec_of(const Nest& nest) {
  if (nest.kind() != Nest::Kind::map || nest.entries().size() != 2 ||
      !nest.entries().contains("fields") || !nest.entries().contains("structure")) {
    broken_spec("fields and structure");
  }
  ElementSpec spec;
  spec.structure = nest.entries().at("structure");
  std::int64_t expected = 0;
  for (const Nest& leaf : spec.structure.flatten()) {
    if (expect_integer(leaf, "field numbers") != expected++) broken_spec("fields in flatten order");
  }
  const Nest& fields = nest.entries().at("fields");
  if (fields.kind() != Nest::Kind::list) broken_spec("a list of fields");
  for (const Nest& field : fields.items()) spec.fields.push_back(field_of(field));
  if (expected != static_cast<std::int64_t>(spec.fields.size()))
    broken_spec("a spec for each field");
  return spec;
}

}  // namespace cohort::data
