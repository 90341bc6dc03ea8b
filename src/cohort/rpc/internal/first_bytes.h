// SPDX-License-Identifier: Apache-2.0
// Recognizes the kind of peer by the first bytes of an accepted connection.
#pragma once

#include <cstdint>

namespace cohort::rpc::internal {

enum class FirstBytes : std::uint8_t { unknown, gone, http2, frames, neither };

// Only peeks: the server of the connection reads these bytes again.
FirstBytes first_bytes_of(int socket);

}  // namespace cohort::rpc::internal
