// SPDX-License-Identifier: Apache-2.0
// barrier() and broadcast() of the workers of a strategy.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/scalar_tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "cohort/core/call_site.h"
#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/strategy/contexts.h"
#include "cohort/strategy/strategy.h"
#include "cohort/workers/strategy_workers.h"
#include "cohort/workers/worker_values.h"

namespace cohort {
namespace {

void check_synchronous(const Strategy& strategy, std::string_view call,
                       const internal::StrategyTraits& traits) {
  internal::check_can_run(strategy, call);
  COHORT_CHECK(!traits.is_asynchronous || !traits.is_multi_worker, ErrorCode::unimplemented,
               "[strategy.", call, "] expected a synchronous strategy, got '", strategy.name(),
               "', whose workers never wait for each other; let one assign a variable, and the "
               "others read it until it has changed");
  COHORT_CHECK(!traits.is_asynchronous, ErrorCode::unimplemented, "[strategy.", call,
               "] expected a synchronous strategy, whose workers all run this program, got '",
               strategy.name(),
               "', where one program gives work to its workers; ClusterCoordinator::join() waits "
               "for all of it");
}

// Numbers, bools and texts travel as tensors that hold them exactly.
at::Tensor sent_leaf(const Nest& leaf) {
  switch (leaf.kind()) {
    case Nest::Kind::integer:
      return at::scalar_tensor(leaf.integer(), at::kLong);
    case Nest::Kind::real:
      return at::scalar_tensor(leaf.real(), at::kDouble);
    case Nest::Kind::boolean:
      return at::scalar_tensor(leaf.boolean(), at::kBool);
    case Nest::Kind::text:
      return StringTensor(leaf.text()).tensor();
    case Nest::Kind::tensor: {
      internal::check_is_dense(leaf.tensor(), "broadcast");
      return StringTensor::is(leaf.tensor()) ? leaf.tensor()
                                             : leaf.tensor().detach().cpu().contiguous();
    }
    default:
      internal::throw_error(ErrorCode::invalid_argument,
                            "[strategy.broadcast] expected tensors, numbers, bools and texts, got ",
                            name_of(leaf.kind()), "; leave it out of the value");
  }
}

Nest received_leaf(const Nest& own, const at::Tensor& sent) {
  switch (own.kind()) {
    case Nest::Kind::integer:
      return sent.item<std::int64_t>();
    case Nest::Kind::real:
      return sent.item<double>();
    case Nest::Kind::boolean:
      return sent.item<bool>();
    case Nest::Kind::text:
      return std::string(StringTensor::of(sent).value());
    default: {
      const bool is_plain = StringTensor::is(sent) || StringTensor::is(own.tensor());
      return is_plain ? sent : sent.to(own.tensor().device());
    }
  }
}

}  // namespace

void Strategy::barrier(std::string_view name, std::optional<Duration> timeout) {
  const internal::CallSite site("is in barrier()");
  check_synchronous(*this, "barrier", traits());
  internal::StrategyWorkers* const all = workers();
  if (all == nullptr || !all->are_several()) return;
  const std::string text = "barrier '" + std::string(name) + "'";
  all->exchange({.call = "barrier", .text = text, .timeout = timeout, .combines = false},
                [] { return internal::StrategyWorkers::Message{}; });
}

Nest Strategy::broadcast(const Nest& value, int from) {
  const internal::CallSite site("is in broadcast()");
  check_synchronous(*this, "broadcast", traits());
  internal::StrategyWorkers* const all = workers();
  const bool are_several = all != nullptr && all->are_several();
  if (!are_several) {
    internal::check_worker(from, 1, "broadcast");
    return value;
  }
  const std::vector<Nest> leaves = value.flatten();
  const auto own = [&] {
    std::vector<at::Tensor> tensors;
    for (const Nest& leaf : leaves) tensors.push_back(sent_leaf(leaf));
    return tensors;
  };
  const std::vector<at::Tensor> sent = internal::of_one_worker(
      *all, from, "broadcast",
      [&] { return "broadcast(from " + std::to_string(from) + ") of " + value.structure(); }, own);
  COHORT_CHECK(sent.size() == leaves.size(), ErrorCode::data_loss, "[strategy.broadcast] expected ",
               leaves.size(), " values of worker ", from, ", got ", sent.size());
  std::vector<Nest> results;
  for (std::size_t i = 0; i < leaves.size(); ++i)
    results.push_back(received_leaf(leaves[i], sent[i]));
  return internal::packed(value, std::move(results));
}

at::Tensor Strategy::broadcast(const at::Tensor& value, int from) {
  return broadcast(Nest(value), from).tensor();
}

}  // namespace cohort
