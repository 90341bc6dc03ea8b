// SPDX-License-Identifier: Apache-2.0
// The resources of one run of a program: the elements that were drawn for it, and its effects,
// which are collected into one push for each parameter server.
#pragma once

#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/data/element.h"
#include "cohort/rpc/messages.h"
#include "cohort/server/closures/function_table.h"

namespace cohort::server {

// Used only from the thread that runs the program.
class PushCollector : public internal::EffectHandler {
 public:
  PushCollector(const PlacedProgram& placed, std::vector<Fields> draws)
      : placed_(placed), draws_(std::move(draws)) {}

  std::vector<at::Tensor> iterator_next(std::int64_t resource) override;
  void apply(const internal::SlotOwner& owner, std::int64_t variable, at::Tensor gradient,
             std::span<const at::Tensor> hyper) override;
  void assign(internal::AssignKind kind, std::int64_t variable, at::Tensor value) override;
  at::Tensor gather(std::int64_t variable, const at::Tensor& ids) override;
  void scatter_add(std::int64_t variable, const at::Tensor& ids, const at::Tensor& rows) override;
  void merge_average(std::int64_t variable, at::Tensor value, at::Tensor statistic,
                     double momentum) override;

  struct Push {
    std::uint32_t ps;
    rpc::PushRequest request;
  };

 protected:
  // The pushes of one segment: the effects that were collected since the last call.
  std::vector<Push> take_segment();
  // Sets the version of the program's variable that was pulled.
  void set_version(std::size_t variable, std::uint64_t version);
  const PlacedProgram& placed() const { return placed_; }

 private:
  void add(std::int64_t variable, rpc::Effect effect);

  const PlacedProgram& placed_;
  std::vector<Fields> draws_;
  std::size_t next_draw_ = 0;
  std::vector<Push> pushes_;
  std::uint32_t segment_ = 0;
  std::vector<std::uint64_t> versions_;  // for each variable; 0 if none was set
};

}  // namespace cohort::server
