// SPDX-License-Identifier: Apache-2.0
// A member of a group of processes that share memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/collective/backends/shared_memory/meeting.h"
#include "cohort/collective/backends/shared_memory/memory.h"
#include "cohort/collective/backends/shared_memory/stream.h"
#include "cohort/collective/group.h"
#include "cohort/collective/links.h"

namespace cohort::collective::shared_memory {

// Used from one thread at a time, but for split(), which is thread-safe.
class Member final : public Group, public EndedGroup, public std::enable_shared_from_this<Member> {
 public:
  // The group of all members.
  explicit Member(std::shared_ptr<Memory> memory);
  // A split of `parent`.
  Member(std::shared_ptr<Member> parent, SplitPath path);
  ~Member() override;
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Connects the members now instead of in the first call.
  void open(Deadline deadline);

  // Called about every 50 ms while a call waits for others; may throw. Set it between calls.
  void set_watch(std::function<void()> watch) { watch_ = std::move(watch); }
  // The calls of others fail that this member has not finished.
  void abandon() noexcept;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string member_name(int rank) const override { return memory_->links().member_name(rank); }
  std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) override;
  std::shared_ptr<Group> split() override { return split_member(); }
  std::shared_ptr<Member> split_member();
  void look_for_end() override;

 protected:
  void perform(Call& call, Deadline deadline) override;

 private:
  // The length that the turn of each member states.
  using Lengths = c10::SmallVector<std::int64_t, 8>;

  // Meets the others; throws if their calls differ. `values` fit into the turn or the buffer.
  Lengths meet(const Call& call, std::int64_t length, std::span<const std::byte> values,
               const Caller& caller);
  [[noreturn]] void throw_disagreement(const Call& call, const Caller& caller);
  void perform_shared(Call& call, const Caller& caller);
  void gather(Call& call, const Caller& caller);
  // Meets and exchanges bytes of any size.
  std::vector<Bytes> exchange_bytes(const Call& call, std::span<const std::byte> mine,
                                    const Caller& caller);
  // Where a member's values lie in the current meeting, if they are few.
  std::byte* place(int rank, std::int64_t bytes) const;
  bool is_few(std::int64_t bytes) const;
  bool are_few(const Lengths& lengths, std::int64_t bytes_each) const;
  // Calls run(); if it throws, the others do not wait for this member in vain.
  template <class Run>
  void in_call(const Run& run);

  const std::shared_ptr<Member> parent_;  // nullptr for the group of all members
  const std::shared_ptr<Memory> memory_;  // shared with the splits
  const int rank_;
  const int size_;
  const SplitPath path_;
  std::function<void()> watch_ = {};
  std::optional<Meeting> meeting_;
  std::optional<Stream> stream_;
  std::uint64_t num_calls_ = 0;
  std::atomic<std::uint64_t> num_splits_ = 0;
};

// The group of all members of `links`. Connects them at once, so that one that is destroyed without
// a call is noticed. Throws what Links::open() throws, and failed_precondition if the members
// cannot share memory.
std::shared_ptr<Group> join(std::shared_ptr<Links> links, Deadline deadline);

}  // namespace cohort::collective::shared_memory
