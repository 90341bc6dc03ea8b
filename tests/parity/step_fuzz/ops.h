// SPDX-License-Identifier: Apache-2.0
// The instructions of random steps: a table of rows, each with a function over ordinary LibTorch
// operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <span>
#include <vector>

#include "tests/parity/step_fuzz/features.h"
#include "tests/parity/step_fuzz/program.h"

namespace cohort::parity {

class Step;

// The operands of an instruction, for its function. Used only while the function runs.
class Operands {
 public:
  Operands(Step& step, const Instruction& instruction) : step_(step), instruction_(instruction) {}

  Step& step() { return step_; }
  // Operand i: unchanged, as floating point, as integers, as booleans.
  at::Tensor operator[](std::size_t i);
  at::Tensor real(std::size_t i);
  at::Tensor integer(std::size_t i);
  at::Tensor boolean(std::size_t i);
  // The first argument of the step, not a copy.
  at::Tensor argument();
  // Operand i as floating point in [-1, 1], and in [0.1, 1.1].
  at::Tensor bounded(std::size_t i) { return real(i).tanh(); }
  at::Tensor positive(std::size_t i) { return real(i).tanh().abs().add(0.1); }
  // Operand i as floating point: as a matrix, as a matrix with `columns` columns, with given sizes.
  at::Tensor matrix(std::size_t i);
  at::Tensor matrix(std::size_t i, std::int64_t columns);
  at::Tensor fitted(std::size_t i, at::IntArrayRef sizes);
  // `count` class numbers below `classes`.
  at::Tensor labels(std::size_t i, std::int64_t count, std::int64_t classes);
  // Operand i, or a copy if it must not be written.
  at::Tensor target(std::size_t i);
  // Operand i in a shape that fits `other`.
  at::Tensor alongside(std::size_t i, const at::Tensor& other);

  // The tensor of a trainable variable, chosen by number i.
  at::Tensor weight(std::size_t i);
  // A copy of its value, which read() gives.
  at::Tensor read_weight(std::size_t i);
  Tensors buffers();
  // The arguments of the call that are no tensors.
  std::int64_t host_integer();
  double host_real();
  at::Tensor scale();
  // Notes that `tensor` is about to be written in place.
  void note_write(const at::Tensor& tensor);
  bool may_write(const at::Tensor& tensor);

  // Number i modulo `limit` (0 if limit <= 0); a dimension of the tensor; a flag.
  std::int64_t n(std::size_t i, std::int64_t limit) const {
    return limit <= 0 ? 0 : instruction_.n.at(i) % limit;
  }
  std::int64_t dim(std::size_t i, const at::Tensor& tensor) const { return n(i, tensor.dim()); }
  bool flag(std::size_t i) const { return n(i, 2) == 1; }
  double x() const { return instruction_.x; }  // in [-1, 1]
  void note(Feature feature);

 private:
  Step& step_;
  const Instruction& instruction_;
};

struct StepOp {
  const char* name;
  double weight;  // relative frequency in generated programs
  std::initializer_list<Feature> features;
  Tensors (*run)(Operands& o);  // returns at least one result
  // The trace uses other operators, which round differently: results agree to 1e-6.
  bool is_rewritten = false;
};

// All rows. Their order determines the program of a seed.
const std::vector<StepOp>& step_ops();
const std::vector<std::span<const StepOp>>& step_op_families();

std::span<const StepOp> view_ops();
std::span<const StepOp> shape_ops();
std::span<const StepOp> value_ops();
std::span<const StepOp> reduction_ops();
std::span<const StepOp> write_ops();
std::span<const StepOp> block_ops();
std::span<const StepOp> random_ops();
std::span<const StepOp> gradient_ops();
std::span<const StepOp> update_ops();
std::span<const StepOp> rewritten_ops();
std::span<const StepOp> hostile_ops();
std::span<const StepOp> alias_ops();

// A tensor of these sizes with the values of `tensor`, repeated or cut off.
at::Tensor fit(const at::Tensor& tensor, at::IntArrayRef sizes);
at::Tensor floating(const at::Tensor& tensor);
// A scalar that depends on all of `tensor`.
at::Tensor scalar_loss(const at::Tensor& tensor, std::int64_t kind);

}  // namespace cohort::parity
