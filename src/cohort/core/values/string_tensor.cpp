// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/string_tensor.h"

#include <ATen/OpaqueTensorImpl.h>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"

namespace cohort {

struct StringTensor::Storage {
  std::string bytes;
  std::vector<std::uint64_t> ends;  // where each value ends in `bytes`

  std::string_view value(std::size_t i) const {
    const std::uint64_t begin = i == 0 ? 0 : ends[i - 1];
    return std::string_view(bytes).substr(begin, ends[i] - begin);
  }
  void add(std::string_view value) {
    bytes += value;
    ends.push_back(bytes.size());
  }
  void add_all(const Storage& other) {
    for (std::size_t i = 0; i < other.ends.size(); ++i) add(other.value(i));
  }
};

namespace {

std::int64_t count_of(std::span<const std::int64_t> sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    COHORT_CHECK(
        size >= 0 && !__builtin_mul_overflow(count, size, &count), ErrorCode::invalid_argument,
        "[core.string_tensor] expected sizes of at least 0 whose product fits 63 bits, got ",
        c10::IntArrayRef(sizes.data(), sizes.size()));
  }
  return count;
}

}  // namespace

// An opaque tensor without dtype: LibTorch carries it and computes nothing with it.
at::Tensor StringTensor::make(std::vector<std::int64_t> sizes,
                              std::shared_ptr<const Storage> storage) {
  using Impl = at::OpaqueTensorImpl<std::shared_ptr<const Storage>>;
  return at::detail::make_tensor<Impl>(c10::DispatchKeySet(), caffe2::TypeMeta(),
                                       c10::Device(c10::DeviceType::CPU), std::move(storage),
                                       c10::IntArrayRef(sizes));
}

const StringTensor::Storage* StringTensor::find(const at::Tensor& tensor) {
  using Impl = at::OpaqueTensorImpl<std::shared_ptr<const Storage>>;
  if (!tensor.defined() || tensor.scalar_type() != kString) return nullptr;
  auto* impl = dynamic_cast<Impl*>(tensor.unsafeGetTensorImpl());
  return impl == nullptr ? nullptr : impl->unsafe_opaque_handle().get();
}

void StringTensor::attach(std::vector<std::int64_t> sizes, std::shared_ptr<const Storage> storage) {
  const std::int64_t count = count_of(sizes);
  COHORT_CHECK(count == static_cast<std::int64_t>(storage->ends.size()),
               ErrorCode::invalid_argument, "[core.string_tensor] expected ", count,
               " values for the sizes, got ", storage->ends.size());
  storage_ = storage.get();
  tensor_ = make(std::move(sizes), std::move(storage));
}

StringTensor::StringTensor(std::string value) {
  const std::uint64_t size = value.size();
  attach({}, std::make_shared<Storage>(Storage{std::move(value), {size}}));
}

StringTensor::StringTensor(std::vector<std::int64_t> sizes, std::span<const std::string> values) {
  auto storage = std::make_shared<Storage>();
  for (const std::string& value : values) storage->add(value);
  attach(std::move(sizes), std::move(storage));
}

StringTensor::StringTensor(std::vector<std::int64_t> sizes,
                           std::initializer_list<std::string> values)
    : StringTensor(std::move(sizes), std::span(values.begin(), values.size())) {}

StringTensor::StringTensor(std::span<const std::string> values)
    : StringTensor({static_cast<std::int64_t>(values.size())}, values) {}

StringTensor::StringTensor(std::vector<std::int64_t> sizes, std::string bytes,
                           std::vector<std::uint64_t> ends) {
  std::uint64_t last = 0;
  for (const std::uint64_t end : ends) {
    COHORT_CHECK(end >= last && end <= bytes.size(), ErrorCode::invalid_argument,
                 "[core.string_tensor] expected ascending ends of at most ", bytes.size(), ", got ",
                 end);
    last = end;
  }
  attach(std::move(sizes), std::make_shared<Storage>(Storage{std::move(bytes), std::move(ends)}));
}

bool StringTensor::is(const at::Tensor& tensor) { return find(tensor) != nullptr; }

StringTensor StringTensor::of(const at::Tensor& tensor) {
  const Storage* storage = find(tensor);
  COHORT_CHECK(storage != nullptr, ErrorCode::invalid_argument,
               "[core.string_tensor] expected strings, got ",
               tensor.defined() ? TensorSpec::of(tensor).to_string() : "an undefined tensor");
  return StringTensor(tensor, *storage);
}

std::string_view StringTensor::operator[](std::int64_t i) const {
  COHORT_CHECK(i >= 0 && i < numel(), ErrorCode::invalid_argument,
               "[core.string_tensor] expected an index below ", numel(), ", got ", i);
  return storage_->value(static_cast<std::size_t>(i));
}

std::string_view StringTensor::value() const {
  COHORT_CHECK(numel() == 1, ErrorCode::invalid_argument,
               "[core.string_tensor] expected one string, got ", numel());
  return storage_->value(0);
}

std::vector<std::string> StringTensor::values() const {
  std::vector<std::string> values;
  for (std::size_t i = 0; i < storage_->ends.size(); ++i) values.emplace_back(storage_->value(i));
  return values;
}

std::size_t StringTensor::byte_count() const {
  return storage_->bytes.size() + storage_->ends.size() * sizeof(std::uint64_t);
}

StringTensor StringTensor::slice(std::int64_t begin, std::int64_t end) const {
  COHORT_CHECK(dim() >= 1 && begin >= 0 && begin <= end && end <= tensor_.size(0),
               ErrorCode::invalid_argument, "[core.string_tensor] expected rows within ",
               TensorSpec::of(tensor_).to_string(), ", got [", begin, ", ", end, ")");
  std::vector<std::int64_t> cut = sizes();
  cut.front() = 1;
  const std::int64_t width = count_of(cut);
  Storage rows;
  for (std::int64_t i = begin * width; i < end * width; ++i) rows.add((*this)[i]);
  cut.front() = end - begin;
  return {std::move(cut), std::move(rows.bytes), std::move(rows.ends)};
}

StringTensor StringTensor::row(std::int64_t index) const {
  const StringTensor one = slice(index, index + 1);
  std::vector<std::int64_t> row_sizes = one.sizes();
  row_sizes.erase(row_sizes.begin());
  return one.reshaped(std::move(row_sizes));
}

StringTensor StringTensor::reshaped(std::vector<std::int64_t> sizes) const {
  return {std::move(sizes), storage_->bytes, storage_->ends};
}

StringTensor StringTensor::stack(std::span<const at::Tensor> rows) {
  COHORT_CHECK(!rows.empty(), ErrorCode::invalid_argument,
               "[core.string_tensor] expected at least one tensor to stack, got none");
  Storage all;
  for (const at::Tensor& row : rows) {
    COHORT_CHECK(row.sizes() == rows[0].sizes(), ErrorCode::invalid_argument,
                 "[core.string_tensor] expected tensors of one shape, got ",
                 TensorSpec::of(rows[0]).to_string(), " and ", TensorSpec::of(row).to_string());
    all.add_all(*of(row).storage_);
  }
  std::vector<std::int64_t> sizes = rows[0].sizes().vec();
  sizes.insert(sizes.begin(), static_cast<std::int64_t>(rows.size()));
  return {std::move(sizes), std::move(all.bytes), std::move(all.ends)};
}

StringTensor StringTensor::concatenate(std::span<const at::Tensor> parts) {
  COHORT_CHECK(!parts.empty(), ErrorCode::invalid_argument,
               "[core.string_tensor] expected at least one tensor to concatenate, got none");
  Storage all;
  std::vector<std::int64_t> sizes = parts[0].sizes().vec();
  COHORT_CHECK(!sizes.empty(), ErrorCode::invalid_argument,
               "[core.string_tensor] expected tensors of at least one dimension, got a scalar");
  sizes[0] = 0;
  for (const at::Tensor& part : parts) {
    COHORT_CHECK(part.dim() >= 1 && part.sizes().slice(1) == parts[0].sizes().slice(1),
                 ErrorCode::invalid_argument,
                 "[core.string_tensor] expected rows of one shape, got ",
                 TensorSpec::of(parts[0]).to_string(), " and ", TensorSpec::of(part).to_string());
    all.add_all(*of(part).storage_);
    sizes[0] += part.size(0);
  }
  return {std::move(sizes), std::move(all.bytes), std::move(all.ends)};
}

bool StringTensor::operator==(const StringTensor& other) const {
  return tensor_.sizes() == other.tensor_.sizes() && storage_->bytes == other.storage_->bytes &&
         storage_->ends == other.storage_->ends;
}

std::size_t byte_count(const at::Tensor& tensor) {
  return StringTensor::is(tensor) ? StringTensor::of(tensor).byte_count() : tensor.nbytes();
}

}  // namespace cohort
