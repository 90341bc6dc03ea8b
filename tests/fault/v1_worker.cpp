// SPDX-License-Identifier: Apache-2.0
// A task of a cluster of version 1 that counts: v1_worker FOLDER SAVE_EVERY. It trains until there
// is a file FOLDER/stop.
//
// Two variables, on two servers, have a number for each of the tasks that train, and each step of a
// task adds 1 to its own two. So a task finds in its own numbers every step of its own that was
// lost or counted twice, whatever the others do. Files that it appends lines to:
//   FOLDER/TASK       "start"; after each step that the servers have confirmed, its two numbers;
//                     "end", with what they are in the end
//   FOLDER/restored   of the chief, before others train with what it has restored: all numbers
//   FOLDER/evaluator:0   of each checkpoint: its step, and all numbers
//   FOLDER/last       of the chief in the end: the step of the last checkpoint
#include <cohort/cohort.h>
#include <poll.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

namespace {

// A file to which lines are appended at once, since the task may be killed at any moment.
void append(const std::string& path, const std::string& line) {
  std::ofstream(path, std::ios::app) << line + "\n" << std::flush;
}

std::string text_of(const at::Tensor& numbers) {
  std::string text;
  for (std::int64_t i = 0; i < numbers.size(0); ++i)
    text += " " + std::to_string(numbers[i].item<std::int64_t>());
  return text;
}

struct Counting {
  Counting(std::string into, std::int64_t every) : folder(std::move(into)), save_every(every) {}

  bool is_stopped() const { return std::filesystem::exists(folder + "/stop"); }
  std::string checkpoints() const { return folder + "/checkpoints"; }
  // The newest folder of a checkpoint; nullopt: there is none.
  std::optional<std::string> latest() const {
    std::int64_t step = -1;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints(), none)) {
      const std::string name = entry.path().filename();
      const bool is_step = name.starts_with("step-") && name.size() > 5 &&
                           name.find_first_not_of("0123456789", 5) == name.npos;
      if (is_step) step = std::max<std::int64_t>(step, std::stoll(name.substr(5)));
    }
    if (step < 0) return std::nullopt;
    return checkpoints() + "/step-" + std::to_string(step);
  }
  std::string all_numbers() const { return text_of(first.read()) + text_of(second.read()); }
  // Says what was restored from, unless the servers had newer values.
  std::optional<std::int64_t> restore(const cohort::Checkpoint& checkpoint) const {
    const auto path = latest();
    if (path && checkpoint.read(*path).used.empty()) return std::nullopt;
    // Others may have made steps between that of the checkpoint's name and its values.
    const auto step = steps.read().item<std::int64_t>();
    append(folder + "/restored", std::to_string(step) + all_numbers());
    return path ? std::optional(step) : std::nullopt;
  }
  void train();
  void evaluate();

  const std::string folder;
  const std::int64_t save_every;
  cohort::v1::ParameterServerStrategy strategy{};
  const cohort::TaskId task = *strategy.cluster_resolver()->task();
  const cohort::Variable first = strategy.variable("first", torch::zeros({3}));
  const cohort::Variable second = strategy.variable("second", torch::zeros({3}));
  const cohort::Variable steps = strategy.global_step();
};

void Counting::train() {
  const std::string file = folder + "/" + task.to_string();
  append(file, "start");
  const cohort::SGD optimizer({first, second}, {.learning_rate = 1});
  const cohort::Checkpoint checkpoint(strategy);
  std::optional<cohort::CheckpointManager> manager;
  if (strategy.is_chief()) {
    strategy.restore_after_loss(
        [this, own = std::make_shared<cohort::Checkpoint>(strategy)] { return restore(*own); });
    manager.emplace(checkpoint, checkpoints());
    restore(checkpoint);
    strategy.let_others_train();
  }
  const std::int64_t own = task.job == "chief" ? 0 : task.index + 1;
  std::int64_t now = steps.read().item<std::int64_t>();
  std::int64_t saved = -1;
  at::Tensor mine;
  while (!is_stopped()) {
    strategy.run([&] {
      optimizer.minimize(-(first.tensor()[own] + second.tensor()[own]));
      mine = torch::stack({first.tensor()[own], second.tensor()[own]}).detach();
      steps.assign_add(1);
      now = steps.read().item<std::int64_t>();
    });
    append(file, text_of(mine));
    if (!manager || now / save_every == saved) continue;
    manager->save(now);
    saved = now / save_every;
  }
  if (manager) {
    manager->save(now).wait();
    append(folder + "/last", std::to_string(now));
  }
  append(file, "end" + text_of(torch::stack({first.read()[own], second.read()[own]})));
}

void Counting::evaluate() {
  const cohort::Checkpoint checkpoint(strategy);
  std::optional<std::string> seen;
  // The file `last` comes when the last checkpoint is complete.
  for (bool is_last = false; !is_last || latest() != seen;) {
    is_last = std::filesystem::exists(folder + "/last");
    const std::optional<std::string> path = latest();
    if (!path || path == seen) {
      ::poll(nullptr, 0, 10);
      continue;
    }
    const std::int64_t at = checkpoint.read(*path).step;
    append(folder + "/" + task.to_string(), std::to_string(at) + all_numbers());
    seen = path;
  }
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments& arguments) {
    Counting counting(arguments.values.at(0), std::stoll(arguments.values.at(1)));
    counting.task.job == "evaluator" ? counting.evaluate() : counting.train();
    return 0;
  });
}
