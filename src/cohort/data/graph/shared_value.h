// SPDX-License-Identifier: Apache-2.0
// A value that several threads read and set, such as one that is found while a graph runs.
#pragma once

#include <utility>

#include "cohort/core/mutex.h"

namespace cohort::data {

// `T` is empty at first, as a null pointer or an empty optional. Thread-safe.
template <class T>
class SharedValue {
 public:
  explicit SharedValue(T value = T()) : value_(std::move(value)) {}

  T get() const {
    const Lock lock(mutex_);
    return value_;
  }
  void set(T value) {
    const Lock lock(mutex_);
    value_ = std::move(value);
  }
  // Sets the value if it is empty. Returns the value.
  T offer(const T& value) {
    const Lock lock(mutex_);
    if (!value_) value_ = value;
    return value_;
  }

 private:
  mutable Mutex mutex_;
  T value_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::data
