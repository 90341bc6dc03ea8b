// SPDX-License-Identifier: Apache-2.0
// A value of each thread that can be used until the end of the process, and the setting of a
// variable for a scope.
//
//   std::vector<int>& open = ThreadValue<std::vector<int>, struct Open>::get();
#pragma once

#include <utility>

namespace cohort::internal {

// Handlers of atexit() and destructors of static objects run after the thread_local objects of
// their thread have ended. There, get() makes a new value, where a thread_local object would write
// into freed memory. `Tag` tells values of one type apart. Each thread has its own.
template <class T, class Tag>
class ThreadValue {
 public:
  static T& get() {
    if (value_ == nullptr) create();
    return *value_;
  }

 private:
  struct End {
    ~End() {
      delete value_;
      value_ = nullptr;
    }
    void note() const {}
  };
  static void create() {
    value_ = new T();
    thread_local const End end;  // is made once, so a value after it stays
    end.note();
  }

  static thread_local T* value_;
};

template <class T, class Tag>
thread_local T* ThreadValue<T, Tag>::value_ = nullptr;

// Sets a variable while the object exists, and then restores its earlier value. The variable must
// outlive the object. Thread-compatible.
template <class T>
class ScopedValue {
 public:
  ScopedValue(T& variable, T value)
      : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~ScopedValue() { variable_ = std::move(before_); }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& variable_;
  T before_;
};

}  // namespace cohort::internal
