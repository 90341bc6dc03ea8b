// SPDX-License-Identifier: Apache-2.0
// All kernels of field functions. A new one adds its prototype and its row.
#include <algorithm>
#include <array>

#include "cohort/core/error.h"
#include "cohort/data/field_kernels/field_kernel.h"

namespace cohort::data {

using MakeKernel = std::shared_ptr<const FieldKernel>(AttributeReader& attributes);
MakeKernel make_hash_bucket_kernel, make_lookup_kernel, make_lower_kernel, make_split_kernel,
    make_to_number_kernel;

namespace {

struct KernelKind {
  std::string_view name;
  MakeKernel* make;
};

constexpr std::array kKernelKinds{
    KernelKind{"lookup", make_lookup_kernel},
    KernelKind{"lower", make_lower_kernel},
    KernelKind{"split", make_split_kernel},
    KernelKind{"to_hash_bucket_fast", make_hash_bucket_kernel},
    KernelKind{"to_number", make_to_number_kernel},
};

}  // namespace

std::shared_ptr<const FieldKernel> read_field_kernel(AttributeReader& attributes) {
  const std::string& name = attributes.text("function");
  const auto* const kind = std::ranges::find(kKernelKinds, name, &KernelKind::name);
  COHORT_CHECK(kind != kKernelKinds.end(), ErrorCode::unimplemented,
               "[data.map_field] expected a function that this build has, got '", name, "'");
  return kind->make(attributes);
}

}  // namespace cohort::data
