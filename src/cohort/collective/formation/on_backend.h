// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "cohort/collective/group.h"
#include "cohort/collective/links.h"

namespace cohort::collective::formation {

// "GroupBackend::tcp", for messages.
std::string name_of(GroupBackend backend);

// The group of these links. Throws invalid_argument for GroupBackend::shared_memory on several
// hosts; and what shared_memory::join() throws, which waits for the members.
std::shared_ptr<Group> on_backend(std::shared_ptr<Links> links, GroupBackend backend,
                                  Deadline deadline);

}  // namespace cohort::collective::formation
