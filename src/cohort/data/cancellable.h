// SPDX-License-Identifier: Apache-2.0
// Cancels a running pipeline from any thread (tf's CancellationManager).
//
//   std::stop_source stop;
//   Iterator iterator(data::cancellable_source(dataset, {}, stop.get_token()));
//   stop.request_stop();  // on another thread
#pragma once

#include <memory>
#include <stop_token>

#include "cohort/data/dataset.h"

namespace cohort::data {

class OpenedFiles;  // files/detail/opened_files.h

// Like dataset.source(options). After a stop is requested, from any thread, next() throws
// cancelled. A running call of next() stops at its next element, also while it fills a buffer,
// skips elements, searches for one or waits; a running call of a user's function finishes first.
// Destroying a source stops its threads in the same way, without a token. If `files` is not null,
// it records the files that the pipeline opens, and a file that has changed since then is an error.
COHORT_API std::unique_ptr<ElementSource> cancellable_source(
    const Dataset& dataset, const IterationOptions& options, std::stop_token stop,
    std::shared_ptr<OpenedFiles> files = {});

}  // namespace cohort::data
