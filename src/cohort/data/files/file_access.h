// SPDX-License-Identifier: Apache-2.0
// Access control for the files of a graph, which a peer may have sent.
#pragma once

#include <string>
#include <string_view>

#include "cohort/data/allowed_path.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {

// Call it before a source opens a file for a run: calls OpenedFiles::note() if the run has one.
// `found` is allowed_path() of `path`.
void note_opened(const StageContext& context, const std::string& path, const std::string& found,
                 std::string_view op);

}  // namespace cohort::data
