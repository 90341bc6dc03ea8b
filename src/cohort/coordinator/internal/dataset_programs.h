// SPDX-License-Identifier: Apache-2.0
// Programs of datasets' functions for elements of other shapes: workers whose pipelines wait ask
// for them, and callers' threads trace.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/coordinator/internal/iterator_table.h"
#include "cohort/coordinator/internal/runtime_context.h"
#include "cohort/coordinator/internal/worker_pool.h"
#include "cohort/rpc/detail/messages.h"
#include "cohort/rpc/detail/requester.h"

namespace cohort::coordinator {

// Thread-safe.
class DatasetPrograms {
 public:
  // All must outlive it.
  DatasetPrograms(RuntimeContext& context, WorkerPool& pool, IteratorTable& iterators)
      : context_(context), pool_(pool), iterators_(iterators) {}

  // A worker asks. Wakes the callers, of which one answers.
  void ask(std::uint32_t worker, rpc::Frame frame);
  bool has_questions() const COHORT_REQUIRES(runtime_lock) { return !questions_.empty(); }
  // Traces and sends what workers have asked for. Only on callers' threads: the datasets' functions
  // are the user's. Costs no lock when there is nothing.
  void answer_all();
  // As Requester::call(), but that this thread traces meanwhile what the worker's pipeline asks
  // for; after each time the worker has as long again.
  rpc::Frame call(rpc::Requester& worker, rpc::Frame request, Deadline& deadline,
                  const std::string& operation);

 private:
  struct Question {
    std::uint32_t worker = 0;
    rpc::ProgramRequest request;
  };
  using Receivers = std::vector<std::pair<std::shared_ptr<rpc::Requester>, std::uint64_t>>;

  void answer(const Question& question);
  Receivers receivers(const Question& question, const IteratorHandle& iterator, bool is_new);

  RuntimeContext& context_;
  WorkerPool& pool_;
  IteratorTable& iterators_;
  std::vector<Question> questions_ COHORT_GUARDED_BY(runtime_lock);
  std::atomic<bool> has_questions_{false};  // written under the lock
};

}  // namespace cohort::coordinator
