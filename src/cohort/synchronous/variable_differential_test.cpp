// SPDX-License-Identifier: Apache-2.0
// Random reads, assignments and changes of rows, compared with a model that is a few lines for each
// rule. The numbers are small integers and the means are over powers of two, so all are exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/strategy/strategy_extended.h"
#include "cohort/synchronous/mirrored/variable_fixture.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/test_seed.h"

namespace cohort {
namespace {

using Row = std::vector<double>;
constexpr std::size_t kRows = 3;

// The write that one replica, or the cross-replica context, wants to make.
struct Write {
  enum class Kind : std::uint8_t { assign, add, sub, scatter_add, scatter_mul, scatter_update };
  Kind kind = Kind::assign;
  Row values;
  std::vector<std::int64_t> indices = {};  // of a change of rows

  bool is_scatter() const { return kind >= Kind::scatter_add; }
  void to(const Variable& variable) const {
    const auto options = at::TensorOptions(at::kDouble);
    const at::Tensor x = at::tensor(values, options);
    const at::Tensor at = at::tensor(indices, at::TensorOptions(at::kLong));
    if (kind == Kind::assign) variable.assign(x);
    if (kind == Kind::add) variable.assign_add(x);
    if (kind == Kind::sub) variable.assign_sub(x);
    if (kind == Kind::scatter_add) variable.scatter_add(at, x);
    if (kind == Kind::scatter_mul) variable.scatter_mul(at, x);
    if (kind == Kind::scatter_update) variable.scatter_update(at, x);
  }
  void to(Row& row) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      double& own = row[is_scatter() ? static_cast<std::size_t>(indices[i]) : i];
      if (kind == Kind::assign || kind == Kind::scatter_update) own = values[i];
      if (kind == Kind::add || kind == Kind::scatter_add) own += values[i];
      if (kind == Kind::sub) own -= values[i];
      if (kind == Kind::scatter_mul) own *= values[i];
    }
  }
};

struct Model {
  bool is_plain = false;
  bool is_on_read = false;
  bool can_scatter = true;
  VariableAggregation aggregation = VariableAggregation::none;
  std::size_t replicas = 1;
  std::vector<Row> components;  // of a plain variable one

  bool is_sum() const { return aggregation == VariableAggregation::sum; }
  bool is_mean() const { return aggregation == VariableAggregation::mean; }
  bool is_alone() const { return replicas == 1; }
  bool can(const Write& write) const {
    if (!write.is_scatter()) return true;
    const bool is_combined = is_sum() || is_mean();
    return can_scatter && (is_alone() || !is_combined || write.kind != Write::Kind::scatter_update);
  }
  bool in_cross(const Write& write) {
    if (!can(write)) return false;
    const bool is_split = is_on_read && is_sum();
    if (is_split && write.kind != Write::Kind::assign) return false;
    for (Row& component : components) {
      write.to(component);
      if (!is_split) continue;
      for (double& value : component) value /= static_cast<double>(replicas);
    }
    return true;
  }
  bool in_update(std::size_t i, const Write& write) {
    if (!can(write)) return false;
    write.to(components[i]);
    return true;
  }
  bool in_replicas(const std::vector<Write>& writes) {
    if (!can(writes[0])) return false;
    const bool is_none = aggregation == VariableAggregation::none;
    if (is_plain && replicas > 1 && is_none) return false;
    if (is_alone() || is_on_read || is_none) {
      for (std::size_t i = 0; i < replicas; ++i) writes[i].to(components[i]);
      return true;
    }
    Write merged = writes[0];
    if (aggregation != VariableAggregation::only_first_replica) {
      for (std::size_t i = 1; i < replicas; ++i) join(merged, writes[i]);
      for (double& value : merged.values) value /= is_mean() ? static_cast<double>(replicas) : 1;
    }
    for (Row& component : components) merged.to(component);
    return true;
  }
  static void join(Write& merged, const Write& next) {
    if (next.is_scatter()) {
      merged.values.insert(merged.values.end(), next.values.begin(), next.values.end());
      merged.indices.insert(merged.indices.end(), next.indices.begin(), next.indices.end());
    } else {
      for (std::size_t k = 0; k < kRows; ++k) merged.values[k] += next.values[k];
    }
  }
  // nullopt where read() in cross-replica context is an error.
  std::optional<Row> read() const {
    if (!is_on_read || aggregation == VariableAggregation::only_first_replica) return components[0];
    if (aggregation == VariableAggregation::none) return std::nullopt;
    Row row(kRows);
    for (const Row& component : components) {
      for (std::size_t k = 0; k < kRows; ++k)
        row[k] += component[k] / (is_mean() ? static_cast<double>(replicas) : 1);
    }
    return row;
  }
};

class VariableDifferential : public testing::VariableFixture {
 protected:
  struct Subject {
    Strategy* strategy;
    Variable variable;
    Model model;
  };

  std::int64_t draw(std::int64_t below) { return static_cast<std::int64_t>(random_()) % below; }
  Row draw_row(std::size_t count) {
    Row row;
    for (std::size_t i = 0; i < count; ++i) row.push_back(static_cast<double>(draw(9) - 4));
    return row;
  }
  // The writes are of the same kind in all replicas.
  std::vector<Write> draw_writes(std::size_t replicas) {
    const auto kind = static_cast<Write::Kind>(draw(6));
    std::vector<Write> writes;
    for (std::size_t i = 0; i < replicas; ++i) {
      Write write{.kind = kind, .values = draw_row(kRows)};
      if (write.is_scatter()) {
        write.values = draw_row(static_cast<std::size_t>(draw(4)));
        while (write.indices.size() < write.values.size()) write.indices.push_back(draw(kRows));
      }
      writes.push_back(std::move(write));
    }
    return writes;
  }

  void add(std::unique_ptr<Strategy> strategy, bool is_plain) {
    const auto replicas = static_cast<std::size_t>(strategy->num_replicas_in_sync());
    for (const bool is_on_read : {false, true}) {
      for (const Aggregation aggregation : {Aggregation::none, Aggregation::sum, Aggregation::mean,
                                            Aggregation::only_first_replica}) {
        const Row start = draw_row(kRows);
        const Variable variable = strategy->variable(
            "v" + std::to_string(subjects_.size()), row(start),
            {.synchronization = is_on_read ? Synchronization::on_read : Synchronization::on_write,
             .aggregation = aggregation});
        subjects_.push_back({strategy.get(),
                             variable,
                             {.is_plain = is_plain,
                              .is_on_read = is_on_read && !is_plain && replicas > 1,
                              .can_scatter = !is_on_read || is_plain,
                              .aggregation = aggregation,
                              .replicas = replicas,
                              .components = std::vector<Row>(is_plain ? 1 : replicas, start)}});
      }
    }
    strategies_.push_back(std::move(strategy));
  }

  // Whether the call was accepted.
  template <class F>
  static bool succeeds(F&& call) {
    try {
      call();
      return true;
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::invalid_argument ||
                  error.code() == ErrorCode::unimplemented)
          << error.what();
      return false;
    }
  }

  void step(Subject& subject) {
    // No structured binding: clang 14 refuses one that a lambda captures.
    Strategy* const strategy = subject.strategy;
    const Variable& variable = subject.variable;
    const Model& model = subject.model;
    const std::size_t replicas = model.replicas;
    const std::vector<Write> writes = draw_writes(replicas);
    bool is_expected = false, is_done = false;
    switch (draw(4)) {
      case 0:
        is_expected = subject.model.in_cross(writes[0]);
        is_done = succeeds([&] { writes[0].to(variable); });
        break;
      case 1: {
        const std::size_t i = static_cast<std::size_t>(draw(8)) % model.components.size();
        is_expected = subject.model.in_update(i, writes[0]);
        std::size_t next = 0;
        is_done = succeeds([&] {
          // In an update of a component, the variable itself is that component.
          strategy->extended().update(variable, [&](const Variable&) {
            if (next++ == i) writes[0].to(variable);
          });
        });
        break;
      }
      case 2:
        is_expected = subject.model.in_cross(writes[0]);
        is_done = succeeds([&] {
          strategy->run([&] {
            get_replica_context()->merge_call([&](Strategy&) { writes[0].to(variable); });
          });
        });
        break;
      default:
        is_expected = subject.model.in_replicas(writes);
        is_done = succeeds(
            [&] { strategy->run([&] { writes[static_cast<std::size_t>(id())].to(variable); }); });
    }
    EXPECT_EQ(is_done, is_expected) << variable.name();
  }
  void check(const Subject& subject) {
    const std::vector<Variable> components = internal::component_variables(subject.variable);
    ASSERT_EQ(components.size(), subject.model.components.size());
    for (std::size_t i = 0; i < components.size(); ++i)
      EXPECT_EQ(numbers(components[i].read()), subject.model.components[i]);
    const std::optional<Row> expected = subject.model.read();
    Row read;
    EXPECT_EQ(succeeds([&] { read = numbers(subject.variable.read()); }), expected.has_value());
    EXPECT_EQ(expected.value_or(read), read);
    const auto own =
        subject.strategy->run([&] { return numbers(subject.variable.read()); }).local_results();
    for (std::size_t i = 0; i < own.size(); ++i)
      EXPECT_EQ(own[i], subject.model.components[i % components.size()]);
  }

  const testing::TestSeed seed_;
  std::mt19937 random_{seed_.value()};
  std::vector<std::unique_ptr<Strategy>> strategies_;
  std::vector<Subject> subjects_;
};

TEST_F(VariableDifferential, VariablesDoWhatTheModelDoes) {
  for (const int replicas : {1, 2, 4}) {
    add(std::make_unique<MirroredStrategy>(testing::cpu_devices(replicas)), /*is_plain=*/false);
    add(std::make_unique<CentralStorageStrategy>(testing::cpu_devices(replicas)),
        /*is_plain=*/true);
  }
  add(std::make_unique<OneDeviceStrategy>(), /*is_plain=*/true);
  for (int round = 0; round < 25 && !HasFailure(); ++round) {
    for (Subject& subject : subjects_) {
      SCOPED_TRACE(subject.variable.name() + " of " + std::string(subject.strategy->name()) + ", " +
                   std::to_string(subject.model.replicas) + " replicas, round " +
                   std::to_string(round));
      step(subject);
      // Products would grow until they are no longer exact.
      if (round % 5 == 4) {
        Write start{.kind = Write::Kind::assign, .values = draw_row(kRows)};
        if (subject.model.in_cross(start)) start.to(subject.variable);
      }
      check(subject);
    }
  }
}

}  // namespace
}  // namespace cohort
