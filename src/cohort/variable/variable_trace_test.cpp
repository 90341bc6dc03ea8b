// SPDX-License-Identifier: Apache-2.0
#include "cohort/testing/variable_trace_cases.h"

namespace cohort::testing {
namespace {

Variable make_local_for_trace() { return local_variable("w", filled(1)); }

INSTANTIATE_TEST_SUITE_P(Local, VariableInATrace, ::testing::Values(&make_local_for_trace));

}  // namespace
}  // namespace cohort::testing
