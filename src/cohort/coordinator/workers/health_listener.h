// SPDX-License-Identifier: Apache-2.0
// Answers GetHealth, and nothing else, at the coordinator's address in the cluster spec.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cohort/rpc/control.h"

namespace cohort::coordinator::internal {

// Thread-safe. Answers on gRPC's threads.
class HealthListener final : public rpc::ControlService {
 public:
  using Ask = std::function<TaskHealth()>;
  // Returns null if `address` is empty or names no port. Also returns null, and logs a warning, if
  // nothing can listen there, since training does not depend on it. `ask` is called from several
  // threads at once until the listener is destroyed.
  static std::unique_ptr<HealthListener> start(const std::string& address,
                                               const rpc::Identity& self, Ask ask,
                                               bool serves_metrics = false);
  ~HealthListener() override;

  rpc::HandshakeReply handshake(const rpc::HandshakeRequest& request,
                                const rpc::Caller& caller) override;
  TaskHealth health() override { return ask_(); }
  bool is_of_job(const std::string& job_id) const override;
  std::shared_ptr<rpc::CoordinatorSession> session_of(const rpc::Caller& caller) override;
  void shutdown(const rpc::Caller& caller, std::chrono::milliseconds grace) override;

 private:
  HealthListener(const std::string& address, const rpc::Identity& self, Ask ask,
                 bool serves_metrics);
  [[noreturn]] void refuse() const;

  const std::string task_;
  const std::string job_id_;
  const Ask ask_;
  // Last member, since it answers as soon as it is created.
  std::unique_ptr<rpc::ControlServer> server_;
};

}  // namespace cohort::coordinator::internal
