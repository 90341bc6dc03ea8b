// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/step_fuzz/generator.h"

#include <algorithm>
#include <random>
#include <stdexcept>
#include <string_view>

#include "cohort/core/error.h"
#include "tests/parity/step_fuzz/ops.h"

namespace cohort::parity {
namespace {

constexpr std::int64_t kElementsMax = 4096;  // elements of a result

// A result is infinite or too large, so the generator removes its instruction.
struct Unwanted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void check_results(const Instruction&, const Tensors& results) {
  for (const at::Tensor& result : results) {
    if (result.numel() > kElementsMax) throw Unwanted("too many elements");
    if (result.is_floating_point() && !result.detach().isfinite().all().item<bool>())
      throw Unwanted("an infinite value");
  }
}

// Used from one thread, once.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15 + 1) {
    program_.seed = seed;
  }

  Program make() {
    add_data();
    add_state();
    add_instructions(static_cast<int>(6 + below(20)));
    add_outputs();
    add_calls();
    if (!chance(0.03)) settle();
    return std::move(program_);
  }

 private:
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }
  bool chance(double share) {
    return std::uniform_real_distribution<double>(0, 1)(random_) < share;
  }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<std::int64_t>(values.size()))];
  }

  TensorKind data_kind() {
    TensorKind kind;
    kind.dtype = one_of({c10::kFloat, c10::kFloat, c10::kFloat, c10::kFloat, c10::kFloat,
                         c10::kFloat, c10::kDouble, c10::kLong, c10::kLong, c10::kInt, c10::kBool});
    kind.sizes = one_of<std::vector<std::int64_t>>({{},
                                                    {kBatch},
                                                    {kBatch, 3},
                                                    {kBatch, 3},
                                                    {kBatch, 4},
                                                    {kBatch, 2, 3},
                                                    {2, 3},
                                                    {1, 3},
                                                    {1},
                                                    {5},
                                                    {0, 3},
                                                    {2, 3, 2, 2}});
    if (chance(0.25)) kind.layout = one_of({Layout::transposed, Layout::every_second});
    if (kind.sizes.size() == 4 && chance(0.6)) kind.layout = Layout::channels_last;
    return kind;
  }

  void add_data() {
    const std::int64_t arguments = 1 + below(3);
    for (std::int64_t i = 0; i < arguments; ++i) program_.arguments.push_back(data_kind());
    for (std::int64_t i = below(3); i > 0; --i) {
      program_.constants.push_back(data_kind());
      for (std::int64_t& size : program_.constants.back().sizes) size = size == kBatch ? 2 : size;
    }
    program_.has_draws = chance(0.4);
    if (chance(0.1)) program_.old_gradients = OldGradients::zeroed;
    if (chance(0.02)) program_.old_gradients = OldGradients::kept;
    if (chance(0.08)) program_.mode = Mode::autocast;
    if (chance(0.02)) program_.mode = Mode::without_grad;
  }

  void add_state() {
    const std::int64_t variables = 1 + below(3);
    for (std::int64_t i = 0; i < variables; ++i) {
      const auto dtype = chance(0.07) ? c10::kDouble : c10::kFloat;
      program_.variables.push_back({dtype, one_of<std::vector<std::int64_t>>(
                                               {{}, {1}, {3}, {4, 3}, {3, 4}, {3, 3}, {2, 3, 2}})});
    }
    if (chance(0.4)) {
      program_.buffers = {{c10::kFloat, {kChannels}}, {c10::kFloat, {kChannels}}, {c10::kLong, {}}};
    }
    for (std::int64_t i = below(3); i > 0; --i) {
      if (program_.buffers.size() == 2) break;
      program_.buffers.push_back(
          {one_of({c10::kFloat, c10::kFloat, c10::kFloat, c10::kDouble, c10::kLong}),
           one_of<std::vector<std::int64_t>>({{}, {3}, {2, 3}})});
    }
    for (std::int64_t i = 1 + below(2); i > 0; --i) {
      OptimizerKind kind{one_of({"sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam"}), {}};
      for (int v = 0; v < static_cast<int>(variables); ++v) {
        if (chance(0.6)) kind.variables.push_back(v);
      }
      if (kind.variables.empty()) kind.variables.push_back(static_cast<int>(below(variables)));
      program_.optimizers.push_back(std::move(kind));
    }
  }

  // Varies the share of each family of instructions from step to step.
  std::vector<double> op_weights() {
    std::vector<double> weights;
    for (const auto& family : step_op_families()) {
      const double share = one_of({0.3, 1.0, 1.0, 2.5});
      for (const StepOp& op : family) {
        const bool is_draw = op.name == std::string_view("draw");
        weights.push_back(is_draw && !program_.has_draws ? 0 : share * op.weight);
      }
    }
    return weights;
  }

  Ref operand(int next) {
    if (next > 0 && chance(0.65)) {
      // Prefers the last few results.
      const std::int64_t back = chance(0.7) ? 1 + below(std::min(next, 4)) : 1 + below(next);
      return {Ref::From::result, next - static_cast<int>(back), static_cast<int>(below(2))};
    }
    const auto any = [&](Ref::From from, std::size_t count) {
      return Ref{from, static_cast<int>(
                           below(static_cast<std::int64_t>(std::max<std::size_t>(count, 1))))};
    };
    switch (below(10)) {
      case 0:
        return any(Ref::From::constant, program_.constants.size());
      case 1:
        return any(Ref::From::buffer, program_.buffers.size());
      case 2:
      case 3:
      case 4:
      case 5:
        return any(Ref::From::variable, program_.variables.size());
      default:
        return any(Ref::From::argument, program_.arguments.size());
    }
  }

  void add_instructions(int count) {
    const std::vector<double> weights = op_weights();
    std::discrete_distribution<int> any_op(weights.begin(), weights.end());
    while (static_cast<int>(program_.instructions.size()) < count) {
      const bool is_draw = add_instruction(any_op(random_)) == "draw";
      if (is_draw && chance(0.5)) write_draw();
      // Adds pairs that are rare in random sequences.
      if (chance(0.02)) write_assigned_buffer();
      if (chance(0.02)) add_instruction(row_of("batch norm of rows"));
    }
  }

  // Returns the op's name.
  std::string_view add_instruction(int op) {
    const auto id = static_cast<int>(program_.instructions.size());
    Instruction instruction{.id = id, .op = op};
    for (Ref& ref : instruction.in) ref = operand(id);
    for (std::int64_t& n : instruction.n) n = below(1 << 16);
    instruction.x = std::uniform_real_distribution<double>(-1, 1)(random_);
    instruction.is_without_grad = chance(0.06);
    program_.instructions.push_back(instruction);
    return step_ops().at(static_cast<std::size_t>(op)).name;
  }

  static int row_of(std::string_view name) {
    const auto& ops = step_ops();
    const auto found =
        std::find_if(ops.begin(), ops.end(), [&](const StepOp& op) { return op.name == name; });
    COHORT_ASSERT(found != ops.end());
    return static_cast<int>(found - ops.begin());
  }

  // Writes in place into the draw before.
  void write_draw() {
    const int draw = program_.instructions.back().id;
    add_instruction(row_of("write in place"));
    program_.instructions.back().in[0] = {Ref::From::result, draw, static_cast<int>(below(2))};
  }

  // Assigns a buffer and writes it in place, in random order.
  void write_assigned_buffer() {
    const std::int64_t buffer = below(1 << 16);
    const bool is_assigned_first = chance(0.5);
    for (const bool is_assign : {is_assigned_first, !is_assigned_first}) {
      add_instruction(row_of(is_assign ? "buffer assigned" : "buffer written"));
      program_.instructions.back().n[is_assign ? 0 : 1] = buffer;
    }
  }

  void add_outputs() {
    const auto count = static_cast<int>(program_.instructions.size());
    for (std::int64_t i = 1 + below(4); i > 0; --i) program_.outputs.push_back(operand(count));
    if (chance(0.15)) program_.outputs.push_back(program_.outputs.front());
    if (chance(0.15)) program_.outputs.push_back({Ref::From::buffer, static_cast<int>(below(2))});
  }

  void add_calls() {
    Call call{.value_seed = random_(), .batch = one_of<std::int64_t>({1, 3, 3, 4}), .real = 0.75};
    for (std::int64_t i = 2 + below(3); i > 0; --i) {
      program_.calls.push_back(call);
      call.value_seed = chance(0.85) ? random_() : call.value_seed;
      if (chance(0.25)) call.batch = one_of<std::int64_t>({1, 2, 3, 5});
      if (chance(0.15)) call.integer = 1 + below(4);
      if (chance(0.15)) call.real = 0.25 * static_cast<double>(1 + below(5));
      if (chance(0.5)) call.scale = 0.5 * static_cast<double>(1 + below(5));
      if (chance(0.25)) call.learning_rate *= 0.5;
    }
  }

  // The instruction at which an eager run of all calls fails; -1: none fails.
  int spoiler() const {
    EagerSide eager(program_);
    std::uint64_t seed = 1;
    for (const Call& call : program_.calls) {
      const EagerSide::Outcome outcome = eager.call(call, seed++, &check_results);
      if (outcome.error) return outcome.position;
    }
    return -1;
  }

  void settle() {
    while (!program_.instructions.empty()) {
      const int spoils = spoiler();
      if (spoils < 0) return;
      std::erase_if(program_.instructions,
                    [&](const Instruction& instruction) { return instruction.id == spoils; });
    }
  }

  std::mt19937_64 random_;
  Program program_;
};

}  // namespace

Program random_program(std::uint64_t seed) { return Generator(seed).make(); }

}  // namespace cohort::parity
