// SPDX-License-Identifier: Apache-2.0
// The default generator inside a step: operators may draw from it; nothing else may change it.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randperm.h>
#include <gmock/gmock.h>

#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kChanged = "the default random generator was changed";

class TraceRandomState : public TraceCase {};

at::Generator generator() { return at::detail::getDefaultCPUGenerator(); }

TEST_F(TraceRandomState, SeedingInsideIsRefused) {
  EXPECT_THAT(refusal([](at::Tensor x) {
                at::manual_seed(7);
                return x + at::rand({3});
              }),
              AllOf(HasSubstr("'aten::uniform_'"), HasSubstr(kChanged),
                    HasSubstr("Seed outside the function")));
  EXPECT_THAT(refusal([](at::Tensor x) {
                at::Tensor y = x + at::rand({3});
                at::manual_seed(7);
                return y;
              }),
              AllOf(HasSubstr("the end of the function"), HasSubstr(kChanged)));
}

TEST_F(TraceRandomState, ReplayOfAStateIsRefused) {
  EXPECT_THAT(refusal([](at::Tensor x) {
                const at::Tensor state = generator().get_state();
                at::Tensor y = at::dropout(x, 0.5, true);
                generator().set_state(state);
                return y + at::dropout(x, 0.5, true);
              }),
              AllOf(HasSubstr("keep what was drawn"), HasSubstr(kChanged)));
}

TEST_F(TraceRandomState, NumbersOfTheHostAreRefused) {
  EXPECT_THAT(refusal([](at::Tensor x) {
                auto* own = at::check_generator<at::CPUGeneratorImpl>(generator());
                own->random();
                return x + at::rand({3});
              }),
              HasSubstr(kChanged));
}

TEST_F(TraceRandomState, OperatorsMayDraw) {
  expect_equal_to_eager({4, 3}, [](at::Tensor x) {
    at::Tensor y = at::dropout(x, 0.25, true) + at::rand({3});
    y.bernoulli_(0.5);
    return y.index_select(0, at::randperm(4)) + at::ones({3}).normal_();
  });
}

TEST_F(TraceRandomState, TheStateIsPutBackAfterARefusal) {
  seed_default_generator(3);
  const at::Tensor expected = at::rand({3});
  seed_default_generator(3);
  EXPECT_THAT(refusal([](at::Tensor x) {
                at::manual_seed(7);
                return x;
              }),
              HasSubstr(kChanged));
  EXPECT_TRUE(bits_equal(at::rand({3}), expected));
}

}  // namespace
}  // namespace cohort::function
