// SPDX-License-Identifier: Apache-2.0
// Groups whose members send each other frames.
#include <atomic>
#include <utility>

#include "cohort/collective/backends/tcp/join.h"
#include "cohort/collective/backends/tcp/session.h"
#include "cohort/collective/backends/tcp/sockets.h"
#include "cohort/collective/backends/tcp/transfer.h"

namespace cohort::collective::tcp {
namespace {

class FrameMember final : public Group, public std::enable_shared_from_this<FrameMember> {
 public:
  // A split of `parent`, or the group of all members if that is nullptr.
  FrameMember(std::shared_ptr<Links> links, std::shared_ptr<Carrier> carrier,
              std::shared_ptr<FrameMember> parent, SplitPath path)
      : parent_(std::move(parent)),
        links_(std::move(links)),
        carrier_(std::move(carrier)),
        path_(std::move(path)),
        session_(links_, carrier_, path_),
        scratch_(links_->size()) {}

  int rank() const override { return links_->rank(); }
  int size() const override { return links_->size(); }
  std::string member_name(int rank) const override { return links_->member_name(rank); }

  std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) override {
    Call call{.kind = CallKind::exchange, .rank = rank(), .size = size()};
    return run(call, what, deadline, std::move(mine));
  }

  std::shared_ptr<Group> split() override {
    SplitPath path = path_;
    path.push_back(num_splits_++);
    return std::make_shared<FrameMember>(links_, carrier_, shared_from_this(), std::move(path));
  }

 protected:
  void perform(Call& call, Deadline deadline) override {
    if (call.kind > kLastCallKind) return Group::perform(call, deadline);
    run(call, name_of(call.kind), deadline, {});
  }

 private:
  std::vector<Bytes> run(Call& call, std::string_view what, Deadline deadline, Bytes message) {
    const Caller caller{*this, num_calls_, call.kind, what};
    session_.begin(caller, deadline);
    Transfer transfer(call, num_calls_, scratch_, std::move(message));
    session_.run(transfer, caller, deadline);
    const std::uint64_t number = num_calls_++;
    if (!transfer.is_agreed()) {
      std::optional<Error> error = disagreement(transfer.specs(), *this, number);
      COHORT_ASSERT(error.has_value());
      throw std::move(*error);
    }
    transfer.finish();
    return transfer.take_messages();
  }

  const std::shared_ptr<FrameMember> parent_;  // lives as long as its splits
  const std::shared_ptr<Links> links_;
  const std::shared_ptr<Carrier> carrier_;
  const SplitPath path_;
  Session session_;
  Scratch scratch_;
  std::uint64_t num_calls_ = 0;
  std::atomic<std::uint64_t> num_splits_ = 0;
};

}  // namespace

std::shared_ptr<Group> join(std::shared_ptr<Links> links) {
  auto sockets = std::make_shared<Sockets>(links);
  return join(std::move(links), std::move(sockets), SplitPath());
}

std::shared_ptr<Group> join(std::shared_ptr<Links> links, std::shared_ptr<Carrier> carrier,
                            SplitPath path) {
  return std::make_shared<FrameMember>(std::move(links), std::move(carrier), nullptr,
                                       std::move(path));
}

}  // namespace cohort::collective::tcp
