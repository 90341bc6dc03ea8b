// SPDX-License-Identifier: Apache-2.0
// The writes of a thread that computes for all replicas.
#pragma once

#include <vector>

#include "cohort/core/thread_value.h"

namespace cohort::internal {

// While it exists, this thread computes for all replicas, which wait. Its writes are an update,
// which completes at the end.
class MergeScope {
 public:
  // Variables that were written in it.
  class Written {
   public:
    // The merge has completed: what was written stays, whatever fails later.
    virtual void keep_merged() = 0;

   protected:
    ~Written() = default;
  };
  MergeScope();
  // Adds what was written to the innermost scope of this thread, if there is one.
  static void note_write(Written& written);
  // Unless it throws, what was done stays.
  void complete();

 private:
  const ScopedValue<MergeScope*> innermost_;
  std::vector<Written*> written_;
};

}  // namespace cohort::internal
