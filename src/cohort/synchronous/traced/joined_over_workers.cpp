// SPDX-License-Identifier: Apache-2.0
// How the replicas of all workers agree on a step of strategy.function().
#include <utility>

#include "cohort/core/bytes.h"
#include "cohort/core/error.h"
#include "cohort/synchronous/traced/joined_programs.h"
#include "cohort/workers/strategy_workers.h"

namespace cohort::internal {
namespace {

// How many times the sizes in all_gather() are compared; where they differ, programs are traced
// again.
constexpr int kGatherRounds = 8;

}  // namespace

std::vector<Bytes> exchanged(StrategyWorkers* workers, std::string_view text,
                             const std::function<StrategyWorkers::Message()>& make) {
  if (workers == nullptr || !workers->are_several()) return {make().bytes};
  return workers->exchange({.call = "function", .text = text, .combines = false}, make);
}

std::shared_ptr<const JoinedPrograms> joined(ReplicaPrograms members, MirroredHome* home,
                                             const std::string& name, const TraceAgain& trace) {
  StrategyWorkers* const workers = home == nullptr ? nullptr : home->workers();
  bool are_all_settled = false;
  for (int round = 0; round < kGatherRounds && !are_all_settled; ++round) {
    std::vector<GatherSizes> sizes;
    const auto make = [&]() -> StrategyWorkers::Message {
      const std::vector<GatherSizes> own = gather_sizes_of(members);
      ByteWriter writer;
      for (const GatherSizes& each : own) writer.sizes(each);
      sizes.resize(own.size());
      return {std::to_string(own.size()) + " calls of all_gather()", writer.take()};
    };
    for (const Bytes& bytes : exchanged(workers, "", make)) {
      ByteReader reader(bytes, "function");
      for (GatherSizes& each : sizes) {
        const std::vector<std::int64_t> of_worker = reader.sizes();
        each.insert(each.end(), of_worker.begin(), of_worker.end());
      }
    }
    const auto settle = [&]() -> StrategyWorkers::Message {
      std::uint8_t is_settled = 1;
      for (std::size_t r = 0; r < members.size(); ++r) {
        if (members[r]->assumed_gathers() == sizes) continue;
        is_settled = 0;
        members[r] = trace(r, sizes);
      }
      ByteWriter writer;
      writer.u8(is_settled);
      return {"sizes in all_gather()", writer.take()};
    };
    are_all_settled = true;
    for (const Bytes& bytes : exchanged(workers, "", settle))
      are_all_settled = are_all_settled && ByteReader(bytes, "function").u8() != 0;
  }
  COHORT_CHECK(are_all_settled, ErrorCode::unimplemented, "[strategy.all_gather] expected at most ",
               kGatherRounds, " calls one after the other whose sizes depend on each other in '",
               name, "'; call run() in place of function()");
  std::vector<std::int64_t> of_others;
  const auto make = [&]() -> StrategyWorkers::Message {
    const StepCalls calls = step_calls_of(members);
    ByteWriter writer;
    writer.sizes(calls.counts);
    of_others.assign(calls.counts.size(), 0);
    return {"a step of function() with these calls" + calls.text, writer.take()};
  };
  const std::vector<Bytes> all = exchanged(workers, "", make);
  for (std::size_t worker = 0; worker < all.size(); ++worker) {
    const std::vector<std::int64_t> counts = ByteReader(all[worker], "function").sizes();
    if (static_cast<int>(worker) == (workers == nullptr ? 0 : workers->own())) continue;
    for (std::size_t i = 0; i < of_others.size(); ++i) of_others[i] += counts.at(i);
  }
  return std::make_shared<const JoinedPrograms>(std::move(members), home, of_others);
}

}  // namespace cohort::internal
