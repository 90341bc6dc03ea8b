// SPDX-License-Identifier: Apache-2.0
// The pipelines of position_fuzz.cpp, whose positions are restored from any bytes.
#pragma once

#include <vector>

#include "cohort/data/dataset.h"

namespace cohort::fuzz {

// The same pipelines in every process; they are finite and use no files and threads.
const std::vector<Dataset>& pipelines();

}  // namespace cohort::fuzz
