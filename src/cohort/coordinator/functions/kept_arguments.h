// SPDX-License-Identifier: Apache-2.0
// Keeps the values that a closure's arguments have when it is scheduled, whatever their owner
// writes to them before the closure runs or is retried.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace cohort::coordinator::internal {

// Tensors for the small arguments of calls with one signature. A tensor is reused when nobody else
// holds it any longer; a message holds it until it was sent. Used only under its owner's lock.
class ArgumentTensors {
 public:
  // `examples` are the arguments of one such call.
  explicit ArgumentTensors(const std::vector<at::Tensor>& examples);
  std::size_t count() const { return arguments_.size(); }
  std::size_t nbytes(std::size_t argument) const { return arguments_[argument].nbytes; }
  // A contiguous tensor with these values, which are nbytes() long.
  at::Tensor tensor_with(std::size_t argument, std::span<const std::byte> values);

 private:
  struct Argument {
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype = at::kFloat;
    std::size_t nbytes = 0;
    // A ring; `oldest` is the index of the tensor that was used longest ago.
    std::vector<at::Tensor> tensors;
    std::size_t oldest = 0;
  };
  std::vector<Argument> arguments_;
};

// The arguments of one closure. Small ones are kept as bytes, since everything else is the same in
// every call with its signature. A tensor for each would cost three allocations, made on a caller's
// thread and freed on a channel's.
class KeptArguments {
 public:
  // Takes the values of `arguments`, which are dense CPU tensors and must not be used afterwards. A
  // tensor is not copied if LibTorch owns its memory and nobody but the caller, which holds
  // `handles` references, can write to it.
  void keep(std::vector<at::Tensor>& arguments, std::size_t handles);
  // Takes `arguments` without a copy, since nobody writes to them any more.
  void share(std::vector<at::Tensor> arguments) { others_ = std::move(arguments); }
  // The memory that keep() has kept; nothing for those of share(), which others have too.
  std::size_t nbytes() const { return kept_bytes_; }
  // All arguments in their order.
  std::vector<at::Tensor> restored(ArgumentTensors& tensors) const;

 private:
  c10::SmallVector<std::byte, 64> bytes_;  // of the small ones
  // The others at their positions; undefined for small ones. Empty if all are small.
  std::vector<at::Tensor> others_;
  std::size_t kept_bytes_ = 0;
};

}  // namespace cohort::coordinator::internal
