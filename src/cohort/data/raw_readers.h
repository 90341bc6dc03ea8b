// SPDX-License-Identifier: Apache-2.0
// File readers that hold their list of file names in the op itself. Auto-sharding by file refuses
// them, whereas it can shard the readers that the methods of Dataset make from a list.
#pragma once

#include "cohort/core/export.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

COHORT_API Dataset raw_tf_record(const StringTensor& files, FileOptions options = {});
COHORT_API Dataset raw_text_line(const StringTensor& files, FileOptions options = {});
COHORT_API Dataset raw_fixed_length_record(const StringTensor& files, FixedLengthOptions options);

}  // namespace cohort::data
