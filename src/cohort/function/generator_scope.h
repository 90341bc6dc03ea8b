// SPDX-License-Identifier: Apache-2.0
// Random numbers of one thread that are not drawn from LibTorch's default generators.
//
// Which thread gets which numbers of a generator that several share depends on their timing. So
// code that runs beside other code has a generator of its own: operators that are called without
// one (dropout, rand, normal_, …) take it. On a GPU they take another one with the same seed; only
// cuDNN's layers (LSTM with dropout) and its fused attention draw from the GPU's default generator,
// since they take no other.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/thread_value.h"

namespace cohort::function {

// While it exists, operators on this thread draw from its generators. Used from one thread.
class COHORT_API GeneratorScope {
 public:
  // The innermost scope of this thread; nullptr outside of all.
  static GeneratorScope* current();
  // Makes LibTorch ask for scopes. The first scope does that too, but it is better done before
  // other threads call operators.
  static void prepare();
  // Made at the first call.
  const at::Generator& generator();
  // Undefined before that.
  const at::Generator& made_generator() const { return generator_; }
  // The generator of the device.
  const at::Generator& generator(c10::Device device);

 protected:
  GeneratorScope();
  virtual ~GeneratorScope();
  // Called when a generator is made.
  virtual std::uint64_t seed() = 0;
  bool has_generator() const { return generator_.defined() || !of_gpus_.empty(); }

 private:
  const internal::ScopedValue<GeneratorScope*> here_;
  const bool had_key_;
  at::Generator generator_;
  std::vector<at::Generator> of_gpus_;
};

// One whose seed is known.
class COHORT_API SeededScope final : public GeneratorScope {
 public:
  explicit SeededScope(std::uint64_t seed) : seed_(seed) {}

 private:
  std::uint64_t seed() override { return seed_; }

  const std::uint64_t seed_;
};

// The lock of LibTorch's default CPU generator. Hold it while you seed the generator and until you
// restore its state: two threads at once would restore each other's state. A thread that holds it
// may lock it again.
[[nodiscard]] COHORT_API std::unique_lock<std::recursive_mutex> lock_default_generator();

// A hash of the state of the CPU generator from which operators on this thread draw: equal after
// torch::manual_seed() with one seed and the same draws. Draws nothing from the default generator.
COHORT_API std::uint64_t hash_of_generator();

}  // namespace cohort::function
