// SPDX-License-Identifier: Apache-2.0
// A member of a group whose members send each other frames.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/collective/backends/tcp/channel.h"
#include "cohort/collective/backends/tcp/session.h"
#include "cohort/collective/backends/tcp/transfer.h"
#include "cohort/collective/group.h"
#include "cohort/collective/groups/call.h"
#include "cohort/collective/links.h"

namespace cohort::collective::tcp {

// Used from one thread at a time, but for split(), which is thread-safe.
class FrameMember final : public Group,
                          public EndedGroup,
                          public std::enable_shared_from_this<FrameMember> {
 public:
  // The group of all members of `links`, of this path. `tree`: what its sums are of.
  FrameMember(std::shared_ptr<Links> links, std::shared_ptr<Carrier> carrier, SplitPath path = {},
              SumTree tree = {});
  // A split of `parent`.
  FrameMember(std::shared_ptr<FrameMember> parent, SplitPath path);

  int rank() const override { return links_->rank(); }
  int size() const override { return links_->size(); }
  std::string member_name(int rank) const override { return links_->member_name(rank); }
  std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) override;
  std::shared_ptr<Group> split() override { return split_member(); }
  void perform(Call& call, Deadline deadline) override;
  void look_for_end() override;

  // The rest is for backends that carry the values of calls in another way.

  std::shared_ptr<FrameMember> split_member();
  // Connects the members before the first call, which is of this kind.
  void connect(CallKind kind, Deadline deadline);
  // Performs the call without its values: returns when all members have begun it, and throws what
  // the call throws if they differ or some have not come.
  void agree(Call& call, Deadline deadline);
  // The last call that agree() has performed has failed on this member, because of the member that
  // `error` names. Ends the group, and throws the error of that call; or that of another member
  // which has found the reason first.
  [[noreturn]] void fail(CallKind kind, const Error& error);
  // Throws the error of the last call of agree(), if another member has ended the group since.
  void check_last(CallKind kind) { session_.check({*this, num_calls_ - 1, kind, name_of(kind)}); }
  // See Session::set_watch().
  void set_watch(std::function<void()> watch) { session_.set_watch(std::move(watch)); }
  // The calls of others fail.
  void leave() noexcept { session_.leave(); }

 private:
  std::vector<Bytes> run(Call& call, std::string_view what, Deadline deadline, Bytes message,
                         bool has_values);
  Error error_of_call(const Caller& caller, const Error& error) const;

  const std::shared_ptr<FrameMember> parent_;  // lives as long as its splits
  const std::shared_ptr<Links> links_;
  const std::shared_ptr<Carrier> carrier_;
  const SplitPath path_;
  const SumTree tree_;
  Session session_;
  Scratch scratch_;
  std::uint64_t num_calls_ = 0;
  std::atomic<std::uint64_t> num_splits_ = 0;
};

// The group of all members of `links`, over sockets. Its first call connects the members. `tree`:
// what its sums are of.
std::shared_ptr<FrameMember> join(std::shared_ptr<Links> links, SumTree tree = {});

}  // namespace cohort::collective::tcp
