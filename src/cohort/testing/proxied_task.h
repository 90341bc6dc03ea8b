// SPDX-License-Identifier: Apache-2.0
// A proxy of a task: forwards control calls one by one, and the data plane through a FaultyProxy.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/control.h"
#include "cohort/testing/faulty_proxy.h"

namespace cohort::testing {

// Thread-safe.
class ProxiedTask final : public rpc::ControlService {
 public:
  explicit ProxiedTask(std::string task)
      : task_(std::move(task)), control_(rpc::serve_control("127.0.0.1:0", *this)) {}

  const std::string& task() const { return task_; }
  // The address to which the other tasks connect.
  const std::string& address() const { return control_->address(); }
  // Sets the address of the task; call it before the first control call.
  void set_target(const std::string& address) { target_ = address; }
  FaultyProxy& data() { return data_; }

  rpc::HandshakeReply handshake(const rpc::HandshakeRequest& request,
                                const rpc::Caller& caller) override {
    rpc::HandshakeReply reply = client_of(caller)->handshake(request, deadline());
    COHORT_CHECK(reply.endpoints.size() == 1, ErrorCode::internal, "one backend at a time");
    std::string& frames_at = reply.endpoints[0].address;
    data_.set_target(rpc::address_of(reply.endpoints[0], target_));
    frames_at = data_.address().substr(data_.address().rfind(':'));
    return reply;
  }
  TaskHealth health() override { return client_of({})->health(deadline()); }
  std::shared_ptr<rpc::CoordinatorSession> session_of(const rpc::Caller& caller) override {
    return std::make_shared<Job>(client_of(caller));
  }
  void shutdown(const rpc::Caller& caller, std::chrono::milliseconds grace) override {
    client_of(caller)->shutdown(grace, deadline());
  }

 private:
  using Client = std::shared_ptr<rpc::ControlClient>;

  struct Job final : rpc::CoordinatorSession {
    explicit Job(Client to) : client(std::move(to)) {}
    void set_membership(const rpc::Membership& membership) override {
      client->set_membership(membership, deadline());
    }
    void place_variables(const rpc::Placement& placement) override {
      client->place_variables(placement, deadline());
    }
    void register_function(const rpc::FunctionBody& body) override {
      client->register_function(body, deadline());
    }
    void create_variables(const std::vector<rpc::VariableSpec>& variables) override {
      client->create_variables(variables, deadline());
    }
    void create_iterator(const rpc::IteratorSpec& iterator) override {
      client->create_iterator(iterator, deadline());
    }
    void release(const std::vector<std::uint64_t>& resources) override {
      client->release(resources, deadline());
    }
    const Client client;
  };

  Client client_of(const rpc::Caller& caller) {
    const Lock lock(mutex_);
    Client& client = clients_[caller.coordinator_incarnation];
    if (!client) client = rpc::control_client(target_, task_, caller.coordinator_incarnation);
    return client;
  }
  static Deadline deadline() { return Deadline::after(std::chrono::seconds(20)); }

  const std::string task_;
  FaultyProxy data_;
  std::string target_;
  Mutex mutex_;
  std::map<std::uint64_t, Client> clients_ COHORT_GUARDED_BY(mutex_);  // by incarnation
  std::unique_ptr<rpc::ControlServer> control_;  // last: its calls use the other members
};

}  // namespace cohort::testing
