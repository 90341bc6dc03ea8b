// SPDX-License-Identifier: Apache-2.0
// Groups of processes that stream sockets connect, or another carrier of frames.
#pragma once

#include <memory>

#include "cohort/collective/backends/tcp/channel.h"
#include "cohort/collective/group.h"
#include "cohort/collective/links.h"

namespace cohort::collective::tcp {

// The group of all members of `links`. Its first call connects the members.
std::shared_ptr<Group> join(std::shared_ptr<Links> links);
// The same by another carrier. `path`: of the group of all members.
std::shared_ptr<Group> join(std::shared_ptr<Links> links, std::shared_ptr<Carrier> carrier,
                            SplitPath path);

}  // namespace cohort::collective::tcp
