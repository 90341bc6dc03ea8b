// SPDX-License-Identifier: Apache-2.0
// A Python script of bench/peers in another process, which measures one round per request.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/report.h"

namespace cohort::bench {

// The script reads names from stdin, one per line, and answers each with a line that holds a
// figure. It ends at the end of stdin. Used from one thread.
class PythonPeer {
 public:
  // Returns null if `interpreter` does not exist.
  static std::unique_ptr<PythonPeer> start(const std::string& interpreter,
                                           const std::string& script);
  // The Python interpreters that have TensorFlow or PyTorch, under ANCHORS_ROOT (bench/README.md).
  static std::string tensorflow();
  static std::string torch();

  PythonPeer(const std::string& interpreter, const std::string& script)
      : PythonPeer(std::vector<std::string>{interpreter, script}) {}
  // Another program that answers as the scripts do.
  explicit PythonPeer(std::vector<std::string> words);
  PythonPeer(const PythonPeer&) = delete;
  PythonPeer& operator=(const PythonPeer&) = delete;
  ~PythonPeer();

  // Ends the program if the script does not answer with a number.
  double measure(const std::string& name);

 private:
  pid_t pid_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

// Adds the peer's workload `name` to the contenders, if there is a peer.
void add_peer(std::vector<Contender>& contenders, PythonPeer* peer, const std::string& title,
              const std::string& name);

}  // namespace cohort::bench
