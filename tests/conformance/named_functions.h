// SPDX-License-Identifier: Apache-2.0
// The functions that case files call by name (FORMAT.md, 4). An unknown name throws a CaseFault at
// once; a function that does not fit its element throws invalid_argument, as tracing it would.
#pragma once

#include <functional>
#include <memory>

#include "cohort/core/nest.h"
#include "cohort/data/dataset.h"
#include "cohort/data/element.h"
#include "cohort/function/function.h"
#include "tests/conformance/case_state.h"

namespace cohort::conformance {

struct NamedMap {
  std::function<Nest(const Nest& element)> call;
  // The spec of `call`'s result for elements of spec `input`.
  std::function<ElementSpec(const ElementSpec& input)> output;
};
NamedMap named_map(const std::string& name, const Json& arg,
                   const std::shared_ptr<CaseState>& state);

std::function<at::Tensor(const Nest& element)> named_predicate(const std::string& name,
                                                               const Json& arg);

std::function<Dataset(const Nest& element)> named_dataset(const std::string& name, const Json& arg);

std::function<Nest(const Nest& element)> named_replica_function(const std::string& name);

}  // namespace cohort::conformance
