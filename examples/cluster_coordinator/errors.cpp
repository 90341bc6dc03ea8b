// SPDX-License-Identifier: Apache-2.0
// An error of a scheduled function is raised once, by schedule(), join() or done(). Functions that
// had not started are cancelled, and can be scheduled again.
#include <cohort/cohort.h>
#include <cohort/testing/cluster/test_cluster.h>
#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace {

std::string outcome(const std::function<void()>& call) {
  try {
    call();
    return "no error";
  } catch (const cohort::Error& error) {
    return std::string(cohort::name_of(error.code()));
  }
}
void print(const char* what, const std::string& outcome) {
  std::printf("%s: %s\n", what, outcome.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    const cohort::testing::TestCluster cluster({.workers = 1, .ps = 1});
    cohort::ParameterServerStrategy strategy(cluster.resolver());
    cohort::ClusterCoordinator coordinator(strategy);
    const cohort::Variable gate = strategy.variable("gate", torch::tensor(1));
    const cohort::Variable sum = strategy.variable("sum", torch::tensor(0));

    // Waits, so that the functions after it have not started when it fails.
    const cohort::Function takes_a_row([&](at::Tensor row) {
      gate.wait_until_positive();
      return torch::zeros({1}).index_select(0, row);
    });
    const cohort::Function adds([&] { sum.assign_add(torch::tensor(1)); });
    const auto schedule_both = [&] {
      gate.assign(torch::tensor(0));
      std::vector<cohort::RemoteValue> values = {
          coordinator.schedule(takes_a_row, torch::tensor({5}))};
      // More than a worker has in flight: the last one waits in the queue.
      for (int i = 0; i < 300; ++i) values.push_back(coordinator.schedule(adds));
      gate.assign(torch::tensor(1));
      return values;
    };

    print("row 0", outcome([&] { coordinator.schedule(takes_a_row, torch::tensor({0})).fetch(); }));
    std::vector<cohort::RemoteValue> values = schedule_both();  // there is no row 5
    print("join() after a failure", outcome([&] { coordinator.join(); }));
    print("join() again", outcome([&] { coordinator.join(); }));
    print("fetch() of the one that failed", outcome([&] { values.front().fetch(); }));
    print("fetch() of the last one", outcome([&] { values.back().fetch(); }));
    const std::string was_cancelled = sum.read().item<int>() == 300 ? "no" : "yes";
    print("some were not executed", was_cancelled);

    print("schedule() of it again", outcome([&] { coordinator.schedule(adds).fetch(); }));

    values = schedule_both();
    const auto until_it_throws = [](const std::function<void()>& call) {
      const auto deadline = cohort::Clock::system().now() + std::chrono::seconds(60);
      while (cohort::Clock::system().now() < deadline) call();
    };
    print("schedule() after a failure",
          outcome([&] { until_it_throws([&] { coordinator.schedule(adds); }); }));
    print("done()", coordinator.done() ? "true" : "false");

    values = schedule_both();
    print("done() after a failure", outcome([&] { until_it_throws([&] { coordinator.done(); }); }));
    return 0;
  });
}
