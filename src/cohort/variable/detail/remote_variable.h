// SPDX-License-Identifier: Apache-2.0
// A variable on a parameter server, for the coordinator and its traces.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "cohort/core/clock.h"
#include "cohort/rpc/detail/requester.h"
#include "cohort/variable/variable.h"

namespace cohort {

namespace rpc {
struct Effect;  // rpc/detail/messages.h
}

// Its server and the way there. `requester` reconnects as needed and throws unavailable if it
// cannot.
struct RemotePlacement {
  std::uint64_t id = 0;
  std::uint32_t ps = 0;
  std::function<std::shared_ptr<rpc::Requester>()> requester;
  std::function<Deadline()> deadline;
  // Throws if the calling thread must not call `method` ("read", "assign", "apply"); may be empty.
  std::function<void(std::string_view method)> check_use = {};
  // Throws if `value`, which is assigned outside of a step, comes from a stand-in, whose value is
  // not the current one there; may be empty.
  std::function<void(const at::Tensor& value)> check_value = {};
};

// Outside a trace reads and writes are calls to the server; inside one they are recorded. In an
// EagerStep the stand-in equals the server's value before and after each.
// Thread-safe.
class COHORT_API RemoteVariable final : public VariableImpl {
 public:
  // `stand_in` is a real tensor of the right spec (requires_grad when trainable); its content is
  // the initial value.
  RemoteVariable(std::string name, at::Tensor stand_in, bool is_trainable,
                 RemotePlacement placement);

  const std::string& name() const override { return name_; }
  const TensorSpec& spec() const override { return spec_; }
  bool is_trainable() const override { return is_trainable_; }
  const at::Tensor& tensor() const override { return stand_in_; }
  void check_tensor_is_current(std::string_view call) const override;
  at::Tensor read() const override;
  void assign(AssignKind kind, const at::Tensor& value) override;
  void apply(const UpdateRule& rule, const at::Tensor& gradient,
             std::span<const at::Tensor> hyper) override;
  const RemotePlacement& placement() const { return placement_; }
  // At the end of an EagerStep: assigns what the step wrote into the stand-in. invalid_argument if
  // the variable is trainable.
  void write_back();

 private:
  at::Tensor pull() const;
  void update(rpc::Effect effect, const std::string& operation);

  std::string name_;
  TensorSpec spec_;
  at::Tensor stand_in_;
  bool is_trainable_;
  RemotePlacement placement_;
};

}  // namespace cohort
