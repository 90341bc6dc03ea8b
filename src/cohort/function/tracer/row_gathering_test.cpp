// SPDX-License-Identifier: Apache-2.0
// Programs that gather rows, beside those of the same functions that read whole tables.
#include "cohort/function/tracer/row_gathering.h"

#include <ATen/ops/_embedding_bag.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <random>

#include "cohort/function/program/wire.h"
#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kRows = 50;
constexpr std::int64_t kWidth = 3;

// Keeps variables as a server does, and notes what is read. Used only from one thread.
class TableHost final : public internal::EffectHandler {
 public:
  explicit TableHost(Tensors variables) : variables_(std::move(variables)) {}

  Tensors iterator_next(std::int64_t) override { return {}; }
  void update(internal::Effect effect) override {
    at::Tensor gradient = effect.tensors.at(0);
    if (effect.row_ids.defined()) {
      pushed_rows += gradient.size(0);
      const at::Tensor dense = at::zeros(variables_.at(effect.variable).sizes());
      gradient = dense.index_add_(0, effect.row_ids, gradient);
    } else {
      pushed_rows += kRows;
    }
    gradients.push_back(gradient);
  }
  Read read(std::span<const RowRead> rows, std::span<const std::int64_t> variables) override {
    Read read;
    ++exchanges;
    for (const RowRead& each : rows) {
      pulled_rows += each.ids.numel();
      read.rows.push_back(
          variables_.at(static_cast<std::size_t>(each.variable)).index_select(0, each.ids));
    }
    for (const std::int64_t each : variables)
      read.variables.push_back(variables_.at(static_cast<std::size_t>(each)).clone());
    return read;
  }

  Tensors gradients;
  int exchanges = 0;
  std::int64_t pulled_rows = 0;
  std::int64_t pushed_rows = 0;

 private:
  const Tensors variables_;
};

// One run of a program.
struct Outcome {
  Tensors outputs;
  Tensors gradients;
  int exchanges = 0;
  std::int64_t pulled_rows = 0;
  std::int64_t pushed_rows = 0;
};

class RowGatheringTest : public TraceCase {
 protected:
  at::Tensor table(const std::string& name = "table") { return parameter(name, {kRows, kWidth}); }

  // The gradients of the loss, as an optimizer passes them on.
  void train(const at::Tensor& loss, const Tensors& variables) const {
    Trace& trace = *Trace::current();
    trace.capture_input(rate_);
    const Tensors gradients = torch::autograd::grad({loss}, variables);
    for (std::size_t i = 0; i < variables.size(); ++i) {
      trace.update(variables[i], internal::apply_effect({"sgd", "sgd"}, {}, gradients[i]),
                   {{rate_}});
    }
  }

  Traced traced_with(bool gathers_rows, const Tensors& inputs, const Tensors& others,
                     const TraceBody& body) {
    options_.gathers_rows = gathers_rows;
    options_.lists_ops = true;
    return traced(inputs, others, body);
  }
  Outcome run(const Traced& traced, Tensors inputs) {
    const auto program = PreparedProgram::decode(traced.bytes);
    for (const at::Tensor& captured : traced.captured_inputs) inputs.push_back(captured);
    const Tensors all = values_of(program->info());
    Tensors pulled = all;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (!program->info().variables[i].is_read || program->info().variables[i].is_handle_only)
        pulled[i] = at::Tensor();
    TableHost host(all);
    Outcome outcome{.outputs = program->run(inputs, pulled, host, 1)};
    outcome.gradients = std::move(host.gradients);
    outcome.exchanges = host.exchanges;
    outcome.pulled_rows = host.pulled_rows;
    outcome.pushed_rows = host.pushed_rows;
    return outcome;
  }
  // Runs the body with whole tables and with rows, expects the same bits, and returns the outcome
  // with rows.
  Outcome expect_same(const Tensors& inputs, const Tensors& others, const TraceBody& body) {
    const Traced whole = traced_with(false, inputs, others, body);
    const Traced rows = traced_with(true, inputs, others, body);
    const Outcome expected = run(whole, inputs);
    Outcome actual = run(rows, inputs);
    EXPECT_EQ(actual.outputs.size(), expected.outputs.size());
    for (std::size_t i = 0; i < expected.outputs.size(); ++i)
      EXPECT_TRUE(bits_equal(actual.outputs[i], expected.outputs[i])) << "output " << i;
    EXPECT_EQ(actual.gradients.size(), expected.gradients.size());
    for (std::size_t i = 0; i < expected.gradients.size(); ++i)
      EXPECT_TRUE(bits_equal(actual.gradients[i], expected.gradients[i]))
          << "gradient " << i << ": " << actual.gradients[i].sub(expected.gradients[i]).abs().max()
          << whole.listing << rows.listing;
    listing_ = rows.listing;
    return actual;
  }
  // For bodies that look up `ids` in one table and in nothing else.
  Outcome expect_same(const std::vector<std::int64_t>& ids,
                      const std::function<at::Tensor(const at::Tensor& ids)>& loss,
                      const Tensors& variables) {
    const at::Tensor given = at::tensor(ids, at::kLong);
    return expect_same({given}, {given.flip({0})}, [&](const Tensors& in) {
      const at::Tensor value = loss(in[0]);
      train(value, variables);
      return Tensors{value.detach()};
    });
  }

  at::Tensor rate_ = at::full({}, 0.5, at::kDouble);
  std::string listing_;
};

TEST_F(RowGatheringTest, ReadsAndUpdatesTheRowsOfAnEmbedding) {
  const at::Tensor t = table(), w = parameter("w", {kWidth});
  const Outcome outcome = expect_same(
      {7, 3, 7, 49},
      [&](const at::Tensor& ids) { return (at::embedding(t, ids) * w).sigmoid().sum(); }, {t, w});
  EXPECT_EQ(outcome.exchanges, 1);
  EXPECT_EQ(outcome.pulled_rows, 3);
  EXPECT_EQ(outcome.pushed_rows, 3 + kRows);  // w counts as a table
}

TEST_F(RowGatheringTest, SendsNoGradientOfThePadding) {
  const at::Tensor t = table();
  const Outcome outcome = expect_same(
      {7, 3, 7, 9}, [&](const at::Tensor& ids) { return at::embedding(t, ids, 7).sigmoid().sum(); },
      {t});
  EXPECT_EQ(outcome.pulled_rows, 3);
  EXPECT_EQ(outcome.pushed_rows, 2);
}

TEST_F(RowGatheringTest, ScalesByFrequency) {
  const at::Tensor t = table();
  expect_same({7, 3, 7, 9},
              [&](const at::Tensor& ids) {
                return at::embedding(t, ids, -1, /*scale_grad_by_freq=*/true).sigmoid().sum();
              },
              {t});
}

TEST_F(RowGatheringTest, SparseGradientsKeepTheirIds) {
  const at::Tensor t = table();
  const Outcome outcome =
      expect_same({7, 3, 7, 9},
                  [&](const at::Tensor& ids) {
                    return at::embedding(t, ids, -1, false, /*sparse=*/true).sigmoid().sum();
                  },
                  {t});
  EXPECT_EQ(outcome.pulled_rows, 3);
  EXPECT_EQ(outcome.pushed_rows, 4);  // as it is outside of a trace
}

TEST_F(RowGatheringTest, ReadsTheRowsOfBags) {
  for (const std::int64_t mode : {0, 1, 2}) {
    for (const c10::optional<std::int64_t> padding :
         {c10::optional<std::int64_t>(), c10::optional<std::int64_t>(3)}) {
      const std::string name = std::to_string(mode) + (padding ? " with padding" : "");
      SCOPED_TRACE(name);
      const at::Tensor t = table(name);
      const at::Tensor offsets = at::tensor({0, 2}, at::kLong);
      const Outcome outcome =
          expect_same({7, 3, 7, 9, 3, 12},
                      [&](const at::Tensor& ids) {
                        const at::Tensor bags = std::get<0>(at::embedding_bag(
                            t, ids, offsets, false, mode, false, {}, false, padding));
                        return bags.sigmoid().sum();
                      },
                      {t});
      EXPECT_EQ(outcome.pulled_rows, 4);
      EXPECT_EQ(outcome.pushed_rows, padding ? 3 : 4);
    }
  }
}

TEST_F(RowGatheringTest, ReadsTheRowsOfBagsWithWeights) {
  const at::Tensor t = table(), weights = parameter("weights", {4});
  const at::Tensor offsets = at::tensor({0, 2}, at::kLong);
  const Outcome outcome =
      expect_same({7, 3, 7, 9},
                  [&](const at::Tensor& ids) {
                    return std::get<0>(at::embedding_bag(t, ids, offsets, false, 0, false, weights))
                        .sigmoid()
                        .sum();
                  },
                  {t, weights});
  EXPECT_EQ(outcome.pulled_rows, 3);
}

// Eager code has a dense gradient there, of which all rows occur.
TEST_F(RowGatheringTest, LazyRowsAreThoseOfSparseGradientsAlone) {
  const at::Tensor t = table(), ids = at::tensor({7, 3}, at::kLong);
  for (const bool is_sparse : {false, true}) {
    const Traced made = traced_with(true, {ids}, {ids.flip({0})}, [&](const Tensors& in) {
      Trace::current()->capture_input(rate_);
      const at::Tensor loss = at::embedding(t, in[0], -1, false, is_sparse).sigmoid().sum();
      const at::Tensor gradient = torch::autograd::grad({loss}, {t})[0];
      Trace::current()->update(
          t, internal::apply_effect({"adam", "adam", /*lazy_rows=*/true}, {}, gradient), {{rate_}});
      return Tensors{loss.detach()};
    });
    EXPECT_EQ(made.listing.find("true)", made.listing.find("cohort::apply")) != std::string::npos,
              is_sparse)
        << made.listing;
  }
}

TEST_F(RowGatheringTest, SeveralTablesAndLookupsAreOneExchange) {
  const at::Tensor users = table("users"), items = table("items"), w = parameter("w", {kWidth});
  const at::Tensor ids = at::tensor({7, 3, 7, 9, 3, 1}, at::kLong).view({3, 2});
  const Outcome outcome = expect_same({ids}, {ids.flip({0})}, [&](const Tensors& in) {
    const at::Tensor user = at::embedding(users, in[0].select(1, 0));
    const at::Tensor item = at::embedding(items, in[0].select(1, 1));
    const at::Tensor again = at::embedding(users, in[0].select(1, 1).add(20));
    const at::Tensor loss = (user * w + item * again).sigmoid().sum();
    train(loss, {users, items, w});
    return Tensors{loss.detach()};
  });
  EXPECT_EQ(outcome.exchanges, 1);
  EXPECT_EQ(outcome.pulled_rows, 2 + 3 + 3);
  EXPECT_EQ(outcome.pushed_rows, 5 + 3 + kRows);
}

// The same id in two lookups: autograd adds the sums of the lookups.
TEST_F(RowGatheringTest, AddsTheGradientsOfLookupsAsAutogradDoes) {
  const at::Tensor t = table();
  const Outcome outcome = expect_same(
      {7, 3, 7, 9, 3, 1},
      [&](const at::Tensor& ids) {
        return (at::embedding(t, ids).sigmoid() * at::embedding(t, ids.flip({0}))).sum() +
               at::embedding(t, ids.slice(0, 2)).sigmoid().sum();
      },
      {t});
  EXPECT_EQ(outcome.pulled_rows, 4);
  EXPECT_EQ(outcome.pushed_rows, 4);
}

TEST_F(RowGatheringTest, IdsOfInt32StayInt32) {
  const at::Tensor t = table();
  const at::Tensor ids = at::tensor({7, 3, 7, 9}, at::kInt);
  const Outcome outcome = expect_same({ids}, {ids.flip({0})}, [&](const Tensors& in) {
    const at::Tensor loss = at::embedding(t, in[0]).sigmoid().sum();
    train(loss, {t});
    return Tensors{loss.detach()};
  });
  EXPECT_EQ(outcome.pulled_rows, 3);
}

TEST_F(RowGatheringTest, RowsThatAreOnlyReadAreGatheredToo) {
  const at::Tensor t = table();
  const at::Tensor ids = at::tensor({7, 3}, at::kLong);
  const Outcome outcome = expect_same({ids}, {ids.flip({0})}, [&](const Tensors& in) {
    return Tensors{at::embedding(t, in[0]).detach(), t.index_select(0, in[0]).detach()};
  });
  EXPECT_EQ(outcome.pulled_rows, 2);
}

TEST_F(RowGatheringTest, IdsThatDependOnAVariableAreReadLater) {
  const at::Tensor first = table("first"), t = table(), shift = variable("shift", at::full({2}, 4));
  const at::Tensor ids = at::tensor({7, 3}, at::kLong);
  const Outcome outcome = expect_same({ids}, {ids.flip({0})}, [&](const Tensors& in) {
    const at::Tensor loss =
        (at::embedding(t, in[0].add(shift)) + at::embedding(first, in[0])).sigmoid().sum();
    train(loss, {t, first});
    return Tensors{loss.detach()};
  });
  EXPECT_EQ(outcome.exchanges, 2);
  EXPECT_EQ(outcome.pulled_rows, 4);
  EXPECT_EQ(outcome.pushed_rows, 4);
}

// Each is read whole, and gives what it gave before.
TEST_F(RowGatheringTest, TablesThatAreUsedOtherwiseStayWhole) {
  const at::Tensor small = parameter("small", {7, kWidth}), tied = table("tied");
  const at::Tensor mixed = table("mixed"), ids = at::tensor({1, 3, 1, 5}, at::kLong);
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> losses = {
      [&](const at::Tensor& in) { return at::embedding(small, in).sigmoid().sum(); },
      [&](const at::Tensor& in) { return at::embedding(tied, in).matmul(tied.t()).sum(); },
      [&](const at::Tensor& in) {
        return (at::embedding(mixed, in, 3) * at::embedding(mixed, in, 5)).sum();
      }};
  const Tensors variables = {small, tied, mixed};
  for (std::size_t i = 0; i < losses.size(); ++i) {
    SCOPED_TRACE(i);
    const Outcome outcome = expect_same({1, 3, 1, 5}, losses[i], {variables[i]});
    EXPECT_EQ(outcome.exchanges, 0);
    EXPECT_EQ(outcome.pushed_rows, kRows);
  }
}

// Its norm reads all rows, in an order on which the bits depend.
TEST_F(RowGatheringTest, AGradientThatIsUsedOtherwiseStaysDense) {
  const at::Tensor t = table();
  const at::Tensor ids = at::tensor({7, 3, 7, 9}, at::kLong);
  const Outcome outcome = expect_same({ids}, {ids.flip({0})}, [&](const Tensors& in) {
    const at::Tensor loss = at::embedding(t, in[0]).sigmoid().sum();
    Trace::current()->capture_input(rate_);
    const at::Tensor gradient = torch::autograd::grad({loss}, {t})[0];
    const at::Tensor clipped = gradient / gradient.norm();
    Trace::current()->update(t, internal::apply_effect({"sgd", "sgd"}, {}, clipped), {{rate_}});
    return Tensors{loss.detach()};
  });
  EXPECT_EQ(outcome.pulled_rows, 3);
  EXPECT_EQ(outcome.pushed_rows, kRows);
}

TEST_F(RowGatheringTest, RandomProgramsHaveTheSameBits) {
  std::mt19937 random(7);
  const auto draw = [&](std::int64_t count) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count));
  };
  int gathered = 0;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    Tensors tables;
    for (std::int64_t i = 0; i <= draw(3); ++i)
      tables.push_back(table("t" + std::to_string(round) + "_" + std::to_string(i)));
    const at::Tensor w = parameter("w" + std::to_string(round), {kWidth});
    const std::int64_t count = 1 + draw(8), lookups = 1 + draw(5), seed = draw(1000);
    const auto ids_of = [&](std::uint64_t pass) {
      return at::randint(0, 20, {count, 2}, at::detail::createCPUGenerator(pass + 5),
                         at::TensorOptions(at::kLong));
    };
    const auto body = [&](const Tensors& in) {
      std::mt19937 own(static_cast<unsigned>(seed));
      at::Tensor sum = at::zeros({kWidth});
      for (std::int64_t i = 0; i < lookups; ++i) {
        const at::Tensor& t = tables[own() % tables.size()];
        at::Tensor ids = own() % 2 == 0 ? in[0].select(1, 0) : in[0].flatten();
        if (own() % 3 == 0) ids = ids.mul(2).add(static_cast<std::int64_t>(own() % 5));
        at::Tensor rows;
        switch (own() % 3) {
          case 0:
            rows = at::embedding(t, ids);
            break;
          case 1:
            rows = t.index_select(0, ids);
            break;
          default:
            rows = std::get<0>(at::embedding_bag(t, ids, at::zeros({1}, at::kLong), false,
                                                 static_cast<std::int64_t>(own() % 3)));
        }
        sum = sum + (rows * w).sigmoid().sum(0);
      }
      const at::Tensor loss = sum.sum();
      Tensors variables;
      for (const at::Tensor& t : tables) variables.push_back(t);
      Trace::current()->capture_input(rate_);
      const auto gradients =
          torch::autograd::grad({loss}, variables, {}, {}, false, /*allow_unused=*/true);
      for (std::size_t i = 0; i < variables.size(); ++i) {
        if (!gradients[i].defined()) continue;
        Trace::current()->update(
            variables[i], internal::apply_effect({"sgd", "sgd"}, {}, gradients[i]), {{rate_}});
      }
      return Tensors{loss.detach()};
    };
    gathered += expect_same({ids_of(0)}, {ids_of(1)}, body).exchanges > 0 ? 1 : 0;
  }
  EXPECT_GT(gathered, 30);
}

}  // namespace
}  // namespace cohort::function
