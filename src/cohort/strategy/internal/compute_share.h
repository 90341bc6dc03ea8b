// SPDX-License-Identifier: Apache-2.0
// Divides the threads with which LibTorch computes among replicas that run at the same time.
//
// Each operator uses all of this process's intra-op threads, and so does each product of matrices.
// Operators of several replicas at once would start more threads than there are cores.
#pragma once

namespace cohort::internal {

// Used by the thread that calls run(). While it exists, each product of matrices uses the share of
// one replica.
class ComputeShare {
 public:
  explicit ComputeShare(int replicas);
  ~ComputeShare();
  ComputeShare(const ComputeShare&) = delete;
  ComputeShare& operator=(const ComputeShare&) = delete;

  // For a replica's thread: while it exists, operators on this thread use one share.
  class OfThread {
   public:
    explicit OfThread(const ComputeShare& share);
    ~OfThread();
    OfThread(const OfThread&) = delete;
    OfThread& operator=(const OfThread&) = delete;

   private:
    const int before_;
  };

 private:
  const int threads_;  // of each replica
};

}  // namespace cohort::internal
