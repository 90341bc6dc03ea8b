// SPDX-License-Identifier: Apache-2.0
// The numbers of a trace's tensors: which value of the program a tensor is.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/function/tracer/content_hash.h"
#include "cohort/function/tracer/memory.h"

namespace cohort::function {

// Where the memory of a tensor comes from.
enum class Origin : std::uint8_t {
  argument,
  captured_input,
  draw,
  variable,
  constant,
  result,
  old_gradient  // a gradient that an earlier call left in .grad
};

// Distinguishes the tensors of one memory. A value type.
struct Geometry {
  const c10::StorageImpl* storage = nullptr;
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Layout layout = c10::kStrided;
  bool is_conjugated = false;
  bool is_negated = false;
  // For a sparse tensor: where its indices are, and how many values it has.
  const c10::StorageImpl* index_storage = nullptr;
  std::int64_t index_offset = 0;
  std::int64_t value_count = 0;

  // For a strided or sparse COO tensor (whose memory is that of its values); other layouts have no
  // storage.
  static Geometry of(const at::Tensor& tensor);
  // Whether as_strided can make this one from `other`.
  bool is_view_of(const Geometry& other) const;
  bool operator==(const Geometry&) const = default;
};

// One storage that the trace has seen. A value type.
struct TracedMemory {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  Origin origin = Origin::result;
  // The program's variable, where origin is variable.
  int variable = -1;
  // The value of the factory op (empty, zeros, …) that made it, while no recorded op has written
  // there; else -1.
  int factory_value = -1;
  // The op that made it, where origin is result; the variable's name, where it is old_gradient.
  std::string maker = {};
  // The content that the recorded ops, or the code that made the memory, left there; LibTorch's
  // version counter of the first tensor that was seen, and its value at that time.
  ContentHash content = {};
  c10::VariableVersion version = {};
  std::uint32_t version_seen = 0;
  // Its size after the last recorded op.
  std::size_t bytes = 0;
  // A recorded op has written in place.
  bool is_written = false;
  // The content is the same in every run, because it is made of constants alone.
  bool is_fixed = false;
  // Part of a sparse tensor whose number of values differs between runs.
  bool has_size_of_data = false;
  // The values in this memory, oldest first.
  std::vector<int> values = {};
};

// Recognises tensors by their TensorImpl and their StorageImpl. It holds these weakly, so that
// addresses are not used again, and reference counts are as without a trace (autograd reuses a
// gradient that has no other owner). Thread-compatible.
class ValueTable {
 public:
  int count() const { return static_cast<int>(geometries_.size()); }
  // Gives `tensor` the next number. `origin` is also that of its memory if that is new.
  int add(const at::Tensor& tensor, Origin origin);
  // Uses the next number for a value that is no tensor of the body.
  int add_unseen();
  // Adds the memory of `tensor`, whose content is already a value of the program.
  void add_copy(const at::Tensor& tensor, Origin origin) { memory(tensor, origin); }
  // The number of exactly this TensorImpl, even if its geometry has changed; -1 when it was never
  // seen.
  int find_same(const at::Tensor& tensor) const;
  // The number of the value that `tensor` reads: itself, or one with equal memory and geometry
  // (autograd unpacks saved tensors into new TensorImpls; data() and detach() copy shallowly). -1
  // when there is none.
  int find(const at::Tensor& tensor);
  // A value from which as_strided makes `tensor`; -1 when there is none.
  int find_base(const at::Tensor& tensor) const;
  // Whether `tensor` reads the value `id` of another tensor, to which that number was given: a
  // change of its shape in place would change that tensor too.
  bool is_shared(const at::Tensor& tensor, int id) const;
  // An op may have changed the geometry of `tensor` in place (t_, squeeze_, out=).
  void refresh(const at::Tensor& tensor);
  // nullptr where the trace has not seen the memory.
  TracedMemory* memory_of(const at::Tensor& tensor);
  const Geometry& geometry(int id) const { return geometries_[static_cast<std::size_t>(id)]; }
  // The memory of arguments, draws and results whose content differs between runs.
  std::vector<ExampleMemory> example_memory() const;
  // The tensors that still exist.
  std::vector<at::Tensor> living() const;
  // Whether an op of the trace made this TensorImpl, whatever memory it has.
  bool is_result(const at::Tensor& tensor) const;

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    int id;
  };
  void know(const at::Tensor& tensor, int id);
  TracedMemory* memory(const at::Tensor& tensor, Origin origin);

  std::vector<Geometry> geometries_;
  std::vector<Origin> origins_;  // of the tensors themselves
  // The tensor to which a number was given; nullptr for a value that is no tensor of the body.
  std::vector<const c10::TensorImpl*> owners_;
  std::unordered_map<const c10::TensorImpl*, Known> tensors_;
  std::unordered_map<const c10::StorageImpl*, TracedMemory> memories_;
};

}  // namespace cohort::function
