// SPDX-License-Identifier: Apache-2.0
// A contender in another language: a program that stays, answering each line of JSON with one.
//
//   PeerProcess peer({python, "bench/peers/tf_data_records.py"});
//   const double seconds = peer.ask({{"do", "scan"}, …}).at("seconds");
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace cohort::bench {

// Used from one thread. Ends the program with a message when the peer fails.
class PeerProcess {
 public:
  explicit PeerProcess(const std::vector<std::string>& command);
  // Closes the peer's input, which ends it, and waits for it.
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  nlohmann::json ask(const nlohmann::json& question);

 private:
  pid_t child_ = -1;
  std::FILE* questions_ = nullptr;
  std::FILE* answers_ = nullptr;
};

// A Python that has TensorFlow (tests/interop/tensorflow_python.py); nullopt, said why on standard
// output, where there is none.
std::optional<std::string> tensorflow_python();

}  // namespace cohort::bench
