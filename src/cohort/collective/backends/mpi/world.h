// SPDX-License-Identifier: Apache-2.0
// This process among those of the MPI job.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <utility>

#include "cohort/collective/backends/mpi/message.h"
#include "cohort/collective/links.h"
#include "cohort/core/clock.h"
#include "cohort/core/mutex.h"

namespace cohort::collective::mpi {

// Begins MPI, if the program has not, and has a communicator of our own, so that the program's
// messages and ours do not meet. Never destroyed. Thread-safe.
//
// Groups share the communicator. In each group a member chooses the tags of what it sends, and says
// so to the others in a hello: so no call has to wait until all have made the group.
class World {
 public:
  // Throws failed_precondition, see mpi_group().
  static World& get();
  // Whether MPI has not ended.
  static bool is_alive();
  // A group has failed: perhaps not all processes will take part in the end of MPI.
  static void note_failure() { has_failed_ = true; }
  static bool has_failed() { return has_failed_; }

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Processes of this host, as far as the launcher says it.
  int num_here() const { return num_here_; }
  // Waits until all processes have come here. Throws deadline_exceeded.
  void connect(Deadline deadline);

  // Two tags for what this process sends in a group: frames have the first one.
  int new_tags();
  // Tells all others the tags of this process in a group; kLeft: it leaves without a call.
  static constexpr int kLeft = -1;
  void say_hello(const SplitPath& path, int tags);
  // The number of tags that process `from` has sent, if it has sent one. The number is forgotten
  // then.
  std::optional<int> take_hello(int from, const SplitPath& path);

 private:
  World();
  void take_hellos() COHORT_REQUIRES(mutex_);

  static inline std::atomic<bool> has_failed_ = false;

  int rank_ = 0;
  int size_ = 1;
  int num_here_ = 1;
  int tags_max_ = 0;
  std::atomic<int> next_tags_;
  Mutex mutex_;
  bool is_connected_ COHORT_GUARDED_BY(mutex_) = false;
  Message hello_ COHORT_GUARDED_BY(mutex_);
  std::map<std::pair<int, SplitPath>, int> hellos_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::collective::mpi
