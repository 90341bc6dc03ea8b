// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/hierarchical/member.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "cohort/collective/reduce_elements.h"
#include "cohort/core/error.h"

namespace cohort::collective::hierarchical {
namespace {

using Part = DividedLinks::Part;
using Tensors = std::vector<at::Tensor>;

// Up to this size a call of all members at once is faster than one after the other.
constexpr std::int64_t kSmallBytes = 64 << 10;

bool is_large(const Call& call) {
  const bool has_stages = call.kind == CallKind::all_reduce || call.kind == CallKind::broadcast;
  return has_stages && !call.refusal && call.payload_bytes > kSmallBytes;
}

// The memory of the parts of a call, as tensors that autograd does not know.
Tensors values_of(const Call& call) {
  Tensors values;
  for (const collective::Part& part : call.parts) {
    if (part.count > 0) values.push_back(at::from_blob(part.data, {part.count}, part.dtype));
  }
  return values;
}

// The values to add: float32 instead of types that are rounded once, at the end.
Tensors addends_of(const Tensors& values) {
  Tensors addends;
  for (const at::Tensor& value : values) {
    const at::ScalarType dtype = value.scalar_type();
    if (!is_added_as_float(dtype)) {
      addends.push_back(value);
      continue;
    }
    const at::Tensor wide = at::empty(value.sizes(), at::kFloat);
    widen(dtype, static_cast<const std::byte*>(value.data_ptr()), wide.data_ptr<float>(),
          value.numel());
    addends.push_back(wide);
  }
  return addends;
}

void round_all(const Tensors& sums, const Tensors& values) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const at::ScalarType dtype = values[i].scalar_type();
    if (is_added_as_float(dtype))
      round_to(dtype, sums[i].data_ptr<float>(), static_cast<std::byte*>(values[i].data_ptr()),
               values[i].numel());
  }
}

// The number of the block of a rank.
int block_of(const std::vector<Block>& blocks, int rank) {
  const auto found = std::find_if(blocks.begin(), blocks.end(),
                                  [&](const Block& block) { return rank < block.last; });
  return static_cast<int>(found - blocks.begin());
}

std::vector<int> ranks_of(const Block& block) {
  std::vector<int> ranks(static_cast<std::size_t>(block.size()));
  std::iota(ranks.begin(), ranks.end(), block.first);
  return ranks;
}

// How long a member waits beyond the deadline of a call that all members have begun.
constexpr std::chrono::milliseconds kInBlock{1000};
constexpr std::chrono::milliseconds kBetweenLeaders{2000};  // a leader may wait for its block
constexpr std::chrono::milliseconds kForLeader{3500};       // which may wait for the others
// One that has not begun the next call may wait in this one.
constexpr std::chrono::milliseconds kForBeginning{4000};

Deadline later(Deadline deadline, std::chrono::milliseconds by) {
  return deadline.is_infinite() ? deadline : Deadline(deadline.time() + by);
}

}  // namespace

std::shared_ptr<Group> join(std::shared_ptr<Links> links, Deadline deadline) {
  const int size = links->size();
  const int rank = links->rank();
  const std::vector<Block> blocks = blocks_of(*links);
  std::vector<int> leaders;
  for (const Block& block : blocks) leaders.push_back(block.first);
  const int mine = block_of(blocks, rank);
  const Block& block = blocks[static_cast<std::size_t>(mine)];
  const auto divided = std::make_shared<DividedLinks>(std::move(links));
  const auto part = [&](Part of, std::vector<int> ranks) {
    return std::make_shared<PartLinks>(divided, of, std::move(ranks));
  };
  const std::vector<int> everyone = ranks_of({0, size});
  divided->open({}, deadline);
  Member::Parts parts;
  parts.all = tcp::join(part(Part::all, everyone));
  if (block.first == rank) {
    SumTree tree{.size = size, .places = leaders};
    parts.leaders = tcp::join(part(Part::leaders, leaders), std::move(tree));
  }
  // In a group of its own, so that the calls of `all` are those of the user.
  const auto forming = tcp::join(part(Part::forming, everyone));
  exchange_result(
      *forming,
      [&] {
        if (block.size() == 1) return Bytes();
        parts.block = std::make_shared<shared_memory::Member>(
            std::make_shared<shared_memory::Memory>(part(Part::block, ranks_of(block))));
        parts.block->open(deadline);
        return Bytes();
      },
      "the memory of hosts", deadline);
  const auto member =
      std::make_shared<Member>(divided, blocks, mine, std::move(parts), SplitPath());
  member->connect(CallKind::barrier, deadline);
  return member;
}

Member::Member(std::shared_ptr<DividedLinks> links, std::vector<Block> blocks, int mine,
               Parts parts, SplitPath path)
    : links_(std::move(links)),
      blocks_(std::move(blocks)),
      mine_(mine),
      parts_(std::move(parts)),
      path_(std::move(path)) {}

void Member::connect(CallKind kind, Deadline deadline) {
  if (is_connected_) return;
  const auto watch = [this] { parts_.all->check_last(kind_); };
  if (parts_.leaders) parts_.leaders->set_watch(watch);
  if (parts_.block) parts_.block->set_watch(watch);
  parts_.all->connect(kind, deadline);
  if (parts_.leaders) parts_.leaders->connect(kind, deadline);
  links_->close_rest(path_);
  is_connected_ = true;
}

std::shared_ptr<Group> Member::split() {
  const Lock lock(split_mutex_);
  SplitPath path = path_;
  path.push_back(num_splits_++);
  return std::make_shared<Member>(
      links_, blocks_, mine_,
      Parts{.all = parts_.all->split_member(),
            .block = parts_.block ? parts_.block->split_member() : nullptr,
            .leaders = parts_.leaders ? parts_.leaders->split_member() : nullptr},
      std::move(path));
}

std::vector<Bytes> Member::exchange(Bytes mine, std::string_view what, Deadline deadline) {
  deadline = for_beginning(deadline);
  connect(CallKind::exchange, deadline);
  std::vector<Bytes> all = parts_.all->exchange(std::move(mine), what, deadline);
  note_beginning();
  return all;
}

void Member::perform(Call& call, Deadline deadline) {
  const Deadline beginning = for_beginning(deadline);
  connect(call.kind, beginning);
  if (!is_large(call)) {
    parts_.all->perform(call, beginning);
    note_beginning();
    return;
  }
  parts_.all->agree(call, beginning);
  kind_ = call.kind;
  deadline = Deadline(std::max(deadline.time(), Clock::system().now()));
  try {
    call.kind == CallKind::all_reduce ? all_reduce(call, deadline) : broadcast(call, deadline);
  } catch (...) {
    fail(call, current_error());
  }
  behind_until_ = later(deadline, kForBeginning).time();
  links_->behind_until() = behind_until_;
}

Deadline Member::for_beginning(Deadline deadline) const {
  const bool is_behind_here = behind_until_ != TimePoint();
  // Members that wait in a call of another group give up by then.
  const bool is_behind = is_behind_here || links_->behind_until().load() > deadline.time();
  return is_behind ? later(deadline, kForBeginning) : deadline;
}

void Member::note_beginning() {
  if (behind_until_ == TimePoint()) return;
  // Unless it is of another group now.
  links_->behind_until().compare_exchange_strong(behind_until_, TimePoint());
  behind_until_ = {};
}

void Member::all_reduce(const Call& call, Deadline deadline) {
  const Tensors values = values_of(call);
  const Tensors addends = addends_of(values);
  if (parts_.block) parts_.block->reduce(addends, ReduceOp::sum, 0, later(deadline, kInBlock));
  if (parts_.leaders) {
    parts_.leaders->all_reduce(addends, call.op, later(deadline, kBetweenLeaders));
    round_all(addends, values);
  }
  give_to_block(values, deadline);
}

void Member::broadcast(const Call& call, Deadline deadline) {
  const Tensors values = values_of(call);
  const int from = block_of(blocks_, call.root);
  const Block& block = blocks_[static_cast<std::size_t>(from)];
  if (from == mine_ && parts_.block)
    parts_.block->broadcast(values, call.root - block.first, later(deadline, kInBlock));
  if (parts_.leaders) parts_.leaders->broadcast(values, from, later(deadline, kBetweenLeaders));
  if (from != mine_) give_to_block(values, deadline);
}

void Member::give_to_block(const Tensors& values, Deadline deadline) {
  if (!parts_.block) return;
  Deadline until = later(deadline, kForLeader);
  // The leader waits for members that wait for nobody else. It must notice first that one of them
  // has stopped: the other leaders may have finished the call, and would name this one.
  if (parts_.leaders) until = Deadline(std::max(deadline.time(), Clock::system().now() + kInBlock));
  parts_.block->broadcast(values, 0, until);
}

void Member::fail(const Call& call, const Error& error) {
  try {
    parts_.all->fail(call.kind, error);
  } catch (...) {
    if (parts_.leaders) parts_.leaders->leave();
    if (parts_.block) parts_.block->abandon();
    throw;
  }
}

}  // namespace cohort::collective::hierarchical
