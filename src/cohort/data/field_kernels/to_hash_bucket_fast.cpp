// SPDX-License-Identifier: Apache-2.0
// to_hash_bucket_fast: converts strings to the numbers of their buckets.
#include <ATen/ops/empty.h>

#include "cohort/core/error.h"
#include "cohort/data/field_kernels/field_kernel.h"
#include "cohort/data/field_kernels/fingerprint.h"

namespace cohort::data {
namespace {

class HashBucketKernel final : public FieldKernel {
 public:
  explicit HashBucketKernel(HashBucketOptions options) : num_buckets_(options.num_buckets) {
    COHORT_CHECK(num_buckets_ >= 1, ErrorCode::invalid_argument,
                 "[data.to_hash_bucket_fast] expected .num_buckets of at least 1, got ",
                 num_buckets_);
  }

  std::string_view name() const override { return "to_hash_bucket_fast"; }
  Attributes attributes() const override { return {{"num_buckets", num_buckets_}}; }

  TensorSpec spec(const TensorSpec& input, const std::string& field) const override {
    check_is_string(input, name(), field);
    return {at::ScalarType::Long, input.sizes};
  }

  at::Tensor apply(const at::Tensor& values, const std::string& field) const override {
    const StringTensor strings = strings_in(values, name(), field);
    at::Tensor buckets = at::empty(values.sizes(), at::ScalarType::Long);
    auto* out = buckets.data_ptr<std::int64_t>();
    const auto count = static_cast<std::uint64_t>(num_buckets_);
    for (std::int64_t i = 0; i < strings.numel(); ++i) {
      out[i] = static_cast<std::int64_t>(fingerprint64(strings[i]) % count);
    }
    return buckets;
  }

 private:
  std::int64_t num_buckets_;
};

}  // namespace

FieldFunction to_hash_bucket_fast(FieldPath field, HashBucketOptions options) {
  return {std::move(field), std::make_shared<const HashBucketKernel>(options)};
}

std::shared_ptr<const FieldKernel> make_hash_bucket_kernel(AttributeReader& attributes) {
  return std::make_shared<const HashBucketKernel>(
      HashBucketOptions{.num_buckets = attributes.integer("num_buckets")});
}

}  // namespace cohort::data
