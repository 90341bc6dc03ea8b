// SPDX-License-Identifier: Apache-2.0
// Recognizes the kind of peer by the first bytes of an accepted connection.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cohort::rpc::internal {

enum class FirstBytes : std::uint8_t { unknown, gone, http1, http2, frames, neither };

// Only peeks: the server of the connection reads these bytes again.
FirstBytes first_bytes_of(int socket);
// Whether the first frame of a connection with frames has arrived, so that who serves it need not
// wait for the rest. Also true if the frame is broken, larger than `frame_bytes_max`, or so large
// that the system may not hold all of it.
bool has_first_frame(int socket, std::size_t frame_bytes_max);

}  // namespace cohort::rpc::internal
