// SPDX-License-Identifier: Apache-2.0
// Groups of processes on several hosts, some of which have several of them.
#pragma once

#include <memory>

#include "cohort/collective/group.h"
#include "cohort/collective/links.h"

namespace cohort::collective::hierarchical {

// Whether sums of these members can be made on their hosts first. Equal on all of them.
bool is_useful(const Links& links);

// The group of all members of `links`, for which is_useful(). Connects them at once. If one member
// cannot take part, all throw its error.
std::shared_ptr<Group> join(std::shared_ptr<Links> links, Deadline deadline);

}  // namespace cohort::collective::hierarchical
