// SPDX-License-Identifier: Apache-2.0
// Groups whose members are processes of one host.
#pragma once

#include <memory>

#include "cohort/collective/group.h"
#include "cohort/collective/links.h"

namespace cohort::collective::shared_memory {

// The group of all members of `links`. The first call connects the members, until its deadline.
std::shared_ptr<Group> join(std::shared_ptr<Links> links);
// Connects the members at once, so that one that is destroyed without a call is noticed. Throws
// what Links::open() throws, and failed_precondition if the members cannot share memory.
std::shared_ptr<Group> join(std::shared_ptr<Links> links, Deadline deadline);

}  // namespace cohort::collective::shared_memory
