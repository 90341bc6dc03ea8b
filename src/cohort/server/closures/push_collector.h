// SPDX-License-Identifier: Apache-2.0
// The resources of one run of a program: the elements that were drawn for it, and its effects,
// which are collected into one push for each parameter server.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/data/element.h"
#include "cohort/parameter_server/parameter_client.h"
#include "cohort/rpc/messages.h"
#include "cohort/server/closures/function_table.h"

namespace cohort::server {

// Used only from the thread that runs the program.
class PushCollector : public internal::EffectHandler {
 public:
  PushCollector(const WorkerProgram& program, std::shared_ptr<const WorkerProgram::Places> places,
                std::vector<Fields> draws)
      : program_(program), places_(std::move(places)), draws_(std::move(draws)) {}

  std::vector<at::Tensor> iterator_next(std::int64_t resource) override;
  void update(internal::Effect effect) override;
  at::Tensor gather(std::int64_t variable, const at::Tensor& ids) override;

 protected:
  // The pushes of one segment: the effects that were collected since the last call.
  std::vector<parameter_server::Push> take_segment();
  const WorkerProgram& program() const { return program_; }
  const WorkerProgram::Places& places() const { return *places_; }
  // The versions of the program's variables that were pulled; 0 for those that were not.
  std::span<std::uint64_t> versions();

 private:
  const WorkerProgram& program_;
  const std::shared_ptr<const WorkerProgram::Places> places_;
  std::vector<Fields> draws_;
  std::size_t next_draw_ = 0;
  parameter_server::PushBatch pushes_;
  std::uint32_t segment_ = 0;
  std::vector<std::uint64_t> versions_;
};

}  // namespace cohort::server
