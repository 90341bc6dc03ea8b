// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server_strategy/stand_in_memory.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "cohort/core/error.h"

namespace cohort::detail {
namespace {

// Below this a call of the system costs more than the pages.
constexpr std::int64_t kLargeBytes = std::int64_t{1} << 20;

}  // namespace

std::int64_t bytes_of(const TensorSpec& spec) {
  return spec.dtype == kString ? 0 : spec.byte_count();
}

bool is_large(const TensorSpec& spec) { return bytes_of(spec) >= kLargeBytes; }

at::Tensor make_stand_in(const TensorSpec& spec) {
  if (!is_large(spec)) return at::zeros(*spec.sizes, at::TensorOptions(spec.dtype));
  const auto bytes = static_cast<std::size_t>(spec.byte_count());
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  COHORT_CHECK(memory != MAP_FAILED, ErrorCode::resource_exhausted, "[strategy.variable] expected ",
               bytes, " bytes of address space for ", spec.to_string(),
               ", got none; raise the limit of the process (ulimit -v)");
  return at::from_blob(
      memory, *spec.sizes, [bytes](void* given) { ::munmap(given, bytes); },
      at::TensorOptions(spec.dtype));
}

void release_value(const at::Tensor& tensor) {
  const TensorSpec spec = TensorSpec::of(tensor);
  if (is_large(spec) && tensor.device().is_cpu()) tensor.set_data(make_stand_in(spec));
}

}  // namespace cohort::detail
