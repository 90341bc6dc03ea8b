// SPDX-License-Identifier: Apache-2.0
// A random step as data: it can be run, shrunk and printed. Its instructions are total: each
// accepts operands of any shape and dtype, so any instruction can be removed.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace cohort::parity {

using Tensors = std::vector<at::Tensor>;

// The source of an operand. A value type.
struct Ref {
  enum class From : std::uint8_t { argument, constant, variable, buffer, result };
  From from = From::argument;
  int index = 0;  // for a result: the id of its instruction
  int part = 0;   // for a result: its index among the instruction's results
};

struct Instruction {
  int id = 0;
  int op = 0;  // a row of step_ops()
  std::array<Ref, 3> in;
  // The op uses these numbers modulo a limit that its operands allow.
  std::array<std::int64_t, 4> n{};
  double x = 0;
  bool is_without_grad = false;
};

enum class Layout : std::uint8_t { row_major, transposed, channels_last, every_second };

constexpr std::int64_t kBatch = -1;      // stands for the batch size of the call
constexpr std::int64_t kTableRows = 40;  // of the table of each world

struct TensorKind {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<std::int64_t> sizes;
  Layout layout = Layout::row_major;
};

struct OptimizerKind {
  std::string rule;
  std::vector<int> variables;
};

// One schedule() of the step.
struct Call {
  std::uint64_t value_seed = 0;
  std::int64_t batch = 3;
  std::int64_t integer = 2;
  double real = 0.5;
  double scale = 1.5;  // for a parameter of type at::Tensor
  double learning_rate = 0.1;
};

// How the step treats .grad fields that its last call left.
enum class OldGradients : std::uint8_t { dropped, zeroed, kept };

// The mode of the thread that schedules the step.
enum class Mode : std::uint8_t { plain, autocast, without_grad };

struct Program {
  std::uint64_t seed = 0;
  std::vector<TensorKind> arguments;  // at least one
  std::vector<TensorKind> constants;  // captured
  std::vector<TensorKind> variables;  // trainable
  std::vector<TensorKind> buffers;    // not trainable; batch norm uses the first three
  std::vector<OptimizerKind> optimizers;
  std::vector<Instruction> instructions;
  std::vector<Ref> outputs;
  std::vector<Call> calls;
  Mode mode = Mode::plain;
  OldGradients old_gradients = OldGradients::dropped;
  bool has_draws = false;
};

// The number of channels of batch norm's buffers, and the size of the dataset that steps draw from.
constexpr std::int64_t kChannels = 3;
constexpr std::int64_t kElements = 7;

// A tensor of a kind; equal seeds yield equal values.
at::Tensor make_tensor(const TensorKind& kind, std::int64_t batch, std::uint64_t seed);
Tensors make_arguments(const Program& program, const Call& call);
// The fields of all elements, stacked.
Tensors make_elements(const Program& program);

std::string to_string(const Ref& ref);
std::string to_string(const TensorKind& kind);
std::string to_string(const Instruction& instruction);
std::string to_string(const Program& program);

}  // namespace cohort::parity
