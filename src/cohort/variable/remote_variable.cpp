// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/detail/remote_variable.h"

#include <ATen/core/grad_mode.h>

#include "cohort/core/error.h"
#include "cohort/function/detail/trace.h"
#include "cohort/function/detail/variable_read.h"
#include "cohort/rpc/detail/messages.h"
#include "cohort/variable/detail/eager_step.h"
#include "cohort/variable/detail/replica_count.h"
#include "cohort/variable/internal/checks.h"

namespace cohort {
namespace {

using function::Trace;

rpc::Effect::Kind effect_kind(AssignKind kind) {
  switch (kind) {
    case AssignKind::assign:
      return rpc::Effect::Kind::assign;
    case AssignKind::add:
      return rpc::Effect::Kind::assign_add;
    case AssignKind::sub:
      return rpc::Effect::Kind::assign_sub;
  }
  COHORT_ASSERT(false);
}

void check_use(const RemotePlacement& placement, std::string_view method) {
  if (placement.check_use) placement.check_use(method);
}

// Sends one request and waits for the answer. Errors name the server and the variable.
rpc::Frame call(const RemotePlacement& placement, rpc::Frame frame, const std::string& operation) {
  COHORT_ASSERT(placement.requester && placement.deadline);
  const auto at_server = [&placement](const Error& error) {
    return error.origin().empty() ? Error(error).at("ps:" + std::to_string(placement.ps)) : error;
  };
  std::shared_ptr<rpc::Requester> link;
  try {
    link = placement.requester();
  } catch (const Error& error) {
    throw at_server(error).during(operation);
  }
  try {
    return link->call(std::move(frame), placement.deadline(), operation);
  } catch (const Error& error) {
    // The answer may never come over this connection, so the next call makes a new one.
    if (error.code() == ErrorCode::deadline_exceeded) link->give_up(error);
    throw at_server(error);
  }
}

void push(const RemotePlacement& placement, rpc::Effect effect, const std::string& operation) {
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : effect.tensors) bytes += tensor.nbytes();
  rpc::PushRequest request;
  request.effects.push_back(std::move(effect));
  rpc::push_reply_of(call(placement, rpc::to_frame(std::move(request)), operation));
  if (EagerStep* const step = EagerStep::current()) step->traffic().pushed_bytes += bytes;
}

}  // namespace

RemoteVariable::RemoteVariable(std::string name, at::Tensor stand_in, bool is_trainable,
                               RemotePlacement placement)
    : name_(std::move(name)),
      stand_in_(std::move(stand_in)),
      is_trainable_(is_trainable),
      placement_(std::move(placement)) {
  variable::check_tensor(name_, stand_in_, is_trainable_);
  spec_ = TensorSpec::of(stand_in_);
}

void RemoteVariable::check_tensor_is_current(std::string_view call) const {
  COHORT_CHECK(Trace::current() != nullptr || EagerStep::current() != nullptr,
               ErrorCode::failed_precondition, "[", call,
               "] expected a loss of a scheduled step or of run(), got one computed outside, where "
               "tensor() of variable '",
               name_,
               "' is a stand-in without the current value; compute it in a step, or in "
               "ParameterServerStrategy::run()");
}

at::Tensor RemoteVariable::read() const {
  if (Trace::current() != nullptr || EagerStep::current() != nullptr) {
    at::Tensor copy = stand_in_.detach().clone();
    return is_trainable_ ? function::with_gradient_of(stand_in_, std::move(copy)) : copy;
  }
  check_use(placement_, "read");
  return pull();
}

at::Tensor RemoteVariable::pull() const {
  rpc::PullRequest request;
  request.variables.push_back(placement_.id);
  const rpc::Frame reply =
      call(placement_, rpc::to_frame(request), "pull of variable '" + name_ + "'");
  COHORT_CHECK(reply.tensors.size() == 1 && TensorSpec::of(reply.tensors[0]) == spec_,
               ErrorCode::data_loss, "[variable.read] expected ", spec_.to_string(), ", got ",
               reply.tensors.empty() ? "nothing" : TensorSpec::of(reply.tensors[0]).to_string(),
               " (variable '", name_, "' on ps:", placement_.ps, ")");
  if (EagerStep* const step = EagerStep::current())
    step->traffic().pulled_bytes += reply.tensors[0].nbytes();
  return reply.tensors[0];
}

void RemoteVariable::update(rpc::Effect effect, const std::string& operation) {
  EagerStep* const step = EagerStep::current();
  if (step == nullptr) return push(placement_, std::move(effect), operation);
  write_back();  // so that the server updates the step's value
  push(placement_, std::move(effect), operation);
  const at::Tensor value = pull();
  const at::NoGradGuard no_grad;
  stand_in_.copy_(value);  // autograd then refuses a graph that saved the old value
  step->note(*this, value);
}

void RemoteVariable::write_back() {
  EagerStep* const step = EagerStep::current();
  if (step == nullptr || !step->has_written(*this)) return;
  COHORT_CHECK(!is_trainable_, ErrorCode::invalid_argument,
               "[variable.write_back] expected variable '", name_,
               "', which lives on a server, to be updated there, got a step that writes in place "
               "into its copy; use assign/assign_add or an optimizer");
  rpc::Effect effect;
  effect.kind = rpc::Effect::Kind::assign;
  effect.variable = placement_.id;
  const at::Tensor value = stand_in_.detach().clone();
  effect.tensors.push_back(value);
  push(placement_, std::move(effect), "assign to variable '" + name_ + "'");
  step->note(*this, value);
}

void RemoteVariable::assign(AssignKind kind, const at::Tensor& value) {
  variable::check_assign(kind, name_, spec_, value);
  variable::check_one_replica("variable.assign");
  if (Trace* trace = Trace::current()) {
    trace->assign(kind, stand_in_, value);
    return;
  }
  check_use(placement_, "assign");
  if (placement_.check_value && EagerStep::current() == nullptr) placement_.check_value(value);
  rpc::Effect effect;
  effect.kind = effect_kind(kind);
  effect.variable = placement_.id;
  effect.tensors.push_back(value.detach().contiguous());
  update(std::move(effect), "assign to variable '" + name_ + "'");
}

void RemoteVariable::apply(const UpdateRule& rule, const at::Tensor& gradient,
                           std::span<const at::Tensor> hyper) {
  variable::check_one_replica("variable.apply");
  if (Trace* trace = Trace::current()) {
    check_gradient(rule, stand_in_, gradient, name_);
    trace->apply(rule.name(), stand_in_, gradient, hyper);
    return;
  }
  check_use(placement_, "apply");
  rpc::Effect effect;
  effect.kind = rpc::Effect::Kind::apply;
  effect.variable = placement_.id;
  effect.rule = rule.name();
  effect.hyper = variable::values_of(hyper);
  check_update(rule, stand_in_, gradient, effect.hyper, name_);
  effect.tensors.push_back(gradient.detach().contiguous());
  update(std::move(effect), "'" + std::string(rule.name()) + "' step of variable '" + name_ + "'");
}

}  // namespace cohort
