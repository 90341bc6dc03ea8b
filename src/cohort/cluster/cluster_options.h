// SPDX-License-Identifier: Apache-2.0
// How a program and the tasks of its cluster talk to each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cohort/core/clock.h"

namespace cohort {

// Between which tasks tensors carry a checksum; the rest of a frame always does
// (docs/formats/frame.md). If two tasks choose differently, the later value of this list applies.
enum class PayloadChecksums : std::uint8_t {
  between_hosts,  // not between tasks of one host, as far as their addresses say
  never,
  always,
};

struct ClusterOptions {
  Duration timeout =
      std::chrono::seconds(60);  // for each control call, and until all tasks have started
  Duration data_timeout =
      std::chrono::minutes(5);  // for pulls and pushes of this process and of the workers
  std::string job_id = {};      // empty: a hash of the cluster spec
  std::uint64_t seed = 0;       // of initial values and of every closure's random numbers
  std::string backend = {};     // of the data plane; empty: the servers' first choice
  // Applies also between the workers and the parameter servers.
  PayloadChecksums payload_checksums = PayloadChecksums::between_hosts;
};

}  // namespace cohort
