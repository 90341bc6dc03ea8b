// SPDX-License-Identifier: Apache-2.0
// The components of a variable as variables of their own.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/synchronous/mirrored/variable_fixture.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using internal::component_variables;
using internal::container_of;
using ::testing::ElementsAre;
using testing::throws_error;

class MirroredComponents : public testing::VariableFixture {
 protected:
  Variable make(const VariableOptions& options = {}) {
    return two_.variable("v" + std::to_string(++made_), row({1, 2}), options);
  }
  static std::vector<std::vector<double>> values(const Variable& variable) {
    std::vector<std::vector<double>> all;
    for (const Variable& component : component_variables(variable))
      all.push_back(numbers(component.read()));
    return all;
  }
  int made_ = 0;
  MirroredStrategy two_{testing::cpu_devices(2)};
};

// VAR-080
TEST_F(MirroredComponents, HaveNamesAndAContainer) {
  const Variable v = make({.synchronization = Synchronization::on_read});
  const std::vector<Variable> components = component_variables(v);
  ASSERT_EQ(components.size(), 2U);
  EXPECT_EQ(components[0].name(), v.name());
  EXPECT_EQ(components[1].name(), v.name() + "/replica_1");
  EXPECT_EQ(components[1].spec(), v.spec());
  EXPECT_EQ(components[1].is_trainable(), v.is_trainable());
  EXPECT_EQ(components[1].synchronization(), Synchronization::on_read);
  EXPECT_EQ(container_of(components[0]), v);
  EXPECT_EQ(container_of(components[1]), v);
  EXPECT_EQ(container_of(v), std::nullopt);
  EXPECT_EQ(component_variables(v), components) << "always the same variables";
  EXPECT_EQ(component_variables(components[1]), std::vector{components[1]});
}

TEST_F(MirroredComponents, AreNotThemselvesWhereThereIsOneValue) {
  OneDeviceStrategy one("CPU:0");
  CentralStorageStrategy central(testing::cpu_devices(2));
  MirroredStrategy mirrored(testing::cpu_devices(1));
  for (Strategy* strategy : std::vector<Strategy*>{&one, &central, &mirrored}) {
    const Variable v = strategy->variable("v", scalar(1));
    EXPECT_EQ(component_variables(v), std::vector{v});
    EXPECT_EQ(container_of(v), std::nullopt);
  }
  const Variable local = local_variable("l", scalar(1));
  EXPECT_EQ(component_variables(local), std::vector{local});
}

TEST_F(MirroredComponents, KeepTheirContainerAlive) {
  std::optional<Variable> component;
  {
    const Variable v = make();
    component = component_variables(v)[1];
  }
  component->assign(row({5, 6}));
  EXPECT_THAT(numbers(container_of(*component)->read()), ElementsAre(1, 2));
}

TEST_F(MirroredComponents, AreWrittenAloneInEveryContext) {
  for (const Aggregation aggregation : {Aggregation::none, Aggregation::sum}) {
    for (const Synchronization synchronization :
         {Synchronization::on_write, Synchronization::on_read}) {
      const Variable v = make({.synchronization = synchronization, .aggregation = aggregation});
      const std::vector<Variable> components = component_variables(v);
      components[1].assign(row({3, 4}));
      components[1].assign_add(row({1, 1}));
      {
        const StrategyScope scope = two_.scope();
        components[0].assign_sub(row({1, 1}));
      }
      EXPECT_THAT(values(v), ElementsAre(ElementsAre(0, 1), ElementsAre(4, 5)));
      two_.run([&] { components[static_cast<std::size_t>(1 - id())].assign(row({id(), 0})); });
      EXPECT_THAT(values(v), ElementsAre(ElementsAre(1, 0), ElementsAre(0, 0)));
      components[0].scatter_min(index({0}), row({-1}));
      components[1].scatter_update(index({1}), row({9}));
      EXPECT_THAT(values(v), ElementsAre(ElementsAre(-1, 0), ElementsAre(0, 9)));
    }
  }
}

TEST_F(MirroredComponents, AreTheValuesOfTheReplicas) {
  const Variable v = make();
  component_variables(v)[1].assign(row({3, 4}));
  two_.run([&] {
    EXPECT_TRUE(
        v.tensor().is_same(component_variables(v)[static_cast<std::size_t>(id())].tensor()));
    EXPECT_EQ(numbers(v.read())[0], 1 + 2 * id());
  });
  EXPECT_THAT(numbers(component_variables(v)[1].tensor()), ElementsAre(3, 4));
}

TEST_F(MirroredComponents, AreOptimizedOutsideOfReplicasOnly) {
  const Variable v = make();
  const Variable second = component_variables(v)[1];
  const SGD sgd({second}, {.learning_rate = 0.5});
  sgd.minimize(second.tensor().sum());
  EXPECT_THAT(values(v), ElementsAre(ElementsAre(1, 2), ElementsAre(0.5, 1.5)));
  EXPECT_THAT([&] { two_.run([&] {
                      sgd.apply_gradients({{row({1, 1}), second}});
                    }); },
              throws_error(ErrorCode::unimplemented, "got the component"));
  EXPECT_THAT(values(v), ElementsAre(ElementsAre(1, 2), ElementsAre(0.5, 1.5)));
}

TEST_F(MirroredComponents, OfAnotherStrategyAreRefused) {
  MirroredStrategy other(testing::cpu_devices(2));
  const Variable component = component_variables(make())[1];
  const StrategyScope scope = other.scope();
  EXPECT_THAT([&] { component.read(); },
              throws_error(ErrorCode::failed_precondition, "mixing strategies"));
  EXPECT_THAT(
      [&] {
        component.assign(row({1, 1}));
      },
      throws_error(ErrorCode::failed_precondition, "mixing strategies"));
}

}  // namespace
}  // namespace cohort
