// SPDX-License-Identifier: Apache-2.0
// The traffic of a dense step with one parameter server: 40 x 4 MiB of gradients are pushed, SGD
// runs on the server, 40 x 4 MiB of new values are pulled. Compared to gRPC calls of raw bytes that
// do the same.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <future>
#include <optional>
#include <vector>

#include "bench/grpc_peer.h"
#include "bench/report.h"
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/parameter_server/parameter_client.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/rpc/messages.h"
#include "cohort/testing/cluster/test_cluster.h"

namespace cohort::bench {
namespace {

constexpr std::size_t kVariables = 40;
constexpr std::int64_t kFloats = 1 << 20;
constexpr double kRate = 0.125;

// --- the peer's server -----------------------------------------------------------------------

// A request: the variable's number in 8 bytes, then its gradient. The reply: the new value.
grpc::ByteBuffer update(const grpc::ByteBuffer& request) {
  static std::vector<std::vector<float>> values(kVariables, std::vector<float>(kFloats, 0.0F));
  const grpc::Slice slice = slice_of(request);
  std::uint64_t number = 0;
  std::memcpy(&number, slice.begin(), sizeof number);
  std::vector<float>& value = values.at(number);
  const std::uint8_t* gradient = slice.begin() + sizeof number;
  for (std::size_t i = 0; i < value.size(); ++i) {
    float g = 0;  // the bytes may not be aligned
    std::memcpy(&g, gradient + i * sizeof g, sizeof g);
    value[i] -= static_cast<float>(kRate) * g;
  }
  return buffer_of(value.data(), value.size() * sizeof(float));
}

// Used from one thread.
class Plain {
 public:
  Plain() : values_(kVariables) {}

  // One variable per call, `depth` calls in flight.
  double cycle(const std::vector<at::Tensor>& gradients, std::size_t depth) {
    return 1e3 * seconds_of([&] {
             peer_.call_many(
                 kVariables, depth, [&](std::size_t i) { return request(i, gradients[i]); },
                 [&](std::size_t i, const grpc::ByteBuffer& reply) { keep(i, reply); });
           });
  }
  const std::vector<at::Tensor>& values() const { return values_; }

 private:
  // Refers to the gradient's memory without a copy.
  static grpc::ByteBuffer request(std::uint64_t number, const at::Tensor& gradient) {
    const grpc::Slice slices[] = {
        grpc::Slice(&number, sizeof number),
        grpc::Slice(gradient.data_ptr(), gradient.nbytes(), grpc::Slice::STATIC_SLICE)};
    return grpc::ByteBuffer(slices, 2);
  }
  // Stores the value contiguously, as a program that computes with it needs it.
  void keep(std::size_t number, const grpc::ByteBuffer& reply) {
    if (!values_[number].defined()) values_[number] = at::empty({kFloats});
    std::vector<grpc::Slice> slices;
    require(reply.Dump(&slices).ok() && reply.Length() == values_[number].nbytes(), "a reply");
    auto* to = static_cast<std::uint8_t*>(values_[number].data_ptr());
    for (const grpc::Slice& slice : slices) {
      std::memcpy(to, slice.begin(), slice.size());
      to += slice.size();
    }
  }

  std::vector<at::Tensor> values_;
  GrpcPeer peer_;
};

// --- ours ------------------------------------------------------------------------------------

// Variables on a parameter server and the frames that a worker exchanges with it. Used from one
// thread.
class Ours {
 public:
  Ours()
      : cluster_({.workers = 1, .ps = 1, .command = {COHORT_COMMAND, "server"}}),
        strategy_(cluster_.resolver()),
        coordinator_(strategy_) {
    for (std::size_t i = 0; i < kVariables; ++i) {
      variables_.push_back(strategy_.variable("v" + std::to_string(i), at::zeros({kFloats})));
    }
    optimizer_.emplace(variables_, SGDOptions{.learning_rate = kRate});
  }

  // The traffic of a worker at the end of one step and the start of the next.
  double cycle(const std::vector<at::Tensor>& gradients) {
    return 1e3 * seconds_of([&] {
             rpc::PushRequest push;
             rpc::PullRequest pull;
             for (std::size_t i = 0; i < kVariables; ++i) {
               const std::uint64_t id = place(i).variable;
               push.effects.push_back({.kind = rpc::Effect::Kind::apply,
                                       .variable = id,
                                       .rule = "sgd",
                                       .optimizer = "sgd",
                                       .hyper = {kRate, 0},
                                       .tensors = {gradients[i]}});
               pull.variables.push_back(id);
             }
             const auto link = strategy_.home()
                                   ->connection()
                                   .ps(static_cast<std::uint32_t>(place(0).server))
                                   .data;
             std::promise<bool> pushed;
             link->request(rpc::to_frame(std::move(push)), [&](rpc::Answer answer) {
               pushed.set_value(std::holds_alternative<rpc::Frame>(answer));
             });
             rpc::Frame frame = link->call(rpc::to_frame(pull), Deadline(), "pull");
             require(pushed.get_future().get(), "a push");
             values_ = std::move(frame.tensors);
           });
  }
  const std::vector<at::Tensor>& values() const { return values_; }

  // The same bytes through a scheduled closure, whose worker computes a gradient as large as w.
  double closure() {
    return 1e3 * seconds_of([&] {
             coordinator_.schedule(step_);
             coordinator_.join();
           });
  }

 private:
  rpc::Slice place(std::size_t i) const { return strategy_.home()->slices_of(variables_[i]).at(0); }
  void step() const {
    std::vector<std::pair<at::Tensor, Variable>> gradients;
    for (const Variable& v : variables_) gradients.emplace_back(v.tensor().detach().mul(1e-3), v);
    optimizer_->apply_gradients(gradients);
  }

  testing::TestCluster cluster_;
  ParameterServerStrategy strategy_;
  ClusterCoordinator coordinator_;
  std::vector<Variable> variables_;
  std::vector<at::Tensor> values_;
  std::optional<SGD> optimizer_;
  const Function step_{[this] { step(); }};
};

void check_equal(Ours& ours, Plain& plain, const std::vector<at::Tensor>& gradients) {
  for (int i = 0; i < 3; ++i) {
    ours.cycle(gradients);
    plain.cycle(gradients, 4);
  }
  for (std::size_t i = 0; i < kVariables; ++i) {
    const bool is_equal = at::equal(ours.values()[i], plain.values()[i]);
    require(is_equal && ours.values()[i][0].item<float>() != 0, "variable " + std::to_string(i));
  }
}

void run(const Bench& bench) {
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < kVariables; ++i) {
    gradients.push_back(at::full({kFloats}, 1.0 + static_cast<double>(i), at::kFloat));
  }
  Ours ours;
  Plain plain;
  check_equal(ours, plain, gradients);
  bench.compare(
      "push 160 MiB, SGD, pull 160 MiB", {.unit = "ms"},
      {{"gRPC unary of raw bytes, 4 in flight", [&] { return plain.cycle(gradients, 4); }},
       {"gRPC unary of raw bytes, 40 in flight", [&] { return plain.cycle(gradients, 40); }},
       {"gRPC unary of raw bytes, 1 in flight", [&] { return plain.cycle(gradients, 1); }},
       {"cohort, push and pull frames", [&] { return ours.cycle(gradients); }},
       {"cohort, a closure that computes the gradients", [&] { return ours.closure(); }}});
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  if (cohort::bench::served_as_peer(argc, argv, cohort::bench::update)) return 0;
  cohort::bench::run(cohort::bench::Bench(argc, argv));
  return 0;
}
