// SPDX-License-Identifier: Apache-2.0
// A cluster of version 1 in this process, whose tasks are threads or take turns.
#pragma once

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/server/server.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/v1/parameter_server_strategy.h"

namespace cohort::testing {

using V1 = v1::ParameterServerStrategy;

inline at::Tensor floats(const std::vector<float>& values) { return at::tensor(values); }
inline float number(const Variable& variable) { return variable.read().item<float>(); }
inline float seen_in_run(V1& strategy, const Variable& variable) {
  return strategy.run([&] { return variable.tensor().detach().clone(); }).value().item<float>();
}

// A chief and a worker, and two servers that may be ended and started again.
class V1Cluster : public ::testing::Test {
 protected:
  static std::string free_address() { return "127.0.0.1:" + std::to_string(free_port()); }
  V1Cluster() {
    for (std::size_t i = 0; i < 2; ++i) start(i);
  }

  SimpleResolver resolver(const std::string& type, std::int64_t index) const {
    return {ClusterSpec(jobs_), {.task_type = type, .task_id = index}};
  }
  void start(std::size_t server) {
    servers_[server] = std::make_unique<Server>(resolver("ps", static_cast<std::int64_t>(server)),
                                                ServerOptions{.handle_signals = false});
  }
  void end(std::size_t server) { servers_[server].reset(); }
  std::unique_ptr<V1> chief(v1::StrategyOptions options = {}) const {
    return std::make_unique<V1>(resolver("chief", 0), std::move(options));
  }
  std::unique_ptr<V1> worker(v1::StrategyOptions options = {}) const {
    return std::make_unique<V1>(resolver("worker", 0), std::move(options));
  }
  // The bytes of values that the servers have sent.
  std::uint64_t bytes_read() const {
    return servers_[0]->health().pulled_bytes + servers_[1]->health().pulled_bytes;
  }
  // That they have applied.
  std::uint64_t pushes() const {
    return servers_[0]->health().pushes_applied + servers_[1]->health().pushes_applied;
  }

  std::map<std::string, std::vector<std::string>> jobs_ = {
      {"chief", {free_address()}},
      {"worker", {free_address()}},
      {"ps", {free_address(), free_address()}}};
  std::unique_ptr<Server> servers_[2];
};

}  // namespace cohort::testing
