// SPDX-License-Identifier: Apache-2.0
// Runs the instructions of a random step: the body of the traced function and of the eager run.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cohort/optimizer/optimizer.h"
#include "cohort/variable/variable.h"
#include "tests/parity/step_fuzz/features.h"
#include "tests/parity/step_fuzz/program.h"

namespace cohort::parity {

// The state of one side: variables on a cluster, or in this process. A value type of handles.
struct World {
  std::vector<Variable> variables;  // the last one is a table of more rows than a step looks up
  std::vector<Variable> buffers;
  std::vector<Optimizer> optimizers;  // the last one is that of the table
  Tensors constants;
};

using MakeVariable =
    std::function<Variable(const std::string& name, at::Tensor value, bool is_trainable)>;
// The state before the first call.
World make_world(const Program& program, const MakeVariable& make);

using GradientList = std::vector<std::pair<at::Tensor, Variable>>;

// The calls in which the replicas of a step meet: by default, those of the library.
class Updates {
 public:
  Updates() = default;
  virtual ~Updates() = default;
  Updates(const Updates&) = delete;
  Updates& operator=(const Updates&) = delete;
  virtual void minimize(const Optimizer& optimizer, const at::Tensor& loss) {
    optimizer.minimize(loss);
  }
  virtual void apply(const Optimizer& optimizer, const GradientList& gradients) {
    optimizer.apply_gradients(gradients);
  }
  virtual GradientList clip(const GradientList& gradients, double max_norm) {
    return clip_by_global_norm(gradients, max_norm).gradients;
  }
};

// The arguments of a call of the body.
struct StepArguments {
  Tensors tensors;
  std::int64_t integer = 0;
  double real = 0;
  at::Tensor scale;
  std::function<Tensors()> draw;
  std::shared_ptr<Updates> updates = std::make_shared<Updates>();
};

// Called after each instruction.
using SeeResults = std::function<void(const Instruction&, const Tensors& results)>;

// One run of a body. Used from one thread, once.
class Step {
 public:
  Step(const Program& program, const World& world, StepArguments arguments);

  // Runs the step and returns its outputs.
  Tensors run(const SeeResults& see = {});
  // The features that the run has exercised so far, and its current instruction.
  const FeatureSet& features() const { return features_; }
  int position() const { return position_; }

  // For the instructions.
  at::Tensor value(const Ref& ref);
  const World& world() const { return world_; }
  const StepArguments& arguments() const { return arguments_; }
  void note(Feature feature) { features_.set(static_cast<std::size_t>(feature)); }
  // Whether a user's step could write the tensor in place: it shares no memory with an argument, a
  // constant or a trainable variable, does not overlap itself, and is no leaf with a gradient.
  bool may_write(const at::Tensor& tensor) const;
  void note_write(const at::Tensor& tensor);
  void note_update(const Variable& variable);
  void note_assign_of_buffer(int buffer);
  Tensors draw();

 private:
  void clear_gradients();
  void note_results(const Tensors& results);
  void note_outputs();
  void note_read(const Variable& variable);
  bool shares_memory(const at::Tensor& tensor, const Tensors& others) const;

  const Program& program_;
  const World& world_;
  const StepArguments arguments_;
  std::map<int, Tensors> results_;
  Tensors drawn_;
  std::map<const VariableImpl*, int> updates_, reads_;
  std::vector<bool> is_buffer_assigned_, is_buffer_written_;
  FeatureSet features_;
  int position_ = -1;
};

}  // namespace cohort::parity
