// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/values.h"

#include <ATen/SparseTensorImpl.h>

#include <algorithm>

namespace cohort::function {
namespace {

// The tensor whose storage represents `tensor`; undefined for layouts without one.
at::Tensor tensor_with_storage(const at::Tensor& tensor) {
  if (tensor.layout() == c10::kSparse) {
    return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl())->values();
  }
  return tensor.has_storage() ? tensor : at::Tensor();
}

}  // namespace

Geometry Geometry::of(const at::Tensor& tensor) {
  Geometry geometry;
  geometry.sizes = tensor.sizes().vec();
  geometry.dtype = tensor.scalar_type();
  geometry.layout = tensor.layout();
  at::Tensor dense = tensor_with_storage(tensor);
  if (!dense.defined()) return geometry;
  geometry.storage = dense.storage().unsafeGetStorageImpl();
  if (geometry.layout == c10::kSparse) {
    const auto* sparse = static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    const at::Tensor indices = sparse->indices();
    geometry.offset = dense.storage_offset();
    geometry.index_storage = indices.storage().unsafeGetStorageImpl();
    geometry.index_offset = indices.storage_offset();
    geometry.value_count = sparse->nnz();
  }
  if (geometry.layout != c10::kStrided) return geometry;
  geometry.offset = tensor.storage_offset();
  geometry.strides = tensor.strides().vec();
  geometry.is_conjugated = tensor.is_conj();
  geometry.is_negated = tensor.is_neg();
  return geometry;
}

bool Geometry::is_view_of(const Geometry& other) const {
  return layout == c10::kStrided && other.layout == c10::kStrided && storage == other.storage &&
         dtype == other.dtype && is_conjugated == other.is_conjugated &&
         is_negated == other.is_negated;
}

int ValueTable::add(const at::Tensor& tensor, Origin origin) {
  int id = count();
  geometries_.push_back(Geometry::of(tensor));
  origins_.push_back(origin);
  owners_.push_back(tensor.unsafeGetTensorImpl());
  know(tensor, id);
  if (TracedMemory* const home = memory(tensor, origin)) home->values.push_back(id);
  return id;
}

int ValueTable::add_unseen() {
  geometries_.emplace_back();
  origins_.push_back(Origin::result);
  owners_.push_back(nullptr);
  return count() - 1;
}

bool ValueTable::is_result(const at::Tensor& tensor) const {
  const int id = find_same(tensor);
  return id >= 0 && origins_[static_cast<std::size_t>(id)] == Origin::result;
}

int ValueTable::find_same(const at::Tensor& tensor) const {
  auto found = tensors_.find(tensor.unsafeGetTensorImpl());
  return found == tensors_.end() ? -1 : found->second.id;
}

bool ValueTable::is_shared(const at::Tensor& tensor, int id) const {
  return owners_[static_cast<std::size_t>(id)] != tensor.unsafeGetTensorImpl();
}

int ValueTable::find(const at::Tensor& tensor) {
  Geometry wanted = Geometry::of(tensor);
  int same = find_same(tensor);
  // A number is one register: after t_ on another TensorImpl with that number, this one needs a
  // number of its own.
  if (same >= 0 && geometry(same) == wanted) return same;
  auto memory = memories_.find(wanted.storage);
  if (memory == memories_.end()) return -1;
  const std::vector<int>& values = memory->second.values;
  auto equal =
      std::find_if(values.rbegin(), values.rend(), [&](int id) { return geometry(id) == wanted; });
  if (equal == values.rend()) return -1;
  know(tensor, *equal);
  return *equal;
}

int ValueTable::find_base(const at::Tensor& tensor) const {
  Geometry wanted = Geometry::of(tensor);
  auto memory = memories_.find(wanted.storage);
  if (memory == memories_.end()) return -1;
  for (int id : memory->second.values) {
    if (wanted.is_view_of(geometry(id))) return id;
  }
  return -1;
}

void ValueTable::refresh(const at::Tensor& tensor) {
  int id = find_same(tensor);
  if (id < 0) return;
  Geometry now = Geometry::of(tensor);
  if (now == geometry(id)) return;
  geometries_[static_cast<std::size_t>(id)] = now;
  // It may have got other memory.
  TracedMemory* const home = memory(tensor, Origin::result);
  if (home == nullptr) return;
  std::vector<int>& values = home->values;
  if (std::find(values.begin(), values.end(), id) == values.end()) values.push_back(id);
}

TracedMemory* ValueTable::memory_of(const at::Tensor& tensor) {
  at::Tensor dense = tensor_with_storage(tensor);
  if (!dense.defined()) return nullptr;
  auto found = memories_.find(dense.storage().unsafeGetStorageImpl());
  return found == memories_.end() ? nullptr : &found->second;
}

std::vector<ExampleMemory> ValueTable::example_memory() const {
  std::vector<ExampleMemory> made;
  for (const auto& [storage, memory] : memories_) {
    const bool is_examples = memory.origin == Origin::argument || memory.origin == Origin::draw ||
                             memory.origin == Origin::result;
    if (is_examples && !memory.is_fixed) made.push_back({memory.storage, memory.maker});
  }
  return made;
}

std::vector<at::Tensor> ValueTable::living() const {
  std::vector<at::Tensor> living;
  for (const auto& [address, known] : tensors_) {
    if (auto tensor = known.tensor.lock(); tensor.defined()) living.emplace_back(std::move(tensor));
  }
  return living;
}

void ValueTable::know(const at::Tensor& tensor, int id) {
  Known known{
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(tensor.getIntrusivePtr()),
      id};
  tensors_.insert_or_assign(tensor.unsafeGetTensorImpl(), std::move(known));
}

TracedMemory* ValueTable::memory(const at::Tensor& tensor, Origin origin) {
  at::Tensor dense = tensor_with_storage(tensor);
  if (!dense.defined()) return nullptr;
  const c10::StorageImpl* storage = dense.storage().unsafeGetStorageImpl();
  auto found = memories_.find(storage);
  if (found == memories_.end()) {
    TracedMemory fresh{.storage = dense.storage().getWeakStorageImpl(), .origin = origin};
    found = memories_.emplace(storage, std::move(fresh)).first;
  }
  found->second.bytes = dense.storage().nbytes();
  return &found->second;
}

}  // namespace cohort::function
