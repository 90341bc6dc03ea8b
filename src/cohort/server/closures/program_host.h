// SPDX-License-Identifier: Apache-2.0
// The resources of one run of a program: the elements that were drawn for it, the variables that it
// pulls from the parameter servers, and its effects, which are collected into one push for each of
// them.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/data/element.h"
#include "cohort/parameter_server/parameter_client.h"
#include "cohort/rpc/messages.h"
#include "cohort/server/closures/function_table.h"
#include "cohort/server/closures/running_closure.h"

namespace cohort::server {

// Used only from the thread that runs the program.
class ProgramHost final : public internal::EffectHandler {
 public:
  // `pushes`: what all pushes of the closure have; `snapshot`: what its pulls have.
  ProgramHost(const parameter_server::ParameterClient& client, const WorkerProgram& program,
              std::shared_ptr<const WorkerProgram::Places> places, std::vector<Fields> draws,
              std::shared_ptr<RunningClosure> running, const rpc::PushRequest& pushes,
              std::uint64_t snapshot)
      : client_(client),
        program_(program),
        places_(std::move(places)),
        draws_(std::move(draws)),
        running_(std::move(running)),
        id_(pushes.id),
        low_watermark_(pushes.low_watermark),
        snapshot_(snapshot) {}

  // The program's variables, with the values of those that it reads at its start.
  std::vector<at::Tensor> pull();
  std::vector<at::Tensor> iterator_next(std::int64_t resource) override;
  void update(internal::Effect effect) override;
  Read read(std::span<const RowRead> rows, std::span<const std::int64_t> variables) override;
  std::vector<at::Tensor> next_segment(std::span<const std::int64_t> variables) override;
  void wait_until_positive(std::int64_t variable) override;
  void check_cancelled() override { running_->check_cancelled(); }
  // Pushes the effects of the last segment. The closure ends when all pushes are acknowledged.
  void push();

 private:
  // The parts of the program's variables, and places for more.
  std::size_t num_parts() const { return places_->variables.parts().size(); }
  // The versions of the parts that were pulled; 0 for those that were not.
  std::span<std::uint64_t> versions(std::size_t count);
  // The pushes of one segment: the effects that were collected since the last call.
  std::vector<parameter_server::Push> take_pushes();
  void exchange(parameter_server::ParameterClient::Exchange exchange);
  // The value of a variable from the parts that were pulled.
  at::Tensor value_of(std::span<at::Tensor> parts, std::size_t variable) const;

  const parameter_server::ParameterClient& client_;
  const WorkerProgram& program_;
  const std::shared_ptr<const WorkerProgram::Places> places_;
  std::vector<Fields> draws_;
  std::size_t next_draw_ = 0;
  const std::shared_ptr<RunningClosure> running_;
  rpc::PushId id_;  // of the segment's pushes
  const std::uint64_t low_watermark_;
  std::uint64_t snapshot_;
  parameter_server::PushBatch pushes_;
  std::vector<std::uint64_t> versions_;
};

}  // namespace cohort::server
