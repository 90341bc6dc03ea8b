// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/batching/padding.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/batching/field_names.h"
#include "cohort/data/functions/nest_to_tensor.h"

namespace cohort::data {
namespace {

using Sizes = std::vector<std::int64_t>;

void check_element(const at::Tensor& element, const at::Tensor& first, std::size_t rank,
                   const std::string& field, std::size_t position) {
  COHORT_CHECK(StringTensor::is(element) ||
                   (element.defined() && element.is_cpu() && element.layout() == at::kStrided),
               ErrorCode::invalid_argument,
               "[data.padded_batch] expected strings or dense tensors in host memory, got ",
               element.toString(), " in ", field, " of element ", position, " of the batch");
  COHORT_CHECK(element.scalar_type() == first.scalar_type() &&
                   element.dim() == static_cast<std::int64_t>(rank),
               ErrorCode::invalid_argument, "[data.padded_batch] expected ",
               dtype_name(first.scalar_type()), " of ", rank, " dimensions in ", field, ", got ",
               TensorSpec::of(element).to_string(), " in element ", position, " of the batch");
}

// The padded sizes of an element of the batch.
Sizes room_for(const std::vector<at::Tensor>& elements, const FieldPadding& padding,
               const std::string& field) {
  const Sizes wanted = padding.sizes.value_or(Sizes(elements[0].dim(), -1));
  Sizes room = wanted;
  for (std::int64_t& size : room) size = std::max<std::int64_t>(size, 0);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    check_element(elements[i], elements[0], wanted.size(), field, i);
    for (std::size_t dim = 0; dim < wanted.size(); ++dim) {
      const std::int64_t size = elements[i].size(static_cast<std::int64_t>(dim));
      COHORT_CHECK(wanted[dim] < 0 || size <= wanted[dim], ErrorCode::data_loss,
                   "[data.padded_batch] expected elements that fit the padded shape ",
                   at::IntArrayRef(wanted), " of ", field, ", got ",
                   TensorSpec::of(elements[i]).to_string(), " in element ", i,
                   " of the batch: ", size, " in dimension ", dim, ", where at most ", wanted[dim],
                   " fit; cut the elements, give a larger shape, or -1 for the "
                   "longest of each batch");
      room[dim] = std::max(room[dim], size);
    }
  }
  return room;
}

// Copies a row-major array of `sizes` into the first corner of a row-major array of `room`.
void copy_into(const std::byte* from, std::span<const std::int64_t> sizes, std::byte* to,
               std::span<const std::int64_t> room, std::size_t item_bytes) {
  const bool is_dense =
      sizes.size() < 2 || std::equal(sizes.begin() + 1, sizes.end(), room.begin() + 1);
  const auto from_bytes = static_cast<std::size_t>(c10::multiply_integers(sizes));
  if (from_bytes == 0) return;
  if (is_dense) {
    std::memcpy(to, from, from_bytes * item_bytes);
    return;
  }
  const std::size_t from_step =
      static_cast<std::size_t>(c10::multiply_integers(sizes.subspan(1))) * item_bytes;
  const std::size_t to_step =
      static_cast<std::size_t>(c10::multiply_integers(room.subspan(1))) * item_bytes;
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
  const std::size_t row_bytes =
      static_cast<std::size_t>(c10::multiply_integers(room)) * batch.itemsize();
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const at::Tensor element = elements[i].contiguous();
    copy_into(static_cast<const std::byte*>(element.data_ptr()),
              std::span(element.sizes().data(), element.sizes().size()),
              static_cast<std::byte*>(batch.data_ptr()) + i * row_bytes, room, batch.itemsize());
  }
  return batch;
}

// Appends the values of the padded element, from dimension `dim` on, in row-major order: values of
// `element`, from number `next` on, and `pad`. `is_inside`: the outer coordinates are within the
// element.
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

bool is_sequence(const Nest& nest) {
  return nest.kind() == Nest::Kind::list || nest.kind() == Nest::Kind::tuple;
}

// A vector of integers, or a list of integers and nulls (tf takes None for -1).
bool is_shape(const Nest& nest) {
  if (nest.is_tensor()) {
    const at::Tensor& sizes = nest.tensor();
    return sizes.defined() && sizes.dim() == 1 && c10::isIntegralType(sizes.scalar_type(), false);
  }
  return is_sequence(nest) && std::ranges::all_of(nest.items(), [](const Nest& item) {
           return item.kind() == Nest::Kind::integer || item.is_null();
         });
}

Sizes sizes_of(const Nest& shape) {
  if (shape.is_tensor()) {
    const at::Tensor sizes = shape.tensor().to(at::kLong).contiguous();
    return {sizes.data_ptr<std::int64_t>(), sizes.data_ptr<std::int64_t>() + sizes.numel()};
  }
  Sizes sizes;
  for (const Nest& item : shape.items()) sizes.push_back(item.is_null() ? -1 : item.integer());
  return sizes;
}

// A sequence of nulls that matches the sequence `structure`: this is no shape, but one null for
// each item.
bool is_nulls_for(const Nest& structure, const Nest& given) {
  return is_sequence(structure) && is_sequence(given) && !given.items().empty() &&
         given.items().size() == structure.items().size() &&
         std::ranges::all_of(given.items(), [](const Nest& item) { return item.is_null(); });
}

// Assigns the parts of an argument to the fields, that is, to the leaves of the structure. Used
// only by paddings_of().
class Given {
 public:
  // `argument` is the argument's name; is_part() tells whether a nest is the value for one field.
  Given(std::string_view argument, bool (*is_part)(const Nest& nest))
      : argument_(argument), is_part_(is_part) {}

  // Returns one part per field. A part, or a null, at an inner node of the structure is for all
  // fields below it.
  std::vector<Nest> for_fields(const Nest& structure, const Nest& given) {
    parts_.clear();
    collect(structure, given, "");
    return std::move(parts_);
  }

 private:
  void collect(const Nest& structure, const Nest& given, const std::string& path) {
    const bool is_for_all = given.is_null() || (is_part_(given) && !is_nulls_for(structure, given));
    if (structure.is_leaf() || is_for_all) {
      parts_.resize(parts_.size() + structure.flatten().size(), given);
      return;
    }
    if (structure.kind() == Nest::Kind::map) return collect_entries(structure, given, path);
    check(is_sequence(given) && given.items().size() == structure.items().size(), structure, given,
          path);
    for (std::size_t i = 0; i < structure.items().size(); ++i) {
      collect(structure.items()[i], given.items()[i], path + "[" + std::to_string(i) + "]");
    }
  }

  void collect_entries(const Nest& structure, const Nest& given, const std::string& path) {
    check(given.kind() == Nest::Kind::map, structure, given, path);
    for (const auto& [key, part] : given.entries()) {
      COHORT_CHECK(structure.entries().contains(key), ErrorCode::invalid_argument,
                   "[data.padded_batch] expected ", argument_,
                   " in the structure of the elements, ", structure.structure(), at(path),
                   ", got one for '", key, "'");
    }
    for (const auto& [key, inner] : structure.entries()) {
      const auto found = given.entries().find(key);
      COHORT_CHECK(found != given.entries().end(), ErrorCode::invalid_argument,
                   "[data.padded_batch] expected ", argument_, " for '", key, "'", at(path),
                   ", got none; give it one, null for the default");
      collect(inner, found->second, path + "['" + key + "']");
    }
  }

  void check(bool is_alike, const Nest& structure, const Nest& given,
             const std::string& path) const {
    COHORT_CHECK(is_alike, ErrorCode::invalid_argument, "[data.padded_batch] expected ", argument_,
                 " in the structure of the elements, ", structure.structure(), at(path), ", got ",
                 given.structure());
  }

  static std::string at(const std::string& path) { return path.empty() ? "" : " at " + path; }

  std::string_view argument_;
  bool (*is_part_)(const Nest& nest);
  std::vector<Nest> parts_;
};

std::optional<Sizes> shape_for(const TensorSpec& field, const Nest& given,
                               const std::string& name) {
  if (given.is_null()) return std::nullopt;
  COHORT_CHECK(is_shape(given), ErrorCode::invalid_argument,
               "[data.padded_batch] expected a list of integers in padded_shapes for ", name,
               ", got ", given.structure());
  Sizes shape = sizes_of(given);
  COHORT_CHECK(!field.sizes || field.sizes->size() == shape.size(), ErrorCode::invalid_argument,
               "[data.padded_batch] expected a padded shape of ", field.sizes->size(),
               " dimensions for ", name, ", ", field.to_string(), ", got ", at::IntArrayRef(shape));
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    COHORT_CHECK(shape[dim] >= -1, ErrorCode::invalid_argument,
                 "[data.padded_batch] expected sizes >= -1 in the padded shape of ", name, ", got ",
                 at::IntArrayRef(shape));
    COHORT_CHECK(!field.sizes || shape[dim] < 0 || (*field.sizes)[dim] <= shape[dim],
                 ErrorCode::invalid_argument,
                 "[data.padded_batch] expected a padded shape that elements ", field.to_string(),
                 " of ", name, " fit, got ", at::IntArrayRef(shape));
  }
  return shape;
}

// Whether a padding value can be for this field: a host value, or a scalar of the field's dtype.
bool is_value_for(const TensorSpec& field, const Nest& given) {
  if (!given.is_leaf() || given.kind() == Nest::Kind::handle) return false;
  if (!given.is_tensor()) return true;
  const at::Tensor& value = given.tensor();
  return value.defined() && value.dim() == 0 && value.scalar_type() == field.dtype;
}

at::Tensor value_for(const TensorSpec& field, const Nest& given, const std::string& name) {
  if (given.is_null()) return {};
  COHORT_CHECK(is_value_for(field, given), ErrorCode::invalid_argument,
               "[data.padded_batch] expected a scalar ", dtype_name(field.dtype),
               " as the padding value of ", name, ", got ",
               given.is_tensor() ? TensorSpec::of(given.tensor()).to_string() : given.structure());
  try {
    at::Tensor value = tensor_of(given, field.dtype);
    // Integers must fit, unlike a generator's items, which tf truncates.
    COHORT_CHECK(given.kind() != Nest::Kind::integer || !c10::isIntegralType(field.dtype, false) ||
                     value.item().toLong() == given.integer(),
                 ErrorCode::invalid_argument,
                 "[data.padded_batch] expected a padding value that fits ", dtype_name(field.dtype),
                 ", got ", given.integer());
    return value;
  } catch (...) {
    throw current_error().during("making padded_batch, the padding value of " + name);
  }
}

}  // namespace

at::Tensor padded(const std::vector<at::Tensor>& elements, const FieldPadding& padding,
                  const std::string& field) {
  const Sizes room = room_for(elements, padding, field);
  return StringTensor::is(elements[0]) ? padded_strings(elements, padding, room)
                                       : padded_numbers(elements, padding, room);
}

std::vector<FieldPadding> paddings_of(const ElementSpec& spec, const Nest& shapes,
                                      const Nest& values) {
  const std::vector<std::string> names = field_names(spec.structure);
  const std::vector<Nest> shape_parts =
      Given("padded_shapes", is_shape).for_fields(spec.structure, shapes);
  const std::vector<Nest> value_parts = Given("padding_values", [](const Nest& nest) {
                                          return nest.is_leaf();
                                        }).for_fields(spec.structure, values);
  std::vector<FieldPadding> paddings;
  for (std::size_t i = 0; i < spec.fields.size(); ++i) {
    const TensorSpec& field = spec.fields[i];
    COHORT_CHECK(field.sizes || !shape_parts[i].is_null(), ErrorCode::invalid_argument,
                 "[data.padded_batch] expected padded_shapes for ", names[i], ", ",
                 field.to_string(), ", whose rank is not known, got none");
    paddings.push_back({.sizes = shape_for(field, shape_parts[i], names[i]),
                        .value = value_for(field, value_parts[i], names[i])});
  }
  return paddings;
}

}  // namespace cohort::data
