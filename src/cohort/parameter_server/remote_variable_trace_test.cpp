// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/remote_home.h"
#include "cohort/testing/variable_trace_cases.h"

namespace cohort::testing {
namespace {

// Reading or updating it outside of a trace fails, since there is no server.
Variable make_remote_for_trace() {
  static const auto kHome = std::make_shared<RemoteHome>(
      std::make_shared<parameter_server::ServerLinks>(parameter_server::ServerLinks::Options{}));
  return Variable(
      std::make_shared<RemoteVariable>("w", filled(1).requires_grad_(), true, 1, kHome));
}

INSTANTIATE_TEST_SUITE_P(Remote, VariableInATrace, ::testing::Values(&make_remote_for_trace));

}  // namespace
}  // namespace cohort::testing
