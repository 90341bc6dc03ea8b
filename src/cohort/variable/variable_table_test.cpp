// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/variable_table.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

class VariableTableTest : public ::testing::Test {
 protected:
  Variable add(const std::string& name, at::Tensor tensor = at::ones({2, 2})) {
    Variable variable = local_variable(name, std::move(tensor));
    table_.add(variable);
    return variable;
  }
  VariableTable table_;
};

TEST_F(VariableTableTest, FindsByTensorAndByName) {
  const Variable weight = add("w");
  const Variable bias = add("b");
  ASSERT_NE(table_.find(bias.tensor()), nullptr);
  EXPECT_TRUE(table_.find(bias.tensor())->variable == bias);
  EXPECT_EQ(table_.find("w")->traced.name, "w");
  EXPECT_EQ(table_.find("v"), nullptr);
}

TEST_F(VariableTableTest, FindsAViewByItsMemory) {
  const Variable weight = add("w");
  ASSERT_NE(table_.find(weight.tensor().t()), nullptr);
  EXPECT_EQ(table_.find(weight.read()), nullptr);
  EXPECT_EQ(table_.find(at::Tensor()), nullptr);
}

TEST_F(VariableTableTest, TheLookupOfATraceSeesLaterVariables) {
  const auto lookup = table_.lookup();
  const Variable weight = add("w");
  const auto* traced = lookup(weight.tensor().storage().unsafeGetStorageImpl());
  ASSERT_NE(traced, nullptr);
  EXPECT_TRUE(traced->is_trainable);
  EXPECT_EQ(lookup(nullptr), nullptr);
}

TEST_F(VariableTableTest, EntriesThatAreTakenLeaveTheOthersInOrder) {
  for (const char* name : {"a", "b", "c", "d"}) add(name);
  const VariableTable::EntryPtr held = table_.find("c");
  const at::Tensor kept = table_.find("d")->traced.tensor;
  const auto taken = table_.take_if([](const VariableTable::Entry& entry) {
    return entry.variable.name() == "a" || entry.variable.name() == "c";
  });
  ASSERT_EQ(taken.size(), 1U) << "somebody holds the other one";
  EXPECT_EQ(taken[0]->variable.name(), "a");
  EXPECT_EQ(table_.find("a"), nullptr);
  EXPECT_EQ(table_.find(taken[0]->traced.tensor), nullptr);
  EXPECT_EQ(table_.find("c"), held);
  EXPECT_EQ(table_.find(kept)->variable.name(), "d");
  std::vector<std::string> names;
  for (const Variable& variable : table_.variables()) names.push_back(variable.name());
  EXPECT_EQ(names, (std::vector<std::string>{"b", "c", "d"}));
  add("a");
  EXPECT_EQ(table_.find("a")->variable.name(), "a");
}

TEST_F(VariableTableTest, TakesTrainableFromTheVariableAndTheRestFromTheCaller) {
  const Variable mean = local_variable("mean", at::ones({2}), false);
  function::TracedVariable how;
  how.is_remote = false;
  how.is_trainable = true;
  how.is_handle_only = true;
  table_.add(mean, how);
  const function::TracedVariable& traced = table_.find("mean")->traced;
  EXPECT_FALSE(traced.is_trainable);
  EXPECT_FALSE(traced.is_remote);
  EXPECT_TRUE(traced.is_handle_only);
}

TEST_F(VariableTableTest, ASecondVariableOfANameIsRefusedAndTheFirstStays) {
  const Variable first = add("w");
  EXPECT_THAT([&] { add("w"); },
              throws_error(ErrorCode::already_exists, "got 'w', which is another variable's"));
  EXPECT_TRUE(table_.find("w")->variable == first);
  EXPECT_EQ(table_.variables().size(), 1U);
}

TEST_F(VariableTableTest, TwoVariablesOfOneMemoryAreRefused) {
  const Variable first = add("embedding");
  EXPECT_THAT(
      [&] { add("tied", first.tensor().detach()); },
      throws_error(ErrorCode::already_exists, "that of variable 'embedding' (variable 'tied')"));
  EXPECT_THAT([&] { add("tied", first.tensor().detach()); },
              throws_error(ErrorCode::already_exists, "clone() a tensor that the factory"));
}

TEST_F(VariableTableTest, ASliceOfALargerTensorIsRefused) {
  EXPECT_THAT(
      [&] {
        add("slice", at::ones({4, 2}).slice(0, 1, 3));
      },
      throws_error(ErrorCode::invalid_argument, "got one at element 2 (variable 'slice')"));
}

TEST_F(VariableTableTest, ListsInTheOrderOfAdding) {
  add("b");
  add("a");
  const auto variables = table_.variables();
  ASSERT_EQ(variables.size(), 2U);
  EXPECT_EQ(variables[0].name(), "b");
  EXPECT_EQ(variables[1].name(), "a");
}

}  // namespace
}  // namespace cohort
