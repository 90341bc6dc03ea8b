// SPDX-License-Identifier: Apache-2.0
// A benchmark of two workers on this host: the program starts itself again as the second one, which
// makes the same steps.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace cohort::bench {

// The program as one of both workers. Used from one thread.
class TwoWorkers {
 public:
  // In the process that a TwoWorkers has started, it is worker 1. `num_clusters`: how many clusters
  // of both workers the benchmark has, each with ports of its own.
  TwoWorkers(int argc, char** argv, std::size_t num_clusters);

  int own() const { return own_; }
  // The options without those of this class.
  int argc() const { return argc_; }
  // A path that both have, at which there is no file.
  const std::string& store() const { return store_; }
  // Makes the environment's TF_CONFIG that of a cluster.
  void use_cluster(std::size_t cluster) const;
  // Worker 0 waits until the other one has ended.
  void wait() const;

 private:
  static std::string config_name(std::size_t cluster);
  void start(char** argv, std::size_t num_clusters);

  int own_ = 0;
  int argc_;
  int process_ = 0;
  std::string store_;
};

}  // namespace cohort::bench
