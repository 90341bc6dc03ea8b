// SPDX-License-Identifier: Apache-2.0
// Training as TensorFlow recorded it (training.json): losses and parameters after every step.
//
// Runs the cases of one replica and skips the others. One replica on the whole batch computes the
// same as several on their parts, but does not test a strategy's reduction, which the other cases
// are for: they wait until minimize() reduces over replicas.
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "cohort/core/error.h"
#include "cohort/optimizer/optimizers.h"

namespace cohort {
namespace {

using Json = nlohmann::json;
using Parameters = std::map<std::string, Variable>;

constexpr const char* kCasesFile = COHORT_SOURCE_DIR "/tests/conformance/strategy/training.json";

bool has_one_replica(const Json& recorded) {
  const Json& steps = recorded.at("steps");
  return std::all_of(steps.begin(), steps.end(), [](const Json& step) {
    const Json& batches = step.at("batches");
    return std::all_of(batches.begin(), batches.end(),
                       [](const Json& batch) { return batch.at("x").size() == 1; });
  });
}

const Json& all_cases() {
  static const Json kCases = [] {
    std::ifstream in(kCasesFile);
    COHORT_CHECK(in.good(), ErrorCode::not_found, "[optimizer.golden] expected cases in ",
                 kCasesFile);
    return Json::parse(in);
  }();
  return kCases;
}

at::Tensor tensor_of(const Json& json) {
  const auto type = json.at("t").get<std::string>();
  COHORT_CHECK(type == "f64" || type == "f32", ErrorCode::unimplemented, "dtype ", type);
  return at::tensor(json.at("v").get<std::vector<double>>(), at::TensorOptions(at::kDouble))
      .to(type == "f64" ? at::kDouble : at::kFloat)
      .reshape(json.at("s").get<std::vector<std::int64_t>>());
}

// The one replica's part.
at::Tensor batch_of(const Json& parts) { return tensor_of(parts.at(0)); }

Optimizer sgd_of(const Json& json, std::vector<Variable> variables) {
  return SGD(std::move(variables), {.learning_rate = json.at("lr").get<double>(),
                                    .momentum = json.value("momentum", 0.0),
                                    .nesterov = json.value("nesterov", false)});
}

Optimizer optimizer_of(const Json& json, std::vector<Variable> variables) {
  const auto kind = json.at("kind").get<std::string>();
  const double rate = json.at("lr");
  if (kind == "sgd" || kind == "momentum") return sgd_of(json, std::move(variables));
  if (kind == "adagrad") {
    return Adagrad(std::move(variables),
                   {.learning_rate = rate, .initial_accumulator = json.at("initial_accumulator")});
  }
  if (kind == "rmsprop") {
    return RMSprop(
        std::move(variables),
        {.learning_rate = rate, .decay = json.at("decay"), .epsilon = json.at("epsilon")});
  }
  COHORT_CHECK(kind == "adam", ErrorCode::unimplemented, "optimizer ", kind);
  return Adam(std::move(variables), {.learning_rate = rate,
                                     .beta_1 = json.at("beta1"),
                                     .beta_2 = json.at("beta2"),
                                     .epsilon = json.at("epsilon")});
}

at::Tensor prediction(const std::string& model, const Parameters& parameters, const at::Tensor& x) {
  const auto layer = [&](const at::Tensor& in, const char* weight, const char* bias) {
    return in.matmul(parameters.at(weight).tensor()).add(parameters.at(bias).tensor());
  };
  if (model == "linear") return layer(x, "w", "b");
  if (model == "linear_relu") return layer(x, "w", "b").relu();
  COHORT_CHECK(model == "mlp", ErrorCode::unimplemented, "model ", model);
  return layer(layer(x, "w1", "b1").tanh(), "w2", "b2");
}

at::Tensor loss_of(const Json& step, const Parameters& parameters, const Json& batch) {
  const at::Tensor predicted = prediction(step.at("model"), parameters, batch_of(batch.at("x")));
  const at::Tensor per_example = predicted.sub(batch_of(batch.at("y"))).square().mean(1);
  at::Tensor loss = per_example.sum().div(step.at("global_batch").get<double>());
  if (!step.contains("l2")) return loss;
  for (const auto& [name, variable] : parameters) {
    loss = loss.add(variable.tensor().square().sum(), step.at("l2").get<double>());
  }
  return loss;
}

class TrainingCase : public ::testing::TestWithParam<std::size_t> {
 protected:
  void expect_near(double got, double expected, const std::string& what) const {
    const double bound = tolerance_ * std::max({1.0, std::abs(got), std::abs(expected)});
    EXPECT_LE(std::abs(got - expected), bound) << what << ": " << got << " instead of " << expected;
  }
  void expect_parameters(const Parameters& parameters, const Json& expected,
                         const std::string& what) const {
    ASSERT_EQ(parameters.size(), expected.size());
    for (const auto& [name, variable] : parameters) {
      const at::Tensor got = variable.read().to(at::kDouble).flatten();
      const auto values = expected.at(name).get<std::vector<double>>();
      ASSERT_EQ(got.numel(), static_cast<std::int64_t>(values.size())) << name;
      for (std::size_t i = 0; i < values.size(); ++i) {
        expect_near(got.data_ptr<double>()[i], values[i],
                    what + " " + name + "[" + std::to_string(i) + "]");
      }
    }
  }
  void train(const Json& step) const {
    ASSERT_EQ(step.at("do"), "train");
    Parameters parameters;
    std::vector<Variable> variables;
    for (const auto& [name, value] : step.at("params").items()) {
      variables.push_back(
          parameters.emplace(name, local_variable(name, tensor_of(value))).first->second);
    }
    const Optimizer optimizer = optimizer_of(step.at("optimizer"), variables);
    const Json& batches = step.at("batches");
    ASSERT_EQ(batches.size(), step.at("expect").size());
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const std::string what = "step " + std::to_string(i);
      const at::Tensor loss = loss_of(step, parameters, batches[i]);
      optimizer.minimize(loss);
      expect_near(loss.item<double>(), step.at("expect")[i].at("loss"), what + " loss");
      expect_parameters(parameters, step.at("expect")[i].at("params"), what);
    }
  }
  const Json& case_ = all_cases().at(GetParam());
  const double tolerance_ = case_.at("tol");
};

TEST_P(TrainingCase, GivesTheRecordedLossesAndParameters) {
  SCOPED_TRACE(case_.at("title").get<std::string>());
  if (!has_one_replica(case_)) {
    GTEST_SKIP() << case_.at("id") << " waits for minimize() on several replicas";
  }
  for (const Json& step : case_.at("steps")) train(step);
}

TEST(TrainingCases, AtLeastFiveRun) {
  EXPECT_GE(std::count_if(all_cases().begin(), all_cases().end(), has_one_replica), 5);
}

std::string test_name(std::string id) {
  std::replace(id.begin(), id.end(), '-', '_');
  return id;
}

INSTANTIATE_TEST_SUITE_P(Golden, TrainingCase, ::testing::Range(std::size_t{0}, all_cases().size()),
                         [](const ::testing::TestParamInfo<std::size_t>& test) {
                           return test_name(all_cases().at(test.param).at("id"));
                         });

}  // namespace
}  // namespace cohort
