// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/datasets/iterator_table.h"

#include <utility>

#include "cohort/coordinator/failure_policy.h"

namespace cohort::coordinator {

std::shared_ptr<IteratorHandle> IteratorTable::create(std::shared_ptr<WorkerDatasets> datasets,
                                                      const IteratorHandle::Use& use,
                                                      std::weak_ptr<Runtime> runtime) {
  std::vector<std::uint64_t> released;
  // Destroyed at the end of this call.
  std::vector<std::shared_ptr<WorkerDatasets>> released_datasets;
  {
    const Lock lock(released_mutex_);
    released.swap(released_);
    released_datasets.swap(released_datasets_);
  }
  eager_.release(released);
  std::shared_ptr<IteratorHandle> handle;
  std::vector<std::pair<std::uint32_t, WorkerPool::Link>> present;
  {
    const RuntimeLock lock(context_);
    // Checked under the lock, so that stop() has not read the numbers yet.
    context_.check_running("create_iterator");
    for (const std::uint64_t id : released) iterators_.erase(id);
    handle = std::make_shared<IteratorHandle>(context_.numbers.next_iterator++, std::move(datasets),
                                              use, std::move(runtime));
    iterators_[handle->id()] = handle;
    ++context_.version;
    present = pool_.ready_links();  // other workers get the iterator when they are set up
  }
  for (const auto& [worker, link] : present) {
    tell(link.connection, handle->spec_for(worker, context_.connection.options().seed), released);
  }
  return handle;
}

void IteratorTable::tell(const rpc::Connection& worker, const rpc::IteratorSpec& created,
                         const std::vector<std::uint64_t>& released) {
  ClusterConnection& cluster = context_.connection;
  try {
    if (!released.empty()) worker.control->release(released, cluster.control_deadline());
    worker.control->create_iterator(created, cluster.control_deadline());
  } catch (const Error& error) {
    if (context_.end_if_replaced(error) || !is_worker_away(error)) {
      const Lock lock(released_mutex_);  // the next call tells the other workers
      released_.insert(released_.end(), released.begin(), released.end());
      throw;
    }
    worker.data->close();
  }
}

void IteratorTable::release(std::uint64_t id, std::shared_ptr<WorkerDatasets> datasets) noexcept {
  const Lock lock(released_mutex_);
  released_.push_back(id);
  released_datasets_.push_back(std::move(datasets));
}

std::shared_ptr<IteratorHandle> IteratorTable::find(std::uint64_t id) const {
  const auto found = iterators_.find(id);
  return found == iterators_.end() ? nullptr : found->second.lock();
}

std::vector<std::shared_ptr<IteratorHandle>> IteratorTable::used() const {
  std::vector<std::shared_ptr<IteratorHandle>> all;
  for (const auto& [id, weak] : iterators_)
    if (auto iterator = weak.lock()) all.push_back(std::move(iterator));
  return all;
}

std::vector<std::uint64_t> IteratorTable::take_dropped(std::set<std::uint64_t>& known) const {
  std::vector<std::uint64_t> dropped;
  for (const std::uint64_t id : known)
    if (!iterators_.contains(id)) dropped.push_back(id);
  for (const std::uint64_t id : dropped) known.erase(id);
  return dropped;
}

std::vector<std::uint64_t> IteratorTable::take_left() {
  std::vector<std::uint64_t> left;
  {
    const Lock lock(released_mutex_);
    left.swap(released_);
  }
  const RuntimeLock lock(context_);
  for (const auto& [id, iterator] : iterators_) left.push_back(id);
  return left;
}

}  // namespace cohort::coordinator
