// SPDX-License-Identifier: Apache-2.0
// Pipelines whose positions are restored from any bytes.
#pragma once

#include <vector>

#include "cohort/data/dataset.h"

namespace cohort::fuzz {

// The same in every process. Finite, without files and threads.
const std::vector<Dataset>& pipelines();

}  // namespace cohort::fuzz
