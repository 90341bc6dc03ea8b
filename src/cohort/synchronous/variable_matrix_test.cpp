// SPDX-License-Identifier: Apache-2.0
// Every kind of variable in every context: what reads and assignments do
// (spec/strategy.md 3.2 to 3.4), with 1 to 3 replicas.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "cohort/strategy/strategy_extended.h"
#include "cohort/synchronous/mirrored/variable_fixture.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

using Case = std::tuple<int, VariableSynchronization, VariableAggregation>;

class VariableMatrix : public testing::VariableFixture, public ::testing::WithParamInterface<Case> {
 protected:
  std::vector<double> all(double value) const { return std::vector<double>(n_, value); }
  std::vector<double> by_id(double first, double step) const {
    std::vector<double> values;
    for (std::size_t i = 0; i < n_; ++i) values.push_back(first + step * static_cast<double>(i));
    return values;
  }
  // The expected result of read() in cross-replica context for these components.
  double combined(const std::vector<double>& values) const {
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    if (!is_on_read_ || aggregation_ == Aggregation::only_first_replica) return values[0];
    return aggregation_ == Aggregation::sum ? sum : sum / static_cast<double>(n_);
  }
  // The value that the replicas write together.
  double merged(const std::vector<double>& values) const {
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    if (aggregation_ == Aggregation::only_first_replica) return values[0];
    return aggregation_ == Aggregation::sum ? sum : sum / static_cast<double>(n_);
  }
  bool is_merged() const { return !is_on_read_ && aggregation_ != Aggregation::none; }
  void expect(const std::vector<double>& values) {
    EXPECT_EQ(components(v_), values);
    if (is_on_read_ && aggregation_ == Aggregation::none) {
      EXPECT_THAT([&] { v_.read(); }, throws_error(ErrorCode::invalid_argument, "an aggregation"));
    } else {
      EXPECT_DOUBLE_EQ(number(v_.read()), combined(values));
    }
  }

  const std::size_t n_ = static_cast<std::size_t>(std::get<0>(GetParam()));
  // The value of one replica is that of all.
  const bool is_on_read_ = n_ > 1 && std::get<1>(GetParam()) == Synchronization::on_read;
  const Aggregation aggregation_ = std::get<2>(GetParam());
  MirroredStrategy strategy_{testing::cpu_devices(std::get<0>(GetParam()))};
  const Variable v_ = strategy_.variable(
      "v", scalar(1),
      {.synchronization = std::get<1>(GetParam()), .aggregation = std::get<2>(GetParam())});
};

TEST_P(VariableMatrix, InCrossReplicaContext) {
  const auto check = [&] {
    v_.assign(6);
    const bool is_split = is_on_read_ && aggregation_ == Aggregation::sum;
    const double share = is_split ? 6 / static_cast<double>(n_) : 6;
    expect(all(share));
    if (is_split) {
      EXPECT_EQ(code_of([&] { v_.assign_add(scalar(2)); }), ErrorCode::invalid_argument);
      EXPECT_EQ(code_of([&] { v_.assign_sub(2); }), ErrorCode::invalid_argument);
      return expect(all(share));
    }
    v_.assign_add(scalar(2));
    expect(all(8));
    v_.assign_sub(4);
    expect(all(4));
  };
  check();
  const StrategyScope scope = strategy_.scope();
  check();
}

TEST_P(VariableMatrix, InReplicas) {
  const auto run = [&](const auto& body) { strategy_.run([&] { body(id()); }); };
  run([&](double i) { v_.assign(scalar(i + 6)); });
  std::vector<double> own = by_id(6, 1);
  const auto both = [&](double one) { return is_merged() ? all(one) : own; };
  double one = merged(own);
  expect(both(one));

  run([&](double i) { v_.assign_add(scalar(2 * i)); });
  for (std::size_t i = 0; i < n_; ++i) own[i] += 2 * static_cast<double>(i);
  one += merged(by_id(0, 2));
  expect(both(one));

  run([&](double i) {
    v_.assign_sub(scalar(i + 2));
    const auto at = static_cast<std::size_t>(i);
    const double expected = is_merged() ? one - merged(by_id(2, 1)) : own[at] - i - 2;
    EXPECT_DOUBLE_EQ(number(v_.read()), expected);
    EXPECT_DOUBLE_EQ(number(v_.tensor()), expected);
  });
  for (std::size_t i = 0; i < n_; ++i) own[i] -= static_cast<double>(i) + 2;
  one -= merged(by_id(2, 1));
  expect(both(one));
}

TEST_P(VariableMatrix, WithANumberThatIsTheSameInAllReplicas) {
  const auto assign = [&](double number) { strategy_.run([&] { v_.assign(number); }); };
  const bool has_no_sum = is_merged() && aggregation_ == Aggregation::sum && n_ > 1;
  if (has_no_sum) {
    EXPECT_EQ(code_of([&] { assign(6); }), ErrorCode::invalid_argument);
    expect(all(1));
  } else {
    assign(6);
    expect(all(6));
  }
  assign(0);
  expect(all(0));
}

TEST_P(VariableMatrix, InUpdatesOfComponents) {
  strategy_.extended().update(v_, [&](const Variable& component) {
    component.assign(6);
    EXPECT_EQ(number(component.read()), 6);
    v_.assign_add(1);  // of the container, it is the same component here
    EXPECT_EQ(number(v_.read()), 7);
  });
  expect(all(7));
  std::vector<at::Tensor> values;
  for (const double value : by_id(2, 1)) values.push_back(scalar(value));
  strategy_.extended().update(
      v_, [](const Variable& component, const at::Tensor& x) { component.assign_add(x); },
      PerReplica<at::Tensor>(values));
  expect(by_id(9, 1));
}

TEST_P(VariableMatrix, InAMergeIsAsInCrossReplicaContext) {
  strategy_.run([&] { get_replica_context()->merge_call([&](Strategy&) { v_.assign(6); }); });
  expect(all(is_on_read_ && aggregation_ == Aggregation::sum ? 6 / static_cast<double>(n_) : 6));
}

TEST_P(VariableMatrix, WithAValueForEachComponent) {
  std::vector<at::Tensor> values;
  for (const double value : by_id(6, 1)) values.push_back(scalar(value));
  const PerReplica<at::Tensor> each(values);
  const auto assign = [&] { strategy_.extended().assign(v_, each); };
  if (is_on_read_) {
    EXPECT_EQ(code_of(assign), ErrorCode::invalid_argument);
    return expect(all(1));
  }
  assign();
  expect(by_id(6, 1));
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  constexpr std::array kNames{"none", "sum", "mean", "only_first_replica"};
  const auto [replicas, synchronization, aggregation] = info.param;
  return std::string(synchronization == VariableSynchronization::on_read ? "on_read_"
                                                                         : "on_write_") +
         kNames.at(static_cast<std::size_t>(aggregation)) + "_" + std::to_string(replicas);
}

INSTANTIATE_TEST_SUITE_P(
    Mirrored, VariableMatrix,
    ::testing::Combine(
        ::testing::Values(1, 2, 3),
        ::testing::Values(VariableSynchronization::on_write, VariableSynchronization::on_read),
        ::testing::Values(VariableAggregation::none, VariableAggregation::sum,
                          VariableAggregation::mean, VariableAggregation::only_first_replica)),
    name_of_case);

}  // namespace
}  // namespace cohort
