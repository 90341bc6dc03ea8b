// SPDX-License-Identifier: Apache-2.0
// How a program and the tasks of its cluster communicate. Control calls (gRPC) create, configure
// and check things; tensors are sent over the data connections of a backend.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cohort/core/clock.h"

namespace cohort {

// Whether tensors that are sent have a checksum; the rest of a message always has one
// (docs/formats/frame.md). If two tasks choose differently, `always` wins over `never`, which wins
// over `between_hosts`.
enum class PayloadChecksums : std::uint8_t {
  // Except between two tasks that prove that they are on one host, with no proxy, tunnel or sidecar
  // in between. Over the backend "grpc" they cannot prove it.
  between_hosts,
  never,
  always,
};

struct ClusterOptions {
  // The deadline of each control call, and of waiting until all tasks have started.
  Duration timeout = std::chrono::seconds(60);
  // The deadline of reading variables (pull) and of sending updates (push), by this process and by
  // the workers.
  Duration data_timeout = std::chrono::minutes(5);
  std::string job_id = {};   // empty: COHORT_JOB_ID, the Slurm job, or a hash of the cluster spec
  std::uint64_t seed = 0;    // for initial values, and for the random numbers of every closure
  std::string backend = {};  // for sending tensors; empty: the servers' first choice
  // Also applies between the workers and the parameter servers.
  PayloadChecksums payload_checksums = PayloadChecksums::between_hosts;
};

}  // namespace cohort
