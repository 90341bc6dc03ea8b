// SPDX-License-Identifier: Apache-2.0
// Round trips, rates and throughput of each backend between two threads of one process.
#include <ATen/ops/ones.h>
#include <benchmark/benchmark.h>

#include <atomic>
#include <thread>

#include "cohort/core/log.h"
#include "cohort/rpc/any_listener_for_tests.h"
#include "cohort/rpc/requester.h"

namespace cohort::rpc {
namespace {

const char* const kBackends[] = {"inprocess", "stream", "grpc"};

// A requester, and a far end that answers each request with its tensors or without any.
class Rig {
 public:
  Rig(const std::string& backend, bool is_echo) {
    listener_ = cohort::testing::listen_on(
        backend, [this, is_echo](const std::shared_ptr<Channel>& channel) {
          return Channel::Handlers{.on_frame = [this, channel, is_echo](Frame frame) {
            received_.fetch_add(1, std::memory_order_release);
            if (frame.role != Frame::Role::request) return;
            frame.role = Frame::Role::response;
            if (!is_echo) frame.tensors.clear();
            channel->send(std::move(frame));
          }};
        });
    requester = Requester::connect(backend_of(backend), {.address = listener_->address()});
  }
  // For what the requester sends.
  void set_payload_checksums(bool are_on) { requester->set_payload_checksums(are_on); }
  ~Rig() { requester->close(); }

  std::shared_ptr<Requester> requester;
  std::int64_t received() const { return received_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::int64_t> received_{0};
  std::unique_ptr<Listener> listener_;
};

Frame frame_with(std::int64_t bytes) { return {.tensors = {at::ones({bytes}, at::kByte)}}; }

void report_bytes(benchmark::State& state, std::int64_t each) {
  state.SetLabel(kBackends[state.range(0)]);
  state.SetBytesProcessed(state.iterations() * each);
}

// One request at a time, answered with the same bytes.
void BM_RoundTrip(benchmark::State& state) {
  Rig rig(kBackends[state.range(0)], true);
  const Frame frame = frame_with(state.range(1));
  for (auto _ : state) rig.requester->call(frame, Deadline(), "echo");
  report_bytes(state, 2 * state.range(1));
}

// Requests from callbacks, sixteen in flight.
void BM_PipelinedRequests(benchmark::State& state) {
  Rig rig(kBackends[state.range(0)], true);
  const Frame frame = frame_with(state.range(1));
  std::atomic<std::int64_t> answered{0};
  std::int64_t asked = 0;
  for (auto _ : state) {
    while (asked - answered.load(std::memory_order_acquire) >= 16) std::this_thread::yield();
    ++asked;
    rig.requester->request(
        frame, [&](const Answer&) { answered.fetch_add(1, std::memory_order_release); });
  }
  while (answered.load() != asked) std::this_thread::yield();
  state.SetLabel(kBackends[state.range(0)]);
  state.SetItemsProcessed(state.iterations());
}

// Frames without an answer, until the last one has arrived.
void BM_OneWayFlood(benchmark::State& state) {
  Rig rig(kBackends[state.range(0)], false);
  const Frame frame = frame_with(state.range(1));
  std::int64_t sent = 0;
  for (auto _ : state) {
    rig.requester->send_one_way(frame);
    ++sent;
  }
  while (rig.received() != sent) std::this_thread::yield();
  state.SetLabel(kBackends[state.range(0)]);
  state.SetItemsProcessed(state.iterations());
}

// A push: tensors one way, a short answer back; with or without a checksum of the tensors.
void BM_Push(benchmark::State& state) {
  Rig rig(kBackends[state.range(0)], false);
  rig.set_payload_checksums(state.range(2) != 0);
  const Frame frame = frame_with(state.range(1));
  for (auto _ : state) rig.requester->call(frame, Deadline(), "push");
  report_bytes(state, state.range(1));
}

// Push and pull at once: the tensors come back.
void BM_Exchange(benchmark::State& state) {
  Rig rig(kBackends[state.range(0)], true);
  const Frame frame = frame_with(state.range(1));
  for (auto _ : state) rig.requester->call(frame, Deadline(), "exchange");
  report_bytes(state, 2 * state.range(1));
}

constexpr std::int64_t kMebi = 1 << 20;

BENCHMARK(BM_RoundTrip)->ArgsProduct({{0, 1, 2}, {64, 4096}})->UseRealTime();
BENCHMARK(BM_PipelinedRequests)->ArgsProduct({{0, 1, 2}, {64}})->UseRealTime();
BENCHMARK(BM_OneWayFlood)->ArgsProduct({{0, 1, 2}, {64}})->UseRealTime();
BENCHMARK(BM_Push)->ArgsProduct({{0}, {kMebi, 64 * kMebi}, {0}})->UseRealTime();
BENCHMARK(BM_Push)->ArgsProduct({{1, 2}, {kMebi, 64 * kMebi}, {0, 1}})->UseRealTime();
BENCHMARK(BM_Exchange)->ArgsProduct({{0, 1, 2}, {64 * kMebi}})->UseRealTime();

}  // namespace
}  // namespace cohort::rpc
