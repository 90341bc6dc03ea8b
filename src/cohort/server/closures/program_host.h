// SPDX-License-Identifier: Apache-2.0
// Connects a running program with the parameter servers: pulls its variables and pushes its
// updates.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/server/closures/push_collector.h"
#include "cohort/server/closures/running_closure.h"
#include "cohort/server/links/parameter_links.h"
#include "cohort/server/session/open_pushes.h"

namespace cohort::server {

struct ParameterAccess {
  ParameterLinks& links;
  std::shared_ptr<OpenPushes> open_pushes;  // shared with the answers that are still to come
  Duration data_timeout;                    // for each pull and each push
};

// Used only from the thread that runs the program.
class ProgramHost final : public PushCollector {
 public:
  ProgramHost(ParameterAccess access, const PlacedProgram& placed, std::vector<Fields> draws,
              std::shared_ptr<RunningClosure> running, std::uint64_t low_watermark)
      : PushCollector(placed, std::move(draws)),
        access_(std::move(access)),
        running_(std::move(running)),
        low_watermark_(low_watermark) {}

  // Puts the values at their positions among the program's variables.
  void pull(const std::vector<PlacedProgram::Pull>& pulls, std::span<at::Tensor> variables);
  std::vector<at::Tensor> next_segment(std::span<const std::int64_t> variables) override;
  // Pushes the effects of the last segment. The closure ends when all pushes are acknowledged.
  void push();

 private:
  // A request to a parameter server.
  struct Question {
    std::uint32_t ps;
    bool is_push;
    rpc::Frame frame;
  };
  static Question question(const PlacedProgram::Pull& pull);
  void take(const PlacedProgram::Pull& pull, rpc::Frame answer, std::span<at::Tensor> variables);
  std::vector<Push> take_pushes();
  std::vector<rpc::Frame> ask(std::vector<Question> questions);

  const ParameterAccess access_;
  const std::shared_ptr<RunningClosure> running_;
  const std::uint64_t low_watermark_;
};

}  // namespace cohort::server
