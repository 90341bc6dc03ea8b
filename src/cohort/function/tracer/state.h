// SPDX-License-Identifier: Apache-2.0
// Restores the state that a trace changes, because it really runs the step.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_set>
#include <vector>

#include "cohort/function/tracer/changes.h"

namespace cohort::function {

// Saves contents, gradients and the default generator's state; the destructor restores them. Used
// only from the thread that traces, with the trace's dispatch key off or excluded.
class StateKeeper {
 public:
  // Saves the state of the default generator.
  StateKeeper();
  ~StateKeeper();
  StateKeeper(const StateKeeper&) = delete;
  StateKeeper& operator=(const StateKeeper&) = delete;

  // A hash of the state of the default generator.
  std::uint64_t random_state() const;
  // Makes random numbers that a program would freeze differ between the passes.
  void reseed_default_generator();
  // Saves the whole memory of a tensor that outlives the trace. Called before the first write.
  void save_contents(const at::Tensor& tensor);
  // Changes the values of `tensor`'s variable in place until this object is destroyed.
  void change_values(const at::Tensor& tensor, Change how);
  // Saves the memory, shape and graph of a tensor, which the body might replace (set_data(),
  // unsqueeze_()).
  void keep_memory(const at::Tensor& tensor);
  // The leaves of hide_gradient() that have a gradient now.
  std::vector<at::Tensor> leaves_with_gradients() const;
  // Called when the trace first sees a leaf: removes its gradient, which would be captured
  // otherwise.
  void hide_gradient(const at::Tensor& leaf);

 private:
  struct Contents {
    at::Tensor memory;  // all bytes of a storage
    at::Tensor copy;
  };
  struct Memory {
    at::Tensor tensor;
    at::Tensor alias;
    bool was_leaf;
  };
  struct Changed {
    at::Tensor memory;
    Change how;
  };
  struct Gradient {
    at::Tensor leaf;
    at::Tensor gradient;
  };
  void drop_graphs() const;

  at::Tensor generator_state_;
  std::vector<Changed> changed_;
  std::vector<Contents> contents_;
  std::vector<Memory> memories_;
  std::vector<Gradient> gradients_;
  std::unordered_set<const void*> seen_;
  std::unordered_set<const void*> changed_storages_;
};

// The memory of `tensor` as a flat tensor that shares it.
at::Tensor whole_memory(const at::Tensor& tensor);

}  // namespace cohort::function
