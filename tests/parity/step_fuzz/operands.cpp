// SPDX-License-Identifier: Apache-2.0
// Conversions of operands for instructions, and the table of all instructions.
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tests/parity/step_fuzz/ops.h"
#include "tests/parity/step_fuzz/step.h"

namespace cohort::parity {

at::Tensor floating(const at::Tensor& tensor) {
  return tensor.is_floating_point() ? tensor : tensor.to(c10::kFloat);
}

at::Tensor fit(const at::Tensor& tensor, at::IntArrayRef sizes) {
  if (tensor.sizes() == sizes) return tensor;
  std::int64_t wanted = 1;
  for (const std::int64_t size : sizes) wanted *= size;
  const std::int64_t count = tensor.numel();
  if (count == 0) return at::zeros(sizes, tensor.options());
  at::Tensor flat = tensor.reshape({count});
  if (count < wanted) flat = flat.repeat({(wanted + count - 1) / count});
  return flat.slice(0, 0, wanted).reshape(sizes);
}

at::Tensor scalar_loss(const at::Tensor& tensor, std::int64_t kind) {
  const at::Tensor value = floating(tensor);
  if (value.dim() == 0 && kind > 0) return value;
  if (kind == 1) return value.sum();
  if (kind == 2) return value.tanh().sum();
  return value.numel() == 0 ? value.sum() : value.square().mean();
}

at::Tensor Operands::operator[](std::size_t i) { return step_.value(instruction_.in.at(i)); }

at::Tensor Operands::weight(std::size_t i) {
  const auto count = static_cast<std::int64_t>(step_.world().variables.size());
  return step_.value({Ref::From::variable, static_cast<int>(n(i, count))});
}

at::Tensor Operands::read_weight(std::size_t i) {
  weight(i);
  const auto& all = step_.world().variables;
  return all[static_cast<std::size_t>(n(i, static_cast<std::int64_t>(all.size())))].read();
}

Tensors Operands::buffers() {
  Tensors tensors;
  for (const Variable& buffer : step_.world().buffers) tensors.push_back(buffer.tensor());
  return tensors;
}

at::Tensor Operands::argument() { return step_.arguments().tensors.front(); }

std::int64_t Operands::host_integer() { return step_.arguments().integer; }

double Operands::host_real() { return step_.arguments().real; }

at::Tensor Operands::scale() { return step_.arguments().scale; }

void Operands::note_write(const at::Tensor& tensor) { step_.note_write(tensor); }

bool Operands::may_write(const at::Tensor& tensor) { return step_.may_write(tensor); }

void Operands::note(Feature feature) { step_.note(feature); }

at::Tensor Operands::real(std::size_t i) { return floating((*this)[i]); }

at::Tensor Operands::integer(std::size_t i) {
  const at::Tensor value = (*this)[i];
  if (value.is_floating_point()) return value.tanh().mul(4).to(c10::kLong);
  return value.scalar_type() == c10::kBool ? value.to(c10::kLong) : value;
}

at::Tensor Operands::boolean(std::size_t i) {
  const at::Tensor value = (*this)[i];
  return value.scalar_type() == c10::kBool ? value : value.gt(0);
}

at::Tensor Operands::matrix(std::size_t i) {
  const at::Tensor value = real(i);
  if (value.dim() == 2) return value;
  const std::int64_t columns = value.dim() == 0 ? 1 : std::max<std::int64_t>(value.size(-1), 1);
  return value.reshape({value.numel() / columns, columns});
}

at::Tensor Operands::matrix(std::size_t i, std::int64_t columns) {
  const at::Tensor value = real(i);
  if (value.dim() >= 1 && value.size(-1) == columns)
    return value.reshape({value.numel() / columns, columns});
  return fit(value, {std::clamp<std::int64_t>(value.numel() / columns, 1, 8), columns});
}

at::Tensor Operands::fitted(std::size_t i, at::IntArrayRef sizes) { return fit(real(i), sizes); }

at::Tensor Operands::labels(std::size_t i, std::int64_t count, std::int64_t classes) {
  return fit(integer(i), {count}).remainder(classes).to(c10::kLong);
}

at::Tensor Operands::target(std::size_t i) {
  at::Tensor value = (*this)[i];
  if (!step_.may_write(value)) value = value.clone();
  step_.note_write(value);
  return value;
}

at::Tensor Operands::alongside(std::size_t i, const at::Tensor& other) {
  const at::Tensor value = (*this)[i];
  if (value.sizes() == other.sizes()) return value;
  const std::int64_t shared = std::min(value.dim(), other.dim());
  bool broadcasts = true;
  for (std::int64_t d = 1; d <= shared; ++d) {
    const std::int64_t a = value.size(-d), b = other.size(-d);
    broadcasts = broadcasts && (a == b || a == 1 || b == 1);
  }
  if (!broadcasts) return fit(value, other.sizes());
  note(Feature::broadcast);
  return value;
}

const std::vector<std::span<const StepOp>>& step_op_families() {
  static const std::vector<std::span<const StepOp>> all = {
      view_ops(),   shape_ops(),    value_ops(),  reduction_ops(), write_ops(),   block_ops(),
      random_ops(), gradient_ops(), update_ops(), rewritten_ops(), hostile_ops(), alias_ops()};
  return all;
}

const std::vector<StepOp>& step_ops() {
  static const std::vector<StepOp> all = [] {
    std::vector<StepOp> rows;
    for (const auto& family : step_op_families())
      rows.insert(rows.end(), family.begin(), family.end());
    return rows;
  }();
  return all;
}

}  // namespace cohort::parity
