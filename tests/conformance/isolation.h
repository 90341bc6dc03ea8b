// SPDX-License-Identifier: Apache-2.0
// Runs numbered pieces of work in a child process, one after the other. A piece that hangs or
// crashes costs itself alone: a new child goes on behind it.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

namespace cohort::conformance {

// What became of one piece.
struct Ended {
  enum class How { result, hang, crash };
  How how = How::result;
  std::string text;  // what the piece returned; for a crash, how the child ended
};

using Work = std::function<std::string(std::size_t index)>;
using Report = std::function<void(std::size_t index, const Ended& ended)>;

// `work` runs in children, `report` here, in the order of the pieces. The caller has one thread.
void run_isolated(std::size_t count, std::chrono::milliseconds deadline, const Work& work,
                  const Report& report);

}  // namespace cohort::conformance
