// SPDX-License-Identifier: Apache-2.0
// The number of steps that workers count together, each of which trains by itself
// (v1::ParameterServerStrategy).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "cohort/estimator/model.h"
#include "cohort/v1/parameter_server_strategy.h"
#include "cohort/variable/variable.h"

namespace cohort::estimator {

// Used only from the thread of train(), but for add_one().
class SharedSteps {
 public:
  // Makes or finds the variable.
  explicit SharedSteps(v1::ParameterServerStrategy& strategy);

  // In each replica of a step, which counts once for all of them. `is_traced`: the step is one of
  // Strategy::function().
  void add_one(bool is_traced);
  // The number after the last step of this worker.
  std::int64_t read() const;
  // In the chief, when the model is made and restored: the others, who have waited for it when they
  // made theirs, may train. After a server has lost its variables, they get the values of the
  // latest checkpoint of this folder.
  void let_others_train(const std::string& model_dir);

 private:
  v1::ParameterServerStrategy& strategy_;
  const Variable steps_;
  std::atomic<std::int64_t> known_ = -1;  // as the last step has read it; -1: no step has
};

}  // namespace cohort::estimator
