// SPDX-License-Identifier: Apache-2.0
// Calls of a traced step for which there are no ATen operators, since they concern other replicas
// or variables.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cohort::internal {

class StepReplica;

// Whether a program gets this argument itself: it gets others as copies in row-major order, of
// which x.contiguous() is the copy.
inline bool is_row_major(const at::Tensor& argument) {
  return !argument.defined() || argument.layout() != at::kStrided || argument.is_contiguous();
}

// Which object a tensor of a trace is, since a value that is the same object in all replicas counts
// once. A value type.
class TensorIdentity {
 public:
  TensorIdentity(const at::Tensor& tensor, std::optional<std::size_t> argument)
      : tensor_(tensor.getIntrusivePtr()), argument_(argument) {}
  // The number of the step's argument that it is.
  std::optional<std::size_t> argument() const { return argument_; }
  // The weak pointers keep addresses from being used again, so only an object that is made outside
  // of the step is the same in the traces of two replicas, or in two passes of a trace.
  bool is_same_object(const TensorIdentity& other) const {
    return tensor_._unsafe_get_target() == other.tensor_._unsafe_get_target();
  }
  // Undefined if it no longer exists.
  at::Tensor tensor() const {
    auto alive = tensor_.lock();
    return alive ? at::Tensor(std::move(alive)) : at::Tensor();
  }

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  std::optional<std::size_t> argument_;
};

// A call, made ready for the replicas that make it together. Immutable, and thread-safe.
class JoinedCall {
 public:
  virtual ~JoinedCall() = default;
  // Makes the call in one replica, on its thread.
  virtual std::vector<at::Tensor> run(StepReplica& replica,
                                      std::vector<at::Tensor> values) const = 0;
};

// A call as the trace of one replica has recorded it. Immutable.
class StepCall {
 public:
  virtual ~StepCall() = default;
  // For the list of operators, and for messages: "all_reduce(sum)". Calls that replicas make
  // together have the same text.
  virtual std::string text() const = 0;
  // Whether all replicas must make this call; otherwise it concerns one replica alone.
  virtual bool is_of_all() const { return true; }
  // `all`: this call of each replica, in their order; of one replica alone: the call itself. Throws
  // where the replicas' values cannot be combined.
  virtual std::unique_ptr<const JoinedCall> join(const std::vector<const StepCall*>& all) const = 0;

  // Whether it takes a sparse gradient in place of this value, and does the same.
  virtual bool takes_rows(std::size_t /*value*/) const { return false; }

  // For several workers: the text that must be the same on all of them.
  virtual std::string text_over_workers() const { return text(); }
  // A number that is summed over all replicas, and join() with the sum over the other workers.
  virtual std::int64_t count() const { return 0; }
  virtual std::unique_ptr<const JoinedCall> join_over_workers(
      const std::vector<const StepCall*>& all, std::int64_t /*of_others*/) const {
    return join(all);
  }
};

}  // namespace cohort::internal
