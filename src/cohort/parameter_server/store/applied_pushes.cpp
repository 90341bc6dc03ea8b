// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/applied_pushes.h"

#include <algorithm>

namespace cohort::parameter_server {

AppliedPushes::Verdict AppliedPushes::begin(const rpc::PushId& push, std::uint64_t low_watermark) {
  const Lock lock(mutex_);
  Start* const begun = begin_start(push.origin, push.incarnation);
  if (begun == nullptr) return Verdict::retired;
  Start& start = *begun;
  start.low_watermark = std::max(start.low_watermark, low_watermark);
  if (start.low_watermark >= start.swept + kSweepEvery) {
    std::erase_if(start.pushes, [&](const auto& entry) {
      return entry.first.number < start.low_watermark && entry.second == State::applied;
    });
    start.swept = start.low_watermark;
  }
  const Key key(push);
  Start* now = nullptr;
  changed_.wait(mutex_, Deadline(), [&]() COHORT_REQUIRES(mutex_) {
    now = find_start(push);  // a later start may have come meanwhile
    if (now == nullptr) return true;
    const auto known = now->pushes.find(key);
    return known == now->pushes.end() || known->second == State::applied;
  });
  if (now == nullptr) return Verdict::retired;
  if (now->pushes.contains(key)) return Verdict::applied_before;
  if (push.number < now->low_watermark) return Verdict::retired;
  // This allocates memory, so it comes before the push is applied.
  now->pushes.emplace(key, State::applying);
  return Verdict::apply;
}

AppliedPushes::Start* AppliedPushes::begin_start(std::uint64_t number, std::uint64_t incarnation) {
  Origin& origin = origins_.try_emplace(number, Origin{.incarnation = incarnation}).first->second;
  if (origin.earlier.contains(incarnation)) return nullptr;
  if (origin.incarnation != incarnation) {
    origin.earlier.insert(origin.incarnation);
    origin.incarnation = incarnation;
    origin.start = {};
  }
  return &origin.start;
}

std::vector<rpc::AppliedRecord> AppliedPushes::record() const {
  const Lock lock(mutex_);
  std::vector<rpc::AppliedRecord> records;
  for (const auto& [number, origin] : origins_) {
    rpc::AppliedRecord& record = records.emplace_back(
        rpc::AppliedRecord{.origin = number,
                           .incarnation = origin.incarnation,
                           .low_watermark = origin.start.low_watermark,
                           .earlier = {origin.earlier.begin(), origin.earlier.end()}});
    for (const auto& [key, state] : origin.start.pushes)
      if (state == State::applied) record.applied.push_back({key.number, key.segment});
  }
  return records;
}

void AppliedPushes::merge(const std::vector<rpc::AppliedRecord>& records) {
  const Lock lock(mutex_);
  for (const rpc::AppliedRecord& record : records) {
    Origin& origin = origins_.try_emplace(record.origin, Origin{.incarnation = record.incarnation})
                         .first->second;
    const bool is_later = std::find(record.earlier.begin(), record.earlier.end(),
                                    origin.incarnation) != record.earlier.end();
    origin.earlier.insert(record.earlier.begin(), record.earlier.end());
    Start* start = &origin.start;
    if (is_later) start = begin_start(record.origin, record.incarnation);
    if (origin.incarnation != record.incarnation) continue;  // the record is of an earlier start
    start->low_watermark = std::max(start->low_watermark, record.low_watermark);
    for (const rpc::AppliedRecord::Push& push : record.applied)
      start->pushes.emplace(Key({.number = push.number, .segment = push.segment}), State::applied);
  }
}

AppliedPushes::Start* AppliedPushes::find_start(const rpc::PushId& push) {
  const auto origin = origins_.find(push.origin);
  const bool is_current =
      origin != origins_.end() && origin->second.incarnation == push.incarnation;
  return is_current ? &origin->second.start : nullptr;
}

void AppliedPushes::set(const rpc::PushId& push, bool is_applied) noexcept {
  {
    const Lock lock(mutex_);
    if (Start* const start = find_start(push)) {
      const auto known = start->pushes.find(Key(push));
      if (is_applied) {
        known->second = State::applied;
      } else {
        start->pushes.erase(known);
      }
    }
  }
  changed_.notify_all();
}

void AppliedPushes::finish(const rpc::PushId& push) noexcept { set(push, true); }

void AppliedPushes::forget(const rpc::PushId& push) noexcept { set(push, false); }

}  // namespace cohort::parameter_server
