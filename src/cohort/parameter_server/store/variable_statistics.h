// SPDX-License-Identifier: Apache-2.0
// Counts the requests for one variable, and the rows per second of all.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "cohort/core/clock.h"
#include "cohort/parameter_server/store/hot_rows.h"

namespace cohort::parameter_server {

// Thread-safe. A request costs a few relaxed additions, however many rows it has.
class VariableStatistics {
 public:
  struct Counts {
    std::atomic<std::uint64_t> requests{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> rows{0};  // of requests that name rows

    void add(std::uint64_t its_bytes, std::uint64_t its_rows) noexcept {
      requests.fetch_add(1, std::memory_order_relaxed);
      bytes.fetch_add(its_bytes, std::memory_order_relaxed);
      if (its_rows > 0) rows.fetch_add(its_rows, std::memory_order_relaxed);
    }
  };
  explicit VariableStatistics(std::size_t hot_rows) : hot(hot_rows) {}

  Counts pulls;
  Counts pushes;
  HotRows hot;
};

// How many there were per second, in the last ten full seconds. Thread-safe. Two threads that begin
// a second at the same time may lose what one of them adds then.
class Rate {
 public:
  void add(std::uint64_t count, TimePoint now) noexcept {
    const std::int64_t second = second_of(now);
    Bucket& bucket = buckets_[index_of(second)];
    if (bucket.second.exchange(second, std::memory_order_relaxed) != second)
      bucket.count.store(0, std::memory_order_relaxed);
    bucket.count.fetch_add(count, std::memory_order_relaxed);
  }
  double per_second(TimePoint now) const noexcept {
    const std::int64_t last = second_of(now) - 1;
    std::uint64_t sum = 0;
    for (std::int64_t second = last - kSeconds + 1; second <= last; ++second) {
      const Bucket& bucket = buckets_[index_of(second)];
      if (bucket.second.load(std::memory_order_relaxed) == second)
        sum += bucket.count.load(std::memory_order_relaxed);
    }
    return static_cast<double>(sum) / kSeconds;
  }

 private:
  static constexpr std::int64_t kSeconds = 10;
  struct Bucket {
    std::atomic<std::int64_t> second{-1};
    std::atomic<std::uint64_t> count{0};
  };
  static std::int64_t second_of(TimePoint time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
  }
  std::size_t index_of(std::int64_t second) const {
    return static_cast<std::size_t>(second) % buckets_.size();
  }
  std::array<Bucket, 16> buckets_;
};

}  // namespace cohort::parameter_server
