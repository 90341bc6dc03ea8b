// SPDX-License-Identifier: Apache-2.0
// Programs of datasets' functions for elements of further shapes: workers ask for them while their
// pipelines wait, and callers' threads trace them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/coordinator/datasets/iterator_table.h"
#include "cohort/coordinator/runtime/runtime_context.h"
#include "cohort/coordinator/workers/worker_pool.h"
#include "cohort/rpc/messages.h"
#include "cohort/rpc/requester.h"

namespace cohort::coordinator {

// Thread-safe.
class DatasetPrograms {
 public:
  // All must outlive it.
  DatasetPrograms(RuntimeContext& context, WorkerPool& pool, IteratorTable& iterators)
      : context_(context), pool_(pool), iterators_(iterators) {}

  // Adds a worker's question and wakes the callers, one of which answers it.
  void ask(std::uint32_t worker, rpc::Frame frame);
  bool has_questions() const COHORT_REQUIRES(runtime_lock) { return !questions_.empty(); }
  // Traces and sends the programs for which workers have asked. Only for callers' threads, since
  // the datasets' functions are the user's. Takes no lock if there is no question.
  void answer_all();
  // Like Requester::call(), but meanwhile this thread traces the programs for which the worker's
  // pipeline asks. After each of them the worker has the full time again.
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
