// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/detail/remote_home.h"
#include "cohort/testing/variable_trace_cases.h"

namespace cohort::testing {
namespace {

// Reading or updating it outside of a trace fails, since it has no home.
Variable make_remote_for_trace() {
  return Variable(std::make_shared<RemoteVariable>("w", filled(1).requires_grad_(), true,
                                                   RemotePlacement(), std::weak_ptr<RemoteHome>()));
}

INSTANTIATE_TEST_SUITE_P(Remote, VariableInATrace, ::testing::Values(&make_remote_for_trace));

}  // namespace
}  // namespace cohort::testing
