// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/auto_shard.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "cohort/core/log.h"
#include "cohort/data/sharding/shard_plan.h"

namespace cohort {

Dataset auto_shard(const Dataset& dataset, const AutoShardOptions& options) {
  data::ShardPlan plan = data::plan_shards(dataset, options);
  for (const std::string& warning : plan.decision.warnings) {
    log_warn("[data.auto_shard] ", warning);
  }
  return Dataset(std::move(plan.graph));
}

ShardDecision shard_decision(const Dataset& dataset, const AutoShardOptions& options) {
  return data::plan_shards(dataset, options).decision;
}

std::optional<std::int64_t> ShardDecision::file_count() const {
  std::optional<std::int64_t> fewest;
  for (const FileStream& stream : files) {
    if (!stream.file_count) return std::nullopt;
    fewest = std::min(*stream.file_count, fewest.value_or(*stream.file_count));
  }
  return fewest;
}

std::string name_of(AutoShardPolicy policy) {
  static constexpr std::array<const char*, 5> kNames{"OFF", "AUTO", "FILE", "DATA", "HINT"};
  const int number = static_cast<int>(policy);  // from -1 on
  if (number < -1 || number > 3) return "policy " + std::to_string(number);
  return kNames[static_cast<std::size_t>(number + 1)];
}

std::string ShardDecision::to_string() const {
  std::ostringstream text;
  text << name_of(taken);
  if (asked != taken) text << " (" << name_of(asked) << " asked)";
  text << ": " << reason;
  for (const FileStream& stream : files) {
    text << ", '" << stream.reader << "' ";
    if (stream.file_count) {
      text << *stream.file_count << " of them";
    } else {
      text << "as many as its names";
    }
  }
  if (is_by_index) text << ", by index";
  if (is_split) text << ", each batch split evenly";
  return text.str();
}

}  // namespace cohort
