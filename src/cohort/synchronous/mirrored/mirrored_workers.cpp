// SPDX-License-Identifier: Apache-2.0
// Variables of a synchronous strategy that several workers share: each worker has components for
// its own replicas.
#include <ATen/core/TensorBody.h>
#include <c10/core/GradMode.h>

#include <array>
#include <utility>

#include "cohort/core/call_site.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/strategy/module_memory.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/synchronous/workers/compared_values.h"
#include "cohort/workers/worker_values.h"

namespace cohort::internal {
namespace {

std::string text_of(const MirroredVariable::Traits& traits) {
  constexpr std::array kAggregations{"none", "sum", "mean", "only_first_replica"};
  const bool is_on_read = traits.synchronization == VariableSynchronization::on_read;
  return std::string(traits.is_trainable ? "trainable" : "not trainable") +
         (is_on_read ? ", on_read" : ", on_write") + ", aggregation " +
         kAggregations.at(static_cast<std::size_t>(traits.aggregation));
}

// Throws the loss of others in `call`, which saves what all train, unless this worker goes on
// alone. Only the first worker does, since programs let it save, and only if the others have ended,
// so that nobody makes the call again with it. After a rebuild() that has failed, there is no other
// place for the values than each worker. One that the others go on without may have older values
// than they have saved meanwhile.
void check_goes_on_alone(const Error& loss, std::string_view call, const StrategyWorkers& workers,
                         const RunGate& gate) {
  const bool is_given_up = workers.is_given_up();
  if (!is_given_up && gate.is_closed()) return;
  if (!is_given_up && workers.own() == 0 && workers.have_others_ended()) return;
  throw Error(loss).during(std::string(call) +
                           (is_given_up ? "; the others have gone on without this worker" : ""));
}

}  // namespace

void MirroredHome::check_values_agree(std::string_view call,
                                      std::span<const Variable> variables) const {
  if (!has_workers()) return;
  std::vector<Variable> own;
  for (const Variable& each : variables) {
    if (each.impl()->home().get() == this) own.push_back(each);
  }
  compare_values(*workers_, call, own, [] { return std::string(); });
}

void MirroredHome::check_snapshot(std::span<const Variable> variables) const {
  try {
    check_values_agree("snapshot", variables);
  } catch (const Error& error) {
    const bool are_others_gone =
        error.code() == ErrorCode::unavailable || error.code() == ErrorCode::aborted;
    if (!are_others_gone) throw;
    check_goes_on_alone(error, "snapshot()", *workers_, run_gate_);
    log_warn("[strategy.snapshot] expected other workers to compare values with, got: ",
             error.what(), "; the values are those of this worker");
  }
}

void MirroredHome::write_file(const WriteFile& write) const {
  const CallSite site("is in save_values()");
  bool has_failed = false;
  // The disk may have been slower than the others have waited, or this process was stopped.
  const auto check = [&] {
    COHORT_CHECK(!workers_->is_given_up(), ErrorCode::aborted,
                 "[strategy.save_values] expected the other workers to wait for this one, got the "
                 "end of their group");
  };
  const FileTurn turn{.order = workers_->membership_number(), .check = check};
  const auto write_once = [&]() -> StrategyWorkers::Message {
    if (workers_->own() != 0) return {};
    has_failed = true;
    write(turn);
    has_failed = false;
    return {};
  };
  if (!has_workers()) return write(turn);
  try {
    check_values_agree("save_values", variables());
    workers_->exchange({.call = "save_values", .combines = false}, write_once);
  } catch (const Error& error) {
    if (!is_task_loss(error) || (has_failed && !workers_->is_given_up())) throw;
    const bool is_writer = workers_->own() == 0;  // it may have written the file before
    check_goes_on_alone(error,
                        is_writer ? "save_values()" : "save_values(), which has written no file",
                        *workers_, run_gate_);
    log_warn("[strategy.save_values] expected other workers to compare values with, got: ",
             error.what(), "; the file has those of this worker");
    write(turn);
  }
}

std::vector<std::vector<at::Tensor>> MirroredHome::of_all_replicas(
    std::string_view call, const std::string& text,
    const std::function<std::vector<std::vector<at::Tensor>>()>& own) const {
  const auto contribute = [&] {
    Contributions parts;
    for (const std::vector<at::Tensor>& values : own()) {
      parts.emplace_back();
      for (const at::Tensor& value : values) parts.back().push_back({.value = value});
    }
    return parts;
  };
  const Contributions all = of_all_workers(
      workers(), call, [&] { return text; }, contribute);
  std::vector<std::vector<at::Tensor>> values(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const Reduction::Parts& part : all[i]) values[i].push_back(part.value);
  }
  return values;
}

// The first worker's, as MirroredStrategy takes the first replica's: an initializer may have drawn
// random numbers.
at::Tensor MirroredHome::agreed_value(const std::string& name, const at::Tensor& initial_value,
                                      const MirroredVariable::Traits& traits) {
  const auto make = [&]() -> StrategyWorkers::Message {
    const Lock lock(mutex_);
    check_name(name);
    return {"variable '" + name + "' " + TensorSpec::of(initial_value).to_string() + " (" +
                text_of(traits) + ")",
            {}};
  };
  workers_->exchange({.call = "variable", .combines = false}, make);
  const at::Tensor value = initial_value.detach().cpu().clone(at::MemoryFormat::Contiguous);
  workers_->broadcast({.call = "variable", .text = name, .combines = false}, {&value, 1});
  return value;
}

void MirroredHome::agree_on_module(std::string_view module,
                                   const std::vector<std::vector<NamedTensor>>& copies) {
  const auto make = [&]() -> StrategyWorkers::Message {
    make_alike(copies);
    std::string text = "module '" + std::string(module) + "'";
    for (const NamedTensor& each : copies.at(0)) {
      text += "\n'" + each.name + "' " + TensorSpec::of(each.tensor).to_string() +
              (each.is_buffer      ? " (buffer)"
               : each.is_trainable ? ""
                                   : " (frozen)") +
              " of module '" + std::string(module) + "'";
    }
    const Lock lock(mutex_);
    for (const NamedTensor& each : copies.at(0)) check_name(std::string(module) + "/" + each.name);
    return {std::move(text), {}};
  };
  workers_->exchange({.call = "replicate", .combines = false}, make);
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  for (const NamedTensor& each : copies.at(0)) values.push_back(each.tensor.detach().cpu());
  workers_->broadcast({.call = "replicate", .text = module, .combines = false}, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const at::Tensor& first = copies.at(0)[i].tensor;
    if (!values[i].is_alias_of(first)) first.copy_(values[i]);
  }
}

std::vector<at::Tensor> MirroredHome::reduced_over_all(
    const std::vector<const MirroredVariable*>& variables,
    const std::function<void()>& check) const {
  std::string text = "read";
  for (const MirroredVariable* each : variables) text += "\nvariable '" + each->name() + "'";
  const auto own = [&] {
    check();
    std::vector<std::vector<at::Tensor>> values;
    for (const MirroredVariable* each : variables) values.push_back(each->values_to_reduce());
    return values;
  };
  const auto all = of_all_replicas("read", text, own);
  std::vector<at::Tensor> reduced;
  for (std::size_t i = 0; i < variables.size(); ++i)
    reduced.push_back(variables[i]->reduced(all[i]));
  return reduced;
}

// All values that workers have together travel in one call.
std::vector<at::Tensor> MirroredHome::read_over_workers(std::span<const Variable> variables) const {
  std::vector<at::Tensor> values(variables.size());
  std::vector<std::size_t> places;
  std::vector<const MirroredVariable*> together;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const auto [variable, component] = target_of(variables[i]);
    if (component || !variable.is_on_read()) continue;
    places.push_back(i);
    together.push_back(&variable);
  }
  // The others wait for this worker if it throws here.
  const auto check = [&] {
    agreement_.check(variables);
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const auto [variable, component] = target_of(variables[i]);
      if (component || !variable.is_on_read()) values[i] = variables[i].impl()->copy();
    }
  };
  if (together.empty()) {
    check();
    return values;
  }
  std::vector<at::Tensor> reduced = reduced_over_all(together, check);
  for (std::size_t k = 0; k < places.size(); ++k) values[places[k]] = std::move(reduced[k]);
  return values;
}

}  // namespace cohort::internal
