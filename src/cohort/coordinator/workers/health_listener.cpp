// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/workers/health_listener.h"

#include <utility>

#include "cohort/core/log.h"

namespace cohort::coordinator::internal {

std::unique_ptr<HealthListener> HealthListener::start(const std::string& address,
                                                      const rpc::Identity& self, Ask ask,
                                                      bool serves_metrics) {
  if (address.empty() || address.ends_with(":0")) return nullptr;
  try {
    return std::unique_ptr<HealthListener>(
        new HealthListener(address, self, std::move(ask), serves_metrics));
  } catch (...) {
    const Error error = current_error();
    log_warn("cannot listen at ", address, ", the address of ", self.task,
             " in the cluster: ", error.message(),
             ". Training goes on, but `cohort status` gets no answer from this coordinator");
    return nullptr;
  }
}

HealthListener::HealthListener(const std::string& address, const rpc::Identity& self, Ask ask,
                               bool serves_metrics)
    : task_(self.task),
      job_id_(self.job_id),
      ask_(std::move(ask)),
      server_(rpc::serve_control(address, *this, serves_metrics)) {}

HealthListener::~HealthListener() { server_.reset(); }

bool HealthListener::is_of_job(const std::string& job_id) const {
  return !job_id.empty() && job_id == job_id_;
}

void HealthListener::refuse() const {
  ::cohort::internal::throw_error(
      ErrorCode::unimplemented, "[coordinator.health] expected GetHealth, got another call; ",
      task_, " is the coordinator, which serves nothing: call a worker or a parameter server");
}

rpc::HandshakeReply HealthListener::handshake(const rpc::HandshakeRequest&, const rpc::Caller&) {
  refuse();
}
std::shared_ptr<rpc::CoordinatorSession> HealthListener::session_of(const rpc::Caller&) {
  refuse();
}
void HealthListener::shutdown(const rpc::Caller&, std::chrono::milliseconds) { refuse(); }

}  // namespace cohort::coordinator::internal
