// SPDX-License-Identifier: Apache-2.0
// The pushes of closures that a server has applied. Each is applied at most once, however often and
// late it arrives. A closure has one push for each segment.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/rpc/messages.h"

namespace cohort::parameter_server {

// Thread-safe.
class AppliedPushes {
 public:
  // `retired` also for pushes of an earlier start of their origin.
  enum class Verdict : std::uint8_t { apply, applied_before, retired };

  // If the result is `apply`, the caller must apply the push and then call finish(), or forget() if
  // it could not apply it. Waits while another thread applies the same push.
  Verdict begin(const rpc::PushId& push, std::uint64_t low_watermark);
  void finish(const rpc::PushId& push) noexcept;
  void forget(const rpc::PushId& push) noexcept;
  // The pushes that are applied here, which another server must know if it takes variables from
  // this one. No push may be between begin() and its end.
  std::vector<rpc::AppliedRecord> record() const;
  // Adds what another server has applied. A record of an earlier start of an origin says nothing
  // of the present one.
  void merge(const std::vector<rpc::AppliedRecord>& records);

 private:
  enum class State : std::uint8_t { applying, applied };
  struct Key {
    explicit Key(const rpc::PushId& push) : number(push.number), segment(push.segment) {}
    bool operator==(const Key&) const = default;

    std::uint64_t number;
    std::uint32_t segment;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept {
      return std::hash<std::uint64_t>()(key.number + (std::uint64_t{key.segment} << 48));
    }
  };
  // The pushes of one start of an origin.
  struct Start {
    std::unordered_map<Key, State, Hash> pushes;
    std::uint64_t low_watermark = 0;
    std::uint64_t swept = 0;
  };
  struct Origin {
    std::uint64_t incarnation = 0;
    Start start;
    std::set<std::uint64_t> earlier;  // incarnations
  };
  // The watermark must grow by this number before old ids are removed, since a removal iterates
  // over the whole set.
  static constexpr std::uint64_t kSweepEvery = 1024;

  // The record of the origin's present start, to which this push belongs; nullptr if the push is of
  // an earlier one.
  Start* begin_start(std::uint64_t origin, std::uint64_t incarnation) COHORT_REQUIRES(mutex_);
  // nullptr: of an earlier start.
  Start* find_start(const rpc::PushId& push) COHORT_REQUIRES(mutex_);
  void set(const rpc::PushId& push, bool is_applied) noexcept;

  mutable Mutex mutex_;
  Condition changed_;
  std::map<std::uint64_t, Origin> origins_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::parameter_server
