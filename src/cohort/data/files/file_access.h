// SPDX-License-Identifier: Apache-2.0
// Access control for the files of a graph, which a peer may have sent.
#pragma once

#include <string>
#include <string_view>

#include "cohort/data/dataset.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {

// The canonical path. permission_denied, naming path and remedy, if it is not under one of
// options.data_dirs (also canonical), whether or not the file exists. invalid_argument for a path
// with a zero byte, since the system would open another file. `op` is for messages.
std::string allowed_path(const std::string& path, const IterationOptions& options,
                         std::string_view op);

// Call it before a source opens a file for a run: calls OpenedFiles::note() if the run has one.
// `found` is allowed_path() of `path`.
void note_opened(const StageContext& context, const std::string& path, const std::string& found,
                 std::string_view op);

}  // namespace cohort::data
