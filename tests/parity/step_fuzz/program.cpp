// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/step_fuzz/program.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <sstream>

#include "cohort/core/random.h"
#include "cohort/core/tensor_spec.h"
#include "tests/parity/step_fuzz/ops.h"

namespace cohort::parity {
namespace {

at::Tensor row_major_values(c10::ScalarType dtype, const std::vector<std::int64_t>& sizes,
                            std::uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  if (dtype == c10::kBool) return at::randint(0, 2, sizes, generator, at::kLong).to(dtype);
  if (c10::isIntegralType(dtype, false))
    return at::randint(-3, 7, sizes, generator, at::kLong).to(dtype);
  return at::randn(sizes, generator, at::TensorOptions(at::kDouble)).mul(0.7).to(dtype);
}

std::string to_string(Layout layout) {
  switch (layout) {
    case Layout::row_major:
      return "";
    case Layout::transposed:
      return " transposed";
    case Layout::channels_last:
      return " channels_last";
    case Layout::every_second:
      return " every second element of a larger one";
  }
  return "";
}

void print_kinds(std::ostream& text, const char* what, const std::vector<TensorKind>& kinds) {
  for (std::size_t i = 0; i < kinds.size(); ++i)
    text << "  " << what << i << ": " << to_string(kinds[i]) << '\n';
}

}  // namespace

at::Tensor make_tensor(const TensorKind& kind, std::int64_t batch, std::uint64_t seed) {
  std::vector<std::int64_t> sizes = kind.sizes;
  for (std::int64_t& size : sizes) size = size == kBatch ? batch : size;
  const std::size_t rank = sizes.size();
  if (kind.layout == Layout::transposed && rank >= 2) {
    std::swap(sizes[rank - 1], sizes[rank - 2]);
    return row_major_values(kind.dtype, sizes, seed).transpose(-1, -2);
  }
  if (kind.layout == Layout::every_second && rank >= 1) {
    sizes[rank - 1] *= 2;
    return row_major_values(kind.dtype, sizes, seed).slice(-1, 0, c10::nullopt, 2);
  }
  at::Tensor values = row_major_values(kind.dtype, sizes, seed);
  if (kind.layout == Layout::channels_last && rank == 4)
    return values.contiguous(at::MemoryFormat::ChannelsLast);
  return values;
}

Tensors make_arguments(const Program& program, const Call& call) {
  Tensors values;
  for (const TensorKind& kind : program.arguments)
    values.push_back(make_tensor(kind, call.batch, mix_seed(call.value_seed, values.size())));
  return values;
}

Tensors make_elements(const Program& program) {
  const TensorKind x{c10::kFloat, {kElements, 2, 3}};
  const TensorKind y{c10::kLong, {kElements, 2}};
  return {make_tensor(x, 0, mix_seed(program.seed, "x")),
          make_tensor(y, 0, mix_seed(program.seed, "y"))};
}

std::string to_string(const Ref& ref) {
  constexpr std::array<const char*, 5> kNames = {"argument", "constant", "variable", "buffer", "r"};
  std::string text = kNames.at(static_cast<std::size_t>(ref.from)) + std::to_string(ref.index);
  return ref.part == 0 ? text : text + "." + std::to_string(ref.part);
}

std::string to_string(const TensorKind& kind) {
  std::string text = std::string(c10::toString(kind.dtype)) + "[";
  for (std::size_t i = 0; i < kind.sizes.size(); ++i) {
    text += i == 0 ? "" : ", ";
    text += kind.sizes[i] == kBatch ? "batch" : std::to_string(kind.sizes[i]);
  }
  return text + "]" + to_string(kind.layout);
}

std::string to_string(const Instruction& instruction) {
  std::ostringstream text;
  text << 'r' << instruction.id << " = "
       << step_ops().at(static_cast<std::size_t>(instruction.op)).name << '('
       << to_string(instruction.in[0]) << ", " << to_string(instruction.in[1]) << ", "
       << to_string(instruction.in[2]) << "; n = " << instruction.n[0];
  for (std::size_t i = 1; i < instruction.n.size(); ++i) text << ", " << instruction.n.at(i);
  text << "; x = " << instruction.x << ')' << (instruction.is_without_grad ? " without grad" : "");
  return text.str();
}

std::string to_string(const Program& program) {
  std::ostringstream text;
  print_kinds(text, "argument", program.arguments);
  print_kinds(text, "constant", program.constants);
  print_kinds(text, "variable", program.variables);
  print_kinds(text, "buffer", program.buffers);
  for (std::size_t i = 0; i < program.optimizers.size(); ++i) {
    text << "  optimizer" << i << ": " << program.optimizers[i].rule << " of";
    for (const int variable : program.optimizers[i].variables) text << " variable" << variable;
    text << '\n';
  }
  constexpr std::array<const char*, 3> kOld = {"dropped", "zeroed", "kept"};
  text << "  .grad at the begin: " << kOld.at(static_cast<std::size_t>(program.old_gradients))
       << '\n';
  constexpr std::array<const char*, 3> kModes = {"plain", "autocast", "no_grad"};
  text << "  mode of the caller: " << kModes.at(static_cast<std::size_t>(program.mode)) << '\n';
  for (const Instruction& instruction : program.instructions)
    text << "  " << to_string(instruction) << '\n';
  text << "  return";
  for (const Ref& output : program.outputs) text << ' ' << to_string(output);
  for (const Call& call : program.calls) {
    text << "\n  call: values " << call.value_seed << ", batch " << call.batch << ", numbers "
         << call.integer << ", " << call.real << " and " << call.scale << ", learning rate "
         << call.learning_rate;
  }
  return text.str() + "\n";
}

}  // namespace cohort::parity
