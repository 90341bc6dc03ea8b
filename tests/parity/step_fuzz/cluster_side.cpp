// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/step_fuzz/cluster_side.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/random.h"
#include "tests/parity/step_fuzz/strategy_side.h"

namespace cohort::parity {
namespace {

using Kind = Verdict::Kind;

constexpr std::uint64_t kSeed = 11;
// A new cluster starts after this many programs, since a cluster keeps the functions and variables
// of all of them.
constexpr std::uint64_t kProgramsMax = 400;

bool is_refusal(const Error& error) {
  const bool has_code = error.code() == ErrorCode::invalid_argument ||
                        error.code() == ErrorCode::unimplemented ||
                        error.code() == ErrorCode::failed_precondition;
  return has_code && std::string_view(error.what()).find('[') != std::string_view::npos;
}

Function traced_function(const Program& program, const World& world, std::string name) {
  const auto run = [&program, &world](StepArguments arguments) {
    return Step(program, world, std::move(arguments)).run();
  };
  const FunctionOptions options{.name = std::move(name)};
  if (!program.has_draws) {
    return Function(
        [run](const Nest& tensors, std::int64_t integer, double real, at::Tensor scale) {
          return run({tensors.flatten_tensors(), integer, real, std::move(scale), {}});
        },
        options);
  }
  return Function(
      [run](const Nest& tensors, std::int64_t integer, double real, at::Tensor scale,
            Iterator& it) {
        return run({tensors.flatten_tensors(), integer, real, std::move(scale), [&it] {
                      auto [x, y] = it.next<at::Tensor, at::Tensor>();
                      return Tensors{x, y};
                    }});
      },
      options);
}

FeatureSet features_of_calls(const Program& program) {
  FeatureSet features;
  const auto set_if = [&](bool is_so, Feature feature) {
    if (is_so) features.set(static_cast<std::size_t>(feature));
  };
  set_if(program.mode == Mode::autocast, Feature::autocast);
  set_if(program.mode == Mode::without_grad, Feature::no_grad);
  set_if(program.calls.size() > 1, Feature::several_schedules);
  bool has_batch = false;
  for (const TensorKind& kind : program.arguments) {
    has_batch = has_batch || std::count(kind.sizes.begin(), kind.sizes.end(), kBatch) > 0;
    set_if(kind.sizes.empty(), Feature::zero_dim_argument);
    set_if(kind.layout != Layout::row_major && !kind.sizes.empty(), Feature::strided_argument);
  }
  for (std::size_t i = 1; i < program.calls.size(); ++i) {
    const Call &before = program.calls[i - 1], &call = program.calls[i];
    set_if(before.value_seed != call.value_seed, Feature::new_values);
    set_if(has_batch && before.batch != call.batch, Feature::new_shapes);
    set_if(before.integer != call.integer || before.real != call.real, Feature::new_host_number);
    set_if(before.learning_rate != call.learning_rate, Feature::new_learning_rate);
  }
  return features;
}

// Variables are whole, or in two to five shards, in turn; the last have two shards on one server.
std::vector<std::int64_t> shards_in_turn(const TensorSpec& spec) {
  static std::int64_t made = 0;
  std::vector<std::int64_t> shards(spec.sizes->size(), 1);
  shards[0] = 1 + made++ % 5;
  return shards;
}

}  // namespace

ClusterSide::Cluster::Cluster()
    : tasks({.workers = 1, .ps = 4, .command = {COHORT_COMMAND, "server"}}),
      strategy(tasks.resolver(), {.cluster = {.timeout = std::chrono::seconds(20),
                                              .data_timeout = std::chrono::seconds(20),
                                              .seed = kSeed},
                                  .partitioner = &shards_in_turn}),
      coordinator(strategy, {.max_attempts = 2}) {}

ClusterSide::ClusterSide() {
  set_log_sink([this](LogLevel, std::string_view line) {
    if (line.find("leaves a tensor outside") == std::string_view::npos) {
      std::cerr << line << '\n';
      return;
    }
    const Lock lock(warnings_.mutex);
    warnings_.escapes += line;
  });
}

ClusterSide::~ClusterSide() { set_log_sink({}); }

std::string ClusterSide::Warnings::take() {
  const Lock lock(mutex);
  return std::exchange(escapes, {});
}

std::uint64_t ClusterSide::traces() const {
  return cluster_ ? cluster_->coordinator.statistics().traces : 0;
}

// One program's run on both sides. Used once.
class ClusterSide::Comparison {
 public:
  Comparison(Cluster& cluster, const Program& program, const std::string& prefix)
      : cluster_(cluster),
        program_(program),
        tolerance_(tolerance_for(program)),
        eager_(program),
        world_(make_world(program,
                          [&](const std::string& name, at::Tensor value, bool is_trainable) {
                            return cluster.strategy.variable(prefix + name, value,
                                                             {.is_trainable = is_trainable});
                          })),
        function_(traced_function(program, world_, prefix + "step")) {
    if (program.has_draws) {
      Nest::Items fields;
      for (const at::Tensor& field : make_elements(program)) fields.emplace_back(field);
      const Dataset data = Dataset::from_tensor_slices(Nest::tuple(std::move(fields))).repeat();
      iterator_ = cluster.coordinator.create_per_worker_dataset(data).iterator();
    }
  }

  Verdict run() {
    for (const Call& call : program_.calls) {
      Verdict verdict = compare_call(call);
      if (verdict.kind == Kind::equal) verdict.text = different_variable();
      if (verdict.kind == Kind::equal && !verdict.text.empty()) verdict.kind = Kind::differs;
      if (verdict.kind == Kind::equal) continue;
      const auto number = &call - program_.calls.data() + 1;
      verdict.text = "call " + std::to_string(number) + ": " + verdict.text;
      return verdict;
    }
    return {.features = eager_.features() | features_of_calls(program_)};
  }

 private:
  // The result of the traced call, or the error of schedule() or of the closure.
  struct Traced {
    Tensors outputs;
    std::optional<Error> error;
    bool is_scheduled = false;
  };

  Traced call_traced(const Call& call) {
    set_learning_rate(world_, call);
    Nest::Items tensors;
    for (const at::Tensor& tensor : make_arguments(program_, call)) tensors.emplace_back(tensor);
    std::vector<Nest> arguments = {Nest::list(std::move(tensors)), call.integer, call.real,
                                   at::scalar_tensor(call.scale, at::kDouble)};
    if (iterator_) arguments.emplace_back(*iterator_);
    Traced traced;
    const function::TracingModeScope mode(mode_of(program_));
    try {
      const RemoteValue result =
          cluster_.coordinator.schedule_nests(function_, std::move(arguments));
      traced.is_scheduled = true;
      ++cluster_.next_closure;
      traced.outputs = result.fetch().flatten_tensors();
    } catch (const Error& error) {
      traced.error = error;
      absorb();
    }
    return traced;
  }

  // Discards the error of a closure, which the next join() throws again.
  void absorb() {
    try {
      cluster_.coordinator.join();
    } catch (const Error&) {
      return;
    }
  }

  Verdict compare_call(const Call& call) {
    const EagerSide::Outcome eager = eager_.call(call, mix_seed(kSeed, cluster_.next_closure));
    const Traced traced = call_traced(call);
    if (eager.error) {
      if (!traced.error) return {.kind = Kind::accepts_errors, .text = *eager.error};
      return {.kind = Kind::eager_throws, .text = *eager.error};
    }
    if (traced.error) {
      const bool is_refused = !traced.is_scheduled && is_refusal(*traced.error);
      return {.kind = is_refused ? Kind::refused : Kind::fails, .text = traced.error->what()};
    }
    if (traced.outputs.size() != eager.outputs.size())
      return {.kind = Kind::differs, .text = std::to_string(traced.outputs.size()) + " outputs"};
    for (std::size_t i = 0; i < eager.outputs.size(); ++i) {
      const std::string text = difference(traced.outputs[i], eager.outputs[i], tolerance_);
      if (!text.empty())
        return {.kind = Kind::differs, .text = "output " + std::to_string(i) + ": " + text};
    }
    return {};
  }

  std::string different_variable() const {
    const auto find = [&](const std::vector<Variable>& remote, const std::vector<Variable>& local) {
      for (std::size_t i = 0; i < remote.size(); ++i) {
        const std::string text = difference(remote[i].read(), local[i].read(), tolerance_);
        if (!text.empty()) return remote[i].name() + ": " + text;
      }
      return std::string();
    };
    const std::string text = find(world_.variables, eager_.world().variables);
    return text.empty() ? find(world_.buffers, eager_.world().buffers) : text;
  }

  Cluster& cluster_;
  const Program& program_;
  const Tolerance tolerance_;
  EagerSide eager_;
  const World world_;
  const Function function_;
  std::optional<PerWorkerIterator> iterator_;
};

Verdict ClusterSide::compare(const Program& program) {
  if (++programs_ % kProgramsMax == 0) cluster_.reset();
  if (!cluster_) cluster_ = std::make_unique<Cluster>();
  try {
    const std::string prefix = "p" + std::to_string(programs_) + "/";
    Verdict verdict = Comparison(*cluster_, program, prefix).run();
    const std::string escapes = warnings_.take();
    if (!escapes.empty() && !verdict.is_failure()) verdict = {.kind = Kind::warns, .text = escapes};
    // A task may have died.
    if (verdict.kind == Kind::fails) cluster_.reset();
    return verdict;
  } catch (const Error& error) {
    cluster_.reset();
    return {.kind = Kind::fails, .text = error.what()};
  }
}

Program shrunk(ClusterSide& side, Program program, Verdict& verdict) {
  const auto fails_without = [&](Program smaller) {
    const Verdict now = side.compare(smaller);
    if (now.kind != verdict.kind) return false;
    verdict = now;
    program = std::move(smaller);
    return true;
  };
  while (program.calls.size() > 1) {
    Program smaller = program;
    smaller.calls.pop_back();
    if (!fails_without(std::move(smaller))) break;
  }
  for (bool has_shrunk = true; has_shrunk;) {
    has_shrunk = false;
    for (std::size_t i = program.instructions.size(); i-- > 0;) {
      Program smaller = program;
      smaller.instructions.erase(smaller.instructions.begin() + static_cast<std::ptrdiff_t>(i));
      has_shrunk = fails_without(std::move(smaller)) || has_shrunk;
    }
    for (std::size_t i = program.outputs.size(); i-- > 0;) {
      Program smaller = program;
      smaller.outputs.erase(smaller.outputs.begin() + static_cast<std::ptrdiff_t>(i));
      has_shrunk = fails_without(std::move(smaller)) || has_shrunk;
    }
  }
  return program;
}

}  // namespace cohort::parity
