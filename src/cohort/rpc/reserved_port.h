// SPDX-License-Identifier: Apache-2.0
// A loopback port for a server that this or another process starts later.
//
//   const ReservedPort port;
//   start_server("127.0.0.1:" + std::to_string(port.number()));  // the object must live until then
#pragma once

#include <cstdint>

#include "cohort/core/export.h"
#include "cohort/core/file_descriptor.h"

namespace cohort::rpc {

// Chooses a free port of 127.0.0.1 and keeps it reserved: while the object lives, the system gives
// the port to no other socket that asks for any port, and to no outgoing connection. The server
// that the port is for must set SO_REUSEADDR, as Cohort's, gRPC's and most others do; it may end
// and start again. Only a program that names this very port can still take it. Uses one file
// descriptor, which programs that this process starts do not inherit. Thread-compatible.
class COHORT_API ReservedPort {
 public:
  // Throws resource_exhausted if there is no free port or no file descriptor.
  ReservedPort();

  std::uint16_t number() const { return number_; }
  // Whether a socket listens on the port. Makes no connection, so the server does not notice.
  bool has_listener() const;

 private:
  FileDescriptor fd_;
  std::uint16_t number_ = 0;
};

}  // namespace cohort::rpc
