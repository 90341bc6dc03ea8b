// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/internal/padding.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/internal/host_values.h"

namespace cohort::data {
namespace {

using Sizes = std::vector<std::int64_t>;

std::string show(const Sizes& sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

std::int64_t product(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

void check_element(const at::Tensor& element, const at::Tensor& first, std::size_t rank,
                   std::size_t field, std::size_t position) {
  COHORT_CHECK(StringTensor::is(element) ||
                   (element.defined() && element.is_cpu() && element.layout() == at::kStrided),
               ErrorCode::invalid_argument,
               "[data.padded_batch] expected strings or dense tensors in host memory, got ",
               element.toString(), " in field ", field, " of element ", position, " of the batch");
  COHORT_CHECK(element.scalar_type() == first.scalar_type() &&
                   element.dim() == static_cast<std::int64_t>(rank),
               ErrorCode::invalid_argument, "[data.padded_batch] expected ",
               dtype_name(first.scalar_type()), " of ", rank, " dimensions in field ", field,
               ", got ", TensorSpec::of(element).to_string(), " in element ", position,
               " of the batch");
}

// The sizes of a row of the batch.
Sizes room_for(const std::vector<at::Tensor>& elements, const FieldPadding& padding,
               std::size_t field) {
  const Sizes wanted = padding.sizes.value_or(Sizes(elements[0].dim(), -1));
  Sizes room = wanted;
  for (std::int64_t& size : room) size = std::max<std::int64_t>(size, 0);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    check_element(elements[i], elements[0], wanted.size(), field, i);
    for (std::size_t dim = 0; dim < wanted.size(); ++dim) {
      const std::int64_t size = elements[i].size(static_cast<std::int64_t>(dim));
      COHORT_CHECK(wanted[dim] < 0 || size <= wanted[dim], ErrorCode::data_loss,
                   "[data.padded_batch] expected elements that fit the padded shape ", show(wanted),
                   " of field ", field, ", got ", TensorSpec::of(elements[i]).to_string(),
                   " in element ", i, " of the batch; give a larger shape, or -1 for the longest");
      room[dim] = std::max(room[dim], size);
    }
  }
  return room;
}

// Row-major `sizes` into the corner of row-major `room`.
void copy_into(const std::byte* from, std::span<const std::int64_t> sizes, std::byte* to,
               std::span<const std::int64_t> room, std::size_t item_bytes) {
  const bool is_dense =
      sizes.size() < 2 || std::equal(sizes.begin() + 1, sizes.end(), room.begin() + 1);
  const auto from_bytes = static_cast<std::size_t>(product(sizes));
  if (from_bytes == 0) return;
  if (is_dense) {
    std::memcpy(to, from, from_bytes * item_bytes);
    return;
  }
  const std::size_t from_step = static_cast<std::size_t>(product(sizes.subspan(1))) * item_bytes;
  const std::size_t to_step = static_cast<std::size_t>(product(room.subspan(1))) * item_bytes;
  for (std::int64_t i = 0; i < sizes[0]; ++i, from += from_step, to += to_step) {
    copy_into(from, sizes.subspan(1), to, room.subspan(1), item_bytes);
  }
}

at::Tensor padded_numbers(const std::vector<at::Tensor>& elements, const FieldPadding& padding,
                          const Sizes& room) {
  Sizes sizes = room;
  sizes.insert(sizes.begin(), static_cast<std::int64_t>(elements.size()));
  const at::ScalarType dtype = elements[0].scalar_type();
  const at::Tensor batch = padding.value.defined() ? at::full(sizes, padding.value.item(), dtype)
                                                   : at::zeros(sizes, dtype);
  const std::size_t row_bytes = static_cast<std::size_t>(product(room)) * batch.itemsize();
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const at::Tensor element = elements[i].contiguous();
    copy_into(static_cast<const std::byte*>(element.data_ptr()),
              std::span(element.sizes().data(), element.sizes().size()),
              static_cast<std::byte*>(batch.data_ptr()) + i * row_bytes, room, batch.itemsize());
  }
  return batch;
}

// Adds a row of `room` in row-major order: values of `element`, from number `next` on, and pads.
// `is_inside`: the coordinates so far are an element's.
void add_strings(const StringTensor& element, const Sizes& sizes, const Sizes& room,
                 std::size_t dim, bool is_inside, std::string_view pad, std::int64_t& next,
                 std::vector<std::string>& values) {
  if (dim == room.size()) {
    values.emplace_back(is_inside ? element[next++] : pad);
    return;
  }
  for (std::int64_t i = 0; i < room[dim]; ++i) {
    add_strings(element, sizes, room, dim + 1, is_inside && i < sizes[dim], pad, next, values);
  }
}

at::Tensor padded_strings(const std::vector<at::Tensor>& elements, const FieldPadding& padding,
                          const Sizes& room) {
  const std::string pad =
      padding.value.defined() ? std::string(StringTensor::of(padding.value).value()) : "";
  std::vector<std::string> values;
  for (const at::Tensor& element : elements) {
    const StringTensor strings = StringTensor::of(element);
    std::int64_t next = 0;
    add_strings(strings, strings.sizes(), room, 0, true, pad, next, values);
  }
  Sizes sizes = room;
  sizes.insert(sizes.begin(), static_cast<std::int64_t>(elements.size()));
  return StringTensor(std::move(sizes), values);
}

bool is_shape(const Nest& nest) {
  return (nest.kind() == Nest::Kind::list || nest.kind() == Nest::Kind::tuple) &&
         std::all_of(nest.items().begin(), nest.items().end(),
                     [](const Nest& item) { return item.kind() == Nest::Kind::integer; });
}

// The parts of `given` that stand where `structure` has its leaves. `what` is for messages.
void collect(const Nest& structure, const Nest& given, std::string_view what,
             std::vector<Nest>& parts) {
  if (structure.is_leaf()) {
    parts.push_back(given);
    return;
  }
  const bool is_map = structure.kind() == Nest::Kind::map;
  COHORT_CHECK(given.kind() == structure.kind() &&
                   (is_map ? given.entries().size() == structure.entries().size()
                           : given.items().size() == structure.items().size()),
               ErrorCode::invalid_argument, "[data.padded_batch] expected ", what,
               " in the structure of the elements, ", structure.structure(), ", got ",
               given.structure());
  if (!is_map) {
    for (std::size_t i = 0; i < structure.items().size(); ++i) {
      collect(structure.items()[i], given.items()[i], what, parts);
    }
    return;
  }
  for (const auto& [key, inner] : structure.entries()) {
    const auto found = given.entries().find(key);
    COHORT_CHECK(found != given.entries().end(), ErrorCode::invalid_argument,
                 "[data.padded_batch] expected ", what, " for '", key, "', got none");
    collect(inner, found->second, what, parts);
  }
}

std::optional<Sizes> shape_for(const TensorSpec& field, const Nest& given, std::size_t index) {
  if (given.is_null()) return std::nullopt;
  COHORT_CHECK(is_shape(given), ErrorCode::invalid_argument,
               "[data.padded_batch] expected a list of integers in padded_shapes for field ", index,
               ", got ", given.structure());
  Sizes shape;
  for (const Nest& size : given.items()) shape.push_back(size.integer());
  COHORT_CHECK(!field.sizes || field.sizes->size() == shape.size(), ErrorCode::invalid_argument,
               "[data.padded_batch] expected a padded shape of ", field.sizes->size(),
               " dimensions for field ", index, ", ", field.to_string(), ", got ", show(shape));
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    COHORT_CHECK(shape[dim] >= -1, ErrorCode::invalid_argument,
                 "[data.padded_batch] expected sizes >= -1 in the padded shape of field ", index,
                 ", got ", show(shape));
    COHORT_CHECK(!field.sizes || shape[dim] < 0 || (*field.sizes)[dim] <= shape[dim],
                 ErrorCode::invalid_argument,
                 "[data.padded_batch] expected a padded shape that elements ", field.to_string(),
                 " of field ", index, " fit, got ", show(shape));
  }
  return shape;
}

at::Tensor value_for(const TensorSpec& field, const Nest& given, std::size_t index) {
  if (given.is_null()) return {};
  COHORT_CHECK(given.is_leaf() &&
                   (!given.is_tensor() || (given.tensor().defined() && given.tensor().dim() == 0 &&
                                           given.tensor().scalar_type() == field.dtype)),
               ErrorCode::invalid_argument, "[data.padded_batch] expected a scalar ",
               dtype_name(field.dtype), " as the padding value of field ", index, ", got ",
               given.is_tensor() ? TensorSpec::of(given.tensor()).to_string() : given.structure());
  try {
    at::Tensor value = tensor_of(given, field.dtype);
    // Unlike a generator's items, which tf narrows.
    COHORT_CHECK(given.kind() != Nest::Kind::integer || !c10::isIntegralType(field.dtype, false) ||
                     value.item().toLong() == given.integer(),
                 ErrorCode::invalid_argument,
                 "[data.padded_batch] expected a padding value that fits ", dtype_name(field.dtype),
                 ", got ", given.integer());
    return value;
  } catch (...) {
    throw current_error().during("making padded_batch, the padding value of field " +
                                 std::to_string(index));
  }
}

}  // namespace

at::Tensor padded(const std::vector<at::Tensor>& elements, const FieldPadding& padding,
                  std::size_t field) {
  const Sizes room = room_for(elements, padding, field);
  return StringTensor::is(elements[0]) ? padded_strings(elements, padding, room)
                                       : padded_numbers(elements, padding, room);
}

std::vector<FieldPadding> paddings_of(const ElementSpec& spec, const Nest& shapes,
                                      const Nest& values) {
  const std::size_t count = spec.fields.size();
  std::vector<Nest> shape_parts;
  std::vector<Nest> value_parts;
  const bool is_one_shape =
      shapes.is_null() || (shapes.kind() == Nest::Kind::list && is_shape(shapes));
  if (is_one_shape) {
    shape_parts.assign(count, shapes);
  } else {
    collect(spec.structure, shapes, "padded_shapes", shape_parts);
  }
  if (values.is_leaf()) {
    value_parts.assign(count, values);
  } else {
    collect(spec.structure, values, "padding_values", value_parts);
  }
  std::vector<FieldPadding> paddings;
  for (std::size_t i = 0; i < count; ++i) {
    const TensorSpec& field = spec.fields[i];
    COHORT_CHECK(field.sizes || !shape_parts[i].is_null(), ErrorCode::invalid_argument,
                 "[data.padded_batch] expected padded_shapes for field ", i, ", ",
                 field.to_string(), ", whose rank is not known, got none");
    paddings.push_back({.sizes = shape_for(field, shape_parts[i], i),
                        .value = value_for(field, value_parts[i], i)});
  }
  return paddings;
}

}  // namespace cohort::data
