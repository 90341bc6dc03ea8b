// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/frames/frame.h"

#include "cohort/core/error_bytes.h"

namespace cohort::rpc {

Frame response_to(std::uint64_t id, Frame reply) {
  reply.role = Frame::Role::response;
  reply.id = id;
  return reply;
}

Frame error_frame(std::uint64_t id, const Error& error) {
  ByteWriter out;
  write_error(out, error);
  return {.role = Frame::Role::error, .id = id, .metadata = out.take()};
}

Error error_of(const Frame& frame) {
  ByteReader in(frame.metadata, "error frame");
  Error error = read_error(in);
  in.expect_end();
  return error;
}

}  // namespace cohort::rpc
