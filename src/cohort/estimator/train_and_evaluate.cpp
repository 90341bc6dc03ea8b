// SPDX-License-Identifier: Apache-2.0
#include "cohort/estimator/train_and_evaluate.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/estimator/estimator_parts.h"
#include "cohort/estimator/evaluator.h"
#include "cohort/estimator/strategy_kind.h"
#include "cohort/server/server.h"
#include "cohort/strategy/strategy_extended.h"

namespace cohort::estimator {
namespace {

double in_seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

void check_spec(const char* what, bool is_good, const std::string& expected,
                const std::string& got) {
  COHORT_CHECK(is_good, ErrorCode::invalid_argument, "[estimator.train_and_evaluate] expected ",
               what, " ", expected, ", got ", got);
}

void check_specs(const TrainSpec& train, const EvalSpec& eval) {
  check_spec("TrainSpec::input_fn", static_cast<bool>(train.input_fn), "to be a function", "none");
  check_spec("EvalSpec::input_fn", static_cast<bool>(eval.input_fn), "to be a function", "none");
  const std::int64_t max_steps = train.max_steps.value_or(1), steps = eval.steps.value_or(1);
  check_spec("TrainSpec::max_steps", max_steps > 0, "> 0", std::to_string(max_steps));
  check_spec("EvalSpec::steps", steps > 0, "> 0", std::to_string(steps));
  check_spec("EvalSpec::start_delay", eval.start_delay >= Duration::zero(), ">= 0",
             std::to_string(in_seconds(eval.start_delay)));
  check_spec("EvalSpec::throttle", eval.throttle >= Duration::zero(), ">= 0",
             std::to_string(in_seconds(eval.throttle)));
  check_spec("EvalSpec::checkpoint_timeout", eval.checkpoint_timeout > Duration::zero(), "> 0",
             std::to_string(in_seconds(eval.checkpoint_timeout)));
  std::set<std::string> names;
  for (const auto& exporter : eval.exporters) {
    check_spec("EvalSpec::exporters", exporter != nullptr, "without nullptr", "one");
    check_spec("EvalSpec::exporters", names.insert(exporter->name()).second,
               "of different names, since each has its folder", "'" + exporter->name() + "' twice");
  }
}

// One call of this thread.
class InnermostCall {
 public:
  InnermostCall() {
    COHORT_CHECK(!std::exchange(is_inside_, true), ErrorCode::failed_precondition,
                 "[estimator.train_and_evaluate] expected a call outside of another one, got it in "
                 "a model function, an input function or a hook; call it after the other one");
  }
  ~InnermostCall() { is_inside_ = false; }
  InnermostCall(const InnermostCall&) = delete;
  InnermostCall& operator=(const InnermostCall&) = delete;

 private:
  static thread_local bool is_inside_;
};
thread_local bool InnermostCall::is_inside_ = false;

// The part of one task.
class TaskPart {
 public:
  TaskPart(Estimator& estimator, const TrainSpec& train, const EvalSpec& eval)
      : estimator_(estimator),
        config_(estimator.config()),
        train_spec_(train),
        eval_spec_(eval),
        evaluator_(estimator, eval_spec_) {}

  TrainAndEvaluateResult run() {
    COHORT_CHECK(config_.coordinator_mode() != CoordinatorMode::standalone_client,
                 ErrorCode::unimplemented,
                 "[estimator.train_and_evaluate] expected a cluster whose tasks run this program, "
                 "got experimental_distribute.remote_cluster (STANDALONE_CLIENT); start the "
                 "program in each task with TF_CONFIG, or use ParameterServerStrategy, whose one "
                 "client drives servers");
    const std::string& type = config_.task_type();
    if (type == "evaluator") return evaluate();
    if (!config_.cluster_spec()) return train_alone();
    COHORT_CHECK(type != "local", ErrorCode::invalid_argument,
                 "[estimator.train_and_evaluate] expected a task of a cluster, got task.type "
                 "'local' in TF_CONFIG; leave cluster and task out to train in one process");
    const bool is_known = type == "chief" || type == "master" || type == "worker" || type == "ps";
    COHORT_CHECK(is_known, ErrorCode::invalid_argument,
                 "[estimator.train_and_evaluate] expected a task of type chief, worker, ps, "
                 "evaluator or master, got '",
                 type, "'; correct task.type in TF_CONFIG");
    return type == "ps" ? serve() : train_in_cluster();
  }

 private:
  TrainAndEvaluateResult train_in_cluster() {
    check_strategy();
    const StrategyKind kind = kind_of(strategy());
    const std::string& type = config_.task_type();
    if (kind == StrategyKind::coordinator)
      return type == "worker"       ? serve()
             : has_job("evaluator") ? train()
                                    : train_and_evaluate_here();
    if (type == "master") return train_and_evaluate_here();
    if (kind == StrategyKind::independent && type == "worker" && !config_.is_chief()) delay();
    return train();
  }

  TrainAndEvaluateResult train_alone() {
    const StrategyKind kind = kind_of(strategy());
    // They were connected by something else than a cluster. Each would evaluate alone.
    if (kind == StrategyKind::collective || kind == StrategyKind::independent) return train();
    return train_and_evaluate_here();
  }

  Strategy& strategy() { return estimator_.parts().train_strategy(); }
  bool has_job(const std::string& job) const {
    return config_.cluster_spec().tasks().contains(job);
  }

  // Without one, each task of a cluster would train a model of its own.
  void check_strategy() const {
    const std::int64_t tasks = config_.num_ps_replicas() + config_.num_worker_replicas();
    COHORT_CHECK(config_.train_distribute() != nullptr || tasks == 1, ErrorCode::invalid_argument,
                 "[estimator.train_and_evaluate] expected train_distribute for the cluster ",
                 config_.cluster_spec().to_string(),
                 ", got none; set it to MultiWorkerMirroredStrategy or to a strategy with "
                 "parameter servers");
  }

  void delay() const {
    const Duration wanted = std::chrono::seconds(5) * (config_.task_id() + 1);
    wait_for(config_.clock(), std::min<Duration>(wanted, config_.max_worker_delay()));
  }

  TrainAndEvaluateResult train(std::vector<std::shared_ptr<SavingListener>> listeners = {}) {
    std::vector<std::shared_ptr<SavingListener>> all = train_spec_.saving_listeners;
    all.insert(all.end(), listeners.begin(), listeners.end());
    const bool saves = strategy().extended().should_checkpoint();
    if (saves) remove_training_end(config_.model_dir());
    const std::int64_t step =
        estimator_.parts().train(train_spec_.input_fn, {.max_steps = train_spec_.max_steps,
                                                        .hooks = train_spec_.hooks,
                                                        .saving_listeners = std::move(all)});
    if (saves)
      write_training_end(config_.model_dir(),
                         {.global_step = step, .max_steps = train_spec_.max_steps});
    return {.global_step = step};
  }

  TrainAndEvaluateResult train_and_evaluate_here() {
    TrainAndEvaluateResult result =
        train({std::make_shared<EvaluationListener>(evaluator_, estimator_, eval_spec_)});
    // The training was complete before.
    if (!evaluator_.last()) evaluator_.evaluate(estimator_.latest_checkpoint().value(), true);
    result.last = evaluator_.last();
    result.exports = evaluator_.exports();
    return result;
  }

  TrainAndEvaluateResult evaluate() {
    COHORT_CHECK(config_.task_id() == 0, ErrorCode::invalid_argument,
                 "[estimator.train_and_evaluate] expected one evaluator, evaluator:0, got "
                 "evaluator:",
                 config_.task_id(), "; start only one");
    evaluate_continuously(estimator_, evaluator_, train_spec_, eval_spec_);
    return {.global_step = evaluator_.last()->global_step,
            .last = evaluator_.last(),
            .exports = evaluator_.exports()};
  }

  TrainAndEvaluateResult serve() {
    const SimpleResolver own(
        config_.cluster_spec(),
        {.task_type = config_.task_type(), .task_id = config_.task_id(), .rpc_layer = "grpc"});
    Server(own).join();
    return {};
  }

  Estimator& estimator_;
  const RunConfig& config_;
  const TrainSpec& train_spec_;
  const EvalSpec& eval_spec_;
  Evaluator evaluator_;
};

}  // namespace

TrainAndEvaluateResult train_and_evaluate(Estimator& estimator, const TrainSpec& train,
                                          const EvalSpec& eval) {
  check_specs(train, eval);
  const InnermostCall call;
  return TaskPart(estimator, train, eval).run();
}

}  // namespace cohort::estimator
