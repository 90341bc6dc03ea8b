// SPDX-License-Identifier: Apache-2.0
// A peer in another process: a Python script of bench/peers that measures one round whenever asked.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/report.h"

namespace cohort::bench {

// The script reads names from its input, a line each, and answers each with a figure on a line. It
// ends with its input. Used from one thread.
class PythonPeer {
 public:
  // Null where `interpreter` does not exist.
  static std::unique_ptr<PythonPeer> start(const std::string& interpreter,
                                           const std::string& script);
  // The interpreter TensorFlow is installed for: ANCHORS_ROOT, as bench/README.md says.
  static std::string tensorflow();

  PythonPeer(const std::string& interpreter, const std::string& script);
  PythonPeer(const PythonPeer&) = delete;
  PythonPeer& operator=(const PythonPeer&) = delete;
  ~PythonPeer();

  // Ends the program when the script does not answer with a number.
  double measure(const std::string& name);

 private:
  pid_t pid_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

// Adds the peer's round of `name` to the contenders, if there is a peer.
void add_peer(std::vector<Contender>& contenders, PythonPeer* peer, const std::string& title,
              const std::string& name);

}  // namespace cohort::bench
