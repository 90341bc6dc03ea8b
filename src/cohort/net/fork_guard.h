// SPDX-License-Identifier: Apache-2.0
// Keeps sockets from processes that the program forks without exec.
#pragma once

namespace cohort::net {

// In a child of this process, the descriptor is that of /dev/null. Otherwise the child would keep
// the connection open after the death of its parent, which the other processes would then notice
// only at their deadline, and nobody could listen at the parent's address. It may be closed as
// usual. Thread-safe.
void keep_from_children(int socket);

}  // namespace cohort::net
