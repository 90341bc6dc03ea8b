// SPDX-License-Identifier: Apache-2.0
// How connections between processes notice that the other host is lost.
#pragma once

namespace cohort::net {

// The system asks the host at the other end of a connection that was idle for `idle` seconds, and
// again every `interval` seconds. It takes it for lost when `count` questions had no answer.
struct KeepAlive {
  int idle = 15;
  int interval = 5;
  int count = 4;
};
// For tests: of the connections that are made from now on. Thread-safe.
void set_keep_alive(const KeepAlive& keep_alive);
KeepAlive keep_alive();

}  // namespace cohort::net
