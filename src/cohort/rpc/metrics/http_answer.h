// SPDX-License-Identifier: Apache-2.0
// Answers one HTTP request for /metrics, and closes the connection.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"
#include "cohort/core/file_descriptor.h"

namespace cohort::rpc::internal {

// Returns the whole answer to a request that begins with these bytes, up to its empty line.
// `metrics` is called for /metrics.
COHORT_API std::string http_answer(std::string_view head,
                                   const std::function<std::string()>& metrics);
// Reads the request, sends the answer, and closes the connection; gives up at the deadline.
void answer_http(const FileDescriptor& socket, const std::function<std::string()>& metrics,
                 Deadline deadline);

}  // namespace cohort::rpc::internal
