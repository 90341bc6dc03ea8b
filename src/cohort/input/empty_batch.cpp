// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/empty_batch.h"

namespace cohort::input {

Nest empty_element(const ElementSpec& spec) {
  Fields fields;
  for (const TensorSpec& field : spec.fields) fields.push_back(empty_tensor(field));
  return spec.pack(fields);
}

}  // namespace cohort::input
