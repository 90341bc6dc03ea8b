// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/local_tensors.h"

#include <unordered_map>
#include <utility>

#include "cohort/core/mutex.h"

namespace cohort::function {
namespace {

// Never destroyed, because static variables may be destroyed later.
struct LocalNames {
  Mutex mutex;
  // `tensor` may have got other memory since.
  struct Entry {
    std::string name;
    const c10::TensorImpl* tensor;
  };
  std::unordered_map<const void*, Entry> by_storage COHORT_GUARDED_BY(mutex);
  std::unordered_map<const c10::TensorImpl*, std::string> by_tensor COHORT_GUARDED_BY(mutex);
};
LocalNames& local_names() {
  static auto& instance = *new LocalNames();
  return instance;
}

const void* local_memory_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                  : nullptr;
}

}  // namespace

LocalTensorName::LocalTensorName(const at::Tensor& tensor, std::string name)
    : tensor_(tensor.unsafeGetTensorImpl()), storage_(local_memory_of(tensor)) {
  if (storage_ == nullptr) return;
  const Lock lock(local_names().mutex);
  local_names().by_tensor.insert_or_assign(tensor_, name);
  local_names().by_storage.insert_or_assign(storage_, LocalNames::Entry{std::move(name), tensor_});
}

LocalTensorName::~LocalTensorName() {
  const Lock lock(local_names().mutex);
  local_names().by_tensor.erase(tensor_);
  const auto found = local_names().by_storage.find(storage_);
  if (found != local_names().by_storage.end() && found->second.tensor == tensor_)
    local_names().by_storage.erase(found);
}

std::string local_name_of(const at::Tensor& tensor) {
  const void* const storage = local_memory_of(tensor);
  const Lock lock(local_names().mutex);
  const auto found = local_names().by_storage.find(storage);
  return found == local_names().by_storage.end() ? std::string() : found->second.name;
}

std::optional<LocalOwner> local_owner_of(const at::Tensor& tensor) {
  const void* const storage = local_memory_of(tensor);
  if (storage == nullptr) return std::nullopt;
  const Lock lock(local_names().mutex);
  const auto own = local_names().by_tensor.find(tensor.unsafeGetTensorImpl());
  if (own != local_names().by_tensor.end()) return LocalOwner{own->second, true};
  const auto found = local_names().by_storage.find(storage);
  if (found == local_names().by_storage.end()) return std::nullopt;
  const LocalNames::Entry& entry = found->second;
  if (entry.tensor->storage().unsafeGetStorageImpl() != storage) return std::nullopt;
  return LocalOwner{entry.name, false};
}

}  // namespace cohort::function
