// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/frozen_tensor.h"

#include "cohort/function/tracer/content_hash.h"

namespace cohort::function {
namespace {

bool has_version(const at::Tensor& tensor) { return !tensor.is_inference(); }

}  // namespace

FrozenTensor::FrozenTensor(const at::Tensor& tensor)
    : tensor_(tensor.getIntrusivePtr()),
      storage_(tensor.storage().getWeakStorageImpl()),
      dtype_(tensor.scalar_type()),
      sizes_(tensor.sizes().vec()),
      strides_(tensor.strides().vec()),
      offset_(tensor.storage_offset()) {
  const ByteRange range = range_of(tensor);
  begin_ = range.begin;
  end_ = range.end;
  if (has_version(tensor))
    version_ = tensor.unsafeGetTensorImpl()->version_counter().current_version();
  hash_ = hash(*tensor.storage().unsafeGetStorageImpl());
}

at::Tensor FrozenTensor::tensor() const {
  auto alive = tensor_.lock();
  return alive ? at::Tensor(std::move(alive)) : at::Tensor();
}

std::uint64_t FrozenTensor::hash(const c10::StorageImpl& storage) const {
  const auto* data = static_cast<const std::byte*>(storage.data());
  if (data == nullptr || end_ > storage.nbytes()) return 0;
  return hash_of({data + begin_, end_ - begin_});
}

// set_data() gives a tensor other memory, and neither it nor resize_() counts as a write.
bool FrozenTensor::has_same_place(const at::Tensor& tensor, const c10::StorageImpl* storage) const {
  return tensor.storage().unsafeGetStorageImpl() == storage && tensor.scalar_type() == dtype_ &&
         tensor.sizes() == sizes_ && tensor.strides() == strides_ &&
         tensor.storage_offset() == offset_;
}

bool FrozenTensor::is_alive() const { return tensor_.use_count() > 0 || storage_.use_count() > 0; }

bool FrozenTensor::is_current() const {
  const auto storage = storage_.lock();
  if (!storage) return false;
  const at::Tensor alive = tensor();
  if (alive.defined() && !has_same_place(alive, storage.get())) return false;
  const bool has_count = alive.defined() && has_version(alive);
  if (has_count && alive.unsafeGetTensorImpl()->version_counter().current_version() != version_)
    return false;
  // Writes to data() and through pointers are not counted.
  return hash(*storage) == hash_;
}

}  // namespace cohort::function
