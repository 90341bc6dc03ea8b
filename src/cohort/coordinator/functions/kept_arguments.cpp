// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/functions/kept_arguments.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/clone.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstring>

#include "cohort/coordinator/queue/in_flight_window.h"
#include "cohort/core/error.h"

namespace cohort::coordinator::internal {
namespace {

// The limit for all small arguments of a closure together: copying more bytes twice takes longer
// than allocating memory.
constexpr std::size_t kSmallBytesMax = 1024;
// The limit for the tensors of one argument.
constexpr std::size_t kTensorsMax = 2 * InFlightWindow::kSizeMax;

// Whether nobody else can write to the tensor: the caller has handed over the tensor and its
// memory, which LibTorch has allocated. `handles` of the references are ours.
bool is_sole_owner(const at::Tensor& tensor, std::size_t handles) {
  return tensor.use_count() == handles && tensor.storage().use_count() == 1 &&
         tensor.storage().data_ptr().get_deleter() == c10::GetAllocator(c10::kCPU)->raw_deleter();
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

bool is_free(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

}  // namespace

ArgumentTensors::ArgumentTensors(const std::vector<at::Tensor>& examples) {
  for (const at::Tensor& example : examples)
    arguments_.push_back({.sizes = example.sizes().vec(),
                          .dtype = example.scalar_type(),
                          .nbytes = example.nbytes()});
}

at::Tensor ArgumentTensors::tensor_with(std::size_t argument, std::span<const std::byte> values) {
  Argument& own = arguments_.at(argument);
  COHORT_ASSERT(values.size() == own.nbytes);
  if (own.oldest == own.tensors.size()) own.oldest = 0;
  const bool is_used_again = !own.tensors.empty() && is_free(own.tensors[own.oldest]);
  const at::Tensor tensor =
      is_used_again ? own.tensors[own.oldest] : at::detail::empty_cpu(own.sizes, own.dtype);
  if (!is_used_again && own.tensors.size() < kTensorsMax)
    own.tensors.insert(own.tensors.begin() + static_cast<std::ptrdiff_t>(own.oldest), tensor);
  ++own.oldest;
  if (!values.empty()) std::memcpy(tensor.data_ptr(), values.data(), values.size());
  return tensor;
}

void KeptArguments::keep(std::vector<at::Tensor>& arguments, std::size_t handles) {
  bool are_all_small = true;
  for (at::Tensor& tensor : arguments) {
    kept_bytes_ += tensor.nbytes();
    if (is_sole_owner(tensor, handles)) {
      are_all_small = false;
    } else if (is_plain(tensor) && bytes_.size() + tensor.nbytes() <= kSmallBytesMax) {
      const auto* first = static_cast<const std::byte*>(tensor.data_ptr());
      bytes_.append(first, first + tensor.nbytes());
      tensor.reset();
    } else {
      tensor = tensor.detach().clone();
      are_all_small = false;
    }
  }
  if (!are_all_small) others_ = std::move(arguments);
}

std::vector<at::Tensor> KeptArguments::restored(ArgumentTensors& tensors) const {
  std::vector<at::Tensor> arguments = others_;
  arguments.resize(tensors.count());
  std::span<const std::byte> left(bytes_.data(), bytes_.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].defined()) continue;
    const std::size_t size = std::min(tensors.nbytes(i), left.size());
    arguments[i] = tensors.tensor_with(i, left.first(size));
    left = left.subspan(size);
  }
  COHORT_ASSERT(left.empty());
  return arguments;
}

}  // namespace cohort::coordinator::internal
