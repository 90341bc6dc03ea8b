// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/replica_collective.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <typeinfo>
#include <utility>

#include "cohort/core/autograd_node.h"
#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/input/input_host.h"
#include "cohort/strategy/backward_context.h"
#include "cohort/strategy/replica_trace.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/workers/worker_values.h"

namespace cohort::internal {
namespace {

using Kind = CollectiveCall::Kind;
using Tensors = std::vector<at::Tensor>;

bool is_differentiable(const at::Tensor& tensor) {
  return tensor.defined() && !StringTensor::is(tensor) && tensor.layout() == at::kStrided &&
         (tensor.is_floating_point() || tensor.is_complex());
}

bool requires_grad(const at::Tensor& tensor) {
  return tensor.defined() && !StringTensor::is(tensor) && tensor.requires_grad();
}

// A tensor in memory of its own, without a graph.
at::Tensor plain_copy(const at::Tensor& tensor, const at::Device& device) {
  if (StringTensor::is(tensor)) return tensor;  // immutable
  return tensor.detach().to(device, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

// The contribution of one replica to a meeting. An error in its value is part of it, so that all
// replicas throw it.
struct Offer {
  const CollectiveCall& call;
  const Nest& value;
  Tensors leaves = {};
  std::exception_ptr error = {};
  bool enables_grad = c10::GradMode::is_enabled();
  bool requires_graph = false;
};

Offer offer_of(const CollectiveCall& call, const Nest& value) {
  Offer offer{call, value};
  try {
    for (const Nest& leaf : value.flatten()) {
      offer.leaves.push_back(tensor_of(leaf, call.name()));
      const at::Tensor& tensor = offer.leaves.back();
      if (call.kind == Kind::gather) check_is_dense(tensor, call.name());
      if (!offer.enables_grad || !requires_grad(tensor)) continue;
      COHORT_CHECK(call.kind == Kind::gather || call.op <= ReduceOp::mean, ErrorCode::unimplemented,
                   "[strategy.", call.name(),
                   "] expected a value without a gradient for ReduceOp::", cohort::name_of(call.op),
                   ", got one that requires a gradient; detach() it");
      COHORT_CHECK(is_differentiable(tensor), ErrorCode::unimplemented, "[strategy.", call.name(),
                   "] expected dense tensors where a gradient is required, got layout ",
                   tensor.layout(), "; detach() it, or make it dense first with to_dense()");
      offer.requires_graph = true;
    }
  } catch (...) {
    offer.error = std::current_exception();
  }
  return offer;
}

// The outcome of a meeting, computed from the offers.
struct Outcome {
  // For each local replica, the results of the leaves, in memory of its own. Each takes its own.
  mutable std::vector<Tensors> results = {};
  bool requires_graph = false;
  // For a concatenation: for each leaf, the sizes of all replicas' parts.
  std::vector<std::vector<std::int64_t>> sizes = {};
  std::shared_ptr<const void> call = std::make_shared<const char>();
};

void check_one_call(const std::vector<const Offer*>& offers) {
  const CollectiveCall& first = offers.front()->call;
  for (std::size_t i = 0; i < offers.size(); ++i) {
    if (offers[i]->error) std::rethrow_exception(offers[i]->error);
    const CollectiveCall& other = offers[i]->call;
    const std::string what = "[strategy." + std::string(first.name()) + "]";
    COHORT_CHECK(other.text() == first.text(), ErrorCode::invalid_argument, what,
                 " expected the same call in all replicas, got ", first.text(),
                 " in local replica 0 and ", other.text(), " in ", i);
    COHORT_CHECK(other.gradient_of == first.gradient_of, ErrorCode::invalid_argument, what,
                 " expected the gradient of one call in all replicas, got that of another call in "
                 "local replica ",
                 i, " than in 0; make the backward passes in the same order in all");
    Nest::check_same_structure(offers.front()->value, offers[i]->value,
                               what + " the value of local replica " + std::to_string(i));
  }
}

// The last contribution tells whether each replica enables gradients, and requires one.
Reduction::Parts flags_of(bool enables_grad, bool requires_graph) {
  return {.value = at::tensor({static_cast<std::int64_t>(enables_grad),
                               static_cast<std::int64_t>(requires_graph)})};
}

auto has_flag(std::int64_t i) {
  return [i](const Reduction::Parts& flag) { return flag.value[i].item<std::int64_t>() != 0; };
}

bool is_graph_required(const std::vector<Reduction::Parts>& flags) {
  return std::ranges::any_of(flags, has_flag(1));
}

void check_grad_modes(const std::vector<Reduction::Parts>& flags, const CollectiveCall& call) {
  const auto without = std::ranges::find_if_not(flags, has_flag(0));
  COHORT_CHECK(
      !is_graph_required(flags) || without == flags.end(), ErrorCode::invalid_argument,
      "[strategy.", call.name(),
      "] expected gradients to be enabled in all replicas, since the value of one requires "
      "a gradient, got a NoGradGuard in replica ",
      without - flags.begin(), "; detach() the value, or use the guard in all");
}

Contributions contributions_of(const std::vector<const Offer*>& offers) {
  check_one_call(offers);
  const CollectiveCall& call = offers.front()->call;
  Contributions own(offers.front()->leaves.size() + 1);
  for (const Offer* offer : offers) {
    for (std::size_t leaf = 0; leaf < offer->leaves.size(); ++leaf)
      own[leaf].push_back(call.part_of(offer->leaves[leaf]));
    own.back().push_back(flags_of(offer->enables_grad, offer->requires_graph));
  }
  return own;
}

std::shared_ptr<const Outcome> merged(Strategy& strategy, const std::vector<const Offer*>& offers) {
  const c10::NoGradGuard no_grad;
  const CollectiveCall& call = offers.front()->call;
  Contributions all = of_all_workers(
      StrategyAccess::workers(strategy), call.name(),
      [&] { return call.text_with(offers.front()->value); },
      [&] { return contributions_of(offers); }, call.timeout);
  const auto outcome = std::make_shared<Outcome>();
  check_grad_modes(all.back(), call);
  outcome->requires_graph = is_graph_required(all.back());
  all.pop_back();
  Tensors results;
  for (const std::vector<Reduction::Parts>& parts : all) {
    results.push_back(call.combined(parts, StrategyAccess::traits(strategy).cross_device_ops));
    if (call.kind == Kind::reduce) continue;
    std::vector<std::int64_t>& sizes = outcome->sizes.emplace_back();
    for (const Reduction::Parts& part : parts) sizes.push_back(part.value.size(call.axis));
  }
  // The first replica could take the results themselves, unless they are a part of an argument.
  for (const Offer* offer : offers) {
    Tensors& own = outcome->results.emplace_back();
    for (std::size_t leaf = 0; leaf < results.size(); ++leaf) {
      const bool has_device = !StringTensor::is(offer->leaves[leaf]);
      own.push_back(
          plain_copy(results[leaf], has_device ? offer->leaves[leaf].device() : at::kCPU));
    }
  }
  return outcome;
}

// The part of a concatenation that is one replica's.
struct Segment {
  std::int64_t first = 0;
  std::int64_t size = 0;
};

// The node that makes the backward pass of one replica meet those of the others. For tensors on a
// GPU it runs on the thread that LibTorch has for that GPU.
class Gradient final : public torch::autograd::Node {
 public:
  Gradient(const ReplicaContext& context, CollectiveCall backward, std::int64_t axis,
           std::vector<Segment> segments)
      : context_(context),
        backward_(std::move(backward)),
        axis_(axis),
        segments_(std::move(segments)) {}
  std::string name() const override { return "CohortCollectiveGradient"; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (!input_metadata(0).device().is_cpu()) check_one_run_on_gpus();
    Nest::Items items;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const bool is_given = gradients[i].defined();
      items.emplace_back(is_given ? gradients[i]
                                  : input_metadata(static_cast<int>(i)).zeros_like());
    }
    torch::autograd::variable_list results =
        call_together(context_, backward_, Nest::list(std::move(items))).flatten_tensors();
    for (std::size_t i = 0; i < segments_.size(); ++i)
      results[i] = results[i].narrow(axis_, segments_[i].first, segments_[i].size);
    return results;
  }

 private:
  const ReplicaContext context_;
  const CollectiveCall backward_;
  const std::int64_t axis_;
  const std::vector<Segment> segments_;  // none: of a reduction
};

// Connects the results of this replica with the values that it brought.
void set_graph(const ReplicaContext& context, const Offer& offer, const Outcome& outcome,
               Tensors& results) {
  const CollectiveCall& call = offer.call;
  const auto replica = static_cast<std::ptrdiff_t>(context.replica_id_in_sync_group());
  Tensors inputs;
  std::vector<std::size_t> outputs;
  std::vector<Segment> segments;
  for (std::size_t leaf = 0; leaf < results.size(); ++leaf) {
    if (!is_differentiable(offer.leaves[leaf])) continue;
    inputs.push_back(offer.leaves[leaf]);
    outputs.push_back(leaf);
    if (call.kind != Kind::gather) continue;
    const std::vector<std::int64_t>& sizes = outcome.sizes[leaf];
    segments.push_back({std::accumulate(sizes.begin(), sizes.begin() + replica, std::int64_t{0}),
                        sizes[static_cast<std::size_t>(replica)]});
  }
  CollectiveCall backward{.kind = Kind::reduce,
                          .op = call.kind == Kind::reduce ? call.op : ReduceOp::sum,
                          .timeout = call.timeout,
                          .gradient_of = outcome.call,
                          .made_by = call.made_by};
  const auto node =
      make_node<Gradient>(context, std::move(backward), call.axis, std::move(segments));
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (const std::size_t leaf : outputs) torch::autograd::set_history(results[leaf], node);
}

// A call in a traced step.
class RecordedCollective final : public StepCall {
 public:
  RecordedCollective(const CollectiveCall& call, const Offer& offer, StrategyWorkers* workers)
      : text_(call.text_with(offer.value)),
        call_(call),
        enables_grad_(offer.enables_grad),
        requires_graph_(offer.requires_graph),
        workers_(workers) {
    // Replicas whose backward passes have another order would combine gradients of different calls.
    if (call.gradient_of) text_ += ", of call " + std::to_string(number_of(call.gradient_of));
  }
  // The identity of a call for CollectiveCall::gradient_of: its number among those of the replica.
  static std::shared_ptr<const void> numbered(std::size_t number) {
    return std::make_shared<const std::size_t>(number);
  }

  std::string text() const override { return text_; }
  std::string text_over_workers() const override {
    return text_ + std::string(requires_graph_ ? ", whose value requires a gradient" : "") +
           (enables_grad_ ? "" : ", without gradients");
  }

  std::unique_ptr<const JoinedCall> join(const std::vector<const StepCall*>& all) const override {
    std::vector<Reduction::Parts> flags;
    bool are_alike = true;
    for (const StepCall* each : all) {
      const auto& one = static_cast<const RecordedCollective&>(*each);
      flags.push_back(flags_of(one.enables_grad_, one.requires_graph_));
      are_alike = are_alike && one.requires_graph_ == requires_graph_;
    }
    check_grad_modes(flags, call_);
    COHORT_CHECK(are_alike, ErrorCode::unimplemented, "[strategy.", call_.name(),
                 "] expected a value that requires a gradient in all replicas of a traced step, or "
                 "in none, got both; detach() it, or call run() in place of function()");
    return joined_collective(call_, workers_);
  }

 private:
  static std::size_t number_of(const std::shared_ptr<const void>& call) {
    return *static_cast<const std::size_t*>(call.get());
  }

  std::string text_;
  const CollectiveCall call_;
  const bool enables_grad_, requires_graph_;
  StrategyWorkers* const workers_;
};

// The tensor's first rows along the axis, and as many zeros as it has too few.
at::Tensor resized(const at::Tensor& tensor, std::int64_t axis, std::int64_t size) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes[static_cast<std::size_t>(axis)] = size;
  const at::Tensor result = at::zeros(sizes, tensor.options().requires_grad(false));
  const std::int64_t common = std::min(size, tensor.size(axis));
  result.narrow(axis, 0, common).copy_(tensor.narrow(axis, 0, common));
  return result;
}

// Results as a call will have them, of the right shapes.
Tensors example_of(ReplicaTrace& trace, const Offer& offer,
                   std::vector<std::vector<std::int64_t>>& sizes) {
  const CollectiveCall& call = offer.call;
  Tensors results;
  for (const at::Tensor& leaf : offer.leaves) {
    // Throws for a leaf that cannot be combined, such as one without the axis.
    // The numbers do not matter. A sum of equal integers might be larger than their type can hold.
    const bool is_whole = leaf.defined() && !StringTensor::is(leaf) &&
                          leaf.layout() == at::kStrided &&
                          at::isIntegralType(leaf.scalar_type(), /*includeBool=*/false);
    const at::Tensor of_equal_parts = call.combined(
        std::vector(trace.replicas(), call.part_of(is_whole ? at::zeros_like(leaf) : leaf)));
    if (call.kind == Kind::reduce) {
      results.push_back(of_equal_parts);
      continue;
    }
    sizes.push_back(trace.next_gather(leaf.size(call.axis)));
    std::vector<Reduction::Parts> parts;
    for (const std::int64_t size : sizes.back())
      parts.push_back(call.part_of(resized(leaf, call.axis, size)));
    results.push_back(call.combined(parts));
  }
  return results;
}

Nest recorded(ReplicaTrace& trace, const ReplicaContext& context, const CollectiveCall& call,
              const Nest& value) {
  const Offer own = offer_of(call, value);
  if (own.error) std::rethrow_exception(own.error);
  Outcome outcome;
  outcome.requires_graph = own.requires_graph;
  outcome.call = RecordedCollective::numbered(trace.next_collective());
  auto made =
      std::make_shared<RecordedCollective>(call, own, StrategyAccess::workers(context.strategy()));
  Tensors results = trace.record(std::move(made), own.leaves, {},
                                 [&] { return example_of(trace, own, outcome.sizes); });
  if (outcome.requires_graph) set_graph(context, own, outcome, results);
  return packed(value, {results.begin(), results.end()});
}

// With one replica in sync.
Nest copied(const CollectiveCall& call, const Nest& value) {
  const Offer offer = offer_of(call, value);
  if (offer.error) std::rethrow_exception(offer.error);
  std::vector<Nest> copies;
  for (const at::Tensor& leaf : offer.leaves) {
    COHORT_CHECK(leaf.defined(), ErrorCode::invalid_argument, "[strategy.", call.name(),
                 "] expected tensors, got an undefined one");
    copies.emplace_back(StringTensor::is(leaf) ? leaf : leaf.clone());
  }
  return packed(value, std::move(copies));
}

}  // namespace

Reduction::Parts CollectiveCall::part_of(const at::Tensor& value) const {
  if (kind == Kind::gather) return {.value = value};
  const Reduction reduction(op, {}, "strategy.all_reduce");
  return reduction.parts(value.defined() ? value.detach() : value);
}

at::Tensor CollectiveCall::combined(const std::vector<Reduction::Parts>& parts,
                                    CrossDeviceOps cross_device_ops) const {
  if (kind == Kind::gather) return concatenated(parts, axis, name());
  const Reduction reduction(op, {}, "strategy.all_reduce", cross_device_ops);
  return reduction.result(reduction.sum(parts));
}

Nest call_together(const ReplicaContext& context, const CollectiveCall& call, const Nest& value) {
  StrategyAccess::check_is_current(context, call.name());
  if (context.num_replicas_in_sync() == 1) return copied(call, value);
  if (ReplicaTrace* const trace = ReplicaTrace::current())
    return recorded(*trace, context, call, value);
  const Offer own = offer_of(call, value);
  const auto merge = [&](const std::vector<const void*>& all) -> std::shared_ptr<const void> {
    std::vector<const Offer*> offers;
    for (const void* offer : all) offers.push_back(static_cast<const Offer*>(offer));
    return merged(context.strategy(), offers);
  };
  const bool is_named = call.gradient_of || !call.made_by.empty();
  const std::string name = is_named ? call.text() : std::string(call.name());
  const std::shared_ptr<const void> met =
      StrategyAccess::meet(context, {&typeid(Offer), &own, name}, merge);
  const Outcome& outcome = *static_cast<const Outcome*>(met.get());
  Tensors results =
      std::move(outcome.results[static_cast<std::size_t>(context.local_replica_id())]);
  if (outcome.requires_graph) set_graph(context, own, outcome, results);
  return packed(value, {results.begin(), results.end()});
}

}  // namespace cohort::internal
