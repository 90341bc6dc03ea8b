// SPDX-License-Identifier: Apache-2.0
// A pass over a cache in files: reads the file that an earlier pass has completed, or else writes
// it.
#pragma once

#include <memory>
#include <string_view>

#include "cohort/data/cache/cache_file.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {

inline constexpr std::string_view kCacheName = "cache";

// `node` is the cache op; the paths are allowed ones.
std::unique_ptr<Stage> start_file_cache(const Node& node, StageContext context, CachePaths paths);

}  // namespace cohort::data
