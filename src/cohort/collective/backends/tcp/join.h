// SPDX-License-Identifier: Apache-2.0
// Groups of processes that stream sockets connect.
#pragma once

#include <memory>

#include "cohort/collective/detail/links.h"
#include "cohort/collective/group.h"

namespace cohort::collective::tcp {

// The group of all members of `links`. Its first call connects the members.
std::shared_ptr<Group> join(std::shared_ptr<Links> links);

}  // namespace cohort::collective::tcp
