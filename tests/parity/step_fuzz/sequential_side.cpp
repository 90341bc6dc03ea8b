// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/step_fuzz/sequential_side.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>

#include <condition_variable>
#include <mutex>
#include <span>
#include <stdexcept>
#include <thread>

#include "cohort/core/random.h"
#include "tests/parity/step_fuzz/generator.h"

namespace cohort::parity {
namespace {

at::Generator& default_generator() {
  static at::Generator generator = at::detail::getDefaultCPUGenerator();
  return generator;
}

void seed_default_generator(std::uint64_t seed) {
  const std::lock_guard<std::mutex> lock(default_generator().mutex());
  default_generator().set_current_seed(seed);
}

std::uint64_t draw_from_default_generator() {
  const std::lock_guard<std::mutex> lock(default_generator().mutex());
  return at::check_generator<at::CPUGeneratorImpl>(default_generator())->random64();
}

// Lets one replica run at a time; each has a state of the default generator.
class Turns {
 public:
  explicit Turns(std::size_t replicas) : states_(replicas), has_ended_(replicas) {}

  void begin(std::size_t replica, std::uint64_t seed) {
    take(replica);
    seed_default_generator(seed);
  }
  // Brings what the replica has, and returns what all have brought to this meeting.
  std::vector<GradientList> meet(std::size_t replica, std::size_t meeting, GradientList mine) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (meetings_.size() <= meeting) meetings_.resize(meeting + 1);
      meetings_[meeting].resize(states_.size());
      meetings_[meeting][replica] = std::move(mine);
    }
    pass(replica);
    take(replica);
    const std::lock_guard<std::mutex> lock(mutex_);
    return meetings_[meeting];
  }
  void end(std::size_t replica, bool is_failed) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      has_ended_[replica] = true;
      is_failed_ = is_failed_ || is_failed;
    }
    pass(replica);
  }

 private:
  void take(std::size_t replica) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return turn_ == replica; });
    if (is_failed_) throw std::runtime_error("another replica has failed");
    if (states_[replica].defined()) default_generator().set_state(states_[replica]);
  }
  void pass(std::size_t replica) {
    const std::lock_guard<std::mutex> lock(mutex_);
    states_[replica] = default_generator().get_state();
    for (std::size_t i = 1; i <= states_.size(); ++i) {
      turn_ = (replica + i) % states_.size();
      if (!has_ended_[turn_]) break;
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t turn_ = 0;
  bool is_failed_ = false;
  Tensors states_;
  std::vector<bool> has_ended_;
  std::vector<std::vector<GradientList>> meetings_;
};

// ((0 + 1) + (2 + 3)) + …
at::Tensor tree_sum(std::span<const at::Tensor> values) {
  if (values.size() == 1) return values[0];
  std::size_t left_size = 1;
  while (left_size * 2 < values.size()) left_size *= 2;
  const at::Tensor left = tree_sum(values.first(left_size));
  const at::Tensor right = tree_sum(values.subspan(left_size));
  if (!left.defined() || !right.defined()) return left.defined() ? left : right;
  return at::add(left, right);
}

// The calls of one replica. Used from its thread.
class ReplicaUpdates final : public Updates {
 public:
  ReplicaUpdates(Turns& turns, std::size_t replica, std::size_t replicas)
      : turns_(turns), replica_(replica), replicas_(replicas) {}

  void minimize(const Optimizer& optimizer, const at::Tensor& loss) override {
    apply(optimizer, optimizer.compute_gradients(loss));
  }
  void apply(const Optimizer& optimizer, const GradientList& gradients) override {
    optimizer.apply_gradients(sums(gradients));
  }
  GradientList clip(const GradientList& gradients, double max_norm) override {
    GradientList clipped = clip_by_global_norm(sums(gradients), max_norm).gradients;
    for (auto& [gradient, variable] : clipped) {
      if (gradient.defined() && replicas_ > 1)
        gradient = at::div(gradient, static_cast<std::int64_t>(replicas_));
    }
    return clipped;
  }

 private:
  GradientList sums(const GradientList& gradients) {
    GradientList sums = gradients;
    // The step may write into them while others still read what it has brought.
    for (auto& [gradient, variable] : sums) {
      if (gradient.defined()) gradient = gradient.detach().clone();
    }
    const std::vector<GradientList> all = turns_.meet(replica_, meeting_++, sums);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      Tensors each;
      for (const GradientList& of_one : all) each.push_back(of_one.at(i).first);
      sums[i].first = tree_sum(each);
    }
    return sums;
  }

  Turns& turns_;
  const std::size_t replica_;
  const std::size_t replicas_;
  std::size_t meeting_ = 0;
};

std::vector<World> make_worlds(const Program& program, int replicas) {
  std::vector<World> worlds;
  for (int r = 0; r < replicas; ++r) {
    worlds.push_back(
        make_world(program, [](const std::string& name, at::Tensor value, bool is_trainable) {
          return local_variable(name, std::move(value), is_trainable);
        }));
  }
  return worlds;
}

}  // namespace

SequentialSide::SequentialSide(const Program& program, int replicas)
    : program_(program), worlds_(make_worlds(program, replicas)) {}

SequentialSide::Outcome SequentialSide::call(const Call& call, std::vector<StepArguments> arguments,
                                             std::uint64_t seed) {
  const std::size_t replicas = worlds_.size();
  std::uint64_t base = 0;
  if (replicas > 1) {
    seed_default_generator(seed);
    base = draw_from_default_generator();
  }
  Turns turns(replicas);
  Outcome outcome;
  outcome.outputs.resize(replicas);
  std::vector<std::string> errors(replicas);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < replicas; ++r) {
    set_learning_rate(worlds_[r], call);
    arguments[r].updates = std::make_shared<ReplicaUpdates>(turns, r, replicas);
    threads.emplace_back([&, r] {
      try {
        turns.begin(r, replicas > 1 ? mix_seed(base, r) : seed);
        at::autocast::clear_cache();
        const function::TracingModeScope mode(mode_of(program_));
        for (const at::Tensor& output : Step(program_, worlds_[r], std::move(arguments[r])).run())
          outcome.outputs[r].push_back(output.detach().clone());
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
      turns.end(r, !errors[r].empty());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty() && !outcome.error) outcome.error = error;
  }
  return outcome;
}

Tensors SequentialSide::values() const {
  Tensors values;
  for (std::size_t i = 0; i < worlds_[0].variables.size(); ++i) {
    for (const World& world : worlds_) values.push_back(world.variables[i].read().detach());
  }
  for (std::size_t i = 0; i < worlds_[0].buffers.size(); ++i) {
    for (const World& world : worlds_) values.push_back(world.buffers[i].read().detach());
  }
  return values;
}

}  // namespace cohort::parity
