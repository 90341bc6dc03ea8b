// SPDX-License-Identifier: Apache-2.0
// The input host of a strategy whose workers may form a new group.
#pragma once

#include <memory>
#include <utility>

#include "cohort/core/mutex.h"
#include "cohort/input/input_host.h"

namespace cohort::internal {

// Thread-safe.
class CurrentHost {
 public:
  static std::shared_ptr<CurrentHost> of(input::InputHost&& host) {
    const std::shared_ptr<CurrentHost> made(new CurrentHost());
    host.latest = [weak = std::weak_ptr(made)]() -> std::shared_ptr<const input::InputHost> {
      const std::shared_ptr<CurrentHost> current = weak.lock();
      return current == nullptr ? nullptr : current->get();
    };
    made->start(std::move(host));
    return made;
  }

  std::shared_ptr<const input::InputHost> get() const {
    const Lock lock(mutex_);
    return current_;
  }
  // Lives as long as this object. Its devices are always those of this worker.
  const input::InputHost& first() const { return *first_; }
  // The workers are those of `group` from now on. Iterators of earlier ones are not used any more.
  // `is_first`: all workers begin together.
  void use_group(std::shared_ptr<collective::Group> group, bool is_first) {
    const Lock lock(mutex_);
    *current_->is_over = true;
    input::InputHost next = *current_;
    next.group = std::move(group);
    next.is_first_group = is_first;
    next.is_over = std::make_shared<std::atomic<bool>>(false);
    current_ = std::make_shared<const input::InputHost>(std::move(next));
  }
  // Iterators of the present group are not used any more.
  void end_group() {
    const Lock lock(mutex_);
    *current_->is_over = true;
  }

 private:
  CurrentHost() = default;
  void start(input::InputHost&& host) {
    const Lock lock(mutex_);
    first_ = std::make_shared<const input::InputHost>(std::move(host));
    current_ = first_;
  }

  std::shared_ptr<const input::InputHost> first_;
  mutable Mutex mutex_;
  std::shared_ptr<const input::InputHost> current_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::internal
