// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server_strategy/dataset_function_scope.h"

#include <utility>

namespace cohort {
namespace {

thread_local bool is_in_dataset_function = false;

}  // namespace

DatasetFunctionScope::DatasetFunctionScope()
    : was_on_this_thread_(std::exchange(is_in_dataset_function, true)) {}
DatasetFunctionScope::~DatasetFunctionScope() { is_in_dataset_function = was_on_this_thread_; }
bool DatasetFunctionScope::is_on_this_thread() { return is_in_dataset_function; }

}  // namespace cohort
