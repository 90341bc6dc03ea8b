// SPDX-License-Identifier: Apache-2.0
// An Estimator on the strategies of one process: a line is fitted, whose weight comes near to 3.
#include "cohort/estimator/estimator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cohort/checkpoint_files/inspection.h"
#include "cohort/core/error.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/fake_clock.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/saved_values.h"

namespace cohort::estimator {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using testing::FakeClock;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using testing::throws_error;

// y = 3 x, and the mean of the squared errors.
EstimatorSpec line_model(const ModelContext& context) {
  const Variable weight = context.strategy.variable("line/weight", at::zeros({1}));
  const metrics::Mean loss({.name = "loss"});
  const auto losses_of = [weight](const Nest& element) {
    const at::Tensor x = element.items()[0].tensor(), y = element.items()[1].tensor();
    return x.mul(weight.tensor()).sub(y).square();
  };
  EstimatorSpec spec;
  if (context.mode == ModeKeys::train) {
    const SGD sgd({weight}, {.learning_rate = 0.05});
    spec.train_step = [=](const Nest& element) {
      const at::Tensor mean = average_loss(losses_of(element));
      sgd.minimize(mean);
      return mean;
    };
  }
  spec.eval_step = [=](const Nest& element) { loss.update(losses_of(element)); };
  spec.predict_step = [weight](const Nest& element) {
    return Nest(element.items()[0].tensor().mul(weight.tensor()));
  };
  spec.eval_metrics = {loss};
  return spec;
}

// `count` batches of two rows for each replica.
Dataset line_batches(std::int64_t count) {
  return Dataset::range(2 * count)
      .map([](at::Tensor number) {
        const at::Tensor x = number.remainder(5).to(at::kFloat).add(1);
        return std::tuple(x, x.mul(3));
      })
      .batch(2);
}
Dataset endless_line() { return line_batches(20).repeat(); }

class EstimatorOf : public ::testing::TestWithParam<std::string> {
 protected:
  RunConfig config(RunConfigOptions options = {}) {
    options.model_dir = folder_.file("model");
    options.train_distribute = strategy_.get();
    options.clock = &clock_;
    return RunConfig(std::move(options));
  }
  Estimator estimator(RunConfigOptions options = {}) {
    return Estimator(line_model, config(std::move(options)));
  }
  // The steps of the checkpoints.
  std::vector<std::int64_t> saved() const {
    std::vector<std::int64_t> steps;
    for (const std::string& path : checkpoint::checkpoints_in(folder_.file("model")))
      steps.push_back(checkpoint::summary_of(path).step);
    return steps;
  }

  TemporaryFolder folder_;
  FakeClock clock_;
  std::unique_ptr<Strategy> strategy_;  // nullptr: the Estimator's own
};

class EstimatorOn : public EstimatorOf {
 protected:
  void SetUp() override {
    if (GetParam() == "one_device") strategy_ = std::make_unique<OneDeviceStrategy>();
    const std::vector<std::string> devices = {"CPU:0", "CPU:1"};
    if (GetParam() == "mirrored") strategy_ = std::make_unique<MirroredStrategy>(devices);
    if (GetParam() == "central_storage")
      strategy_ = std::make_unique<CentralStorageStrategy>(devices);
  }
};

TEST_P(EstimatorOn, TrainsEvaluatesPredictsAndExports) {
  Estimator model = estimator();
  EXPECT_EQ(model.train(endless_line, {.steps = 30}), 30);
  EXPECT_THAT(saved(), ElementsAre(0, 30));
  const EvaluationResult result = model.evaluate([] { return line_batches(4); });
  EXPECT_EQ(result.global_step, 30);
  EXPECT_EQ(result.checkpoint, model.latest_checkpoint());
  EXPECT_LT(result.values.at("loss"), 1e-3);
  std::vector<float> predicted;
  model.predict([] { return line_batches(2); },
                [&](const Nest& values) {
                  for (std::int64_t i = 0; i < values.tensor().numel(); ++i)
                    predicted.push_back(values.tensor()[i].item<float>());
                });
  ASSERT_EQ(predicted.size(), 4U);
  EXPECT_NEAR(predicted[0], 3, 0.05);
  EXPECT_NEAR(predicted[3], 12, 0.2);
  const std::string exported = model.export_values(folder_.file("export"));
  EXPECT_EQ(exported, folder_.file("export/30"));
  const SavedValues values(exported + "/values.safetensors");
  EXPECT_THAT(values.keys(), ElementsAre("weight"));
  EXPECT_NEAR(values.value("weight").item<float>(), 3, 0.02);
}

TEST_P(EstimatorOn, GoesOnFromTheLatestCheckpoint) {
  estimator().train(endless_line, {.max_steps = 4});
  Estimator again = estimator();
  EXPECT_EQ(again.train(endless_line, {.max_steps = 4}), 4) << "it trained past max_steps";
  EXPECT_EQ(again.train(endless_line, {.steps = 3}), 7);
  EXPECT_EQ(again.train(endless_line, {.max_steps = 30}), 30);
  EXPECT_THAT(saved(), ElementsAre(0, 4, 7, 30));
  EXPECT_LT(again.evaluate(endless_line, {.steps = 2}).values.at("loss"), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Strategies, EstimatorOn,
                         ::testing::Values("default", "one_device", "mirrored", "central_storage"),
                         [](const auto& tested) { return tested.param; });

TEST_F(EstimatorOf, StopsAtTheEndOfTheData) {
  EXPECT_EQ(estimator().train([] { return line_batches(7); }), 7);
  EXPECT_THAT(saved(), ElementsAre(0, 7));
}

TEST_F(EstimatorOf, SavesEachSoManyStepsAndKeepsTheLastOnes) {
  estimator({.save_checkpoints_steps = 3, .keep_checkpoint_max = 3})
      .train(endless_line, {.max_steps = 10});
  EXPECT_THAT(saved(), ElementsAre(6, 9, 10));
}

// Moves the clock by a number of seconds after each step.
struct PassingTime final : TrainingHook {
  PassingTime(FakeClock& moved, int count) : clock(moved), step_seconds(count) {}
  void after_step(HookContext& /*context*/) override { clock.advance(seconds(step_seconds)); }
  FakeClock& clock;
  int step_seconds;
};

TEST_F(EstimatorOf, SavesAfterAnInterval) {
  const auto time = std::make_shared<PassingTime>(clock_, 250);
  estimator().train(endless_line, {.max_steps = 7, .hooks = {time}});
  EXPECT_THAT(saved(), ElementsAre(0, 3, 6, 7)) << "600 s is the default";
}

TEST_F(EstimatorOf, SavesNothingIfThatIsTurnedOff) {
  estimator({.save_checkpoints_steps = 0}).train(endless_line, {.max_steps = 3});
  EXPECT_THAT(saved(), ElementsAre());
}

// Notes the calls of hooks and listeners.
struct NotedHook final : TrainingHook, SavingListener {
  void begin(HookContext& context) override { note("begin", context.global_step()); }
  void before_step(HookContext& context) override { note("before", context.global_step()); }
  void after_step(HookContext& context) override {
    note("after", context.global_step());
    EXPECT_GT(context.loss(), 0);
    if (context.global_step() == 2) context.request_stop();
  }
  void end(HookContext& context) override { note("end", context.global_step()); }
  void begin() override { calls += "listen "; }
  void before_save(std::int64_t step) override { note("saving", step); }
  bool after_save(std::int64_t step) override {
    note("saved", step);
    return step == stop_at;
  }
  void end(std::int64_t step) override { note("listened", step); }
  void note(const std::string& what, std::int64_t step) {
    calls += what + std::to_string(step) + " ";
  }
  std::string calls;
  std::int64_t stop_at = -1;
};

TEST_F(EstimatorOf, CallsHooksAndListenersInOrder) {
  const auto hook = std::make_shared<NotedHook>();
  EXPECT_EQ(estimator().train(endless_line, {.hooks = {hook}, .saving_listeners = {hook}}), 2);
  EXPECT_EQ(hook->calls,
            "begin0 listen saving0 saved0 before0 after1 before1 after2 saving2 saved2 listened2 "
            "end2 ");
}

TEST_F(EstimatorOf, StopsIfAListenerWantsIt) {
  const auto hook = std::make_shared<NotedHook>();
  hook->stop_at = 1;
  EXPECT_EQ(
      estimator({.save_checkpoints_steps = 1}).train(endless_line, {.saving_listeners = {hook}}),
      1);
}

TEST_F(EstimatorOf, HooksOfTheModelComeFirst) {
  const auto of_model = std::make_shared<NotedHook>();
  Estimator model(
      [&](const ModelContext& context) {
        EstimatorSpec spec = line_model(context);
        spec.training_hooks = {of_model};
        return spec;
      },
      config());
  EXPECT_EQ(model.train(endless_line), 2);
  EXPECT_THAT(of_model->calls, HasSubstr("after2"));
}

TEST_F(EstimatorOf, LossIsAMeanOverAllReplicas) {
  strategy_ = std::make_unique<MirroredStrategy>(std::vector<std::string>{"CPU:0", "CPU:1"});
  struct Noted final : TrainingHook {
    void after_step(HookContext& context) override { loss = context.loss(); }
    double loss = 0;
  };
  const auto hook = std::make_shared<Noted>();
  estimator().train([] { return line_batches(2); }, {.max_steps = 1, .hooks = {hook}});
  EXPECT_NEAR(hook->loss, 9 * (1 + 4 + 9 + 16) / 4.0, 1e-4) << "of rows 1, 2, 3, 4";
}

TEST_F(EstimatorOf, TracedStepsGiveTheSameWeights) {
  const auto weight_after = [&](bool is_traced) {
    const TemporaryFolder folder;
    Estimator model(
        [&](const ModelContext& context) {
          EstimatorSpec spec = line_model(context);
          spec.is_traced = is_traced;
          return spec;
        },
        RunConfig({.model_dir = folder.file("model")}));
    model.train(endless_line, {.max_steps = 5});
    EXPECT_GT(model.evaluate(endless_line, {.steps = 3}).values.at("loss"), 0);
    return SavedValues(model.export_values(folder.file("export")) + "/values.safetensors")
        .value("weight")
        .item<float>();
  };
  EXPECT_EQ(weight_after(true), weight_after(false));
}

TEST_F(EstimatorOf, EvaluatesAnEarlierCheckpointAndTrainsOnFromTheLatest) {
  Estimator model = estimator({.save_checkpoints_steps = 2});
  model.train(endless_line, {.max_steps = 4});
  const std::string first = checkpoint::checkpoints_in(model.model_dir()).front();
  const EvaluationResult before =
      model.evaluate(endless_line, {.steps = 2, .checkpoint_path = first});
  EXPECT_EQ(before.global_step, 0);
  EXPECT_GT(before.values.at("loss"), 10) << "the weight is 0";
  EXPECT_EQ(model.train(endless_line, {.steps = 1}), 5);
  EXPECT_LT(model.evaluate(endless_line, {.steps = 2}).values.at("loss"), 10);
}

TEST_F(EstimatorOf, AnotherStrategyEvaluatesInAHook) {
  MirroredStrategy evaluates({"CPU:0", "CPU:1"});
  struct Evaluated final : SavingListener {
    bool after_save(std::int64_t /*step*/) override {
      const std::string first = checkpoint::checkpoints_in(model->model_dir()).front();
      loss =
          model->evaluate(endless_line, {.steps = 2, .checkpoint_path = first}).values.at("loss");
      return false;
    }
    Estimator* model = nullptr;
    double loss = 0;
  };
  const auto listener = std::make_shared<Evaluated>();
  Estimator model = estimator({.eval_distribute = &evaluates});
  listener->model = &model;
  model.train(endless_line, {.max_steps = 3, .saving_listeners = {listener}});
  EXPECT_GT(listener->loss, 10) << "of the first checkpoint, not of the values in training";
  Estimator alone = estimator();
  listener->model = &alone;
  EXPECT_THAT([&] { alone.train(endless_line, {.max_steps = 9, .saving_listeners = {listener}}); },
              throws_error(ErrorCode::failed_precondition, "eval_distribute"));
}

TEST_F(EstimatorOf, OneStrategyMayTrainAndEvaluate) {
  strategy_ = std::make_unique<OneDeviceStrategy>();
  Estimator model = estimator({.eval_distribute = strategy_.get()});
  model.train(endless_line, {.max_steps = 3});
  EXPECT_EQ(model.evaluate(endless_line, {.steps = 1}).global_step, 3);
}

TEST_F(EstimatorOf, TrainsAfterItHasEvaluatedOnTheSameStrategy) {
  strategy_ = std::make_unique<OneDeviceStrategy>();
  { estimator().train(endless_line, {.max_steps = 3}); }
  Estimator model = estimator();
  EXPECT_EQ(model.evaluate(endless_line, {.steps = 1}).global_step, 3);
  EXPECT_EQ(model.train(endless_line, {.steps = 1}), 4) << "the evaluated model had its names";
}

TEST_F(EstimatorOf, WritesSummaries) {
  Estimator model = estimator({.save_summary_steps = 2});
  model.train(endless_line, {.max_steps = 4});
  model.evaluate(endless_line, {.steps = 1});
  model.evaluate(endless_line, {.steps = 1, .name = "test"});
  const auto has_events = [&](const std::string& folder) {
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().filename().string().find("tfevents") != std::string::npos) return true;
    return false;
  };
  EXPECT_TRUE(has_events(folder_.file("model")));
  EXPECT_TRUE(has_events(folder_.file("model/eval")));
  EXPECT_TRUE(has_events(folder_.file("model/eval_test")));
}

TEST_F(EstimatorOf, TellsTheValuesOfTheLatestCheckpoint) {
  Estimator model = estimator();
  EXPECT_THAT([&] { model.get_variable_names(); },
              throws_error(ErrorCode::not_found, "call train() first"));
  model.train(endless_line, {.max_steps = 30});
  EXPECT_THAT(model.get_variable_names(), ::testing::Contains("line/weight"));
  EXPECT_NEAR(model.get_variable_value("line/weight").item<float>(), 3, 0.02);
  EXPECT_THAT([&] { model.get_variable_value("line/bias"); },
              throws_error(ErrorCode::not_found, "'line/bias'"));
}

TEST_F(EstimatorOf, SeedsTheModel) {
  const auto first_value = [&](std::optional<std::uint64_t> seed) {
    const TemporaryFolder folder;
    float value = 0;
    Estimator model(
        [&](const ModelContext& context) {
          value = at::rand({1}).item<float>();
          return line_model(context);
        },
        RunConfig({.model_dir = folder.file("model"), .random_seed = seed}));
    model.train(endless_line, {.max_steps = 1});
    return value;
  };
  EXPECT_EQ(first_value(1), first_value(1));
  EXPECT_NE(first_value(1), first_value(2));
  EXPECT_NE(first_value({}), first_value({}));
}

TEST_F(EstimatorOf, RefusesWhatDoesNotFit) {
  Estimator model = estimator();
  const auto refuses = [](const auto& call, const std::string& words,
                          ErrorCode code = ErrorCode::invalid_argument) {
    EXPECT_THAT(call, throws_error(code, words));
  };
  refuses([] { Estimator(ModelFunction(), RunConfig({.model_dir = "m"})); }, "a model function");
  refuses([&] { model.train(InputFunction()); }, "an input function");
  refuses([&] { model.train(endless_line, {.steps = 0}); }, "steps > 0, got 0");
  refuses([&] { model.train(endless_line, {.max_steps = -1}); }, "max_steps > 0, got -1");
  refuses([&] { model.train(endless_line, {.steps = 1, .max_steps = 2}); }, "got both: 1 and 2");
  refuses([&] { model.evaluate(endless_line, {.steps = 0}); }, "steps > 0, got 0");
  refuses([&] { model.evaluate(endless_line, {.steps = 1}); }, "call train() first",
          ErrorCode::not_found);
  refuses([&] { model.export_values(""); }, "the path of a folder");
  refuses([&] { model.predict(endless_line, nullptr); }, "takes the predictions");
}

TEST_F(EstimatorOf, NamesTheStepThatAModelLacks) {
  Estimator model([](const ModelContext&) { return EstimatorSpec(); }, config());
  EXPECT_THAT([&] { model.train(endless_line); },
              throws_error(ErrorCode::invalid_argument, "EstimatorSpec::train_step"));
  EXPECT_THAT([&] { model.evaluate(endless_line); },
              throws_error(ErrorCode::invalid_argument, "EstimatorSpec::eval_step"));
  EXPECT_THAT([&] { model.predict(endless_line, [](const Nest&) {}); },
              throws_error(ErrorCode::invalid_argument, "EstimatorSpec::predict_step"));
  Estimator unmeasured(
      [](const ModelContext& context) {
        EstimatorSpec spec = line_model(context);
        spec.eval_metrics = {};
        return spec;
      },
      config());
  EXPECT_THAT([&] { unmeasured.evaluate(endless_line); },
              throws_error(ErrorCode::invalid_argument, "EstimatorSpec::eval_metrics"));
}

TEST_F(EstimatorOf, RefusesACheckpointOfAnotherModel) {
  estimator().train(endless_line, {.max_steps = 1});
  Estimator larger(
      [](const ModelContext& context) {
        const Variable bias = context.strategy.variable("line/bias", at::zeros({1}));
        EstimatorSpec spec = line_model(context);
        spec.predict_step = [bias](const Nest&) { return Nest(bias.tensor()); };
        return spec;
      },
      config());
  EXPECT_THAT([&] { larger.train(endless_line, {.max_steps = 2}); },
              throws_error(ErrorCode::not_found, "line/bias"));
}

TEST_F(EstimatorOf, RefusesALossThatIsNoNumber) {
  Estimator model(
      [](const ModelContext& context) {
        EstimatorSpec spec = line_model(context);
        spec.train_step = [](const Nest& element) { return element.items()[0].tensor(); };
        return spec;
      },
      config());
  EXPECT_THAT([&] { model.train(endless_line, {.max_steps = 1}); },
              throws_error(ErrorCode::invalid_argument, "got 2 numbers"));
}

TEST_F(EstimatorOf, LossComesAfterAStep) {
  HookContext context(default_strategy(), 0);
  EXPECT_THAT([&] { context.loss(); },
              throws_error(ErrorCode::failed_precondition, "after_step()"));
}

}  // namespace
}  // namespace cohort::estimator
