// SPDX-License-Identifier: Apache-2.0
// c10d's process group over Gloo, the peer of our groups of processes, where LibTorch has it.
#pragma once

// LibTorch 2 has another interface, and PyPI's has no headers of Gloo.
#if __has_include(<gloo/algorithm.h>) && __has_include(<torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>)
#include <torch/version.h>
#if TORCH_VERSION_MAJOR == 1
#define COHORT_BENCH_HAS_GLOO
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <string>

namespace cohort::bench {

// The processes find each other by the file `store`.
inline c10::intrusive_ptr<c10d::ProcessGroup> gloo_group(const std::string& store, int rank,
                                                         int size) {
  const auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::FileStore>(store, size), rank, size, options);
}

}  // namespace cohort::bench
#endif
#endif
