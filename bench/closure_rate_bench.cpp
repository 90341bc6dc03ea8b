// SPDX-License-Identifier: Apache-2.0
// The cost of a closure that does nothing, with 64 bytes in and 8 bytes out, compared to plain gRPC
// unary calls.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <vector>

#include "bench/grpc_peer.h"
#include "bench/report.h"
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/testing/cluster/test_cluster.h"

namespace cohort::bench {
namespace {

constexpr std::int64_t kArgumentFloats = 16;
constexpr std::int64_t kAnswer = 7;
constexpr std::size_t kClosures = 20'000;
constexpr std::size_t kCalls = 5'000;
constexpr std::size_t kRoundTrips = 1'000;

grpc::ByteBuffer answer(const grpc::ByteBuffer&) { return buffer_of(&kAnswer, sizeof kAnswer); }

// A cluster whose workers run closures that do nothing. Used from one thread.
class Ours {
 public:
  Ours(int workers, std::int64_t in_flight)
      : cluster_({.workers = workers, .ps = 1, .command = {COHORT_COMMAND, "server"}}),
        strategy_(cluster_.resolver()),
        coordinator_(strategy_, {.in_flight_per_worker = in_flight}) {
    const Nest result = coordinator_.schedule(step_, argument_).fetch();
    require(result.tensor().item<std::int64_t>() == kAnswer, "the result of a closure");
    const std::string window =
        in_flight == 0 ? "by default" : std::to_string(in_flight) + " in flight each";
    name =
        "cohort, " + std::to_string(workers) + (workers == 1 ? " worker, " : " workers, ") + window;
  }

  double rate() {
    std::vector<RemoteValue> results;
    results.reserve(kClosures);
    const double seconds = seconds_of([&] {
      for (std::size_t i = 0; i < kClosures; ++i) {
        results.push_back(coordinator_.schedule(step_, argument_));
      }
      coordinator_.join();
    });
    require(results.back().fetch().tensor().item<std::int64_t>() == kAnswer, "the last closure");
    return static_cast<double>(kClosures) / seconds;
  }

  void round_trip() { coordinator_.schedule(step_, argument_).fetch(); }

  std::string name;

 private:
  testing::TestCluster cluster_;
  ParameterServerStrategy strategy_;
  ClusterCoordinator coordinator_;
  const at::Tensor argument_ = at::ones({kArgumentFloats});
  const Function step_{[](at::Tensor) { return at::full({}, kAnswer, at::kLong); }};
};

// The same work with plain gRPC calls.
class Plain {
 public:
  Plain() { check(peer_.call(request_)); }

  double rate(std::size_t depth) {
    const double seconds = seconds_of([&] {
      peer_.call_many(
          kCalls, depth, [&](std::size_t) { return request(); },
          [](std::size_t, const grpc::ByteBuffer& reply) { check(reply); });
    });
    return static_cast<double>(kCalls) / seconds;
  }

  void round_trip() { check(peer_.call(request())); }

 private:
  grpc::ByteBuffer request() const { return buffer_of(argument_.data(), sizeof argument_); }
  static void check(const grpc::ByteBuffer& reply) {
    const grpc::Slice slice = slice_of(reply);
    std::int64_t value = 0;
    if (slice.size() == sizeof value) std::memcpy(&value, slice.begin(), sizeof value);
    require(value == kAnswer, "the result of a gRPC call");
  }

  std::array<float, kArgumentFloats> argument_{};
  GrpcPeer peer_;
  grpc::ByteBuffer request_ = request();
};

// The times of many round trips in microseconds, one at a time.
template <class F>
std::vector<double> latencies(F&& round_trip) {
  std::vector<double> figures;
  for (std::size_t i = 0; i < kRoundTrips; ++i) figures.push_back(1e6 * seconds_of(round_trip));
  return figures;
}

void compare_latency(const Bench& bench, Ours& ours, Plain& plain) {
  for (const double share : {0.5, 0.99}) {
    const std::string title =
        share == 0.5 ? "schedule to ready at depth 1, p50" : "schedule to ready at depth 1, p99";
    bench.compare(
        title, {.unit = "us"},
        {{"gRPC unary", [&] { return percentile(latencies([&] { plain.round_trip(); }), share); }},
         {ours.name, [&] { return percentile(latencies([&] { ours.round_trip(); }), share); }}});
  }
}

void compare_rates(const Bench& bench, std::deque<Ours>& ours, Plain& plain) {
  std::vector<Contender> contenders = {
      {"gRPC unary, 16 in flight", [&] { return plain.rate(16); }},
      {"gRPC unary, 1 in flight", [&] { return plain.rate(1); }},
  };
  for (Ours& one : ours) contenders.push_back({one.name, [&one] { return one.rate(); }});
  bench.compare("no-op closures", {.unit = "/s", .is_rate = true}, contenders);
}

void run(const Bench& bench) {
  Plain plain;
  std::deque<Ours> ours;
  for (const int workers : {1, 2}) {
    for (const std::int64_t in_flight : {0, 4, 64}) ours.emplace_back(workers, in_flight);
  }
  compare_rates(bench, ours, plain);
  compare_latency(bench, ours.front(), plain);
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  if (cohort::bench::served_as_peer(argc, argv, cohort::bench::answer)) return 0;
  cohort::bench::run(cohort::bench::Bench(argc, argv));
  return 0;
}
