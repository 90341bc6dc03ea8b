// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/in_process/member.h"

#include <optional>
#include <utility>

#include "cohort/collective/backends/in_process/shared_work.h"
#include "cohort/core/error.h"

namespace cohort::collective::in_process {
Splits::Split& Splits::split(const SplitPath& path) {
  Split& found = splits_[path];
  if (!found.meeting) {
    found.meeting = std::make_shared<Meeting>(size_);
    for (int rank = 0; rank < size_; ++rank) {
      if (has_gone_[static_cast<std::size_t>(rank)]) found.meeting->leave(rank);
    }
  }
  return found;
}

std::shared_ptr<Meeting> Splits::join(const SplitPath& path) {
  const Lock lock(mutex_);
  return split(path).meeting;
}

void Splits::leave(const SplitPath& path, int rank) {
  const Lock lock(mutex_);
  Split& left = split(path);
  left.meeting->leave(rank);
  left.num_left += 1;
  if (left.num_left == size_) splits_.erase(path);
}

void Splits::leave_all(int rank) {
  const Lock lock(mutex_);
  has_gone_[static_cast<std::size_t>(rank)] = true;
  for (const auto& [path, split] : splits_) split.meeting->leave(rank);
}

// This member's part of a call in which each member works for itself. While it exists, others may
// read this member's tensors, and it those of others.
class Member::Unit {
 public:
  explicit Unit(Member& member) : member_(member) {
    member_.num_units_ += static_cast<std::uint64_t>(member_.size());
  }
  ~Unit() {
    member_.meeting_->complete(member_.rank_, 1);
    member_.meeting_->wait_for_completed(member_.num_units_);
  }
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

 private:
  Member& member_;
};

Member::Member(std::shared_ptr<Splits> splits, int rank)
    : splits_(std::move(splits)), rank_(rank), meeting_(splits_->join({})) {}

Member::Member(std::shared_ptr<Member> parent, SplitPath path)
    : parent_(std::move(parent)),
      splits_(parent_->splits_),
      rank_(parent_->rank_),
      path_(std::move(path)),
      meeting_(splits_->join(path_)) {}

Member::~Member() {
  splits_->leave(path_, rank_);
  if (!parent_) splits_->leave_all(rank_);
}

std::shared_ptr<Group> Member::split() {
  SplitPath path = path_;
  path.push_back(num_splits_++);
  return std::make_shared<Member>(shared_from_this(), std::move(path));
}

std::vector<Bytes> Member::exchange(Bytes mine, std::string_view what, Deadline deadline) {
  const Call call{.kind = CallKind::exchange, .rank = rank_, .size = size()};
  std::vector<Bytes> all;
  for (const Turn* turn : meet(call, what, deadline, std::move(mine))) all.push_back(turn->bytes);
  return all;
}

Member::Turns Member::meet(const Call& call, std::string_view what, Deadline deadline,
                           Bytes bytes) {
  const Caller caller{*this, num_calls_, call.kind, what};
  meeting_->check_open(caller);
  Turn& mine = meeting_->turn(rank_, num_calls_);
  mine.bytes = std::move(bytes);
  Offer offer{.fingerprint = call.fingerprint(),
              .call = &call,
              .parts = call.parts.data(),
              .is_refused = call.refusal.has_value(),
              .has_payload = call.payload_bytes <= kPayloadBytesMax};
  if (!call.parts.empty()) {
    offer.data = call.parts.front().data;
    if (call.kind == CallKind::all_gather)
      offer.length = call.parts.front().tensor->size(call.axis);
  }
  if (!offer.has_payload) {
    mine.next_chunk.store(Chunks(call).share(rank_), std::memory_order_relaxed);
  } else if (call.reads_tensors()) {
    call.write_payload(mine.payload);
  }
  meeting_->meet(caller, offer, deadline);
  const std::uint64_t number = num_calls_++;
  // All members have left the call before this one.
  Bytes& before = meeting_->turn(rank_, num_calls_).bytes;
  if (before.capacity() > 0) before = Bytes();
  Turns turns;
  bool is_agreed = true;
  for (int rank = 0; rank < call.size; ++rank) {
    turns.push_back(&meeting_->turn(rank, number));
    is_agreed = is_agreed && !turns.back()->offer.is_refused &&
                turns.back()->offer.fingerprint == offer.fingerprint;
  }
  if (!is_agreed) throw_disagreement(turns, number);
  return turns;
}

void Member::throw_disagreement(const Turns& turns, std::uint64_t number) {
  std::vector<CallSpec> specs;
  {
    const Unit unit(*this);
    for (const Turn* turn : turns) specs.push_back(turn->offer.call->spec());
  }
  std::optional<Error> error = disagreement(specs, *this, number);
  COHORT_ASSERT(error.has_value());
  throw std::move(*error);
}

void Member::perform(Call& call, Deadline deadline) {
  if (call.kind == CallKind::exchange || call.kind > kLastCallKind)
    return Group::perform(call, deadline);
  const Turns turns = meet(call, name_of(call.kind), deadline);
  if (call.kind == CallKind::all_gather) return gather(call, turns);
  if (call.kind == CallKind::reduce_scatter) return reduce_scatter(call, turns);
  if (call.kind != CallKind::barrier) replace_values(call, turns);
}

void Member::replace_values(Call& call, const Turns& turns) {
  if (call.size == 1) return;
  if (call.payload_bytes > kPayloadBytesMax) return share_work(call, turns);
  c10::SmallVector<const std::byte*, 8> payloads;
  for (const Turn* turn : turns) payloads.push_back(turn->payload);
  call.combine({payloads.data(), payloads.size()});
}

void Member::gather(Call& call, const Turns& turns) {
  std::vector<std::int64_t> lengths;
  std::optional<Unit> unit;
  for (const Turn* turn : turns) {
    lengths.push_back(turn->offer.length);
    if (!turn->offer.has_payload && !unit) unit.emplace(*this);
  }
  call.allocate_gathered(lengths);
  std::int64_t before = 0;
  for (std::size_t rank = 0; rank < turns.size(); ++rank) {
    const Turn& turn = *turns[rank];
    call.gather(turn.offer.has_payload ? turn.payload : turn.offer.data, before, lengths[rank]);
    before += lengths[rank];
  }
}

void Member::reduce_scatter(Call& call, const Turns& turns) {
  std::optional<Unit> unit;
  if (call.payload_bytes > kPayloadBytesMax) unit.emplace(*this);
  c10::SmallVector<const std::byte*, 8> payloads;
  for (const Turn* turn : turns) payloads.push_back(unit ? turn->offer.data : turn->payload);
  call.combine({payloads.data(), payloads.size()});
}

void Member::share_work(const Call& call, const Turns& turns) {
  const Chunks chunks(call);
  const std::span<Turn* const> all(turns.data(), turns.size());
  num_units_ += static_cast<std::uint64_t>(chunks.count());
  meeting_->complete(rank_, compute_chunks(chunks, rank_, call, all));
  // The others are usually done by now, and looking at what is left costs time.
  if (meeting_->wait_briefly(num_units_)) return;
  for (int i = 1; i < call.size; ++i)
    meeting_->complete(rank_, compute_chunks(chunks, (rank_ + i) % call.size, call, all));
  meeting_->wait_for_completed(num_units_);
}

}  // namespace cohort::collective::in_process

namespace cohort {

InProcessWorkers::InProcessWorkers(int num_workers) {
  COHORT_CHECK(num_workers > 0, ErrorCode::invalid_argument,
               "[collective.workers] expected num_workers > 0, got ", num_workers);
  splits_ = std::make_shared<collective::in_process::Splits>(num_workers);
}

std::shared_ptr<collective::Group> InProcessWorkers::group(int rank) const {
  COHORT_CHECK(rank >= 0 && rank < splits_->size(), ErrorCode::invalid_argument,
               "[collective.workers] expected a rank in [0, ", splits_->size(), "), got ", rank);
  return std::make_shared<collective::in_process::Member>(splits_, rank);
}

}  // namespace cohort
