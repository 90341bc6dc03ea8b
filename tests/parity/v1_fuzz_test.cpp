// SPDX-License-Identifier: Apache-2.0
// Random steps whose variables are on parameter servers of version 1 have the same bits as those of
// a CentralStorageStrategy with as many replicas, by run() and by function().
//
//   COHORT_FUZZ_PROGRAMS=2000 build/dev/tests/v1_fuzz_test    # a long run
//   COHORT_FUZZ_SEED=17 build/dev/tests/v1_fuzz_test          # one program, printed
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/server/server.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/fuzz_range.h"
#include "cohort/v1/parameter_server_strategy.h"
#include "tests/parity/step_fuzz/generator.h"
#include "tests/parity/step_fuzz/strategy_side.h"

namespace cohort::parity {
namespace {

// Three servers in this process, which stay while one program after the other begins a new job.
class Servers {
 public:
  Servers() {
    for (std::int64_t i = 0; i < 3; ++i) {
      servers_.push_back(
          std::make_unique<Server>(resolver("ps", i), ServerOptions{.handle_signals = false}));
    }
  }
  SimpleResolver resolver(const std::string& type, std::int64_t index) const {
    return {ClusterSpec(jobs_), {.task_type = type, .task_id = index}};
  }

 private:
  static std::string free_address() { return "127.0.0.1:" + std::to_string(testing::free_port()); }

  const std::map<std::string, std::vector<std::string>> jobs_ = {
      {"chief", {free_address()}}, {"ps", {free_address(), free_address(), free_address()}}};
  std::vector<std::unique_ptr<Server>> servers_;
};

enum class Result : std::uint8_t { equal, both_throw, refused, wrong };

// Servers have no place for what a step writes into a trainable variable in place.
bool is_refusal(const Error& error) {
  return error.code() == ErrorCode::invalid_argument &&
         std::string_view(error.what()).find("in place") != std::string_view::npos;
}

// By the seed, variables are whole or divided among the servers.
class Comparison {
 public:
  Comparison(const Servers& servers, int replicas, bool is_traced)
      : servers_(servers), replicas_(replicas), is_traced_(is_traced) {}

  Result compare(const Program& program) {
    CentralStorageStrategy local(testing::cpu_devices(replicas_));
    v1::StrategyOptions options{.devices = testing::cpu_devices(replicas_), .begins_new_job = true};
    if (program.seed % 3 == 0) options.partitioner = FixedShardsPartitioner(2);
    v1::ParameterServerStrategy remote(servers_.resolver("chief", 0), options);
    StrategySide here(program, local), there(program, remote);
    for (std::size_t i = 0; i < program.calls.size(); ++i) {
      const Outcome wanted = outcome_of(here, program.calls[i], i, is_traced_);
      const Outcome got = outcome_of(there, program.calls[i], i, is_traced_);
      if (wanted.error && got.error) return Result::both_throw;
      if (got.error) {
        text = got.error->what();
        return is_refusal(*got.error) ? Result::refused : Result::wrong;
      }
      text = wanted.error ? "only the local replicas throw " + std::string(wanted.error->what())
                          : first_difference(got.results, wanted.results, {});
      if (text.empty()) text = first_difference(there.values(), here.values(), {});
      if (!text.empty()) return Result::wrong;
    }
    return Result::equal;
  }

  std::string text;  // the difference, or the error

 private:
  const Servers& servers_;
  const int replicas_;
  const bool is_traced_;
};

TEST(V1Fuzz, StepsEqualThoseOfLocalReplicas) {
  at::set_num_threads(1);  // LibTorch 2's order of additions depends on it
  const Servers servers;
  const testing::FuzzRange range = testing::fuzz_range(40);
  std::map<Result, std::uint64_t> results;
  std::map<std::string, std::uint64_t> refusals;
  for (std::uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    const Program program = random_program(seed);
    if (range.count == 1) std::cout << to_string(program);
    for (const bool is_traced : {false, true}) {
      Comparison comparison(servers, seed % 2 == 0 ? 2 : 1, is_traced);
      const Result result = comparison.compare(program);
      ++results[result];
      if (result == Result::refused) ++refusals[reason_of(comparison.text)];
      if (result != Result::wrong) continue;
      std::string text = comparison.text;
      const Program smaller = shrunk(program, [&](const Program& candidate) {
        const bool is_wrong = comparison.compare(candidate) == Result::wrong;
        if (is_wrong) text = comparison.text;
        return is_wrong;
      });
      ADD_FAILURE() << "COHORT_FUZZ_SEED=" << seed
                    << (is_traced ? " by function(): " : " by run(): ") << text << "\n"
                    << to_string(smaller);
    }
  }
  std::cout << results[Result::equal] << " equal, " << results[Result::refused] << " refused, "
            << results[Result::both_throw] << " throw in both ways\n";
  for (const auto& [reason, times] : refusals) std::cout << "  " << times << ": " << reason << '\n';
  if (range.count < 40) return;
  EXPECT_GE(results[Result::equal], range.count);
}

}  // namespace
}  // namespace cohort::parity
