// SPDX-License-Identifier: Apache-2.0
// Workers of a synchronous job as threads of a test.
#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace cohort::testing {

// Runs each worker's part in a thread and rethrows the error of the first worker that has one.
template <class R>
std::vector<R> on_workers(int count, const std::function<R(int worker)>& run) {
  std::vector<R> results(static_cast<std::size_t>(count));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        results[static_cast<std::size_t>(i)] = run(i);
      } catch (...) {
        errors[static_cast<std::size_t>(i)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return results;
}

}  // namespace cohort::testing
