// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/internal/batch_builder.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::data {
namespace {

// Allocated at once; more only as elements come, whatever batch size was asked for.
constexpr std::int64_t kFirstBytesMax = 16 << 20;
constexpr std::int64_t kFirstElementsMax = 4096;

TensorSpec row_spec(const at::Tensor& batch) {
  return {batch.scalar_type(), batch.sizes().slice(1).vec()};
}

bool fits(const at::Tensor& batch, const at::Tensor& row) {
  return row.is_cpu() && row.scalar_type() == batch.scalar_type() &&
         row.sizes() == batch.sizes().slice(1);
}

std::int64_t bytes_of(const Fields& fields) {
  std::int64_t bytes = 0;
  for (const at::Tensor& field : fields) bytes += static_cast<std::int64_t>(field.nbytes());
  return bytes;
}

}  // namespace

void BatchBuilder::grow(const Fields& element) {
  for (std::size_t i = 0; i < element.size(); ++i) {
    COHORT_CHECK(element[i].defined() && element[i].is_cpu() && element[i].layout() == at::kStrided,
                 ErrorCode::invalid_argument,
                 "[data.batch] expected dense tensors in host memory, got ", element[i].toString(),
                 " in field ", i);
  }
  const std::int64_t first = std::clamp<std::int64_t>(
      kFirstBytesMax / std::max<std::int64_t>(1, bytes_of(element)), 1, kFirstElementsMax);
  capacity_ = std::min(count_max_, capacity_ == 0 ? first : 2 * capacity_);
  Fields grown;
  for (std::size_t i = 0; i < element.size(); ++i) {
    std::vector<std::int64_t> sizes = element[i].sizes().vec();
    sizes.insert(sizes.begin(), capacity_);
    grown.push_back(at::empty(sizes, element[i].scalar_type()));
    if (size_ > 0 && batch_[i].nbytes() > 0) {
      std::memcpy(grown[i].data_ptr(), batch_[i].data_ptr(), batch_[i].nbytes());
    }
  }
  batch_ = std::move(grown);
}

void BatchBuilder::add(const Fields& element) {
  COHORT_CHECK(batch_.empty() || batch_.size() == element.size(), ErrorCode::invalid_argument,
               "[data.batch] expected ", batch_.size(), " fields as in the first element, got ",
               element.size(), " in element ", size_, " of the batch");
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    COHORT_CHECK(fits(batch_[i], element[i]), ErrorCode::invalid_argument,
                 "[data.batch] expected elements of one shape: field ", i, " of the first is ",
                 row_spec(batch_[i]).to_string(), ", got ", TensorSpec::of(element[i]).to_string(),
                 " in element ", size_, " of the batch; map() them to one shape before batch()");
  }
  if (size_ == capacity_) grow(element);
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    const at::Tensor row = element[i].contiguous();
    if (row.nbytes() == 0) continue;
    std::memcpy(static_cast<std::byte*>(batch_[i].data_ptr()) +
                    static_cast<std::size_t>(size_) * row.nbytes(),
                row.data_ptr(), row.nbytes());
  }
  ++size_;
}

Fields BatchBuilder::take() && {
  for (at::Tensor& field : batch_) {
    // A short batch gets memory of its own size: it may be kept or sent.
    if (size_ < capacity_) field = field.narrow(0, 0, size_).clone();
  }
  return std::move(batch_);
}

Fields concatenated(std::vector<Fields> batches) {
  if (batches.size() == 1) return std::move(batches[0]);
  Fields all;
  for (std::size_t i = 0; i < batches[0].size(); ++i) {
    std::vector<at::Tensor> parts;
    for (const Fields& batch : batches) {
      COHORT_CHECK(batch.size() == batches[0].size() &&
                       batch[i].scalar_type() == batches[0][i].scalar_type() &&
                       batch[i].sizes().slice(1) == batches[0][i].sizes().slice(1),
                   ErrorCode::invalid_argument, "[data.batch] expected rows of one shape: field ",
                   i, " was ", TensorSpec::of(batches[0][i]).to_string(), ", got ",
                   TensorSpec::of(batch[i]).to_string());
      parts.push_back(batch[i]);
    }
    if (StringTensor::is(parts[0])) {
      all.push_back(StringTensor::concatenate(parts));
    } else {
      all.push_back(at::cat(parts));
    }
  }
  return all;
}

}  // namespace cohort::data
