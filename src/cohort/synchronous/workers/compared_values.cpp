// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/workers/compared_values.h"

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/crc32c.h"
#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "cohort/synchronous/mirrored/mirrored_variable.h"
#include "cohort/workers/strategy_workers.h"

namespace cohort::internal {
namespace {

// In place of a hash of values.
constexpr std::uint64_t kReplicasDiffer = 1;

std::map<std::string, std::uint64_t> decoded(const Bytes& bytes, std::string_view call) {
  ByteReader reader(bytes, call);
  std::map<std::string, std::uint64_t> hashes;
  for (std::size_t left = reader.count(); left > 0; --left) {
    std::string name = reader.text();
    hashes.emplace(std::move(name), reader.u64());
  }
  return hashes;
}

}  // namespace

std::uint64_t hash_of_value(const Variable& handle) {
  const auto& [variable, component] = target_of(handle);
  if (component || variable.is_on_read() || variable.may_differ()) return kMayDiffer;
  if (variable.must_agree() && !variable.agrees()) return kReplicasDiffer;
  const at::Tensor value = variable.component(0).detach().cpu().contiguous();
  const std::string_view bytes(static_cast<const char*>(value.data_ptr()), value.nbytes());
  return mix_seed(crc32c(bytes), 1);
}

void compare_values(StrategyWorkers& workers, std::string_view call,
                    std::span<const Variable> variables,
                    const std::function<std::string()>& state) {
  const auto make = [&]() -> StrategyWorkers::Message {
    ByteWriter writer;
    writer.varint(variables.size());
    for (const Variable& each : variables) {
      writer.text(each.name());
      writer.u64(hash_of_value(each));
    }
    return {"\n" + state(), writer.take()};
  };
  // Other calls that compare values have other texts.
  const std::string text = "the values of variables for " + std::string(call);
  const std::vector<Bytes> all =
      workers.exchange({.call = call, .text = text, .combines = false}, make);
  const std::map<std::string, std::uint64_t> first = decoded(all[0], call);
  for (std::size_t worker = 0; worker < all.size(); ++worker) {
    for (const auto& [variable, b] : decoded(all[worker], call)) {
      const auto found = first.find(variable);
      if (found == first.end() || (found->second == b && b != kReplicasDiffer)) continue;
      const std::string name = workers.name_of(static_cast<int>(worker));
      const bool has_module = call.find('.') != std::string_view::npos;
      throw_error(ErrorCode::failed_precondition, "[strategy.", has_module ? "run" : call,
                  "] expected equal values of variable '", variable,
                  "' on all workers, got different ones ",
                  b == kReplicasDiffer ? "in the replicas of " + name
                                       : "on " + workers.name_of(0) + " and " + name,
                  ": something other than minimize() and assign*() has written into its tensor, "
                  "such as an optimizer of LibTorch, or a worker has assigned another value, or "
                  "the options or the state of the TorchOptimizers differ between the workers, as "
                  "after a load on one of them; use minimize() or a cohort::TorchOptimizer with "
                  "the same options and state, make the same assignments on each worker, or "
                  "restore the values of all");
    }
  }
  for (const Variable& each : variables) target_of(each).variable.know_values();
}

}  // namespace cohort::internal
