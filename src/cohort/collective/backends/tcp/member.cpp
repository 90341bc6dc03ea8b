// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/tcp/member.h"

#include <algorithm>
#include <utility>

#include "cohort/collective/backends/tcp/sockets.h"

namespace cohort::collective::tcp {

std::shared_ptr<FrameMember> join(std::shared_ptr<Links> links, SumTree tree) {
  auto sockets = std::make_shared<Sockets>(links);
  return std::make_shared<FrameMember>(std::move(links), std::move(sockets), SplitPath(),
                                       std::move(tree));
}

FrameMember::FrameMember(std::shared_ptr<Links> links, std::shared_ptr<Carrier> carrier,
                         SplitPath path, SumTree tree)
    : links_(std::move(links)),
      carrier_(std::move(carrier)),
      path_(std::move(path)),
      tree_(std::move(tree)),
      session_(links_, carrier_, path_, std::make_shared<Siblings>()),
      scratch_(links_->size()) {}

FrameMember::FrameMember(std::shared_ptr<FrameMember> parent, SplitPath path)
    : parent_(std::move(parent)),
      links_(parent_->links_),
      carrier_(parent_->carrier_),
      path_(std::move(path)),
      tree_(parent_->tree_),
      session_(links_, carrier_, path_, parent_->session_.siblings()),
      scratch_(links_->size()) {}

std::vector<Bytes> FrameMember::exchange(Bytes mine, std::string_view what, Deadline deadline) {
  Call call{.kind = CallKind::exchange, .rank = rank(), .size = size()};
  return run(call, what, deadline, std::move(mine), true);
}

std::shared_ptr<FrameMember> FrameMember::split_member() {
  SplitPath path = path_;
  path.push_back(num_splits_++);
  return std::make_shared<FrameMember>(shared_from_this(), std::move(path));
}

void FrameMember::perform(Call& call, Deadline deadline) {
  if (call.kind > kLastCallKind) return Group::perform(call, deadline);
  if (!tree_.places.empty()) call.tree = &tree_;
  run(call, name_of(call.kind), deadline, {}, true);
}

void FrameMember::look_for_end() {
  session_.look_while_idle([this](int, const Farewell& farewell) {
    const auto& culprits = farewell.culprits;
    if (std::find(culprits.begin(), culprits.end(), rank()) != culprits.end())
      links_->missed(rank(), farewell.why);
  });
}

void FrameMember::agree(Call& call, Deadline deadline) {
  run(call, name_of(call.kind), deadline, {}, false);
}

std::vector<Bytes> FrameMember::run(Call& call, std::string_view what, Deadline deadline,
                                    Bytes message, bool has_values) {
  const Caller caller{*this, num_calls_, call.kind, what};
  session_.begin(caller, deadline);
  Transfer transfer(call, num_calls_, scratch_, std::move(message), has_values);
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

void FrameMember::connect(CallKind kind, Deadline deadline) {
  session_.begin({*this, num_calls_, kind, name_of(kind)}, deadline);
}

Error FrameMember::error_of_call(const Caller& caller, const Error& error) const {
  const std::string start = prefix(caller.kind);
  const std::string part = " to take part in " + in_call(caller);
  const std::string& name = error.origin();
  if (error.code() == ErrorCode::deadline_exceeded && !name.empty())
    return late_error(caller, "only a part from " + name).at(name);
  if (error.code() == ErrorCode::unavailable && !name.empty())
    return Error(error.code(),
                 start + name + part +
                     ", got the end of its process or connection; begin a new group on all",
                 error.cause())
        .at(name);
  // Nobody has told why another member has left in the middle of the call.
  const ErrorCode code = error.code() == ErrorCode::aborted ? ErrorCode::unavailable : error.code();
  return Error(code, start + "all workers" + part + ", got: " + error.message()).at(name);
}

void FrameMember::fail(CallKind kind, const Error& error) {
  COHORT_ASSERT(num_calls_ > 0);
  if (session_.has_ended()) throw Error(error);  // of check_last()
  const Caller caller{*this, num_calls_ - 1, kind, name_of(kind)};
  Error mine = error_of_call(caller, error);
  const std::string& self = links_->member_name(rank());
  Farewell farewell{.call = caller.call, .code = mine.code()};
  for (int other = 0; other < size(); ++other) {
    if (links_->member_name(other) == mine.origin()) farewell.culprits.push_back(other);
  }
  const bool is_late = mine.code() == ErrorCode::deadline_exceeded;
  const bool is_lost = mine.code() == ErrorCode::unavailable;
  if (!mine.origin().empty() && mine.origin() != self) {
    farewell.why = is_late   ? self + " has waited in vain for " + mine.origin()
                   : is_lost ? self + " has lost " + mine.origin()
                             : self + " got an error of " + mine.origin() + ": " + error.message();
  } else {
    farewell.why = self + " has failed: " + error.message();
    if (!is_late) farewell.culprits = {rank()};
  }
  const bool follows = error.code() == ErrorCode::aborted;
  session_.fail(farewell, follows, caller);
  for (const int culprit : farewell.culprits) {
    if (!follows && culprit != rank()) links_->missed(culprit, farewell.why);
  }
  throw mine;
}

}  // namespace cohort::collective::tcp
