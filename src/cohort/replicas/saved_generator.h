// SPDX-License-Identifier: Apache-2.0
// The state of a random generator of LibTorch at one moment.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <optional>

namespace cohort::internal {

// Used from one thread at a time. The generator of a CPU is copied into memory which is used again,
// since each run of one replica does so.
class SavedGenerator {
 public:
  // The caller holds the generator's mutex.
  void save(const at::Generator& generator);
  // Gives the generator the state that was saved; does nothing if there is none.
  void restore();
  void forget() { generator_ = {}; }

 private:
  at::Generator generator_;  // undefined: nothing is saved
  at::mt19937 engine_;
  std::optional<float> float_sample_;  // the second half of a pair of normal numbers
  std::optional<double> double_sample_;
  at::Tensor state_;  // of a generator on a GPU
};

}  // namespace cohort::internal
