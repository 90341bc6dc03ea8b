// SPDX-License-Identifier: Apache-2.0
#include "tests/interop/json_tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <cstring>
#include <map>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/core/error.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/variable/variable.h"

namespace cohort::interop {
namespace {

// The names of numpy.
const std::map<std::string, at::ScalarType>& dtypes() {
  static const std::map<std::string, at::ScalarType> kDtypes{
      {"float32", at::kFloat}, {"float64", at::kDouble}, {"float16", at::kHalf},
      {"int64", at::kLong},    {"int32", at::kInt},      {"int8", at::kChar},
      {"uint8", at::kByte},    {"bool", at::kBool}};
  return kDtypes;
}

at::Tensor tensor_of(const Json& json) {
  const std::string bytes = from_hex(json.at(2).get<std::string>());
  const at::Tensor tensor = at::empty(json.at(1).get<std::vector<std::int64_t>>(),
                                      at::TensorOptions(dtypes().at(json.at(0))));
  COHORT_CHECK(bytes.size() == tensor.nbytes(), ErrorCode::invalid_argument, "[interop] expected ",
               tensor.nbytes(), " bytes, got ", bytes.size());
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string hex_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.contiguous();
  return to_hex({static_cast<const char*>(plain.data_ptr()), plain.nbytes()});
}

}  // namespace

void write_checkpoint(const std::string& path, const Json& tensors) {
  Checkpoint checkpoint;
  std::vector<Variable> trained;
  for (const auto& [name, json] : tensors.items()) {
    const at::Tensor value = tensor_of(json);
    const Variable made = local_variable(name, value, value.is_floating_point());
    checkpoint.add(made);
    if (made.spec().dtype == at::kFloat) trained.push_back(made);
  }
  const SGD sgd(trained, {.learning_rate = 0, .momentum = 0.5, .name = "sgd"});
  at::Tensor loss;
  for (const Variable& each : trained) {
    const at::Tensor sum = each.tensor().sum();
    loss = loss.defined() ? loss + sum : sum;
  }
  sgd.minimize(loss);
  checkpoint.write(path, 1);
}

Json restored_values(const std::string& path, const Json& tensors) {
  Checkpoint checkpoint;
  std::map<std::string, Variable> variables;
  for (const auto& [name, json] : tensors.items()) {
    const at::Tensor zeros = at::zeros_like(tensor_of(json));
    const Variable made = local_variable("model/" + name, zeros, zeros.is_floating_point());
    checkpoint.add(made);
    variables.emplace(name, made);
  }
  checkpoint.read(path, {.prefix = "model/"}).assert_consumed();
  Json values;
  for (const auto& [name, variable] : variables)
    values[name] = {tensors.at(name).at(0), tensors.at(name).at(1), hex_of(variable.read())};
  return values;
}

}  // namespace cohort::interop
