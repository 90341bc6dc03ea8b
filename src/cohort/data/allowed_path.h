// SPDX-License-Identifier: Apache-2.0
// Which files of this host a peer may name (files/file_access.cpp has the function).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// The canonical path. permission_denied, naming path and remedy, if it is not under one of
// options.data_dirs (also canonical), whether or not the file exists. invalid_argument for a path
// with a zero byte, since the system would open another file. `op` is for messages.
std::string allowed_path(const std::string& path, const IterationOptions& options,
                         std::string_view op);

// The directories in COHORT_DATA_DIRS, which ':' divides.
COHORT_API std::vector<std::string> data_dirs_of_environment();

}  // namespace cohort::data
