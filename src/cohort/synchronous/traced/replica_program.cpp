// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/traced/replica_program.h"

#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <unordered_map>

#include "cohort/core/error.h"
#include "cohort/function/use_of_variables.h"
#include "cohort/strategy/contexts.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/strategy.h"
#include "cohort/synchronous/traced/variable_trace.h"
#include "cohort/variable/variable_table.h"

namespace cohort::internal {
namespace {

std::shared_ptr<function::ResourcePattern> refuse_handle(const Handle& handle) {
  throw_error(ErrorCode::invalid_argument, "[strategy.function] expected tensors and numbers as ",
              "arguments, got a handle (", handle.handle_kind(),
              "); pass the elements that it yields");
}

std::vector<at::Tensor> refuse_worker_index(int) {
  throw_error(
      ErrorCode::failed_precondition,
      "[function.current_worker_index] expected a call inside a scheduled function, got one "
      "in a step of strategy.function(), where no worker runs; take replica_id_in_sync_group"
      "() of get_replica_context()");
}

}  // namespace

StepSettings StepSettings::current(MirroredHome* home) {
  return {function::TracingMode::current(),
          home == nullptr ? std::vector<std::vector<bool>>() : home->modules().modes()};
}

// Connects a trace with the strategy's variables. Used only inside the constructor, in the
// replica's context.
class ReplicaProgram::Tracing {
 public:
  Tracing(ReplicaTrace& trace, const MirroredHome* home, const std::vector<Variable>& variables)
      : trace_(trace), home_(home) {
    for (const Variable& variable : variables) {
      table_.add(variable, {.is_remote = false});
      const MirroredVariable& mirrored = target_of(variable).variable;
      for (std::size_t i = 0; i < mirrored.size(); ++i)
        owners_.emplace(mirrored.component(i).storage().unsafeGetStorageImpl(), &variable.name());
      versions_.push_back(version_of(component_of(variable)));
    }
  }

  function::TraceSetting setting(const UsedModules::ModesScope* modes) {
    function::TraceSetting setting;
    setting.variable_of = [this, own = table_.lookup()](const void* storage) {
      const function::TracedVariable* const found = own(storage);
      if (found == nullptr) check_not_of_another_replica(storage);
      return found;
    };
    for (const Variable& variable : table_.variables())
      setting.variables.push_back(component_of(variable));
    setting.tensor_of = [this](const std::string& name) {
      return component_of(table_.find(name)->variable);
    };
    setting.worker_index = refuse_worker_index;
    setting.runs_here = true;
    setting.takes_rows = [this](std::int64_t call, std::size_t value) {
      return trace_.calls().at(static_cast<std::size_t>(call))->takes_rows(value);
    };
    setting.begin_pass = [this, modes](const std::vector<at::Tensor>& inputs) {
      if (modes != nullptr) modes->restore();
      trace_.begin_pass(inputs);
      // A pass that failed, and is tried again with other values, has no results.
      if (!results_.empty()) earlier_results_ = std::exchange(results_, {});
    };
    setting.check_result = [this](const at::Tensor& tensor, std::size_t) {
      results_.push_back(trace_.identity_of(tensor));
    };
    return setting;
  }

  const Variable& variable(const std::string& name) const { return table_.find(name)->variable; }
  at::Tensor component_of(const Variable& variable) const {
    return target_of(variable).variable.component(home_->component_here());
  }
  std::vector<at::Tensor> written() const {
    std::vector<at::Tensor> written;
    const std::vector<Variable> all = table_.variables();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const at::Tensor component = component_of(all[i]);
      if (version_of(component) != versions_[i]) written.push_back(component);
    }
    return written;
  }
  // A tensor made in the step is another object in each pass; one that is the same in both comes
  // from outside.
  std::vector<std::pair<std::size_t, TensorIdentity>> given_results() const {
    std::vector<std::pair<std::size_t, TensorIdentity>> given;
    for (std::size_t i = 0; i < results_.size(); ++i) {
      if (results_[i].argument() || results_[i].is_same_object(earlier_results_.at(i)))
        given.emplace_back(i, results_[i]);
    }
    return given;
  }

 private:
  // Such a tensor would be a constant here.
  void check_not_of_another_replica(const void* storage) const {
    const auto found = owners_.find(storage);
    COHORT_CHECK(found == owners_.end(), ErrorCode::invalid_argument,
                 "[strategy.function] expected the tensor of variable '", *found->second,
                 "' that belongs to the replica, got that of another replica: tensor() was called "
                 "outside of the step; call it inside");
  }

  ReplicaTrace& trace_;
  const MirroredHome* const home_;
  VariableTable table_;
  std::unordered_map<const void*, const std::string*> owners_;  // of all components' memory
  std::vector<std::uint32_t> versions_;
  std::vector<TensorIdentity> results_, earlier_results_;
};

ReplicaProgram::ReplicaProgram(Strategy& strategy, MirroredHome* home, Function function,
                               std::size_t replica, const std::vector<Nest>& arguments,
                               const StepSettings& mode, const std::vector<GatherSizes>& gathers)
    : mode_(mode),
      is_central_(home != nullptr && home->central() != nullptr),
      traced_(std::move(function), function::CallSignature(arguments, mode.thread, refuse_handle)) {
  std::optional<UsedModules::ModesScope> modes;
  if (home != nullptr) modes.emplace(home->modules_around_step());
  const auto body = [&](ReplicaContext& context) {
    const auto replicas = static_cast<std::size_t>(context.num_replicas_in_sync());
    const std::unique_ptr<ReplicaTrace> made =
        home == nullptr ? std::make_unique<ReplicaTrace>(replicas, gathers)
                        : std::make_unique<VariableTrace>(*home, replicas, gathers);
    ReplicaTrace& trace = *made;
    Tracing tracing(trace, home, home == nullptr ? std::vector<Variable>() : home->variables());
    traced_.trace_first(tracing.setting(modes ? &*modes : nullptr), {}, {});
    COHORT_ASSERT(traced_.captured_count() == 0);
    program_ = function::PreparedProgram::decode(traced_.programs().back());
    calls_ = trace.calls();
    gathered_ = trace.gathered();
    assumed_ = trace.assumed();
    given_results_ = tracing.given_results();
    written_ = tracing.written();
    for (const auto& used : program_->info().variables) {
      handles_.push_back(tracing.variable(used.name));
      variables_.push_back(tracing.component_of(handles_.back()));
    }
    note_use_of_variables(trace.changed());
  };
  try {
    const auto own = static_cast<int>(replica);
    const int first = home == nullptr ? 0 : home->first_replica();
    in_replica_context(strategy, first + own, body, own);
  } catch (const Error& error) {
    const std::string part = RunArguments::part_of(replica, 0);
    throw Error(error).during(
        "tracing a step of function(); run() in its place calls the step "
        "itself, without a trace (replica " +
        std::to_string(replica) + ")" + (part.empty() ? "" : ": " + part));
  }
}

Nest ReplicaProgram::run(StepRun& run, std::size_t replica, const StepReplica::Calls& calls,
                         std::span<const Nest> arguments, std::optional<std::uint64_t> seed) const {
  StepReplica host(run, replica, calls, function::bind_arguments(arguments).tensors, variables_);
  std::vector<at::Tensor> outputs;
  try {
    // Its calls are to find what its operators have written before them.
    if (is_central_) note_writes();
    outputs = program_->run(host.inputs(), variables_, host, seed);
  } catch (...) {
    note_writes();  // it may have written already
    throw;
  }
  note_writes();
  return result_of(std::move(outputs), host.inputs());
}

std::vector<Variable> ReplicaProgram::written_variables() const {
  std::vector<Variable> written;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const bool is_written = std::ranges::any_of(
        written_, [&](const at::Tensor& each) { return each.is_same(variables_[i]); });
    if (is_written) written.push_back(handles_[i]);
  }
  return written;
}

void ReplicaProgram::note_use_of_variables(
    const std::vector<std::vector<at::Tensor>>& changed_by_calls) {
  const function::UseOfVariables found = function::use_of_variables(traced_.programs().back());
  std::unordered_map<const c10::TensorImpl*, int> last_reads;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (found.are_written_by_operators.at(i)) written_by_operators_.push_back(variables_[i]);
    last_reads.emplace(variables_[i].unsafeGetTensorImpl(), found.last_reads.at(i));
  }
  changes_later_.assign(changed_by_calls.size(), false);
  for (std::size_t call = 0; call < found.calls.size(); ++call) {
    const auto is_read = [&](const at::Tensor& changed) {
      const auto last = last_reads.find(changed.unsafeGetTensorImpl());
      return last == last_reads.end() || last->second > found.calls[call];
    };
    const std::vector<at::Tensor>& changed = changed_by_calls.at(call);
    changes_later_[call] = !changed.empty() && std::ranges::none_of(changed, is_read);
  }
}

// Programs run below the part of LibTorch that counts writes. Autograd must detect it if a graph
// that saved an old value is run backwards later. Calls count their own writes: workers compare
// all values of a variable of which somebody else has written some.
void ReplicaProgram::note_writes() const {
  for (const at::Tensor& tensor : written_by_operators_)
    tensor.unsafeGetTensorImpl()->bump_version();
}

Nest ReplicaProgram::result_of(std::vector<at::Tensor> outputs,
                               const std::vector<at::Tensor>& inputs) const {
  for (const auto& [number, given] : given_results_) {
    if (given.argument() && !is_row_major(inputs[*given.argument()])) continue;
    const at::Tensor tensor = given.argument() ? inputs[*given.argument()] : given.tensor();
    if (tensor.defined()) outputs[number] = tensor;
  }
  return traced_.result_of(std::move(outputs));
}

}  // namespace cohort::internal
