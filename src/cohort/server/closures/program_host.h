// SPDX-License-Identifier: Apache-2.0
// Connects a running program with the parameter servers: pulls its variables and pushes its
// updates.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cohort/parameter_server/parameter_client.h"
#include "cohort/server/closures/push_collector.h"
#include "cohort/server/closures/running_closure.h"

namespace cohort::server {

// `pushes`: what all pushes of the closure have. Used only from the thread that runs the program.
class ProgramHost final : public PushCollector {
 public:
  ProgramHost(const parameter_server::ParameterClient& client, const WorkerProgram& program,
              std::shared_ptr<const WorkerProgram::Places> places, std::vector<Fields> draws,
              std::shared_ptr<RunningClosure> running, const rpc::PushRequest& pushes)
      : PushCollector(program, std::move(places), std::move(draws)),
        client_(client),
        running_(std::move(running)),
        id_(pushes.id),
        low_watermark_(pushes.low_watermark) {}

  // The program's variables, with the values of those that it reads at its start.
  std::vector<at::Tensor> pull();
  std::vector<at::Tensor> next_segment(std::span<const std::int64_t> variables) override;
  // Pushes the effects of the last segment. The closure ends when all pushes are acknowledged.
  void push();

 private:
  std::vector<parameter_server::Push> take_pushes();
  void exchange(parameter_server::ParameterClient::Exchange exchange);

  const parameter_server::ParameterClient& client_;
  const std::shared_ptr<RunningClosure> running_;
  const rpc::PushId id_;
  const std::uint64_t low_watermark_;
};

}  // namespace cohort::server
