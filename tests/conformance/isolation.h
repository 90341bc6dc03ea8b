// SPDX-License-Identifier: Apache-2.0
// Runs numbered pieces of work in a child process, one after the other. After a piece that hangs or
// crashes, a new child continues with the next piece.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

namespace cohort::conformance {

// The outcome of one piece.
struct Ended {
  enum class How { result, hang, crash };
  How how = How::result;
  std::string text;  // the result of the piece; for a crash, how the child ended
};

using Work = std::function<std::string(std::size_t index)>;
using Report = std::function<void(std::size_t index, const Ended& ended)>;

// Runs `work` in child processes and `report` in this one, in the order of the pieces. Since it
// forks, this process must have only one thread.
void run_isolated(std::size_t count, std::chrono::milliseconds deadline, const Work& work,
                  const Report& report);

}  // namespace cohort::conformance
