// SPDX-License-Identifier: Apache-2.0
// The properties of a strategy that its input needs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/collective/worker_calls.h"
#include "cohort/core/bytes.h"
#include "cohort/core/clock.h"
#include "cohort/core/device.h"
#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/input/device_memory.h"
#include "cohort/input/iterators/begun_orders.h"

namespace cohort::input {

// A call in which the workers exchange something.
struct InputExchange {
  std::string_view call;  // "input.iterator", for messages
  std::string text = {};  // what this worker does; the others must do the same
  // All workers make it from time to time, so the strategy compares what must be alike.
  bool compares_values = false;
};

// Immutable once made, but for what it shares with its copies; used by a strategy and its
// distributed datasets. A strategy whose workers form a new group makes another one.
struct COHORT_API InputHost {
  std::string strategy = "default";               // for messages
  std::vector<Device> devices = {Device()};       // of this worker's replicas
  std::shared_ptr<collective::Group> group = {};  // nullptr: one worker
  // Workers that never meet, each of which trains alone with its part of the data: how many there
  // are, and which one this is. 0: the workers of the group.
  int lone_workers = 0;
  int lone_worker = 0;
  // Elements are the dataset's own: no policy applies (the default strategy).
  bool passes_through = false;
  // Fills up the last step with empty batches; false for a single device.
  bool handles_partial_batches = true;
  bool allows_per_replica = false;
  // A value from a function is wrapped, even if there is one replica.
  bool wraps_values = true;
  // Throws if this thread is inside a replica function; `method` is for the message.
  std::function<void(std::string_view method)> check_context = [](std::string_view) {};
  std::shared_ptr<const DeviceMemory> memory = libtorch_memory();
  // The timeout of each wait for other workers.
  Duration timeout = std::chrono::minutes(5);
  // Used if there are several workers.
  std::shared_ptr<collective::WorkerCalls> worker_calls =
      std::make_shared<collective::WorkerCalls>();
  // The workers no longer are this group. Copies of this host share it.
  std::shared_ptr<std::atomic<bool>> is_over = std::make_shared<std::atomic<bool>>(false);
  // The host of the group that the workers are now; nullptr: the strategy is gone. Not set: always
  // this one.
  std::function<std::shared_ptr<const InputHost>()> latest = {};
  // All workers have begun together. In later groups one may have begun when others had their
  // datasets already.
  bool is_first_group = true;
  // Exchanges what `make` returns between the workers, in one order with the other calls of the
  // strategy, so that workers in different calls find out. If `make` throws on one, all throw that
  // error. Not set: iterators exchange through splits of the group.
  using Exchange = std::function<std::vector<Bytes>(const InputExchange& what,
                                                    const std::function<Bytes()>& make)>;
  Exchange exchange = {};
  // Tells the exception that is handled to the others, in their next call.
  std::function<void()> tell_failure = {};
  // Numbers the iterators of the strategy, and tells it from others.
  std::shared_ptr<std::atomic<std::uint64_t>> num_iterators =
      std::make_shared<std::atomic<std::uint64_t>>(0);
  // Shared by all datasets of the strategy.
  std::shared_ptr<BegunOrders> begun_orders = std::make_shared<BegunOrders>();

  // As check_context(), and throws failed_precondition if the group is over.
  void check_current(std::string_view method) const {
    check_context(method);
    COHORT_CHECK(!*is_over, ErrorCode::failed_precondition, "[input.", method,
                 "] expected an iterator of the present group of workers, got one of before "
                 "rebuild(), which divided the data in another way; take a new one from the same "
                 "distributed dataset, and if rebuild() has failed, call it again before");
  }
  // As `exchange`; `own`: the split of the group that is used if that is not set.
  std::vector<Bytes> exchange_over(collective::Group& own, const InputExchange& what,
                                   const std::function<Bytes()>& make) const {
    if (exchange) return exchange(what, make);
    return collective::exchange_result(own, make, what.text, Deadline::after(timeout));
  }
  int num_workers() const { return group ? group->size() : 1; }
  int worker() const { return group ? group->rank() : 0; }
  // By how many workers data is divided, and which part is this worker's.
  int num_pipelines() const { return lone_workers > 0 ? lone_workers : num_workers(); }
  int pipeline() const { return lone_workers > 0 ? lone_worker : worker(); }
  int num_local_replicas() const { return static_cast<int>(devices.size()); }
  int num_replicas_in_sync() const { return num_workers() * num_local_replicas(); }
  // Elements are not wrapped, since there is one replica in the whole job.
  bool is_bare() const { return num_replicas_in_sync() == 1; }
};

}  // namespace cohort::input
