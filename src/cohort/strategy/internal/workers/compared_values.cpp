// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/internal/workers/compared_values.h"

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/detail/crc32c.h"
#include "cohort/core/detail/random.h"
#include "cohort/core/error.h"
#include "cohort/strategy/internal/mirrored_variable.h"
#include "cohort/strategy/internal/workers/strategy_workers.h"

namespace cohort::internal {
namespace {

// In place of a hash of values.
constexpr std::uint64_t kMayDiffer = 0, kReplicasDiffer = 1;

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
    for (const Variable& each : variables) writer.u64(hash_of_value(each));
    return {"\n" + state(), writer.take()};
  };
  const std::vector<Bytes> all =
      workers.exchange({.call = call, .text = "the values of variables"}, make);
  for (std::size_t worker = 0; worker < all.size(); ++worker) {
    ByteReader first(all[0], call);
    ByteReader other(all[worker], call);
    for (const Variable& each : variables) {
      const std::uint64_t a = first.u64(), b = other.u64();
      if (a == b && b != kReplicasDiffer) continue;
      const std::string name = workers.name_of(static_cast<int>(worker));
      throw_error(ErrorCode::failed_precondition,
                  "[strategy.run] expected equal values of variable '", each.name(),
                  "' on all workers, got different ones ",
                  b == kReplicasDiffer ? "in the replicas of " + name
                                       : "on " + workers.name_of(0) + " and " + name,
                  ": something other than minimize() and assign*() has written into its tensor, "
                  "or a worker has assigned another value; make the same assignments on each "
                  "worker, or restore the values of all");
    }
  }
  for (const Variable& each : variables) target_of(each).variable.know_values();
}

}  // namespace cohort::internal
