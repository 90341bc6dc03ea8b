// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/kinds.h"

namespace cohort::conformance {

const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> all = {
      {"dataset", run_dataset},
      {"distribute", run_distribute},
      {"multi_device", run_multi_device},
      {"sizes", run_sizes},
      {"values", run_values},
      {"dummy", run_dummy},
      {"optional", run_optional},
      {"input_context", run_input_context},
      {"value_context", run_value_context},
      {"input_options", run_input_options},
      {"crc", run_crc},
      {"tfrecord_write", run_tfrecord_write},
      {"tfrecord_random", run_tfrecord_random},
      {"example_encode", run_example_encode},
      {"example_decode", run_example_decode},
      {"parse_example", run_parse_example},
  };
  return all;
}

}  // namespace cohort::conformance
