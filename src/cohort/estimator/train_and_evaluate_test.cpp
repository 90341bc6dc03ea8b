// SPDX-License-Identifier: Apache-2.0
// The parts of tasks, with a clock that the tests move: a weight that is 1 more after each step.
#include "cohort/estimator/train_and_evaluate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include "cohort/checkpoint_files/inspection.h"
#include "cohort/core/error.h"
#include "cohort/estimator/evaluator.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/fake_clock.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"
#include "cohort/v1/parameter_server_strategy.h"
#include "cohort/variable/saved_values.h"

namespace cohort::estimator {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using testing::FakeClock;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TemporaryFolder;
using testing::throws_error;

// Its metric "value" is the number of steps of the checkpoint, "distance" how far that is from 6.
EstimatorSpec counting_model(const ModelContext& context) {
  const Variable weight = context.strategy.variable("count/weight", at::zeros({1}),
                                                    {.aggregation = VariableAggregation::mean});
  const metrics::Mean value({.name = "value"}), distance({.name = "distance"});
  EstimatorSpec spec;
  spec.train_step = [weight](const Nest& /*element*/) {
    weight.assign_add(at::ones({1}));
    return at::ones({});
  };
  spec.eval_step = [=](const Nest& element) {
    const at::Tensor of_rows = weight.tensor().detach().expand({element.tensor().size(0)});
    value.update(of_rows);
    distance.update(of_rows.sub(6).abs());
  };
  spec.eval_metrics = {value, distance};
  return spec;
}

Dataset endless_counts() { return Dataset::range(8).batch(2).repeat(); }

// Notes what was evaluated and exported.
struct NotingExporter final : Exporter {
  explicit NotingExporter(std::string name) : Exporter(std::move(name)) {}
  std::optional<std::string> export_model(const std::string& folder,
                                          const Request& request) override {
    EXPECT_THAT(folder, HasSubstr("/export/" + name()));
    EXPECT_EQ(request.result.values.at("value"), request.result.global_step);
    steps.push_back(request.result.global_step);
    if (request.is_final) final_steps.push_back(request.result.global_step);
    return std::nullopt;
  }
  std::vector<std::int64_t> steps, final_steps;
};

// Moves the clock after each step.
struct StepTime final : TrainingHook {
  StepTime(FakeClock& moved, Duration time) : clock(moved), of_step(time) {}
  void after_step(HookContext& /*context*/) override { clock.advance(of_step); }
  FakeClock& clock;
  Duration of_step;
};

class TasksOfEstimator : public ::testing::Test {
 protected:
  ~TasksOfEstimator() override { ::unsetenv("TF_CONFIG"); }
  static void set_task(const std::string& cluster, const std::string& type, int index) {
    const std::string text = R"({"cluster": )" + cluster + R"(, "task": {"type": ")" + type +
                             R"(", "index": )" + std::to_string(index) + "}}";
    ::setenv("TF_CONFIG", text.c_str(), 1);
  }
  Estimator estimator(RunConfigOptions options = {.save_checkpoints_steps = 2}) {
    options.model_dir = folder_.file("model");
    options.clock = &clock_;
    return Estimator(counting_model, RunConfig(std::move(options)));
  }
  TrainSpec train_spec(std::optional<std::int64_t> max_steps = 6) {
    return {.input_fn = endless_counts, .max_steps = max_steps};
  }
  EvalSpec eval_spec() { return {.input_fn = endless_counts, .steps = 2, .exporters = {noting_}}; }
  TemporaryFolder folder_;
  FakeClock clock_;
  const std::shared_ptr<NotingExporter> noting_ = std::make_shared<NotingExporter>("noting");
};

// 7.3, "Local".
TEST_F(TasksOfEstimator, LocalEvaluatesEachCheckpointButTheFirst) {
  Estimator model = estimator();
  EvalSpec eval = eval_spec();
  eval.throttle = Duration::zero();
  const TrainAndEvaluateResult result = train_and_evaluate(model, train_spec(), eval);
  EXPECT_THAT(noting_->steps, ElementsAre(2, 4, 6, 6)) << "the last one again, as the final one";
  EXPECT_THAT(noting_->final_steps, ElementsAre(6));
  EXPECT_EQ(result.global_step, 6);
  EXPECT_EQ(result.last->values.at("value"), 6);
}

TEST_F(TasksOfEstimator, LocalThrottlesButEvaluatesTheLastOne) {
  Estimator model = estimator();
  TrainSpec train = train_spec(9);
  train.hooks = {std::make_shared<StepTime>(clock_, seconds(200))};
  EvalSpec eval = eval_spec();
  eval.throttle = seconds(700);
  train_and_evaluate(model, train, eval);
  EXPECT_THAT(noting_->steps, ElementsAre(2, 6, 9)) << "4 was too early, 9 is the last one";
}

TEST_F(TasksOfEstimator, LocalEvaluatesOnceIfItWasComplete) {
  {
    Estimator model = estimator();
    train_and_evaluate(model, train_spec(4), eval_spec());
  }
  noting_->steps.clear();
  Estimator again = estimator();
  const TrainAndEvaluateResult result = train_and_evaluate(again, train_spec(4), eval_spec());
  EXPECT_EQ(result.global_step, 4);
  EXPECT_THAT(noting_->steps, ElementsAre(4));
  EXPECT_EQ(result.last->values.at("value"), 4);
}

TEST_F(TasksOfEstimator, LocalNeedsACheckpoint) {
  Estimator model = estimator({.save_checkpoints_steps = 0});
  EXPECT_THAT([&] { train_and_evaluate(model, train_spec(), eval_spec()); },
              throws_error(ErrorCode::failed_precondition, "save_checkpoints_steps"));
}

TEST_F(TasksOfEstimator, LocalEndsWithTheData) {
  Estimator model = estimator();
  TrainSpec train = train_spec(std::nullopt);
  train.input_fn = [] { return Dataset::range(10).batch(2); };
  EXPECT_EQ(train_and_evaluate(model, train, eval_spec()).global_step, 5);
  EXPECT_EQ(noting_->steps.back(), 5);
}

// 7.3, tasks that have no part.
TEST_F(TasksOfEstimator, RefusesTasksWithoutAPart) {
  const auto refuses = [&](const std::string& cluster, const std::string& type, int index,
                           const std::string& words) {
    set_task(cluster, type, index);
    Estimator model = estimator();
    EXPECT_THAT([&] { train_and_evaluate(model, train_spec(), eval_spec()); },
                throws_error(ErrorCode::invalid_argument, words));
  };
  refuses(R"({"chief": ["h:1"]})", "evaluator", 1, "evaluator:1");
  refuses(R"({"chief": ["h:1"], "foo": ["h:2"]})", "foo", 0, "'foo'");
  refuses(R"({"chief": ["h:1"], "local": ["h:2"]})", "local", 0, "'local'");
  refuses(R"({"chief": ["h:1"], "worker": ["h:2"]})", "worker", 0, "train_distribute");
  refuses(R"({"chief": ["h:1"], "ps": ["h:2"]})", "chief", 0, "train_distribute");
}

TEST_F(TasksOfEstimator, ChiefAloneTrainsWithoutEvaluation) {
  set_task(R"({"chief": ["h:1"]})", "chief", 0);
  Estimator model = estimator();
  const TrainAndEvaluateResult result = train_and_evaluate(model, train_spec(4), eval_spec());
  EXPECT_EQ(result.global_step, 4);
  EXPECT_EQ(result.last, std::nullopt);
  EXPECT_THAT(noting_->steps, IsEmpty());
}

TEST_F(TasksOfEstimator, MasterTrainsAndEvaluates) {
  set_task(R"({"master": ["h:1"]})", "master", 0);
  Estimator model = estimator();
  EXPECT_EQ(train_and_evaluate(model, train_spec(4), eval_spec()).last->global_step, 4);
}

TEST_F(TasksOfEstimator, RefusesAStandaloneClient) {
  OneDeviceStrategy strategy;
  Estimator model =
      estimator({.experimental_distribute = {.train_distribute = &strategy,
                                             .remote_cluster = ClusterSpec{{"worker", {"h:1"}}}}});
  EXPECT_THAT([&] { train_and_evaluate(model, train_spec(), eval_spec()); },
              throws_error(ErrorCode::unimplemented, "STANDALONE_CLIENT"));
  EXPECT_THAT([&] { model.train(endless_counts); },
              throws_error(ErrorCode::invalid_argument, "train_and_evaluate()"));
}

// 7.4: "Nested coordinator in worker_fn".
TEST_F(TasksOfEstimator, RefusesACallInsideOfAnother) {
  struct Nested final : TrainingHook {
    void begin(HookContext& /*context*/) override { call(); }
    std::function<void()> call;
  };
  const auto hook = std::make_shared<Nested>();
  Estimator model = estimator();
  TrainSpec train = train_spec(1);
  train.hooks = {hook};
  hook->call = [&] { train_and_evaluate(model, train_spec(), eval_spec()); };
  EXPECT_THAT([&] { train_and_evaluate(model, train, eval_spec()); },
              throws_error(ErrorCode::failed_precondition, "outside of another one"));
  EXPECT_EQ(train_and_evaluate(model, train_spec(1), eval_spec()).global_step, 1);
}

TEST_F(TasksOfEstimator, ChecksSpecs) {
  Estimator model = estimator();
  const auto refuses = [&](const TrainSpec& train, const EvalSpec& eval, const std::string& words) {
    EXPECT_THAT([&] { train_and_evaluate(model, train, eval); },
                throws_error(ErrorCode::invalid_argument, words));
  };
  refuses({}, eval_spec(), "TrainSpec::input_fn");
  refuses(train_spec(), {}, "EvalSpec::input_fn");
  refuses(train_spec(0), eval_spec(), "TrainSpec::max_steps > 0, got 0");
  EvalSpec eval = eval_spec();
  eval.steps = -1;
  refuses(train_spec(), eval, "EvalSpec::steps > 0, got -1");
  eval = eval_spec();
  eval.start_delay = seconds(-1);
  refuses(train_spec(), eval, "EvalSpec::start_delay");
  eval = eval_spec();
  eval.throttle = seconds(-1);
  refuses(train_spec(), eval, "EvalSpec::throttle");
  eval = eval_spec();
  eval.checkpoint_timeout = seconds(0);
  refuses(train_spec(), eval, "EvalSpec::checkpoint_timeout");
  eval = eval_spec();
  eval.exporters = {noting_, std::make_shared<FinalExporter>("noting")};
  refuses(train_spec(), eval, "'noting' twice");
  eval.exporters = {nullptr};
  refuses(train_spec(), eval, "nullptr");
}

TEST_F(TasksOfEstimator, ExportersWriteWhatTheirNameSays) {
  Estimator model = estimator({.save_checkpoints_steps = 3});
  EvalSpec eval = eval_spec();
  eval.throttle = Duration::zero();
  eval.exporters = {std::make_shared<FinalExporter>("final"),
                    std::make_shared<LatestExporter>("latest", ExporterOptions{2}),
                    std::make_shared<BestExporter>(
                        "best", BestModelOptions{.monitor = "distance", .mode = MonitorMode::min})};
  const TrainAndEvaluateResult result = train_and_evaluate(model, train_spec(9), eval);
  const auto exported = [&](const std::string& name) {
    std::vector<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(folder_.file("model/export/" + name)))
      if (entry.is_directory()) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  };
  EXPECT_THAT(exported("final"), ElementsAre("9"));
  EXPECT_THAT(exported("latest"), ElementsAre("6", "9"));
  EXPECT_THAT(exported("best"), ElementsAre("3", "6")) << "a distance of 3, then of 0";
  EXPECT_THAT(result.exports, SizeIs(2)) << "the final and the latest one";
  const SavedValues values(folder_.file("model/export/best/6/values.safetensors"));
  EXPECT_EQ(values.value("weight").item<float>(), 6);
}

TEST_F(TasksOfEstimator, BestExporterRemembersEarlierStarts) {
  const auto exported = [&](const EvaluationResult& result) {
    BestExporter best("best", {.monitor = "distance", .mode = MonitorMode::min});
    Estimator model = estimator();
    return best.export_model(folder_.file("best"), {.estimator = model, .result = result})
        .has_value();
  };
  Estimator model = estimator();
  model.train(endless_counts, {.max_steps = 2});
  const std::string path = model.latest_checkpoint().value();
  const auto result = [&](double distance) {
    return EvaluationResult{
        .values = {{"distance", distance}}, .global_step = 2, .checkpoint = path};
  };
  EXPECT_TRUE(exported(result(3)));
  EXPECT_FALSE(exported(result(4)));
  EXPECT_FALSE(exported(result(3)));
  EXPECT_TRUE(exported(result(2)));
}

TEST_F(TasksOfEstimator, ChecksExporters) {
  for (const char* const name : {"", ".", "..", "a/b"})
    EXPECT_THAT([&] { FinalExporter{name}; },
                throws_error(ErrorCode::invalid_argument, "the name of a folder"));
  EXPECT_THAT([] { LatestExporter("latest", {.exports_to_keep = 0}); },
              throws_error(ErrorCode::invalid_argument, "exports_to_keep > 0, got 0"));
}

// Each wait is over at once, after it has called the script of the test.
class ScriptedClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  bool wait_until(std::unique_lock<std::mutex>& /*lock*/, std::condition_variable& /*changed*/,
                  TimePoint time, const std::function<bool()>& ready) override {
    now_ = time;
    script(passed());
    return ready();
  }
  std::chrono::seconds passed() const {
    return std::chrono::duration_cast<seconds>(now_ - TimePoint());
  }
  std::function<void(seconds passed)> script = [](seconds) {};

 private:
  TimePoint now_;
};

// 7.3, "evaluator".
class EvaluatorTask : public TasksOfEstimator {
 protected:
  void SetUp() override { set_task(R"({"chief": ["h:1"]})", "evaluator", 0); }
  // Trains to this step, as a chief does in its own process.
  void train_to(std::int64_t step) {
    Estimator model(
        counting_model,
        RunConfig({.model_dir = folder_.file("model"),
                   .cluster_resolver = std::make_shared<SimpleResolver>(ClusterSpec())}));
    model.train(endless_counts, {.max_steps = step});
  }
  // Trains to these steps at these times, and evaluates.
  TrainAndEvaluateResult evaluate(std::map<int, std::int64_t> training, const EvalSpec& eval,
                                  std::optional<std::int64_t> max_steps = 6) {
    const auto earlier = time_.script;
    time_.script = [this, training, earlier, done = 0](seconds passed) mutable {
      for (const auto& [time, step] : training) {
        if (time <= done || time > passed.count()) continue;
        done = time;
        train_to(step);
      }
      earlier(passed);
    };
    Estimator model(counting_model,
                    RunConfig({.model_dir = folder_.file("model"), .clock = &time_}));
    return train_and_evaluate(model, train_spec(max_steps), eval);
  }
  // The time of each evaluation.
  struct TimedExporter final : Exporter {
    explicit TimedExporter(const ScriptedClock& of_test) : Exporter("timed"), clock(of_test) {}
    std::optional<std::string> export_model(const std::string& /*folder*/,
                                            const Request& request) override {
      times.emplace_back(clock.passed().count(), request.result.global_step);
      return "written";
    }
    const ScriptedClock& clock;
    std::vector<std::pair<std::int64_t, std::int64_t>> times;  // with the step
  };
  ScriptedClock time_;
  const std::shared_ptr<TimedExporter> timed_ = std::make_shared<TimedExporter>(time_);
};

TEST_F(EvaluatorTask, BeginsAfterItsDelayAndEndsAtTheLastStep) {
  EvalSpec eval = eval_spec();
  eval.exporters = {timed_, noting_};
  const TrainAndEvaluateResult result = evaluate({{10, 2}, {300, 4}, {800, 6}}, eval);
  EXPECT_EQ(timed_->times.front(), std::pair(std::int64_t{120}, std::int64_t{2}));
  EXPECT_THAT(noting_->steps, ElementsAre(2, 4, 6, 6));
  EXPECT_THAT(noting_->final_steps, ElementsAre(6));
  EXPECT_EQ(timed_->times[1].first, 720) << "600 s after the start of the first one";
  EXPECT_EQ(timed_->times[2].first, 1320);
  EXPECT_EQ(result.last->values.at("value"), 6);
  EXPECT_EQ(result.global_step, 6);
}

TEST_F(EvaluatorTask, EvaluatesOnlyTheNewestCheckpoint) {
  EvalSpec eval = eval_spec();
  eval.throttle = seconds(100);
  evaluate({{10, 1}, {130, 2}, {140, 3}, {210, 5}, {400, 6}}, eval);
  EXPECT_THAT(noting_->steps, ElementsAre(1, 5, 6, 6));
}

TEST_F(EvaluatorTask, EndsWhereTheTrainingHasEnded) {
  EvalSpec eval = eval_spec();
  time_.script = [this](seconds passed) {
    if (passed.count() >= 200)
      write_training_end(folder_.file("model"), {.global_step = 4, .max_steps = 6});
  };
  evaluate({{10, 2}, {150, 4}}, eval);
  EXPECT_THAT(noting_->steps, ElementsAre(2, 4, 4));
  EXPECT_THAT(noting_->final_steps, ElementsAre(4));
  EXPECT_LT(time_.passed(), seconds(300)) << "the last checkpoint is not throttled";
}

TEST_F(EvaluatorTask, IgnoresTheEndOfAnotherTraining) {
  std::filesystem::create_directories(folder_.file("model"));
  write_training_end(folder_.file("model"), {.global_step = 2, .max_steps = 2});
  evaluate({{10, 2}, {150, 6}}, eval_spec());
  EXPECT_THAT(noting_->steps, ElementsAre(2, 6, 6));
}

TEST_F(EvaluatorTask, NeedsNoMaxSteps) {
  time_.script = [this](seconds passed) {
    if (passed.count() >= 130)
      write_training_end(folder_.file("model"), {.global_step = 3, .max_steps = {}});
  };
  evaluate({{10, 3}}, eval_spec(), std::nullopt);
  EXPECT_THAT(noting_->steps, ElementsAre(3, 3));
}

// The strategy asked for the devices of an evaluator that the cluster does not list.
TEST_F(EvaluatorTask, OfVersionOneNeedsNoPlaceInTheCluster) {
  set_task(R"({"chief": ["h:1"], "worker": ["h:2"], "ps": ["h:3"]})", "evaluator", 0);
  v1::ParameterServerStrategy strategy;
  train_to(6);
  Estimator model(counting_model, RunConfig({.model_dir = folder_.file("model"),
                                             .train_distribute = &strategy,
                                             .clock = &time_}));
  EXPECT_EQ(train_and_evaluate(model, train_spec(), eval_spec()).last->values.at("value"), 6);
}

TEST_F(EvaluatorTask, WarnsEveryTenMinutesWithoutACheckpoint) {
  testing::Warnings warnings;
  evaluate({{120 + 1500, 6}}, eval_spec());
  EXPECT_EQ(warnings.count("waits for the first checkpoint"), 3);
}

TEST_F(EvaluatorTask, GivesUpWithoutCheckpoints) {
  EXPECT_THAT([&] { evaluate({}, eval_spec()); },
              throws_error(ErrorCode::deadline_exceeded, "session_creation_timeout"));
  EXPECT_EQ(time_.passed(), seconds(120 + 7200));
}

TEST_F(EvaluatorTask, GivesUpWithoutANewCheckpoint) {
  EvalSpec eval = eval_spec();
  eval.checkpoint_timeout = minutes(30);
  EXPECT_THAT(
      [&] {
        evaluate({{10, 2}}, eval);
      },
      throws_error(ErrorCode::deadline_exceeded, "EvalSpec::checkpoint_timeout"));
  EXPECT_EQ(time_.passed(), seconds(120 + 1800));
}

// 7.3, "worker": those that wait for nobody begin one after the other.
class DelayedWorkers : public EvaluatorTask {
 protected:
  // The delay of this worker, which then finds no server.
  seconds delay_of(std::int64_t worker, std::optional<Duration> max_delay = {}) {
    const std::vector<std::string> nobody(20, "127.0.0.1:1");
    const SimpleResolver resolver(
        ClusterSpec{{"chief", {"127.0.0.1:1"}}, {"worker", nobody}, {"ps", {"127.0.0.1:1"}}},
        {.task_type = "worker", .task_id = worker});
    v1::ParameterServerStrategy strategy(
        resolver, {.cluster = {.timeout = std::chrono::milliseconds(50)}, .devices = {"CPU:0"}});
    const seconds before = time_.passed();
    Estimator model(counting_model, RunConfig({.model_dir = folder_.file("model"),
                                               .max_worker_delay = max_delay,
                                               .train_distribute = &strategy,
                                               .clock = &time_}));
    EXPECT_THAT([&] { train_and_evaluate(model, train_spec(), eval_spec()); },
                ::testing::Throws<Error>());
    return time_.passed() - before;
  }
};

TEST_F(DelayedWorkers, BeginOneAfterTheOther) {
  EXPECT_EQ(delay_of(0), seconds(5));
  EXPECT_EQ(delay_of(1), seconds(10));
  EXPECT_EQ(delay_of(19), seconds(60)) << "the largest delay";
  EXPECT_EQ(delay_of(19, seconds(7)), seconds(7));
  EXPECT_EQ(delay_of(3, seconds(0)), seconds(0));
}

// The files by which the tasks know the end.
TEST_F(TasksOfEstimator, EndOfATrainingIsAFile) {
  Estimator model = estimator();
  train_and_evaluate(model, train_spec(4), eval_spec());
  EXPECT_EQ(read_training_end(model.model_dir(), 4)->global_step, 4);
  EXPECT_FALSE(read_training_end(model.model_dir(), 5));
  EXPECT_FALSE(read_training_end(model.model_dir(), std::nullopt));
  struct Looking final : TrainingHook {
    void begin(HookContext& /*context*/) override {
      has_end = read_training_end(folder, 4).has_value();
    }
    std::string folder;
    bool has_end = true;
  };
  const auto hook = std::make_shared<Looking>();
  hook->folder = model.model_dir();
  TrainSpec longer = train_spec(5);
  longer.hooks = {hook};
  train_and_evaluate(model, longer, eval_spec());
  EXPECT_FALSE(hook->has_end) << "it stayed during the next training";
  folder_.write("model/training_end.json", "no JSON");
  EXPECT_FALSE(read_training_end(model.model_dir(), 5));
}

// Workers that train together, as threads of this process; hooks run on each of them (7.4).
class WorkersOfEstimator : public TasksOfEstimator {
 protected:
  template <class F>
  void on_both(const F& run) {
    const InProcessWorkers group(2);
    testing::on_workers<int>(2, [&](int worker) {
      MultiWorkerMirroredStrategy strategy(group.group(worker));
      const auto resolver = std::make_shared<SimpleResolver>(
          ClusterSpec{{"worker", {"h0:1", "h1:1"}}},
          SimpleResolver::Options{.task_type = "worker", .task_id = worker});
      run(strategy, resolver, worker);
      return 0;
    });
  }
  struct Counted final : TrainingHook {
    void after_step(HookContext& context) override {
      ++steps;
      if (context.global_step() == stop_at) context.request_stop();
    }
    std::int64_t steps = 0, stop_at = -1;
  };
};

TEST_F(WorkersOfEstimator, TrainTogetherAndTheFirstOneSaves) {
  std::array<std::int64_t, 2> steps{};
  on_both([&](Strategy& strategy, const auto& resolver, int worker) {
    Estimator model(counting_model,
                    RunConfig({.model_dir = folder_.file(worker == 0 ? "model" : "other"),
                               .save_checkpoints_steps = 3,
                               .train_distribute = &strategy,
                               .cluster_resolver = resolver}));
    const auto hook = std::make_shared<Counted>();
    TrainSpec train = train_spec(7);
    train.hooks = {hook};
    EXPECT_EQ(train_and_evaluate(model, train, eval_spec()).global_step, 7);
    steps.at(static_cast<std::size_t>(worker)) = hook->steps;
    EXPECT_THAT([&] { model.train(endless_counts); },
                throws_error(ErrorCode::invalid_argument, "train_and_evaluate()"));
  });
  EXPECT_THAT(steps, ElementsAre(7, 7));
  EXPECT_THAT(checkpoint::checkpoints_in(folder_.file("model")), SizeIs(4)) << "0, 3, 6, 7";
  EXPECT_FALSE(std::filesystem::exists(folder_.file("other/step-7")));
  EXPECT_TRUE(read_training_end(folder_.file("model"), 7));
}

TEST_F(WorkersOfEstimator, StopTogetherIfOneWantsIt) {
  std::array<std::int64_t, 2> steps{};
  on_both([&](Strategy& strategy, const auto& resolver, int worker) {
    Estimator model(counting_model, RunConfig({.model_dir = folder_.file("model"),
                                               .train_distribute = &strategy,
                                               .cluster_resolver = resolver}));
    const auto hook = std::make_shared<Counted>();
    if (worker == 1) hook->stop_at = 3;
    TrainSpec train = train_spec(std::nullopt);
    train.hooks = {hook};
    steps.at(static_cast<std::size_t>(worker)) =
        train_and_evaluate(model, train, eval_spec()).global_step;
  });
  EXPECT_EQ(steps[0], steps[1]);
  EXPECT_GE(steps[0], 3);
}

TEST_F(WorkersOfEstimator, SaveTogetherAfterAnInterval) {
  on_both([&](Strategy& strategy, const auto& resolver, int worker) {
    FakeClock own;
    Estimator model(counting_model, RunConfig({.model_dir = folder_.file("model"),
                                               .save_checkpoints_interval = seconds(10),
                                               .train_distribute = &strategy,
                                               .cluster_resolver = resolver,
                                               .clock = &own}));
    TrainSpec train = train_spec(9);
    // The other one's clock stands.
    if (worker == 0) train.hooks = {std::make_shared<StepTime>(own, seconds(4))};
    train_and_evaluate(model, train, eval_spec());
  });
  EXPECT_THAT(checkpoint::checkpoints_in(folder_.file("model")), SizeIs(4))
      << "0, 3, 6, 9: each 10 s, where a step takes 4";
}

}  // namespace
}  // namespace cohort::estimator
