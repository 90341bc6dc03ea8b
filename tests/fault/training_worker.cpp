// SPDX-License-Identifier: Apache-2.0
// A worker of the tests in which workers are lost: trains two layers on batches that depend on the
// number of the step alone. All products and sums are exact, so that any number of workers computes
// the same bits. After the loss of a worker it goes on with the others.
//   training_worker STEPS TIMEOUT_MS BACKEND[+overlap] [REBUILD_EVERY [fork]]
// With +overlap, gradients travel in two packs while the backward pass runs.
// With REBUILD_EVERY, workers that have lost one look each so many steps whether it has come back.
// With `fork` it has a child process, which lives some seconds longer than it.
// LISTEN_AT=PORT: it listens there instead, since a proxy has the port that TF_CONFIG names.
// SAVE_TO=FILE: it saves the number of the step there after each hundred steps.
// SIGNAL_AT_SAVE=NUMBER: it sends itself this signal before it does so for the first time, with
// SIGNAL_IN_SAVE when it has written all bytes and waits for the disk, and with SIGNAL_AT_RENAME
// just before the file gets its name.
// SIGNAL_AT_REBUILD=NUMBER: it sends itself this signal before it first calls rebuild().
// REBUILD_SECONDS=NUMBER: how long a rebuild() waits, instead of 20 seconds.
// STOPS_TOGETHER=1: after a SIGTERM or SIGINT at one worker, all save the same step and end.
// REPLICAS=NUMBER: it has so many replicas, which multiply large matrices, too.
// It writes a line for each step, error and rebuild, and at the end how far its weights are from
// those of one process.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/round.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor_split.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cohort/cohort.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/worker_config.h"

namespace cohort {
namespace {

// A power of two, so that the mean is exact.
constexpr std::int64_t kRows = 32;
constexpr double kGrid = 4096;

// Whole numbers from -3 to 3.
at::Tensor inputs_of(std::int64_t step) {
  const at::Tensor place = at::arange(kRows * 8, at::kDouble) + static_cast<double>(step * 131);
  return at::remainder(at::floor(place * place / 8), 7).view({kRows, 8}) - 3;
}
at::Tensor targets_of(const at::Tensor& inputs) { return at::remainder(inputs.sum(1, true), 4); }

at::Tensor wave(std::int64_t rows, std::int64_t columns, double frequency) {
  return at::sin(at::arange(rows * columns, at::kDouble) * frequency).view({rows, columns});
}
// Multiples of 1 / kGrid, with the gradient of the weights themselves. So no product or sum of a
// step needs more than 53 bits, and their order does not matter.
at::Tensor rounded(const at::Tensor& weights) {
  const at::Tensor to = at::round(weights.detach() * kGrid) / kGrid;
  return weights + (to - weights.detach());
}

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
      if (std::getenv("REPLICAS") != nullptr)
        at::matmul(at::ones({512, 512}, at::kFloat), at::ones({512, 512}, at::kFloat));
      const at::Tensor hidden = at::clamp(inputs.matmul(rounded(first.tensor())), -1, 1);
      const at::Tensor out = hidden.matmul(rounded(second.tensor()));
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

std::int64_t step_of(const Model& model) { return model.num_steps.read().item<std::int64_t>(); }

// A proxy may damage the forming of a group, too.
constexpr int kRebuildsMax = 3;
constexpr int kBeginningsMax = 10;

std::string text_of(const Error& error) {
  return std::string(name_of(error.code())) + " " + error.origin() + " " + error.what();
}

MultiWorkerMirroredOptions options_of(std::string backend, Duration timeout) {
  MultiWorkerMirroredOptions options{.timeout = timeout};
  if (const auto end = backend.find("+overlap"); end != std::string::npos) {
    backend.resize(end);
    options.communication.bytes_per_pack = 64;  // less than each of the layers
    options.overlaps_communication = true;
  }
  options.backend = testing::backend_of(backend);
  const char* const replicas = std::getenv("REPLICAS");
  if (replicas != nullptr) options.devices = testing::cpu_devices(std::atoi(replicas));
  return options;
}

// On a busy machine some workers start later than others wait for them.
std::unique_ptr<MultiWorkerMirroredStrategy> joined_group(
    const MultiWorkerMirroredOptions& options) {
  for (int attempt = 1;; ++attempt) {
    try {
      return std::make_unique<MultiWorkerMirroredStrategy>(options);
    } catch (const Error& error) {
      say("did not begin: " + text_of(error));
      if (error.code() != ErrorCode::deadline_exceeded || attempt == kBeginningsMax) throw;
    }
  }
}

// Without exec, so that it has all that close-on-exec would keep from it.
void fork_child() {
  const pid_t parent = ::getpid();
  if (::fork() != 0) return;
  while (::getppid() == parent) ::poll(nullptr, 0, 20);
  ::poll(nullptr, 0, 5000);
  ::_exit(0);
}

bool must_save(std::int64_t saved, std::int64_t steps) {
  return std::getenv("SAVE_TO") != nullptr && saved < steps;
}

void save_now_and_then(const Model& model, std::int64_t& saved) {
  const char* const file = std::getenv("SAVE_TO");
  const std::int64_t step = step_of(model);
  if (file == nullptr || step % 100 != 0 || step == saved) return;
  const char* const signal = std::getenv("SIGNAL_AT_SAVE");
  if (signal != nullptr && saved == 0) ::raise(std::atoi(signal));
  save_values(file, {{"num_steps", model.num_steps}});
  saved = step;
  say("saved");
}

bool stops_now(const std::optional<StopSignals>& signals, Strategy& strategy, const Model& model) {
  if (!signals || !signals->agreed(strategy)) return false;
  save_values(std::getenv("SAVE_TO"), {{"num_steps", model.num_steps}});
  say("stops at step " + std::to_string(step_of(model)));
  return true;
}

int train(const Arguments& arguments) {
  std::optional<StopSignals> signals;
  if (std::getenv("STOPS_TOGETHER") != nullptr) signals.emplace();
  const std::int64_t steps = std::stoll(arguments.values.at(0));
  const std::chrono::milliseconds timeout(std::stoll(arguments.values.at(1)));
  const std::int64_t rebuild_every =
      arguments.values.size() > 3 ? std::stoll(arguments.values[3]) : steps + 1;
  const std::unique_ptr<MultiWorkerMirroredStrategy> joined =
      joined_group(options_of(arguments.values.at(2), timeout));
  MultiWorkerMirroredStrategy& strategy = *joined;
  Model model(strategy);
  say("begins at step " + std::to_string(step_of(model)));
  const int all_workers = strategy.num_workers();
  std::int64_t saved = 0;
  const char* const wait = std::getenv("REBUILD_SECONDS");
  const std::chrono::seconds rebuild_wait(wait == nullptr ? 20 : std::atoi(wait));
  if (arguments.values.size() > 4) fork_child();
  bool has_rebuilt = false;
  const auto rebuild = [&] {
    const char* const signal = std::getenv("SIGNAL_AT_REBUILD");
    if (signal != nullptr && !std::exchange(has_rebuilt, true)) ::raise(std::atoi(signal));
    for (int attempt = 1;; ++attempt) {
      try {
        strategy.rebuild(rebuild_wait);
        break;
      } catch (const Error& error) {
        say("did not rebuild: " + text_of(error));
        if (error.cause() == ErrorCause::must_restart || attempt == kRebuildsMax) throw;
      }
    }
    say("rebuilt: worker " + std::to_string(strategy.worker()) + " of " +
        std::to_string(strategy.num_workers()) + " at step " + std::to_string(step_of(model)));
  };
  while (step_of(model) < steps || must_save(saved, steps)) {
    try {
      save_now_and_then(model, saved);
      if (step_of(model) == steps) break;
      model.step(strategy, strategy.worker(), strategy.num_workers());
      const std::int64_t step = step_of(model);
      say("step " + std::to_string(step));
      if (stops_now(signals, strategy, model)) return signals->exit_code();
      if (strategy.num_workers() < all_workers && step % rebuild_every == 0) rebuild();
      // A worker that was left behind would find nobody later.
      const int attempts_max = rebuild_every < steps && step == steps ? 20 : 0;
      for (int i = 0; i < attempts_max && strategy.num_workers() < all_workers; ++i) rebuild();
    } catch (const Error& error) {
      say("lost: " + text_of(error));
      if (!is_task_loss(error)) throw;
      rebuild();
    }
  }
  say("ends with distance " + std::to_string(distance_from_one_process(model, steps)));
  return 0;
}

}  // namespace
}  // namespace cohort

// Instead of the C library's: the workers know each other by the addresses of TF_CONFIG, at which
// proxies listen.
extern "C" __attribute__((visibility("default"))) int bind(int fd, const sockaddr* address,
                                                           socklen_t size) noexcept {
  sockaddr_storage to{};
  std::memcpy(&to, address, size);
  const char* const port = std::getenv("LISTEN_AT");
  auto& in = reinterpret_cast<sockaddr_in&>(to);
  if (port != nullptr && to.ss_family == AF_INET && in.sin_port != 0)
    in.sin_port = htons(static_cast<std::uint16_t>(std::atoi(port)));
  return static_cast<int>(::syscall(SYS_bind, fd, &to, size));
}

void signal_once(const char* variable, bool& has_come) {
  const char* const signal = std::getenv(variable);
  if (signal != nullptr && !std::exchange(has_come, true)) ::raise(std::atoi(signal));
}

extern "C" __attribute__((visibility("default"))) int fsync(int fd) {
  static bool has_come = false;
  signal_once("SIGNAL_IN_SAVE", has_come);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

extern "C" __attribute__((visibility("default"))) int rename(const char* from, const char* to) {
  static bool has_come = false;
  signal_once("SIGNAL_AT_RENAME", has_come);
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int main(int argc, char** argv) { return cohort::run_main(argc, argv, cohort::train); }
