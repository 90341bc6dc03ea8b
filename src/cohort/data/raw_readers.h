// SPDX-License-Identifier: Apache-2.0
// File readers that hold their list of file names in the op itself. Auto-sharding by file refuses
// them, whereas it can shard the readers that the methods of Dataset make from a list.
#pragma once

#include "cohort/core/export.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// Such a reader of `files` with the options of `reader`.
COHORT_API Dataset raw_reader(const Dataset& reader, const StringTensor& files);

}  // namespace cohort::data
