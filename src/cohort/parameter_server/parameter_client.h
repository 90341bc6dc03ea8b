// SPDX-License-Identifier: Apache-2.0
// Pulls and pushes for many variables: one request to each parameter server, all sent together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"
#include "cohort/parameter_server/remote_variable.h"
#include "cohort/rpc/messages.h"
#include "cohort/rpc/requester.h"

namespace cohort {

// Its calls wait for all servers. Their errors have the server as origin and name the variables of
// its request; the first error is thrown after all answers have arrived or are late. A server whose
// answer is late loses its connection, since the answer may never arrive over it. Thread-safe.
class COHORT_API ParameterClient {
 public:
  // How to reach the servers.
  struct Options {
    // Reconnects as needed; throws unavailable if it cannot.
    std::function<std::shared_ptr<rpc::Requester>(std::uint32_t ps)> requester;
    std::function<Deadline()> deadline;
  };
  // push() fills in `effect.variable`.
  struct Push {
    Variable variable;
    rpc::Effect effect;
  };
  explicit ParameterClient(Options options) : options_(std::move(options)) {}

  // The current values, in this order. Throws data_loss for a value with another spec.
  std::vector<at::Tensor> pull(std::span<const Variable> variables) const;
  // The effects of one server are applied in this order, all or none. `what` is for the context of
  // errors: "assign to".
  void push(std::vector<Push> pushes, const std::string& what) const;

 private:
  struct Request {
    std::uint32_t ps;
    rpc::Frame frame;
    std::string operation;
  };
  std::vector<rpc::Frame> ask(std::vector<Request> requests) const;

  const Options options_;
};

// The variable's implementation. Throws invalid_argument, naming the variable, for one of another
// kind.
COHORT_API const RemoteVariable& remote_of(const Variable& variable);

}  // namespace cohort
