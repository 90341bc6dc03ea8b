// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/effect_handler.h"

#include <ATen/core/TensorBody.h>

#include "cohort/core/error.h"

namespace cohort::internal {

std::uint64_t Effect::bytes() const {
  std::uint64_t bytes = row_ids.defined() ? row_ids.nbytes() : 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

void separate_rows(Effect& effect) {
  at::Tensor& gradient = effect.tensors.at(0);
  if (gradient.layout() != at::kSparse) return;
  COHORT_CHECK(gradient.sparse_dim() == 1, ErrorCode::invalid_argument,
               "[variable.apply] expected a sparse gradient with one sparse axis, got ",
               gradient.sparse_dim(), "; make it dense with to_dense()");
  const at::Tensor sparse = gradient.detach();
  effect.row_ids = sparse._indices().select(0, 0).contiguous();
  gradient = sparse._values().contiguous();
}

std::vector<at::Tensor> EffectHandler::next_segment(std::span<const std::int64_t>) {
  internal::throw_error(ErrorCode::unimplemented,
                        "[function.run] the step reads a variable that it has updated, which this "
                        "place cannot do; read it before the update");
}

void EffectHandler::wait_until_positive(std::int64_t) {
  internal::throw_error(ErrorCode::unimplemented,
                        "[function.run] the step waits for the value of a variable, which only a "
                        "worker can do; give the function to ClusterCoordinator::schedule()");
}

EffectHandler::Read EffectHandler::read(std::span<const RowRead>, std::span<const std::int64_t>) {
  internal::throw_error(ErrorCode::unimplemented,
                        "[function.run] the step reads rows of variables, which this place cannot "
                        "do; give the function to the coordinator that has traced it");
}

std::vector<at::Tensor> EffectHandler::call(std::int64_t number, std::vector<at::Tensor>) {
  internal::throw_error(ErrorCode::unimplemented, "[function.run] expected the process that has ",
                        "traced the function, got another one, which cannot make its call ", number,
                        "; give the function to the strategy that made it");
}

}  // namespace cohort::internal
