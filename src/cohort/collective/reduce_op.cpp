// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/reduce_op.h"

#include <cctype>
#include <string>

#include "cohort/core/error.h"

namespace cohort {
namespace {

ReduceOp op_of(std::string_view name) {
  std::string upper(name);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (upper == "SUM") return ReduceOp::sum;
  COHORT_CHECK(upper == "MEAN", ErrorCode::invalid_argument,
               "[strategy.reduce] expected the operation \"SUM\" or \"MEAN\", got \"", name, "\"");
  return ReduceOp::mean;
}

}  // namespace

ReduceOpOrName::ReduceOpOrName(std::string_view name) : op_(op_of(name)) {}

}  // namespace cohort
