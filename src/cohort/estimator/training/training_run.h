// SPDX-License-Identifier: Apache-2.0
// One call of Estimator::train(): the loop of steps with its hooks, checkpoints and summaries.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/estimator/model.h"
#include "cohort/estimator/training/checkpoint_saver.h"
#include "cohort/estimator/training/shared_steps.h"
#include "cohort/estimator/training/worker_agreement.h"
#include "cohort/train/summary_writer.h"

namespace cohort::estimator {

// Used only from the thread of train().
class TrainingRun {
 public:
  TrainingRun(Model& model, const RunConfig& config, const InputFunction& input,
              const TrainOptions& options);
  // Returns the global step at the end.
  std::int64_t run();

 private:
  void restore();
  // Whether more steps shall be begun, `begun` of which have been begun.
  bool has_more(std::int64_t begun) const;
  void before_step();
  // Counts a step. `may_save`: whether no other step is running.
  void after_step(std::function<at::Tensor()> loss, bool may_save);
  // `before`: the number of steps before the last one.
  void report(std::int64_t before);
  void run_on_replicas();
  void run_on_coordinator(ParameterServerStrategy& strategy);
  void run_scheduled(ClusterCoordinator& coordinator, const Function& step,
                     const PerWorkerDataset& data);
  void run_epoch(ClusterCoordinator& coordinator, const Function& step,
                 const PerWorkerDataset& data);

  Model& model_;
  const RunConfig& config_;
  const InputFunction& input_;
  const TrainOptions& options_;
  std::vector<std::shared_ptr<TrainingHook>> hooks_;
  std::unique_ptr<SharedSteps> shared_;   // nullptr: this process counts the steps
  std::optional<CheckpointSaver> saver_;  // nullopt: another task saves
  WorkerAgreement agreement_;
  std::optional<SummaryWriter> summaries_;
  HookContext context_;
  std::int64_t step_ = 0;
  std::optional<std::int64_t> target_;  // the global step of the end
  bool stops_ = false;
  std::int64_t reported_step_ = 0;  // of the last line of the log and point of a curve
  TimePoint reported_time_;
};

}  // namespace cohort::estimator
