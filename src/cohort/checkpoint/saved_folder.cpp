// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint/saved_folder.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "cohort/core/kept_memory.h"

namespace cohort::checkpoint {
namespace {

// As files have it: on the CPU, row-major, and without a graph.
at::Tensor plain(at::Tensor tensor) {
  const bool is_plain = tensor.is_cpu() && !tensor.requires_grad() && tensor.is_contiguous() &&
                        !tensor.is_conj() && !tensor.is_neg();
  if (is_plain) return tensor;
  return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

// A copy that is filled at once, so that small pages would cost more than the copying.
at::Tensor copy_of(const at::Tensor& tensor) {
  at::Tensor copy = in_huge_pages(at::empty(tensor.sizes(), tensor.options()));
  return copy.copy_(tensor);
}

// Whether nobody else can change it.
bool is_own(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

}  // namespace

void SavedFolder::write(const std::string& name, const TensorSpec& spec, std::int64_t first_row,
                        at::Tensor rows) {
  at::Tensor tensor = plain(std::move(rows));
  if (thread_ == nullptr) return folder_->write(name, spec, first_row, tensor);
  const std::int64_t count = tensor.dim() == 0 ? 1 : tensor.size(0);
  // Several parts must fit, so that one is copied while another one is written.
  const std::uint64_t part_bytes = std::min<std::uint64_t>(kPartBytesMax, bytes_max_ / 4);
  const std::uint64_t bytes = tensor.nbytes();
  if (is_own(tensor) || bytes <= part_bytes || count <= 1)
    return add(name, spec, first_row, std::move(tensor));
  const std::uint64_t row_bytes = bytes / static_cast<std::uint64_t>(count);
  const auto rows_max =
      static_cast<std::int64_t>(std::max<std::uint64_t>(1, part_bytes / row_bytes));
  for (std::int64_t done = 0; done < count; done += rows_max)
    add(name, spec, first_row + done, tensor.narrow(0, done, std::min(rows_max, count - done)));
}

void SavedFolder::add(const std::string& name, const TensorSpec& spec, std::int64_t first_row,
                      at::Tensor rows) {
  const std::uint64_t bytes = rows.nbytes();
  thread_->reserve(bytes);
  at::Tensor kept = is_own(rows) ? std::move(rows) : copy_of(rows);
  thread_->add(bytes, [folder = folder_, name, spec, first_row, kept = std::move(kept)] {
    folder->write(name, spec, first_row, kept);
  });
}

void SavedFolder::append(const std::string& name, at::Tensor rows) {
  at::Tensor tensor = plain(std::move(rows));
  if (thread_ == nullptr) return folder_->append(name, tensor);
  const std::uint64_t bytes = tensor.nbytes();
  thread_->reserve(bytes);
  at::Tensor kept = is_own(tensor) ? std::move(tensor) : copy_of(tensor);
  thread_->add(bytes,
               [folder = folder_, name, kept = std::move(kept)] { folder->append(name, kept); });
}

}  // namespace cohort::checkpoint
