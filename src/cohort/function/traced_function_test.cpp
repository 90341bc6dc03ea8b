// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/traced_function.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>

#include "cohort/core/log.h"
#include "cohort/function/inspection.h"
#include "cohort/function/program/work.h"
#include "cohort/function/step_scope.h"
#include "cohort/function/tracer/cases_for_tests.h"
#include "cohort/testing/throws_error.h"

namespace cohort::function {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::throws_error;

// Passes the number of its resource on to the function.
class NumberPattern final : public ResourcePattern {
 public:
  class Number final : public Handle {
   public:
    explicit Number(std::int64_t resource) : resource_(resource) {}
    std::string_view handle_kind() const override { return "number"; }
    at::Tensor draw() const { return Trace::current()->iterator_next(resource_).at(0); }

   private:
    const std::int64_t resource_;
  };

  std::string_view handle_kind() const override { return "number"; }
  bool matches(const Handle&) const override { return true; }
  const std::vector<TensorSpec>& fields() const override { return fields_; }
  std::shared_ptr<Handle> traced(std::int64_t resource) const override {
    return std::make_shared<Number>(resource);
  }

 private:
  const std::vector<TensorSpec> fields_{TensorSpec()};
};

Nest drawn_from(const Nest& argument) {
  return dynamic_cast<const NumberPattern::Number&>(*argument.handle()).draw();
}

class TracedFunctionTest : public TraceCase {
 protected:
  TracedFunctionTest() {
    set_log_sink([this](LogLevel, std::string_view line) { lines_.emplace_back(line); });
  }
  ~TracedFunctionTest() override { set_log_sink(nullptr); }

  TracedFunction made(Function function, const std::vector<Nest>& arguments) {
    return {std::move(function),
            CallSignature(arguments, TracingMode::current(),
                          [](const Handle&) { return std::make_shared<NumberPattern>(); })};
  }
  TraceSetting setting() {
    TraceSetting made;
    made.variable_of = options_.variable_of;
    made.variables = options_.variables;
    made.tensor_of = [this](const std::string& name) { return tensors_.at(name); };
    made.worker_index = [](int pass) -> Tensors { return {at::scalar_tensor(pass, at::kLong)}; };
    made.begin_pass = [this](const std::vector<at::Tensor>&) { ++passes_; };
    return made;
  }
  Nest resource() { return std::shared_ptr<Handle>(std::make_shared<NumberPattern::Number>(0)); }

  int passes_ = 0;
  std::vector<std::string> lines_;
};

TEST_F(TracedFunctionTest, ATraceMakesAProgramAndTheStructureOfTheResult) {
  TracedFunction traced = made(
      Function([](at::Tensor x, double y) { return std::tuple(x * y, y); }), {at::ones({2}), 3.0});
  EXPECT_FALSE(traced.result_count().has_value());
  const ProgramInfo info = traced.trace_first(setting(), {}, {});
  EXPECT_EQ(info.output_count, 1U);
  EXPECT_EQ(passes_, 2);
  EXPECT_EQ(traced.result_count(), 1U);
  auto program = PreparedProgram::decode(traced.programs().at(0));
  const Nest result =
      traced.result_of(program->run(Tensors{at::full({2}, 5.0F)}, Tensors{}, host_, 1));
  EXPECT_TRUE(bits_equal(result.items()[0].tensor(), at::full({2}, 15.0F)));
  EXPECT_EQ(result.items()[1].real(), 3.0);
}

TEST_F(TracedFunctionTest, ElementsOfOtherSpecsGetAProgramOnce) {
  TracedFunction traced =
      made(Function([](const Nest& it) { return drawn_from(it); }), {resource()});
  traced.trace_first(setting(), {{normal({4, 2}, 1)}}, {{normal({4, 2}, 2)}});
  EXPECT_TRUE(traced.draws_from(0));
  EXPECT_FALSE(traced.draws_from(1));
  EXPECT_FALSE(traced.trace_drawn(setting(), {normal({4, 2}, 3)}).has_value());
  EXPECT_THAT(traced.advice_for({normal({3, 2}, 3)}),
              HasSubstr("the element was float32[4, 2] and is now float32[3, 2]"));
  EXPECT_TRUE(traced.trace_drawn(setting(), {normal({3, 2}, 3)}).has_value());
  EXPECT_FALSE(traced.trace_drawn(setting(), {normal({3, 2}, 4)}).has_value());
  EXPECT_EQ(traced.programs().size(), 2U);
  traced.drop_last_program();
  EXPECT_TRUE(traced.trace_drawn(setting(), {normal({3, 2}, 3)}).has_value());
}

// Each program added the same tensors to those that a call compares.
TEST_F(TracedFunctionTest, ProgramsForOtherShapesAddNothingToWhatACallCompares) {
  const at::Tensor captured = normal({2}, 5);
  TracedFunction traced = made(
      Function([captured](const Nest& it) -> Nest { return drawn_from(it).tensor() * captured; }),
      {resource()});
  traced.trace_first(setting(), {{normal({1, 2}, 1)}}, {{normal({1, 2}, 2)}});
  const auto trace_up_to = [&](std::int64_t rows) {
    for (auto next = static_cast<std::int64_t>(traced.programs().size()); next < rows;)
      traced.trace_drawn(setting(), {normal({++next, 2}, 3)});
    const std::uint64_t before = work_of_thread().hashed_bytes;
    EXPECT_EQ(traced.freshness(), Freshness::current);
    return work_of_thread().hashed_bytes - before;
  };
  const std::uint64_t few = trace_up_to(2);
  EXPECT_GT(few, 0U);
  EXPECT_EQ(trace_up_to(20), few);
}

TEST_F(TracedFunctionTest, MoreDrawsThanForTheFirstElementAreRefused) {
  TracedFunction traced = made(Function([](const Nest& it) -> Nest {
                                 const at::Tensor one = drawn_from(it).tensor();
                                 if (one.size(0) < 4) drawn_from(it);
                                 return one;
                               }),
                               {resource()});
  traced.trace_first(setting(), {{normal({4}, 1)}}, {{normal({4}, 2)}});
  EXPECT_THAT([&] { traced.trace_drawn(setting(), {normal({3}, 3)}); },
              throws_error(ErrorCode::invalid_argument, "draw unconditionally"));
}

TEST_F(TracedFunctionTest, CapturedValuesKeepTheirOrderInLaterPrograms) {
  const at::Tensor a = at::scalar_tensor(1.0), b = at::scalar_tensor(2.0);
  TracedFunction traced = made(Function([&](const Nest& it) -> Nest {
                                 const at::Tensor x = drawn_from(it).tensor();
                                 for (const at::Tensor& one : {b, a}) {
                                   if (one.is_same(b) && x.size(0) == 4) continue;
                                   Trace::current()->capture_input(one);
                                 }
                                 return x * a + b;
                               }),
                               {resource()});
  traced.trace_first(setting(), {{normal({4}, 1)}}, {{normal({4}, 2)}});
  ASSERT_EQ(traced.captured_count(), 1U);
  traced.trace_drawn(setting(), {normal({3}, 3)});
  ASSERT_EQ(traced.captured_count(), 2U);
  EXPECT_TRUE(traced.captured()->at(0).is_same(a));
  EXPECT_TRUE(traced.captured()->at(1).is_same(b));
}

TEST_F(TracedFunctionTest, FreshnessFollowsFlagsAndFrozenTensors) {
  const at::Tensor w = parameter("w", {2});
  const at::Tensor frozen = at::ones({2});
  TracedFunction traced =
      made(Function([&](at::Tensor x) { return x * w * frozen; }), {at::ones({2})});
  EXPECT_EQ(traced.freshness(), Freshness::current);
  traced.trace_first(setting(), {}, {});
  EXPECT_EQ(traced.freshness(), Freshness::current);
  w.requires_grad_(false);
  EXPECT_EQ(traced.freshness(), Freshness::other_flags);
  w.requires_grad_(true);
  frozen.fill_(2);
  EXPECT_EQ(traced.freshness(), Freshness::stale);
}

TEST_F(TracedFunctionTest, TheCallerMayRefuseATensorOfTheResult) {
  TracedFunction traced =
      made(Function([](at::Tensor x) { return std::pair(x * 2, x * 3); }), {at::ones({2})});
  TraceSetting refusing = setting();
  refusing.check_result = [](const at::Tensor&, std::size_t number) {
    COHORT_CHECK(number == 0, ErrorCode::invalid_argument, "[test.trace] tensor ", number);
  };
  EXPECT_THAT([&] { traced.trace_first(refusing, {}, {}); },
              throws_error(ErrorCode::invalid_argument, "[test.trace] tensor 1"));
  EXPECT_FALSE(traced.result_count().has_value());
  EXPECT_TRUE(traced.programs().empty());
}

TEST_F(TracedFunctionTest, TheIndexOfTheWorkerIsTheCallers) {
  TracedFunction traced = made(Function([] { return current_worker_index(); }), {});
  traced.trace_first(setting(), {}, {});
  EXPECT_TRUE(traced.draws_from(kWorkerIndexResource));
}

TEST_F(TracedFunctionTest, AGradientThatIsDroppedIsToldOnce) {
  const at::Tensor w = parameter("w", {2});
  const auto body = [&](at::Tensor x) {
    w.mutable_grad() = at::Tensor();
    (x * w).sum().backward();
  };
  TracedFunction traced = made(Function(body, {.name = "step"}), {at::ones({2})});
  traced.trace_first(setting(), {}, {});
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("'step' calls backward()")));
  EXPECT_THAT(traced.function().program(), HasSubstr("aten::mul"));
}

TEST_F(TracedFunctionTest, ARegisteredFunctionReturnsWhatCame) {
  const TracedFunction traced = made(Function::registered("some"), {});
  EXPECT_TRUE(traced.is_registered());
  EXPECT_TRUE(traced.result_of({}).is_null());
  EXPECT_TRUE(traced.result_of({at::ones({2})}).is_tensor());
  EXPECT_EQ(traced.result_of({at::ones({2}), at::ones({2})}).items().size(), 2U);
}

TEST(Rotated, MovesRowsByOne) {
  const Tensors rows{normal({3, 2}, 1), at::scalar_tensor(4)};
  const Tensors others = rotated(rows);
  EXPECT_TRUE(bits_equal(others[0][1], rows[0][0]));
  EXPECT_TRUE(bits_equal(others[1], rows[1]));
}

}  // namespace
}  // namespace cohort::function
