// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cohort/core/export.h"

namespace cohort::rpc {

// Another process's job in a message: "job 'mine'", or words instead of the hash of
// default_job_id().
COHORT_API std::string text_of_job(const std::string& job_id);

}  // namespace cohort::rpc
