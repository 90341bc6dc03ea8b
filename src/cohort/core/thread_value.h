// SPDX-License-Identifier: Apache-2.0
// A value of each thread that can be used until the end of the process.
//
//   std::vector<int>& open = ThreadValue<std::vector<int>, struct Open>::get();
#pragma once

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

}  // namespace cohort::internal
