// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server_strategy/dataset_function_scope.h"

namespace cohort {
namespace {

thread_local bool is_in_dataset_function = false;

}  // namespace

DatasetFunctionScope::DatasetFunctionScope() : is_inside_(is_in_dataset_function, true) {}
bool DatasetFunctionScope::is_on_this_thread() { return is_in_dataset_function; }

}  // namespace cohort
