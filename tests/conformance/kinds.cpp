// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/kinds.h"

namespace cohort::conformance {

const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> all = {
      {"dataset", run_dataset},
      {"optional", run_optional},
      {"input_context", run_input_context},
  };
  return all;
}

}  // namespace cohort::conformance
