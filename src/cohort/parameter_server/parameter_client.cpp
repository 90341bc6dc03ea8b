// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/parameter_client.h"

#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "cohort/core/error.h"
#include "cohort/rpc/lost_server.h"
#include "cohort/variable/eager_step.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

// Positions of the variables in the call, for each server.
using Positions = std::map<std::uint32_t, std::vector<std::size_t>>;

std::string name_of(std::uint32_t ps) { return "ps:" + std::to_string(ps); }

// "variable 'w'"
std::string variables_of(const std::vector<Variable>& variables) {
  return (variables.size() == 1 ? "variable " : "variables ") + names_of(variables);
}

Error at_server(const Error& error, std::uint32_t ps) {
  return error.origin().empty() ? Error(error).at(name_of(ps)) : error;
}

// The error of an answer. If the connection broke while the answer was awaited, it says what to do.
Error answered_by_server(const Error& error, std::uint32_t ps) {
  const bool is_lost =
      error.code() == ErrorCode::unavailable && error.cause() == ErrorCause::peer_lost;
  return is_lost ? rpc::as_lost_server(at_server(error, ps)) : at_server(error, ps);
}

}  // namespace

const RemoteVariable& remote_of(const Variable& variable) {
  const RemoteVariable* remote = RemoteVariable::of(variable);
  COHORT_CHECK(remote != nullptr, ErrorCode::invalid_argument,
               "[strategy.variable] expected a variable that one parameter server holds, got '",
               variable.name(),
               "' of another kind, which pulls, pushes, scheduled steps and colocate_with do not "
               "support; use one that ParameterServerStrategy::variable() returned");
  return *remote;
}

// Connects to all servers before anything is sent.
std::vector<rpc::Frame> ParameterClient::ask(std::vector<Request> requests) const {
  COHORT_ASSERT(options_.requester && options_.deadline);
  std::vector<std::shared_ptr<rpc::Requester>> links;
  std::vector<rpc::Requester::Request> frames;
  for (Request& request : requests) {
    try {
      links.push_back(options_.requester(request.ps));
    } catch (const Error& error) {
      throw at_server(error, request.ps).during(request.operation);
    }
    frames.push_back({links.back().get(), std::move(request.frame)});
  }
  const TimePoint start = Clock::system().now();
  std::vector<std::optional<rpc::Answer>> answers =
      rpc::Requester::ask_all(std::move(frames), options_.deadline());
  std::vector<rpc::Frame> replies;
  std::optional<Error> first_error;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i]) {
      answers[i] = links[i]->late_answer(start);
      links[i]->give_up(std::get<Error>(*answers[i]));
    }
    if (auto* frame = std::get_if<rpc::Frame>(&*answers[i])) {
      replies.push_back(std::move(*frame));
    } else if (!first_error) {
      first_error = answered_by_server(std::get<Error>(*answers[i]), requests[i].ps)
                        .during(requests[i].operation);
    }
  }
  if (first_error) throw Error(*first_error);
  return replies;
}

std::vector<at::Tensor> ParameterClient::pull(std::span<const Variable> variables) const {
  Positions by_ps;
  for (std::size_t i = 0; i < variables.size(); ++i)
    by_ps[remote_of(variables[i]).placement().ps].push_back(i);
  std::vector<Request> requests;
  for (const auto& [ps, positions] : by_ps) {
    rpc::PullRequest request;
    std::vector<Variable> asked;
    for (const std::size_t i : positions) {
      asked.push_back(variables[i]);
      request.variables.push_back(remote_of(variables[i]).placement().id);
    }
    requests.push_back({ps, rpc::to_frame(request), "pull of " + variables_of(asked)});
  }
  std::vector<rpc::Frame> replies = ask(std::move(requests));
  std::vector<at::Tensor> values(variables.size());
  std::size_t next = 0;
  for (const auto& [ps, positions] : by_ps) {
    rpc::Frame& reply = replies[next++];
    COHORT_CHECK(reply.tensors.size() == positions.size(), ErrorCode::data_loss,
                 "[variable.read] expected ", positions.size(), " values from ", name_of(ps),
                 ", got ", reply.tensors.size());
    for (std::size_t k = 0; k < positions.size(); ++k)
      values[positions[k]] = std::move(reply.tensors[k]);
  }
  EagerStep* const step = EagerStep::current();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Variable& variable = variables[i];
    COHORT_CHECK(TensorSpec::of(values[i]) == variable.spec(), ErrorCode::data_loss,
                 "[variable.read] expected ", variable.spec().to_string(), ", got ",
                 TensorSpec::of(values[i]).to_string(), " (variable '", variable.name(), "' on ",
                 name_of(remote_of(variable).placement().ps), ")");
    if (step != nullptr) step->traffic().pulled_bytes += values[i].nbytes();
  }
  return values;
}

void ParameterClient::push(std::vector<Push> pushes, const std::string& what) const {
  struct OfServer {
    rpc::PushRequest request;
    std::vector<Variable> variables;
  };
  std::map<std::uint32_t, OfServer> by_ps;
  std::uint64_t bytes = 0;
  for (Push& push : pushes) {
    const RemotePlacement& placement = remote_of(push.variable).placement();
    OfServer& server = by_ps[placement.ps];
    push.effect.variable = placement.id;
    for (const at::Tensor& tensor : push.effect.tensors) bytes += tensor.nbytes();
    server.request.effects.push_back(std::move(push.effect));
    server.variables.push_back(push.variable);
  }
  std::vector<Request> requests;
  for (auto& [ps, server] : by_ps) {
    requests.push_back({ps, rpc::to_frame(std::move(server.request)),
                        what + " " + variables_of(server.variables)});
  }
  for (const rpc::Frame& reply : ask(std::move(requests))) rpc::push_reply_of(reply);
  if (EagerStep* const step = EagerStep::current()) step->traffic().pushed_bytes += bytes;
}

}  // namespace cohort
