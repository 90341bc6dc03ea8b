// SPDX-License-Identifier: Apache-2.0
// Opening the files of a graph, which may have come from a peer.
#pragma once

#include <string>
#include <string_view>

#include "cohort/data/dataset.h"

namespace cohort::data {

// The canonical path, if it lies under one of options.data_dirs (also canonical); permission_denied
// naming path and remedy otherwise, before it is known whether the file exists. `op` is for
// messages. invalid_argument for a path with a zero byte: the system would open another file.
std::string allowed_path(const std::string& path, const RunOptions& options, std::string_view op);

}  // namespace cohort::data
