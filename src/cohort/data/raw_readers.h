// SPDX-License-Identifier: Apache-2.0
// The low-level readers over a list of names of their own. What the public methods of Dataset make
// of a list can be sharded by file; these are sources that auto-sharding by file refuses.
#pragma once

#include "cohort/core/export.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

COHORT_API Dataset raw_tf_record(const StringTensor& files, FileOptions options = {});
COHORT_API Dataset raw_text_line(const StringTensor& files, FileOptions options = {});
COHORT_API Dataset raw_fixed_length_record(const StringTensor& files, FixedLengthOptions options);

}  // namespace cohort::data
