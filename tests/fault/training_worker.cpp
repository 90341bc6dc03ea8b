// SPDX-License-Identifier: Apache-2.0
// A worker of the tests in which workers are lost: trains two layers on batches that depend on the
// number of the step alone, so that any number of workers computes the same up to rounding. After
// the loss of a worker it goes on with the others.
//   training_worker STEPS TIMEOUT_MS BACKEND[+overlap] [REBUILD_EVERY [fork]]
// With +overlap, gradients travel in two packs while the backward pass runs.
// With REBUILD_EVERY, workers that have lost one look each so many steps whether it has come back.
// With `fork` it has a child process, which lives some seconds longer than it.
// It writes a line for each step, error and rebuild, and at the end how far its weights are from
// those of one process.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor_split.h>
#include <ATen/ops/zeros.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "cohort/cohort.h"

namespace cohort {
namespace {

constexpr std::int64_t kRows = 24;

at::Tensor wave(std::int64_t rows, std::int64_t columns, double frequency) {
  return at::sin(at::arange(rows * columns, at::kDouble) * frequency).view({rows, columns});
}
at::Tensor inputs_of(std::int64_t step) {
  return wave(kRows, 8, 0.37 + 0.01 * static_cast<double>(step % 50));
}
at::Tensor targets_of(const at::Tensor& inputs) { return at::cos(inputs.sum(1, true)); }

// The two layers and what trains them.
struct Model {
  explicit Model(Strategy& strategy)
      : first(strategy.variable("first", wave(8, 16, 0.71) * 0.4)),
        second(strategy.variable("second", wave(16, 1, 1.3) * 0.4)),
        num_steps(strategy.variable("num_steps", at::zeros({}, at::kLong))),
        adam({first, second}, {.learning_rate = 0.01}) {}

  // The step on rows [first, last) of the batch; it is done on all workers or on none.
  void step(Strategy& strategy, int worker, int workers) {
    const at::Tensor all = inputs_of(num_steps.read().item<std::int64_t>());
    const at::Tensor inputs = at::tensor_split(all, workers)[static_cast<std::size_t>(worker)];
    strategy.run([&] {
      const at::Tensor out = at::tanh(inputs.matmul(first.tensor())).matmul(second.tensor());
      adam.minimize(average_loss((out - targets_of(inputs)).square().sum(1)));
    });
    num_steps.assign_add(at::ones_like(num_steps.read()));
  }

  Variable first;
  Variable second;
  Variable num_steps;
  Adam adam;
};

double distance_from_one_process(const Model& model, std::int64_t steps) {
  MirroredStrategy strategy({"CPU:0"});
  Model alone(strategy);
  for (std::int64_t i = 0; i < steps; ++i) alone.step(strategy, 0, 1);
  const double first = (model.first.read() - alone.first.read()).abs().max().item<double>();
  const double second = (model.second.read() - alone.second.read()).abs().max().item<double>();
  return std::max(first, second);
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

MultiWorkerMirroredOptions options_of(std::string backend, Duration timeout) {
  MultiWorkerMirroredOptions options{.timeout = timeout};
  if (const auto end = backend.find("+overlap"); end != std::string::npos) {
    backend.resize(end);
    options.communication.bytes_per_pack = 64;  // less than each of the layers
    options.overlaps_communication = true;
  }
  if (backend == "shared_memory") options.backend = GroupBackend::shared_memory;
  if (backend == "tcp") options.backend = GroupBackend::tcp;
  return options;
}

std::int64_t step_of(const Model& model) { return model.num_steps.read().item<std::int64_t>(); }

// Without exec, so that it has all that close-on-exec would keep from it.
void fork_child() {
  const pid_t parent = ::getpid();
  if (::fork() != 0) return;
  while (::getppid() == parent) ::poll(nullptr, 0, 20);
  ::poll(nullptr, 0, 5000);
  ::_exit(0);
}

int train(const Arguments& arguments) {
  const std::int64_t steps = std::stoll(arguments.values.at(0));
  const std::chrono::milliseconds timeout(std::stoll(arguments.values.at(1)));
  const std::int64_t rebuild_every =
      arguments.values.size() > 3 ? std::stoll(arguments.values[3]) : steps + 1;
  MultiWorkerMirroredStrategy strategy(TfConfigResolver(),
                                       options_of(arguments.values.at(2), timeout));
  Model model(strategy);
  say("begins at step " + std::to_string(step_of(model)));
  const int all_workers = strategy.num_workers();
  if (arguments.values.size() > 4) fork_child();
  const auto rebuild = [&] {
    strategy.rebuild(std::chrono::seconds(20));
    say("rebuilt: worker " + std::to_string(strategy.worker()) + " of " +
        std::to_string(strategy.num_workers()) + " at step " + std::to_string(step_of(model)));
  };
  while (step_of(model) < steps) {
    try {
      model.step(strategy, strategy.worker(), strategy.num_workers());
      const std::int64_t step = step_of(model);
      say("step " + std::to_string(step));
      if (strategy.num_workers() < all_workers && step % rebuild_every == 0) rebuild();
    } catch (const Error& error) {
      say("lost: " + std::string(name_of(error.code())) + " " + error.origin() + " " +
          error.what());
      rebuild();
    }
  }
  say("ends with distance " + std::to_string(distance_from_one_process(model, steps)));
  return 0;
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) { return cohort::run_main(argc, argv, cohort::train); }
