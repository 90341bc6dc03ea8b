// SPDX-License-Identifier: Apache-2.0
#include <cctype>
#include <string>

#include "cohort/collective/group.h"
#include "cohort/core/error.h"

namespace cohort {
namespace {

std::string upper(std::string_view name) {
  std::string result(name);
  for (char& c : result) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

ReduceOp op_of(std::string_view name) {
  const std::string known = upper(name);
  if (known == "SUM") return ReduceOp::sum;
  COHORT_CHECK(known == "MEAN", ErrorCode::invalid_argument,
               "[strategy.reduce] expected the operation \"SUM\" or \"MEAN\", got \"", name,
               "\"; the largest and the smallest value are ReduceOp::max and ReduceOp::min");
  return ReduceOp::mean;
}

}  // namespace

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::mean:
      return "mean";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
  }
  return "an unknown operation";
}

ReduceOpOrName::ReduceOpOrName(std::string_view name) : op_(op_of(name)) {}

CommunicationImplementation communication_implementation(std::string_view name) {
  const std::string known = upper(name);
  if (known == "AUTO") return CommunicationImplementation::automatic;
  if (known == "RING") return CommunicationImplementation::ring;
  COHORT_CHECK(known == "NCCL", ErrorCode::invalid_argument,
               "[collective.options] expected the implementation \"AUTO\", \"RING\" or \"NCCL\", "
               "got \"",
               name, "\"");
  return CommunicationImplementation::nccl;
}

void CommunicationOptions::check() const {
  COHORT_CHECK(bytes_per_pack >= 0, ErrorCode::invalid_argument,
               "[collective.options] expected bytes_per_pack >= 0, got ", bytes_per_pack,
               "; 0 sends all tensors together");
  COHORT_CHECK(!timeout || *timeout >= Duration::zero(), ErrorCode::invalid_argument,
               "[collective.options] expected a timeout >= 0, got ",
               std::chrono::duration<double>(timeout.value_or(Duration::zero())).count(),
               " s; leave it out for the timeout of the strategy");
  COHORT_CHECK(implementation <= CommunicationImplementation::nccl, ErrorCode::invalid_argument,
               "[collective.options] expected an implementation that exists, got number ",
               static_cast<int>(implementation));
}

CommunicationOptions CommunicationOptions::merged_with(const CommunicationOptions& call) const {
  CommunicationOptions merged = *this;
  if (call.bytes_per_pack != 0) merged.bytes_per_pack = call.bytes_per_pack;
  if (call.timeout) merged.timeout = call.timeout;
  if (call.implementation != CommunicationImplementation::automatic)
    merged.implementation = call.implementation;
  return merged;
}

namespace internal {

std::vector<std::vector<std::int64_t>> packs_of(const std::vector<std::int64_t>& sizes,
                                                std::int64_t bytes_per_pack) {
  std::vector<std::vector<std::int64_t>> packs;
  std::int64_t bytes = 0;  // in the last pack
  for (const std::int64_t size : sizes) {
    const bool is_full = bytes_per_pack > 0 && bytes > bytes_per_pack;
    if (packs.empty() || is_full) {
      packs.emplace_back();
      bytes = 0;
    }
    packs.back().push_back(size);
    bytes += size;
  }
  return packs;
}

}  // namespace internal

}  // namespace cohort
