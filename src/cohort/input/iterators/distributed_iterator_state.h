// SPDX-License-Identifier: Apache-2.0
// One pass of one worker over a distributed dataset.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/input/distributed_dataset.h"
#include "cohort/input/distribution/current_distribution.h"
#include "cohort/input/distribution/input_distribution.h"
#include "cohort/input/iterators/job_position.h"
#include "cohort/input/iterators/step_status.h"
#include "cohort/input/multi_device_iterator.h"

namespace cohort::input {

struct IteratorHandshake;  // iterator_handshake.h

// Used from one thread at a time.
class DistributedIteratorState {
 public:
  explicit DistributedIteratorState(std::shared_ptr<CurrentDistribution> dataset);

  const InputDistribution& distribution() const { return *distribution_; }
  // nullopt at the end. `hands_out_all`: also an uneven last step of static shapes.
  std::optional<DistributedElement> next(bool hands_out_all);
  Bytes save();
  // An error leaves the pass as it was, on all workers.
  void restore(std::span<const std::byte> position);

 private:
  // Everything that restore() replaces.
  struct State : PassState {
    bool handles_partial_batches = false;
    std::vector<std::unique_ptr<MultiDeviceIterator>> pipelines = {};
  };
  // A step as this worker sees it: one component per replica, unless there is an error.
  struct Step {
    std::vector<bool> has_data = {};
    std::vector<Nest> components = {};
    std::vector<std::int64_t> examples = {};
    StepStatus status = {};
    std::exception_ptr error = nullptr;
  };

  // `what` is the next act of this iterator: workers may be in different iterators.
  std::vector<Bytes> exchange(std::string_view call, std::string_view what,
                              const std::function<Bytes()>& make);
  // For the workers of this host.
  void agree_on_start(const std::shared_ptr<const InputHost>& host);
  void follow(const std::vector<IteratorHandshake>& handshakes);
  std::vector<std::unique_ptr<MultiDeviceIterator>> open(
      const State& state, std::vector<WorkerPipelinePosition> positions) const;
  // Throws on all workers if `work` throws on one.
  void do_on_all(const std::function<void()>& work);
  StepStatus reduce_status(StepStatus mine, const std::exception_ptr& error);

  // The iterator that feeds a local replica, and the replica's number in it.
  MultiDeviceIterator& pipeline_of(std::size_t replica);
  std::size_t turn_of(std::size_t replica) const;
  Step draw();
  void add_component(std::size_t replica, Step& step);
  void pop_all(const Step& step);
  DistributedElement take(Step step, std::optional<std::int64_t> global_num_examples);
  Nest empty_batch(std::size_t replica) const;
  std::nullopt_t end();

  // The state that `position` leads to. Sets `how` to the end of the log line, if there is one.
  State restored(std::span<const std::byte> position, std::string& how) const;

  std::shared_ptr<CurrentDistribution> dataset_;
  std::shared_ptr<InputDistribution> distribution_;
  std::shared_ptr<collective::Group> group_ = {};  // nullptr: one worker
  std::uint64_t number_ = 0;                       // of this iterator, the same on all workers
  bool handles_partial_batches_ = false;           // as agreed at the start
  State state_;
};

}  // namespace cohort::input
