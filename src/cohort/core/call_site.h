// SPDX-License-Identifier: Apache-2.0 Which call of the user's program a thread is in, for messages
// of other processes that wait for it.
#pragma once

#include <string>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort::internal {

// While it exists, the thread that made it is in this call. If there are several on one thread, the
// first counts, which is the call that the user has made. Used only from that thread.
class COHORT_API CallSite {
 public:
  // Where the call is in the program; a file of nullptr: not known.
  struct Place {
    const char* file = nullptr;
    int line = 0;
  };
  // `text`: "is in snapshot()". Both refer to texts of the caller.
  explicit CallSite(std::string_view text, Place place);
  explicit CallSite(std::string_view text) : CallSite(text, Place()) {}
  ~CallSite();
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

  // The text of this thread: "is in snapshot() at main.cpp:41"; empty if it is in no such call.
  static std::string text();

 private:
  const bool is_first_;
};

}  // namespace cohort::internal
