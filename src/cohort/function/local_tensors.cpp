// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/detail/local_tensors.h"

#include <unordered_map>
#include <utility>

#include "cohort/core/detail/mutex.h"

namespace cohort::function {
namespace {

// Never destroyed, because static variables may be destroyed later.
struct LocalNames {
  Mutex mutex;
  std::unordered_map<const void*, std::string> by_storage COHORT_GUARDED_BY(mutex);
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
    : storage_(local_memory_of(tensor)) {
  if (storage_ == nullptr) return;
  const Lock lock(local_names().mutex);
  local_names().by_storage.insert_or_assign(storage_, std::move(name));
}

LocalTensorName::~LocalTensorName() {
  const Lock lock(local_names().mutex);
  local_names().by_storage.erase(storage_);
}

std::string local_name_of(const at::Tensor& tensor) {
  const void* const storage = local_memory_of(tensor);
  const Lock lock(local_names().mutex);
  const auto found = local_names().by_storage.find(storage);
  return found == local_names().by_storage.end() ? std::string() : found->second;
}

}  // namespace cohort::function
