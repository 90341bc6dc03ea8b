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

// As dataset.source(options). Once `stop` is requested, from any thread, next() throws `cancelled`.
// A call in progress that fills a buffer, skips or searches elements or waits stops at the next
// element; a call of a user's function finishes first. Destroying a source stops its threads in the
// same way, without a token. `files`, if not null, notes the files that the pipeline opens, and
// refuses those that changed.
COHORT_API std::unique_ptr<ElementSource> cancellable_source(
    const Dataset& dataset, const IterationOptions& options, std::stop_token stop,
    std::shared_ptr<OpenedFiles> files = {});

}  // namespace cohort::data
