// SPDX-License-Identifier: Apache-2.0
// What a trace puts back: it runs the step for real.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_set>
#include <vector>

#include "cohort/function/internal/tracer/changes.h"

namespace cohort::function {

// Remembers contents, gradients and the default generator, and puts them back when it goes. Used
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
  // Random numbers that reach a program in spite of everything should differ between passes.
  void reseed_default_generator();
  // Before the first write to a tensor that outlives the trace: its whole memory.
  void save_contents(const at::Tensor& tensor);
  // Other values for the variable of `tensor` as long as this lives, made in place.
  void change_values(const at::Tensor& tensor, Change how);
  // For a tensor whose memory, shape or graph the body might replace (set_data(), unsqueeze_()).
  void keep_memory(const at::Tensor& tensor);
  // The leaves that were hidden and have a gradient now.
  std::vector<at::Tensor> leaves_with_gradients() const;
  // At the first sight of a leaf: takes its gradient away, which would else be captured.
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
