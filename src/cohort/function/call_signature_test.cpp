// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/call_signature.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/testing/throws_error.h"

namespace cohort::function {
namespace {

using ::testing::HasSubstr;
using testing::throws_error;

class SourceHandle final : public Handle {
 public:
  explicit SourceHandle(TensorSpec spec) : specs_{std::move(spec)} {}
  std::string_view handle_kind() const override { return "source"; }
  const std::vector<TensorSpec>& specs() const { return specs_; }

 private:
  std::vector<TensorSpec> specs_;
};

class SourcePattern final : public ResourcePattern {
 public:
  explicit SourcePattern(std::vector<TensorSpec> specs) : specs_(std::move(specs)) {}
  std::string_view handle_kind() const override { return "source"; }
  bool matches(const Handle& other) const override {
    const auto* source = dynamic_cast<const SourceHandle*>(&other);
    return source != nullptr && source->specs() == specs_;
  }
  const std::vector<TensorSpec>& fields() const override { return specs_; }
  std::shared_ptr<Handle> traced(std::int64_t) const override { return nullptr; }

 private:
  const std::vector<TensorSpec> specs_;
};

class OtherHandle final : public Handle {
 public:
  std::string_view handle_kind() const override { return "other"; }
};

std::shared_ptr<ResourcePattern> pattern_of_source(const Handle& handle) {
  const auto* source = dynamic_cast<const SourceHandle*>(&handle);
  COHORT_CHECK(source != nullptr, ErrorCode::invalid_argument, "[test.signature] got a ",
               handle.handle_kind());
  return std::make_shared<SourcePattern>(source->specs());
}

CallSignature signature_for(const std::vector<Nest>& arguments,
                            const TracingMode& mode = TracingMode()) {
  return CallSignature(arguments, mode, pattern_of_source);
}

bool is_match(const std::vector<Nest>& a, const std::vector<Nest>& b) {
  const bool is_so = signature_for(a).matches(b, TracingMode());
  if (is_so) {
    EXPECT_EQ(CallSignature::hash_of(a), CallSignature::hash_of(b));
  }
  return is_so;
}

Nest source_of(std::vector<std::int64_t> sizes) {
  return std::shared_ptr<Handle>(
      std::make_shared<SourceHandle>(TensorSpec{at::kFloat, std::move(sizes)}));
}

TEST(CallSignature, TensorsMatchByShapeAndTypeAndFlag) {
  EXPECT_TRUE(is_match({at::ones({2, 3})}, {at::zeros({2, 3})}));
  EXPECT_FALSE(is_match({at::ones({2, 3})}, {at::ones({3, 2})}));
  EXPECT_FALSE(is_match({at::ones({2})}, {at::ones({2}, at::kDouble)}));
  EXPECT_FALSE(is_match({at::ones({2})}, {at::ones({2}).requires_grad_()}));
}

TEST(CallSignature, HostValuesMatchByTheirBits) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(is_match({nan}, {nan}));
  EXPECT_FALSE(is_match({0.0}, {-0.0}));
  EXPECT_FALSE(is_match({1}, {1.0}));
  EXPECT_FALSE(is_match({"a"}, {"b"}));
}

// Regression: each call was compared with all signatures of its function, one after the other.
TEST(CallSignature, ACallIsComparedWithThoseOfItsHashWhichAreFew) {
  std::unordered_map<std::size_t, int> of_hash;
  constexpr int kCalls = 1000;
  for (int i = 0; i < kCalls; ++i) {
    ++of_hash[CallSignature::hash_of(std::vector<Nest>{at::ones({i})})];
    ++of_hash[CallSignature::hash_of(std::vector<Nest>{at::ones({i}, at::kDouble), "text"})];
    ++of_hash[CallSignature::hash_of(std::vector<Nest>{Nest::map({{std::to_string(i), true}})})];
    ++of_hash[CallSignature::hash_of(std::vector<Nest>{Nest::tuple({i, 0.5}), source_of({2})})];
    ++of_hash[CallSignature::hash_of(std::vector<Nest>{1.0 / (i + 2)})];
  }
  EXPECT_EQ(of_hash.size(), 5U * kCalls);
}

TEST(CallSignature, StructuresAreComparedToo) {
  const Nest pair = Nest::tuple({1, 2});
  EXPECT_TRUE(is_match({pair}, {Nest::tuple({1, 2})}));
  EXPECT_FALSE(is_match({pair}, {Nest::list({1, 2})}));
  EXPECT_FALSE(is_match({pair}, {Nest::tuple({1, 2, 3})}));
  EXPECT_FALSE(is_match({Nest::map({{"a", 1}})}, {Nest::map({{"b", 1}})}));
  EXPECT_FALSE(is_match({1}, {1, 1}));
}

TEST(CallSignature, ResourcesMatchByTheirPattern) {
  EXPECT_TRUE(is_match({source_of({2})}, {source_of({2})}));
  EXPECT_FALSE(is_match({source_of({2})}, {source_of({3})}));
  EXPECT_FALSE(is_match({source_of({2})}, {Nest(std::make_shared<OtherHandle>())}));
}

TEST(CallSignature, AHandleThatIsNoResourceIsRefused) {
  EXPECT_THAT([] { signature_for({Nest(std::make_shared<OtherHandle>())}); },
              throws_error(ErrorCode::invalid_argument, "got a other"));
}

TEST(CallSignature, TheModeOfTheThreadIsPartOfIt) {
  TracingMode other;
  other.is_grad_enabled = false;
  const CallSignature one = signature_for({1});
  EXPECT_FALSE(one.matches(std::vector<Nest>{1}, other));
  EXPECT_THAT(signature_for({1}, other).difference_from(one), HasSubstr("grad mode"));
}

TEST(CallSignature, ExamplesAreCopies) {
  const at::Tensor x = at::ones({2});
  const CallSignature kept = signature_for({x});
  x.fill_(5);
  EXPECT_EQ(kept.pattern().front().tensor().sum().item<double>(), 2);
}

TEST(CallSignature, ADifferenceNamesBothValuesAndTheRemedy) {
  EXPECT_EQ(signature_for({1, 4.5}).difference_from(signature_for({1, 3.5})).substr(0, 35),
            "argument 1 was 3.5 and is now 4.5: ");
  EXPECT_THAT(signature_for({at::ones({8, 7})}).difference_from(signature_for({at::ones({8, 5})})),
              HasSubstr("argument 0 was float32[8, 5] and is now float32[8, 7]: pad to one shape, "
                        "as padded_batch()"));
  EXPECT_THAT(signature_for({at::ones({7})}).difference_from(signature_for({at::ones({8})})),
              HasSubstr("batch with drop_remainder"));
  EXPECT_EQ(signature_for({1}).difference_from(signature_for({1})), "");
}

TEST(CallSignature, SpecsOfSeveralFieldsAreShownAsATuple) {
  EXPECT_THAT(difference({TensorSpec::of(at::ones({2})), TensorSpec::of(at::ones({2, 1}))},
                         {TensorSpec::of(at::ones({3})), TensorSpec::of(at::ones({3, 1}))}),
              HasSubstr(" was (float32[2], float32[2, 1]) and is now (float32[3], float32[3, 1])"));
}

TEST(BoundArguments, AreInFlattenOrder) {
  const Nest x = at::ones({1}), y = at::ones({2});
  const std::vector<Nest> arguments{Nest::map({{"b", y}, {"a", x}}), source_of({4}), 7};
  const BoundArguments bound = bind_arguments(arguments);
  ASSERT_EQ(bound.tensors.size(), 2U);
  EXPECT_TRUE(bound.tensors[0].is_same(x.tensor()));
  EXPECT_TRUE(bound.tensors[1].is_same(y.tensor()));
  EXPECT_EQ(bound.resources.size(), 1U);
}

}  // namespace
}  // namespace cohort::function
