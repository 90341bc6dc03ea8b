// SPDX-License-Identifier: Apache-2.0
// A closure computes with the values that its arguments have when it is scheduled, whatever their
// owner writes there while it waits, or is retried.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace cohort::coordinator::internal {

// Tensors for the small arguments of calls that have one signature. Each is used again when nobody
// else holds it any longer, as a message does until it was sent. Used only under its owner's lock.
class ArgumentTensors {
 public:
  // `examples`: the arguments of such a call.
  explicit ArgumentTensors(const std::vector<at::Tensor>& examples);
  std::size_t count() const { return arguments_.size(); }
  std::size_t nbytes(std::size_t argument) const { return arguments_[argument].nbytes; }
  // Contiguous, with these values: so many bytes as nbytes() says.
  at::Tensor tensor_with(std::size_t argument, std::span<const std::byte> values);

 private:
  struct Argument {
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype = at::kFloat;
    std::size_t nbytes = 0;
    // A ring: `oldest` was used longest ago.
    std::vector<at::Tensor> tensors;
    std::size_t oldest = 0;
  };
  std::vector<Argument> arguments_;
};

// What one closure keeps of its arguments: of small ones their bytes alone, since all else is the
// same in every call of its signature. A tensor for each would cost three pieces of memory, which
// are made on a caller's thread and let go on a channel's.
class KeptArguments {
 public:
  // Takes the values of `arguments`, dense CPU tensors, which are not to be used afterwards. What
  // nobody else can write to is not copied: the caller holds `handles` of it, and its memory is
  // LibTorch's.
  void keep(std::vector<at::Tensor>& arguments, std::size_t handles);
  // Takes `arguments` as they are: nobody writes to them any more.
  void share(std::vector<at::Tensor> arguments) { others_ = std::move(arguments); }
  // All of them, in their order.
  std::vector<at::Tensor> restored(ArgumentTensors& tensors) const;

 private:
  c10::SmallVector<std::byte, 64> bytes_;  // of the small ones
  // The others in their places, which are undefined for small ones; empty where all are small.
  std::vector<at::Tensor> others_;
};

}  // namespace cohort::coordinator::internal
