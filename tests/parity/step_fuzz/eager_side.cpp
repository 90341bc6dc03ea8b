// SPDX-License-Identifier: Apache-2.0
#include <ATen/CPUGeneratorImpl.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/scalar_tensor.h>

#include <mutex>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include "cohort/core/error.h"
#include "tests/parity/step_fuzz/generator.h"

namespace cohort::parity {
namespace {

void seed_like_a_server(std::uint64_t seed) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

// In eager mode LibTorch never frees a tensor that was written with a view of itself, since the
// tensor and its graph hold each other.
struct LeaksAreLibTorchs {
#if defined(__SANITIZE_ADDRESS__)
  LeaksAreLibTorchs() { __lsan_disable(); }
  ~LeaksAreLibTorchs() { __lsan_enable(); }
  LeaksAreLibTorchs(const LeaksAreLibTorchs&) = delete;
  LeaksAreLibTorchs& operator=(const LeaksAreLibTorchs&) = delete;
#endif
};

}  // namespace

void set_learning_rate(const World& world, const Call& call) {
  for (Optimizer optimizer : world.optimizers) optimizer.set_learning_rate(call.learning_rate);
}

function::TracingMode mode_of(const Program& program) {
  function::TracingMode mode;
  mode.is_grad_enabled = program.mode != Mode::without_grad;
  mode.is_autocast_enabled = program.mode == Mode::autocast;
  return mode;
}

EagerSide::EagerSide(const Program& program)
    : program_(program),
      world_(make_world(program,
                        [](const std::string& name, at::Tensor value, bool is_trainable) {
                          return local_variable(name, std::move(value), is_trainable);
                        })),
      elements_(make_elements(program)) {}

EagerSide::Outcome EagerSide::call(const Call& call, std::uint64_t seed, const SeeResults& see) {
  [[maybe_unused]] const LeaksAreLibTorchs ignored;
  set_learning_rate(world_, call);
  StepArguments arguments{.integer = call.integer,
                          .real = call.real,
                          .scale = at::scalar_tensor(call.scale, at::kDouble)};
  // Row-major, as on a server: values enter a program in row-major order (function.h).
  for (const at::Tensor& tensor : make_arguments(program_, call))
    arguments.tensors.push_back(tensor.clone(at::MemoryFormat::Contiguous));
  if (program_.has_draws) {
    arguments.draw = [this] {
      const std::int64_t row = drawn_++ % kElements;
      Tensors fields;
      for (const at::Tensor& field : elements_) fields.push_back(field[row].clone());
      return fields;
    };
  }
  seed_like_a_server(seed);
  at::autocast::clear_cache();  // as at the end of an autocast block
  const function::TracingModeScope mode(mode_of(program_));
  Step step(program_, world_, std::move(arguments));
  Outcome outcome;
  try {
    for (const at::Tensor& output : step.run(see))
      outcome.outputs.push_back(output.detach().clone());
    features_ |= step.features();
  } catch (const c10::Error& error) {
    outcome.error = error.what_without_backtrace();
    outcome.position = step.position();
  } catch (const std::exception& error) {
    outcome.error = error.what();
    outcome.position = step.position();
  }
  return outcome;
}

}  // namespace cohort::parity
