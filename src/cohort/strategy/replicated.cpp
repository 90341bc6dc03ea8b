// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/replicated.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <mutex>

#include "cohort/core/call_site.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/random.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/function/generator_scope.h"
#include "cohort/variable/variable_home.h"

namespace cohort::internal {
namespace {

// Seeds the default generator, and restores its state when it is destroyed.
class GeneratorState {
 public:
  explicit GeneratorState(std::uint64_t seed) : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~GeneratorState() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }

 private:
  const std::unique_lock<std::recursive_mutex> alone_ = function::lock_default_generator();
  at::Generator generator_;
  at::Tensor state_;
};

using Impls = std::unordered_set<const void*>;
Impls impls_of(const std::vector<NamedTensor>& tensors) {
  Impls impls;
  for (const NamedTensor& each : tensors) impls.insert(each.tensor.unsafeGetTensorImpl());
  return impls;
}

[[noreturn]] void refuse_other_tensors(std::string_view call, const std::string& module,
                                       const std::string& got) {
  throw_error(ErrorCode::failed_precondition, "[strategy.", call,
              "] expected the parameters and buffers that module '", module,
              "' had in replicate(), got ", got,
              "; make all of them in the constructor, or let the factory of replicate() call "
              "forward() once with an example. Values are changed with Variable::assign() or "
              "load()");
}

}  // namespace

// The names are compared only where a tensor is another one.
void check_same_tensors(const ModuleUse& use, std::string_view call) {
  const std::optional<std::vector<NamedTensor>> now = use.tensors();
  if (!now) return;
  const std::vector<NamedTensor>& made_of = use.made_of;
  const auto is_same = [](const NamedTensor& a, const NamedTensor& b) {
    return a.tensor.is_same(b.tensor);
  };
  if (std::ranges::equal(*now, made_of, is_same)) return;
  const auto text = [](const NamedTensor& each) {
    return (each.is_buffer ? "buffer '" : "parameter '") + each.name + "'";
  };
  const Impls known = impls_of(made_of);
  for (const NamedTensor& each : *now) {
    if (known.contains(each.tensor.unsafeGetTensorImpl())) continue;
    const bool has_name =
        std::ranges::find(made_of, each.name, &NamedTensor::name) != made_of.end();
    const std::string what = has_name ? "another tensor as " + text(each) : "the new " + text(each);
    refuse_other_tensors(
        call, use.name,
        what + ", which is no variable: no optimizer trains it, and it is not saved");
  }
  const Impls present = impls_of(*now);
  for (const NamedTensor& each : made_of) {
    if (!present.contains(each.tensor.unsafeGetTensorImpl()))
      refuse_other_tensors(call, use.name, "no longer " + text(each));
  }
}

std::uint64_t seed_of_module(std::uint64_t seed, std::uint64_t number) {
  return number == 0 ? seed : mix_seed(seed, number);
}

std::uint64_t seed_of_initializers() {
  const at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::uint64_t seed = generator.current_seed();
  return seed == c10::default_rng_seed_val ? 0 : seed;
}

std::shared_ptr<void> seed_default_generator(std::uint64_t seed) {
  return std::make_shared<GeneratorState>(seed);
}

std::vector<at::Tensor> values_of(const std::vector<Variable>& variables) {
  return read_values(variables);
}

std::vector<at::Tensor> snapshot_values(const ModuleHome& home,
                                        const std::vector<Variable>& variables, const char* file,
                                        int line) {
  const CallSite site("is in snapshot()", {file, line});
  home.check_snapshot(variables);
  return values_of(variables);
}

void set_values(const std::vector<Variable>& variables, const std::vector<at::Tensor>& values) {
  if (!variables.empty() && variables.front().impl()->home()->keeps_newer_values()) {
    log_warn("[strategy.load] kept the values of ", names_of(variables),
             ", which other workers have handed over, in place of the given ones");
    return;
  }
  std::vector<VariableWrite> writes;
  for (std::size_t i = 0; i < variables.size(); ++i)
    writes.push_back({variables[i], Effect::Kind::assign, values.at(i)});
  write_values(writes);
}

std::vector<at::Tensor> values_for(const std::vector<Variable>& variables,
                                   const std::vector<NamedTensor>& tensors) {
  COHORT_CHECK(variables.size() == tensors.size(), ErrorCode::invalid_argument,
               "[strategy.load] expected a module with ", variables.size(),
               " parameters and buffers, got one with ", tensors.size(),
               "; make it with the same constructor arguments as the replicated one");
  std::vector<at::Tensor> values;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Variable& variable = variables[i];
    const std::string name = "/" + tensors[i].name;
    const TensorSpec got = TensorSpec::of(tensors[i].tensor);
    COHORT_CHECK(
        variable.name().ends_with(name) && variable.spec() == got, ErrorCode::invalid_argument,
        "[strategy.load] expected a module with '", variable.name(), "' ",
        variable.spec().to_string(), ", got '", tensors[i].name, "' ", got.to_string(),
        " in its place; make it with the same constructor arguments as the replicated one");
    values.push_back(tensors[i].tensor.detach().contiguous());
  }
  return values;
}

void check_new_module(std::string_view call, const void* made, const void* earlier) {
  COHORT_CHECK(
      made != earlier, ErrorCode::invalid_argument, "[strategy.", call,
      "] expected a new module from each call of the factory that replicate() got, got the "
      "same one again; make the module inside the factory");
}

}  // namespace cohort::internal
