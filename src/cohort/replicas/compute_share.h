// SPDX-License-Identifier: Apache-2.0
// Divides the threads with which LibTorch computes among replicas that run at the same time.
//
// Each operator uses all of this process's intra-op threads, and so does each product of matrices.
// Operators of several replicas at once would start more threads than there are cores.
#pragma once

namespace cohort::internal {

// While it exists, each product of matrices uses at most this many threads.
class ComputeShare {
 public:
  explicit ComputeShare(int threads);
  // The share of each replica of a run that this thread begins.
  static int of_replica(int replicas);
  ~ComputeShare();
  ComputeShare(const ComputeShare&) = delete;
  ComputeShare& operator=(const ComputeShare&) = delete;

  // While it exists, operators on this thread use this many.
  class OfThread {
   public:
    explicit OfThread(int threads);
    ~OfThread();
    OfThread(const OfThread&) = delete;
    OfThread& operator=(const OfThread&) = delete;

   private:
    const int before_;
  };

 private:
  const int threads_;
};

}  // namespace cohort::internal
