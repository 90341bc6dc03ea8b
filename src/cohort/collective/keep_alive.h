// SPDX-License-Identifier: Apache-2.0
// How soon the loss of another worker's host is noticed.
#pragma once

namespace cohort::collective {

// The system asks the host at the other end of a connection that was idle for `idle` seconds, and
// again every `interval` seconds. It takes it for lost when `count` questions had no answer.
struct KeepAlive {
  int idle = 15;
  int interval = 5;
  int count = 4;
};
// For tests: of the connections between workers that are made from now on. Thread-safe.
void set_keep_alive(const KeepAlive& keep_alive);

}  // namespace cohort::collective
