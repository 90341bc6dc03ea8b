// SPDX-License-Identifier: Apache-2.0
// One epoch, as the coordinator's runtime sees it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/coordinator/epoch.h"
#include "cohort/coordinator/internal/epoch_progress.h"
#include "cohort/coordinator/internal/iterator_handle.h"
#include "cohort/core/error.h"
#include "cohort/function/function.h"

namespace cohort::coordinator {

// Its first fields never change. The others are used only under the runtime's lock.
struct EpochRun {
  EpochRun(Function step, std::vector<Nest> its_arguments, std::string order, std::size_t workers,
           std::shared_ptr<WorkerFiles> its_files)
      : function(std::move(step)),
        arguments(std::move(its_arguments)),
        changing_order(std::move(order)),
        files(std::move(its_files)),
        progress(workers) {}

  // Of a worker that may draw its elements again from the beginning. Returns false, and the epoch
  // has an error, if it may yield other elements from now on.
  bool check_order(std::uint32_t worker);

  const Function function;
  const std::vector<Nest> arguments;  // the iterator first; tensors that nobody writes to
  const std::string changing_order;   // why elements may come in another order; empty: they do not
  const std::shared_ptr<WorkerFiles> files;  // also the iterator's
  internal::EpochProgress progress;
  std::deque<EpochStep> finished;  // steps that nobody has asked for yet
  std::optional<Error> error;      // of the first step that did not end well
  bool is_over = false;            // nothing more comes
  bool has_schedule = false;       // hyperparameters of the steps depend on their numbers
  bool has_no_rate = false;        // that is the error: no step is sent any more, others run
  std::uint32_t eager_worker = 0;  // whose elements come now, where steps run eagerly
};

// The epochs that somebody still runs. Used only under the coordinator's lock.
class OpenEpochs {
 public:
  void add(const std::shared_ptr<EpochRun>& epoch);
  // The worker was lost, so it may draw its elements again from the beginning: checks the order of
  // each epoch.
  void check_orders(std::uint32_t worker);
  // Whether one of them needs the worker, as no other one has its part of the data.
  bool wait_for(std::uint32_t worker) const;

 private:
  std::vector<std::weak_ptr<EpochRun>> epochs_;
};

// The error for a call of an epoch that has ended with another error.
Error epoch_is_over();
// Throws invalid_argument for a step that does not draw from the epoch's iterator.
void check_draws(bool does_draw, const std::string& step);

// Which step of an epoch a closure is. A value type.
struct EpochPlace {
  std::shared_ptr<EpochRun> run;  // empty: it is none
  std::uint32_t worker = 0;
  std::uint64_t step = 0;
  bool is_counted = false;  // as one that has an element, when it was sent
  std::uint64_t rows = 0;   // as its worker reports
  bool is_end = false;      // its worker had no element for it
};

}  // namespace cohort::coordinator
