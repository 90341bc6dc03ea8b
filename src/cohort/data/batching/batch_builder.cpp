// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/batching/batch_builder.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/batching/field_names.h"
#include "cohort/data/held_rows.h"

namespace cohort::data {
namespace {

// The first allocation is limited, even for a huge batch size; it grows as elements arrive.
constexpr std::int64_t kFirstBytesMax = 16 << 20;
constexpr std::int64_t kFirstElementsMax = 4096;

bool fits(const TensorSpec& row, const at::Tensor& field) {
  return field.defined() && field.is_cpu() && field.scalar_type() == row.dtype &&
         field.sizes() == at::IntArrayRef(*row.sizes);
}

// "[3, 4]".
std::string sizes_text(const TensorSpec& spec) {
  const std::string text = spec.to_string();
  return text.substr(text.find('['));
}

// Names the dtypes only if they differ. A map() of a field, as data::lookup(), runs after the batch
// although it comes before it in the pipeline, so the field may still have another dtype here.
[[noreturn]] void fail_uneven_field(const Node& node, std::size_t number, const TensorSpec& first,
                                    const at::Tensor& field, std::int64_t element) {
  const bool is_one_dtype = field.defined() && TensorSpec::of(field).dtype == first.dtype;
  const auto text = [&](const TensorSpec& spec) {
    return is_one_dtype ? sizes_text(spec) : spec.to_string();
  };
  fail_uneven(node, number, text(first), field.defined() ? text(TensorSpec::of(field)) : "nothing",
              element);
}

std::int64_t bytes_of(const std::vector<TensorSpec>& rows) {
  std::int64_t bytes = 0;
  for (const TensorSpec& row : rows) bytes += row.dtype == kString ? 0 : row.byte_count();
  return bytes;
}

}  // namespace

void BatchBuilder::begin(const Fields& element) {
  rows_.clear();
  for (std::size_t i = 0; i < element.size(); ++i) {
    COHORT_CHECK(StringTensor::is(element[i]) || (element[i].defined() && element[i].is_cpu() &&
                                                  element[i].layout() == at::kStrided),
                 ErrorCode::invalid_argument,
                 "[data.batch] expected strings or dense tensors in host memory, got ",
                 element[i].toString(), " in ", field_name(node_.structure(), i));
    rows_.push_back(TensorSpec::of(element[i]));
  }
  batch_.resize(element.size());
  strings_.resize(element.size());
}

void BatchBuilder::check(const Fields& element) const {
  COHORT_CHECK(rows_.size() == element.size(), ErrorCode::invalid_argument,
               "[data.batch] expected ", rows_.size(), " fields as in the first element, got ",
               element.size(), " in element ", size_, " of the batch");
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (!fits(rows_[i], element[i])) fail_uneven_field(node_, i, rows_[i], element[i], size_);
  }
}

void BatchBuilder::grow() {
  const std::int64_t first = std::clamp<std::int64_t>(
      kFirstBytesMax / std::max<std::int64_t>(1, bytes_of(rows_)), 1, kFirstElementsMax);
  capacity_ = std::min(count_max_, capacity_ == 0 ? first : 2 * capacity_);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].dtype == kString) continue;
    std::vector<std::int64_t> sizes = *rows_[i].sizes;
    sizes.insert(sizes.begin(), capacity_);
    at::Tensor grown = at::empty(sizes, rows_[i].dtype);
    if (size_ > 0 && batch_[i].nbytes() > 0) {
      std::memcpy(grown.data_ptr(), batch_[i].data_ptr(), batch_[i].nbytes());
    }
    batch_[i] = std::move(grown);
  }
}

void BatchBuilder::add(const Fields& element) {
  if (size_ == 0) begin(element);
  check(element);
  if (size_ == capacity_) grow();
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].dtype == kString) {
      strings_[i].push_back(element[i]);
      continue;
    }
    const at::Tensor row = element[i].contiguous();
    if (row.nbytes() == 0) continue;
    std::memcpy(static_cast<std::byte*>(batch_[i].data_ptr()) +
                    static_cast<std::size_t>(size_) * row.nbytes(),
                row.data_ptr(), row.nbytes());
  }
  ++size_;
}

Fields BatchBuilder::take() && {
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    if (rows_[i].dtype == kString) {
      batch_[i] = StringTensor::stack(strings_[i]);
    } else if (size_ < capacity_) {
      // Copies a short batch to memory of its own size, since it may be kept or sent.
      batch_[i] = batch_[i].narrow(0, 0, size_).clone();
    }
  }
  return std::move(batch_);
}

Fields concatenated(std::vector<Fields> batches, const Node& node) {
  const Fields& first = batches[0];
  for (const Fields& batch : batches) {
    for (std::size_t i = 0; i < first.size(); ++i) {
      COHORT_CHECK(
          batch.size() == first.size() && batch[i].scalar_type() == first[i].scalar_type() &&
              batch[i].sizes().slice(1) == first[i].sizes().slice(1),
          ErrorCode::invalid_argument,
          "[data.batch] expected rows of one shape: ", field_name(node.structure(), i), " was ",
          TensorSpec::of(first[i]).to_string(), ", got ", TensorSpec::of(batch[i]).to_string());
    }
  }
  return join_batches(std::move(batches));
}

void fail_uneven(const Node& node, std::size_t field, const std::string& first,
                 const std::string& other, std::int64_t element) {
  internal::throw_error(
      ErrorCode::invalid_argument, "[data.batch] expected elements of one shape: ", first, " in ",
      field_name(node.structure(), field), " as in the first element, got ", other, " in element ",
      element,
      " of the batch; use padded_batch() in place of batch(), or map() them to one shape before");
}

}  // namespace cohort::data
