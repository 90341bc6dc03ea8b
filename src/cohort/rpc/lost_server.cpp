// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/lost_server.h"

#include <string>

namespace cohort::rpc {

Error as_lost_server(const Error& error) {
  Error lost = Error(ErrorCode::unavailable,
                     error.message() + "; the variables there may be lost: see that " +
                         error.origin() + " runs, and start the program again",
                     error.cause())
                   .at(error.origin(), error.incarnation());
  for (const std::string& line : error.context()) lost = Error(lost).during(line);
  return lost;
}

}  // namespace cohort::rpc
