// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/interpreter/interpreter.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "cohort/core/error.h"
#include "cohort/function/program/program_builder_for_tests.h"
#include "cohort/function/program/wire.h"
#include "cohort/testing/error_of.h"

namespace cohort::function {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

// Records the calls of a program. Used only from the thread that runs the program.
class RecordingHost : public internal::EffectHandler {
 public:
  Tensors iterator_next(std::int64_t resource) override {
    calls.push_back("iterator_next " + std::to_string(resource));
    if (is_exhausted)
      throw Error(ErrorCode::out_of_range, "the end").because(ErrorCause::input_binding);
    return element;
  }
  void update(internal::Effect effect) override {
    using Kind = internal::Effect::Kind;
    const auto variable = static_cast<std::int64_t>(effect.variable);
    const at::Tensor& first = effect.tensors[0];
    if (effect.kind == Kind::apply) {
      note("apply " + effect.rule + " " + effect.optimizer, variable, first);
      for (const double each : effect.hyper)
        calls.back() += " " + std::to_string(static_cast<int>(each));
    } else if (effect.kind == Kind::scatter_add) {
      note("scatter_add", variable, effect.row_ids);
      calls.back() += " " + value_text(first);
    } else {
      const int kind = static_cast<int>(effect.kind) - static_cast<int>(Kind::assign);
      note("assign" + std::to_string(kind), variable, first);
      if (on_assign) on_assign();
    }
  }
  Read read(std::span<const RowRead> tables, std::span<const std::int64_t>) override {
    for (const RowRead& table : tables) note("read", table.variable, table.ids);
    return {.rows = rows};
  }

  std::vector<std::string> calls;
  Tensors element;
  Tensors rows;  // what read() gives
  bool is_exhausted = false;
  std::function<void()> on_assign;

 private:
  static std::string value_text(const at::Tensor& value) {
    return std::to_string(static_cast<int>(value.sum().item<double>()));
  }
  void note(const std::string& what, std::int64_t variable, const at::Tensor& value) {
    calls.push_back(what + " " + std::to_string(variable) + " " + value_text(value));
  }
};

struct Interpret : ::testing::Test {
  Tensors run(const Tensors& inputs, const Tensors& variables = {}, std::uint64_t seed = 1) {
    return prepared()->run(inputs, variables, host, seed);
  }
  // Through the bytes, as a server would.
  std::shared_ptr<const PreparedProgram> prepared() {
    return PreparedProgram::decode(encode(p.program()));
  }
  Error prepare_error() {
    return error_of([&] { prepared(); });
  }
  int relu(int id) { return p.op("aten::relu", {value(id)}); }
  // The rows of a table, their ids, and the places of `ids` among them.
  std::vector<int> gather(std::int64_t table, int ids, std::int64_t padding = -1) {
    return p.list_op(
        "cohort::gather",
        {integers({table}), integers({padding}), integers({1}), values({ids}), integers({})}, 3);
  }

  ProgramBuilder p;
  RecordingHost host;
};

TEST_F(Interpret, RunsADenseLayerForwardAndBackward) {
  const int x = p.input({5, 3});
  const int w = p.variable("w", {3, 4});
  const int y = relu(p.op("aten::mm", {value(x), value(w)}));
  const int gradient = p.op("aten::threshold_backward", {value(y), value(y), integer(0)});
  const int transposed = p.op("aten::t", {value(x)});
  p.output(y);
  p.output(p.op("aten::mm", {value(transposed), value(gradient)}));
  const at::Tensor input = at::rand({5, 3}).sub(0.5);
  const at::Tensor weight = at::rand({3, 4}).sub(0.5);
  const Tensors outputs = run({input}, {weight});
  const at::Tensor expected = at::mm(input, weight).relu();
  EXPECT_TRUE(at::equal(outputs[0], expected));
  EXPECT_TRUE(at::equal(outputs[1], at::mm(input.t(), expected)));
}

TEST_F(Interpret, GivesUndefinedOutputsWhereTheTraceHadNone) {
  p.output(-1);
  EXPECT_FALSE(run({}).at(0).defined());
}

TEST_F(Interpret, PassesListsOptionalListsTextsAndDevices) {
  const int x = p.input({2, 3});
  const int ids = p.input({2}, at::kLong);
  const auto rows = p.list_op("aten::unbind.int", {value(x)}, 2);
  const int stacked = p.op("aten::stack", {values({rows[1], rows[0]})});
  const int picked = p.op("aten::index.Tensor", {value(stacked), values({-1, ids})});
  const Arg gpu = argument(Arg::Kind::device, c10::Device("cuda:0"));
  const int two = p.op("aten::full", {integers({2}), real(2), none(), none(), gpu});
  p.output(p.op("aten::div.Tensor_mode", {value(picked), value(two), text("floor")}));
  const Tensors outputs = run(
      {at::tensor({1, 2, 3, 4, 5, 6}).to(at::kFloat).view({2, 3}), at::tensor({2, 0}, at::kLong)});
  EXPECT_TRUE(at::equal(outputs[0], at::tensor({3.0F, 2.0F, 1.0F, 0.0F}).view({2, 2})));
}

// Keeps the tensors that a host may keep.
struct KeepingHost final : RecordingHost {
  void update(internal::Effect effect) override {
    if (effect.row_ids.defined()) kept.push_back(effect.row_ids);
    kept.insert(kept.end(), effect.tensors.begin(), effect.tensors.end());
  }
  Tensors kept;
};

TEST_F(Interpret, EffectsKeepWhatALaterOpOverwrites) {
  const int x = p.input({2}), ids = p.input({2}, at::kLong), rate = p.input({}, at::kDouble);
  p.variable("w", {2});
  const int buffer = p.op("aten::clone", {value(x)});
  const int part = p.op("aten::slice.Tensor", {value(buffer), integer(0), integer(0), integer(1)});
  p.effect("cohort::apply",
           {text("sgd"), text("sgd_1"), integer(0), value(buffer), values({rate})});
  p.effect("cohort::assign", {integer(0), value(buffer)});
  p.in_place("aten::add_.Scalar", part, {integer(1)});
  p.effect("cohort::assign_add", {integer(0), value(buffer)});
  p.effect("cohort::scatter_add", {integer(0), value(ids), value(part)});
  p.in_place("aten::zero_", ids, {});
  p.in_place("aten::zero_", part, {});
  KeepingHost keeping;
  prepared()->run(Tensors{at::ones({2}), at::arange(2), at::ones({}, at::kDouble)},
                  Tensors{at::zeros({2})}, keeping, 1);
  ASSERT_EQ(keeping.kept.size(), 5U);
  EXPECT_TRUE(at::equal(keeping.kept[0], at::ones({2})));
  EXPECT_TRUE(at::equal(keeping.kept[1], at::ones({2})));
  EXPECT_TRUE(at::equal(keeping.kept[2], at::tensor({2.0F, 1.0F})));
  EXPECT_TRUE(at::equal(keeping.kept[3], at::arange(2)));
  EXPECT_TRUE(at::equal(keeping.kept[4], at::full({1}, 2.0)));
}

TEST_F(Interpret, EffectsCopyNothingThatStaysAsItIs) {
  const int x = p.input({2});
  p.variable("w", {2});
  const int result = p.op("aten::clone", {value(x)});
  p.in_place("aten::add_.Tensor", result, {value(x)});
  p.effect("cohort::assign", {integer(0), value(result)});
  p.output(p.op("aten::view", {value(result), integers({2})}));
  KeepingHost keeping;
  const Tensors outputs =
      prepared()->run(Tensors{at::ones({2})}, Tensors{at::zeros({2})}, keeping, 1);
  EXPECT_EQ(keeping.kept.at(0).data_ptr(), outputs.at(0).data_ptr());
}

TEST_F(Interpret, FillsInDefaultsThatTheProgramLeavesOut) {
  const int x = p.input({2});
  p.program().ops.reserve(1);
  p.output(p.op("aten::add.Tensor", {value(x), value(x)}));
  EXPECT_TRUE(at::equal(run({at::ones({2})})[0], at::full({2}, 2.0)));
}

TEST_F(Interpret, RefusesAnOpOutsideTheList) {
  const int x = p.input({2});
  p.op("aten::resize_", {value(x), integers({3})});
  const Error error = prepare_error();
  EXPECT_EQ(error.code(), ErrorCode::unimplemented);
  EXPECT_THAT(error.message(), HasSubstr("'aten::resize_' (op #0) is not on the list"));
}

TEST_F(Interpret, RefusesAnOpThatThisLibTorchLacksAndNamesBothVersions) {
  const int x = p.input({2});
  p.op("aten::relu.not_there", {value(x)});
  p.program().producer = "9.8.7";
  const Error error = prepare_error();
  EXPECT_EQ(error.code(), ErrorCode::unimplemented);
  EXPECT_THAT(error.message(),
              HasSubstr("'aten::relu.not_there' (op #0) does not exist; this task runs LibTorch "));
  EXPECT_THAT(error.message(), HasSubstr("traced with 9.8.7"));
}

TEST_F(Interpret, RefusesArgumentsOfAnotherKind) {
  const int x = p.input({2});
  const std::vector<std::pair<std::string, std::vector<Arg>>> wrong = {
      {"aten::relu", {integer(3)}},
      {"aten::relu", {values({x})}},
      {"aten::cat", {value(x)}},
      {"aten::cat", {values({x, -1})}},
      {"aten::sum.dim_IntList", {value(x), real(1)}},
      {"aten::sum.dim_IntList", {value(x), integers({0}), integer(1)}},
      {"aten::add.Tensor", {value(x), value(x), text("1")}},
      {"aten::to.dtype", {value(x), real(6)}},
      {"aten::to.dtype", {value(x), integer(99)}},
      {"aten::clone", {value(x), integer(9)}},
      {"aten::view", {value(x), none()}},
  };
  for (const auto& [name, args] : wrong) {
    p.program().ops.clear();
    p.op(name, args);
    const Error error = prepare_error();
    EXPECT_EQ(error.code(), ErrorCode::unimplemented) << name;
    EXPECT_THAT(error.message(), HasSubstr("argument '"));
  }
}

TEST_F(Interpret, RefusesTooManyArgumentsTooFewAndTooManyResults) {
  const int x = p.input({2});
  p.op("aten::relu", {value(x), none()});
  EXPECT_THAT(prepare_error().message(), HasSubstr("takes 1 arguments, got 2"));
  p.program().ops[0].args.clear();
  EXPECT_THAT(prepare_error().message(), HasSubstr("needs argument 'self'"));
  p.program().ops[0].args.push_back(value(x));
  p.program().ops[0].outs.push_back({false, {-1}});
  EXPECT_THAT(prepare_error().message(), HasSubstr("gives 1 results, the program wants 2"));
}

TEST_F(Interpret, RefusesAListWhereATensorComes) {
  const int x = p.input({2});
  p.list_op("aten::relu", {value(x)}, 1);
  EXPECT_EQ(prepare_error().code(), ErrorCode::unimplemented);
}

TEST_F(Interpret, RefusesOtherInputsNamingTheFirst) {
  p.input({2});
  p.input({2, 3});
  const auto program = prepared();
  const auto message = [&](const Tensors& inputs) {
    return error_of([&] { program->run(inputs, {}, host, 1); }).message();
  };
  EXPECT_THAT(message({at::ones({2}), at::ones({2, 4})}),
              HasSubstr("expected input #1 of float32[2, 3], got float32[2, 4]"));
  EXPECT_THAT(message({at::ones({2}, at::kLong), at::ones({2, 3})}),
              HasSubstr("input #0 of float32[2], got int64[2]"));
  EXPECT_THAT(message({at::Tensor(), at::ones({2, 3})}),
              HasSubstr("input #0 of float32[2], got an undefined tensor"));
  EXPECT_THAT(message({at::ones({2})}), HasSubstr("expected 2 inputs, got 1"));
}

TEST_F(Interpret, RefusesOtherVariablesByName) {
  p.variable("dense/bias", {2});
  EXPECT_THAT(error_of([&] { run({}, {at::ones({3})}); }).message(),
              HasSubstr("variable #0 'dense/bias' of float32[2], got float32[3]"));
  EXPECT_EQ(error_of([&] { run({}, {}); }).code(), ErrorCode::invalid_argument);
}

TEST_F(Interpret, NamesTheOpThatFailed) {
  const int x = p.input({2, 3});
  relu(x);
  p.op("aten::mm", {value(x), value(x)});
  const Error error = error_of([&] { run({at::ones({2, 3})}); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error.cause(), ErrorCause::application);
  EXPECT_THAT(error.message(), HasSubstr("op #1 aten::mm failed: "));
  EXPECT_THAT(error.message(), HasSubstr("mat1 and mat2 shapes cannot be multiplied"));
}

// LibTorch's allocator throws a c10::Error, which became invalid_argument: exit code 70.
TEST_F(Interpret, AnOpWithoutMemoryIsALackOfMemory) {
  const Arg sizes = integers({1 << 24, 1 << 24});
  relu(p.op("aten::expand", {value(p.input({})), sizes, boolean(false)}));
  EXPECT_EQ(exit_code_of(error_of([&] { run({at::ones({})}); })), 75);
}

TEST_F(Interpret, CopiesOutputsThatAreInputsVariablesOrConstants) {
  const int x = p.input({2});
  const int v = p.variable("v", {2});
  const int c = p.constant(at::ones({2}));
  for (const int id : {x, v, c}) p.output(p.op("aten::view", {value(id), integers({1, 2})}));
  const Tensors given = {at::ones({2}), at::ones({2})};
  const auto program = prepared();
  for (at::Tensor& output : program->run({&given[0], 1}, {&given[1], 1}, host, 1)) output.fill_(9);
  EXPECT_TRUE(at::equal(given[0], at::ones({2})));
  EXPECT_TRUE(at::equal(given[1], at::ones({2})));
  EXPECT_TRUE(
      at::equal(program->run({&given[0], 1}, {&given[1], 1}, host, 1)[2], at::ones({1, 2})));
}

TEST_F(Interpret, CopiesOutputsThatAreDrawnOrGathered) {
  host.element = {at::ones({2}, at::kLong)};
  host.rows = {at::ones({1})};
  const auto drawn = p.draw(0, {{at::kLong, {{2}}}});
  p.variable("table", {9});
  const int rows = gather(0, drawn[0])[0];
  p.output(p.op("aten::view", {value(drawn[0]), integers({2, 1})}));
  p.output(rows);
  for (at::Tensor& output : run({}, {at::zeros({9})})) output.fill_(9);
  EXPECT_TRUE(at::equal(host.element[0], at::ones({2}, at::kLong)));
  EXPECT_TRUE(at::equal(host.rows[0], at::ones({1})));
}

TEST_F(Interpret, TakesValuesOfAnyStrides) {
  const at::Tensor columns = at::arange(6).view({2, 3}).t();
  const at::Tensor channels_last = at::arange(6).as_strided({2, 1, 3, 1}, {3, 1, 1, 3});
  host.element = {columns, channels_last};
  host.rows = {at::arange(12).to(at::kFloat).view({2, 6}).t()};
  const auto drawn = p.draw(0, {{at::kLong, {{3, 2}}}, {at::kLong, {{2, 1, 3, 1}}}});
  const int x = p.input({3, 2}, at::kLong);
  p.variable("table", {9, 2});
  const int rows = gather(0, x)[0];
  p.output(p.op("aten::view", {value(rows), integers({12})}));
  for (const int id : {drawn[0], drawn[1], x})
    p.output(p.op("aten::view", {value(id), integers({6})}));
  const Tensors flat = run({columns}, {at::zeros({9, 2})});
  EXPECT_TRUE(at::equal(flat[0], host.rows[0].reshape({12})));
  for (const std::size_t i : {1, 3}) EXPECT_TRUE(at::equal(flat[i], columns.reshape({6}))) << i;
  EXPECT_TRUE(at::equal(flat[2], at::arange(6)));
}

TEST_F(Interpret, GivesDimensionsOfOneElementTheUsualStrides) {
  const int x = p.input({2, 1, 3, 1});
  p.output(p.op("aten::clone", {value(x)}));
  EXPECT_EQ(run({at::rand({6}).as_strided({2, 1, 3, 1}, {3, 1, 1, 3})})[0].strides(),
            at::IntArrayRef({3, 3, 1, 1}));
}

TEST_F(Interpret, WritesNeitherInputsNorConstantsNorDrawnElements) {
  host.element = {at::ones({2})};
  const auto drawn = p.draw(0, {{at::kFloat, {{2}}}});
  const int x = p.input({2});
  const int c = p.constant(at::ones({2}));
  for (const int id : {x, c, drawn[0]}) {
    const int view = p.op("aten::view", {value(id), integers({1, 2})});
    p.in_place("aten::add_.Scalar", view, {integer(1)});
    p.output(id);
  }
  const at::Tensor input = at::ones({2});
  const auto program = prepared();
  for (int round = 0; round < 2; ++round) {
    for (const at::Tensor& output : program->run({&input, 1}, {}, host, 1)) {
      EXPECT_TRUE(at::equal(output, at::full({2}, 2.0)));
    }
  }
  EXPECT_TRUE(at::equal(input, at::ones({2})));
  EXPECT_TRUE(at::equal(host.element[0], at::ones({2})));
}

TEST_F(Interpret, DoesNotWriteConstantsThroughBatchNorm) {
  const int x = p.input({4, 2});
  const int mean = p.constant(at::zeros({2}));
  const int variance = p.constant(at::ones({2}));
  p.op("aten::native_batch_norm", {value(x), none(), none(), value(mean), value(variance),
                                   boolean(true), real(0.5), real(0.1)});
  p.output(p.op("aten::clone", {value(mean)}));
  const at::Tensor input = at::ones({4, 2});
  const auto program = prepared();
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(at::equal(program->run({&input, 1}, {}, host, 1)[0], at::full({2}, 0.5)));
  }
}

TEST_F(Interpret, WritesTheGivenVariable) {
  const int v = p.variable("v", {2});
  p.in_place("aten::add_.Scalar", v, {real(1.5)});
  const at::Tensor variable = at::ones({2});
  run({}, {variable});
  EXPECT_TRUE(at::equal(variable, at::full({2}, 2.5)));
}

TEST_F(Interpret, RecordsNoGraphButLeavesGradModeOn) {
  const int x = p.input({2});
  p.output(relu(x));
  p.output(x);
  for (const at::Tensor& output : run({at::ones({2}).requires_grad_()})) {
    EXPECT_FALSE(output.requires_grad());
    EXPECT_FALSE(output.is_inference());
  }
}

TEST_F(Interpret, KeepsWrappedNumbersFromPromoting) {
  const int x = p.input({2});
  p.output(p.op("aten::mul.Tensor",
                {value(x), value(p.constant(at::full({}, 2.0, at::kDouble), true))}));
  EXPECT_EQ(run({at::ones({2})})[0].scalar_type(), at::kFloat);
}

TEST_F(Interpret, DropsValuesAfterTheirLastUse) {
  const auto drawn = p.draw(0, {{at::kFloat, {{2}}}});
  const int y = p.op("aten::add.Tensor", {value(drawn[0]), value(drawn[0])});
  p.variable("v", {2});
  p.effect("cohort::assign", {integer(0), value(y)});
  host.element = {at::ones({2})};
  const c10::weak_intrusive_ptr<at::TensorImpl> element(host.element[0].getIntrusivePtr());
  bool is_gone = false;
  host.on_assign = [&] {
    host.element.clear();
    is_gone = element.expired();
  };
  run({}, {at::ones({2})});
  EXPECT_TRUE(is_gone);
}

TEST_F(Interpret, CallsTheHostInOrder) {
  host.element = {at::tensor({1, 0}, at::kLong), at::full({1}, 4.0)};
  host.rows = {at::full({2}, 5.0)};
  const auto drawn = p.draw(7, {{at::kLong, {{2}}}, {at::kFloat, {{1}}}});
  const int x = p.input({2});
  p.variable("v", {2});
  p.variable("w", {2});
  const int rate = p.constant(at::full({}, 8.0, at::kDouble));
  p.effect("cohort::apply",
           {text("sgd"), text("sgd_1"), integer(1), value(x), values({rate, rate})});
  p.effect("cohort::assign", {integer(0), value(drawn[1])});
  p.effect("cohort::assign_add", {integer(1), value(x)});
  p.effect("cohort::assign_sub", {integer(0), value(x)});
  const int rows = gather(0, drawn[0])[0];
  p.effect("cohort::scatter_add", {integer(0), value(drawn[0]), value(rows)});
  run({at::ones({2})}, {at::ones({2}), at::ones({2})});
  EXPECT_THAT(host.calls,
              ElementsAre("iterator_next 7", "apply sgd sgd_1 1 2 8 8", "assign0 0 4",
                          "assign1 1 2", "assign2 0 2", "read 0 1", "scatter_add 0 1 10"));
}

TEST_F(Interpret, SaysWhatTheProgramNeeds) {
  p.draw(2, {{at::kFloat, {{2}}}});
  const int x = p.input({2});
  for (const std::string name : {"read", "updated", "table"}) p.variable(name, {2});
  p.program().variables[1].is_read = false;
  p.program().variables[2].is_handle_only = true;
  p.effect("cohort::assign", {integer(1), value(x)});
  p.output(x);
  const ProgramInfo info = prepared()->info();
  EXPECT_THAT(info.inputs, ElementsAre(TensorSpec{at::kFloat, {{2}}}));
  ASSERT_EQ(info.draws.size(), 1U);
  EXPECT_EQ(info.draws[0].resource, 2);
  EXPECT_THAT(info.draws[0].fields, ElementsAre(TensorSpec{at::kFloat, {{2}}}));
  EXPECT_TRUE(info.variables[0].is_read && !info.variables[0].is_updated);
  EXPECT_TRUE(!info.variables[1].is_read && info.variables[1].is_updated);
  EXPECT_TRUE(info.variables[2].is_handle_only);
  EXPECT_EQ(info.output_count, 1U);
  EXPECT_EQ(info.op_count, 2U);
  EXPECT_FALSE(info.is_random);
}

TEST_F(Interpret, NeedsNoValueOfAVariableThatIsOnlyUpdated) {
  const int x = p.input({2});
  p.variable("v", {2});
  p.program().variables[0].is_read = false;
  p.effect("cohort::assign_add", {integer(0), value(x)});
  run({at::ones({2})}, {at::Tensor()});
  EXPECT_THAT(host.calls, ElementsAre("assign1 0 2"));
}

TEST_F(Interpret, RefusesToReadAVariableThatIsNotPulled) {
  relu(p.variable("v", {2}));
  p.program().variables[0].is_read = false;
  EXPECT_EQ(prepare_error().code(), ErrorCode::data_loss);
  p.program().ops.clear();
  p.output(0);
  EXPECT_EQ(prepare_error().code(), ErrorCode::data_loss);
}

TEST_F(Interpret, StandsInForATableWhoseShapeIsAsked) {
  const int table = p.variable("table", {1'000'000'000, 16});
  p.program().variables[0].is_handle_only = true;
  p.output(p.op("aten::select.int", {value(table), integer(0), integer(0)}));
  EXPECT_EQ(run({}, {at::Tensor()})[0].sizes(), at::IntArrayRef({16}));
}

TEST_F(Interpret, RefusesElementsOfAnotherSpec) {
  p.draw(0, {{at::kFloat, {{2}}}});
  host.element = {at::ones({1})};
  EXPECT_THAT(error_of([&] { run({}); }).message(),
              HasSubstr("expected field #0 of float32[2], got float32[1]"));
  host.element = {};
  EXPECT_THAT(error_of([&] { run({}); }).message(), HasSubstr("element of 1 fields, got 0"));
}

TEST_F(Interpret, LetsErrorsOfTheHostThrough) {
  p.draw(0, {{at::kFloat, {{2}}}});
  host.is_exhausted = true;
  const Error error = error_of([&] { run({}); });
  EXPECT_EQ(error.code(), ErrorCode::out_of_range);
  EXPECT_EQ(error.cause(), ErrorCause::input_binding);
}

TEST_F(Interpret, RefusesADrawAfterOtherOps) {
  relu(p.input({2}));
  p.draw(0, {});
  EXPECT_EQ(prepare_error().code(), ErrorCode::data_loss);
}

TEST_F(Interpret, RefusesEffectsOnVariablesThatAreNotThere) {
  const int x = p.input({2});
  p.effect("cohort::assign", {integer(1), value(x)});
  EXPECT_EQ(prepare_error().code(), ErrorCode::data_loss);
  p.program().ops[0].args[0] = integer(-1);
  EXPECT_EQ(prepare_error().code(), ErrorCode::data_loss);
}

// A program that draws twice from the run's generator.
struct RandomProgram : Interpret {
  RandomProgram() {
    const int x = p.op("aten::rand.generator", {integers({64}), none()});
    p.in_place("aten::normal_", x, {real(0), real(1), none()});
    p.output(x);
    p.output(p.op("aten::bernoulli.p", {value(x), real(0.5), none()}));
    p.program().is_random = true;
  }
};

TEST_F(RandomProgram, DependsOnTheSeedAlone) {
  const Tensors first = run({}, {}, 11);
  at::rand({10});
  const Tensors second = run({}, {}, 11);
  const Tensors other = run({}, {}, 12);
  EXPECT_TRUE(at::equal(first[0], second[0]) && at::equal(first[1], second[1]));
  EXPECT_FALSE(at::equal(first[0], other[0]));
}

TEST_F(RandomProgram, IsIndependentOfConcurrentRuns) {
  const auto program = prepared();
  constexpr int kThreads = 6;
  std::vector<Tensors> alone, together(kThreads);
  for (std::uint64_t seed = 0; seed < kThreads; ++seed)
    alone.push_back(program->run({}, {}, host, seed));
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 0; seed < kThreads; ++seed) {
    threads.emplace_back([&, seed] {
      for (int round = 0; round < 50; ++round) {
        RecordingHost own_host;
        together[seed] = program->run({}, {}, own_host, seed);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kThreads; ++i) EXPECT_TRUE(at::equal(alone[i][0], together[i][0])) << i;
}

TEST_F(Interpret, RunsOnSeveralThreadsAtOnce) {
  const int x = p.input({8, 8});
  const int c = p.constant(at::ones({8, 8}));
  p.in_place("aten::add_.Tensor", c, {value(x)});
  p.output(p.op("aten::mm", {value(c), value(x)}));
  const auto program = prepared();
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      RecordingHost own_host;
      const at::Tensor input = at::full({8, 8}, 1.0 * i);
      const at::Tensor expected = at::mm(input.add(1), input);
      for (int round = 0; round < 100; ++round) {
        right += at::equal(program->run({&input, 1}, {}, own_host, 1)[0], expected) ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 600);
}

TEST_F(Interpret, RefusesEffectsWithoutTheirTensors) {
  const int v = p.variable("v", {2});
  p.effect("cohort::scatter_add", {integer(0), none(), value(v)});
  EXPECT_EQ(prepare_error().code(), ErrorCode::data_loss);
  EXPECT_THAT(prepare_error().message(), HasSubstr("needs a tensor as 'ids', got nothing"));
}

TEST_F(Interpret, RefusesUpdatesWithoutAGradientOrAValue) {
  p.variable("v", {2});
  const int rate = p.constant(at::ones({}));
  p.effect("cohort::apply", {text("sgd"), text("sgd_1"), integer(0), none(), values({rate})});
  EXPECT_THAT(prepare_error().message(), HasSubstr("needs a tensor as 'gradient', got nothing"));
  p.program().ops.clear();
  p.effect("cohort::assign", {integer(0), none()});
  EXPECT_THAT(prepare_error().message(), HasSubstr("needs a tensor as 'value', got nothing"));
}

}  // namespace
}  // namespace cohort::function
