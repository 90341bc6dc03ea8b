// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/workers/collected_shares.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/error.h"
#include "cohort/core/fields.h"
#include "cohort/replicas/replica_devices.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/synchronous/workers/sharded_updates.h"
#include "cohort/workers/shares.h"

namespace cohort::internal {
namespace {

using Holder = ShardedUpdates::Holder;

// A slot of which workers have shares.
struct SharedSlot {
  std::string name;  // variable, optimizer, rule and number
  at::ScalarType type = at::kFloat;
  std::int64_t elements = 0;
  MirroredVariable* variable = nullptr;  // on workers that have a share
  std::string optimizer = {};
  std::string rule = {};
  std::size_t number = 0;
};

// In an order that is the same on all workers.
std::vector<SharedSlot> shared_slots(MirroredHome& home) {
  std::map<std::string, SharedSlot> slots;
  for (const Variable& handle : home.variables()) {
    MirroredVariable& variable = target_of(handle).variable;
    for (const auto& [optimizer, of_rule] : variable.state(0).slots()) {
      for (std::size_t i = 0; i < of_rule.are_parts.size(); ++i) {
        if (!of_rule.are_parts[i]) continue;
        const std::string name =
            variable.name() + "\n" + optimizer + "\n" + of_rule.rule + "\n" + std::to_string(i);
        slots[name] = {.name = name,
                       .type = of_rule.tensors[i].scalar_type(),
                       .elements = variable.component(0).numel(),
                       .variable = &variable,
                       .optimizer = optimizer,
                       .rule = of_rule.rule,
                       .number = i};
      }
    }
  }
  std::vector<SharedSlot> all;
  for (auto& [name, slot] : slots) all.push_back(std::move(slot));
  return all;
}

// A member's report of itself.
struct Report {
  bool is_whole = false;  // it has all values, and slots that fit them or shares
  Holder holder = {};     // without names: its slots are whole
  std::vector<SharedSlot> slots = {};
};

template <class Codec>
void fields(Codec& codec, SharedSlot& slot) {
  codec(slot.name, slot.type, slot.elements);
}
template <class Codec>
void fields(Codec& codec, Report& report) {
  Holder& holder = report.holder;
  codec(report.is_whole, holder.names, holder.own, Fixed{holder.steps}, holder.is_torn,
        report.slots);
}

constexpr std::string_view kLossRemedy =
    "; the values of variables are there: start all workers again from the last checkpoint, or "
    "save these with save_values() and start from them, with new slots; train without "
    "shard_optimizer_state where a loss must not cost the slots";

// For each member of the last group its rank in this one. Throws the same on all members.
std::vector<int> ranks_of_shares(const std::vector<Report>& all) {
  std::vector<int> ranks;
  const Report* first = nullptr;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].is_whole) continue;
    const Holder& holder = all[rank].holder;
    if (first == nullptr) {
      first = &all[rank];
      ranks.assign(holder.names.size(), -1);
    }
    const bool is_of_group =
        holder.names == first->holder.names &&
        std::ranges::equal(first->slots, all[rank].slots, {}, &SharedSlot::name, &SharedSlot::name);
    COHORT_CHECK(is_of_group && holder.steps == first->holder.steps, ErrorCode::data_loss,
                 "[strategy.rebuild] expected shares of the slots of optimizers of one step on all "
                 "workers, got those of different ones: the last step has failed after a part of "
                 "the workers had updated theirs",
                 kLossRemedy);
    ranks.at(static_cast<std::size_t>(holder.own)) = static_cast<int>(rank);
  }
  std::string lost;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0) lost += (lost.empty() ? "" : ", ") + first->holder.names[i];
  }
  COHORT_CHECK(lost.empty(), ErrorCode::data_loss,
               "[strategy.rebuild] expected all workers that have shares of the slots of "
               "optimizers (shard_optimizer_state), got none of the shares of ",
               lost, kLossRemedy);
  return ranks;
}

void check_values_are_there(const std::vector<Report>& all) {
  const bool are_there = std::ranges::any_of(
      all, [](const Report& each) { return each.is_whole && !each.holder.is_torn; });
  COHORT_CHECK(are_there, ErrorCode::data_loss,
               "[strategy.rebuild] expected a worker with the values of the last step, got none: "
               "it has failed when all had updated their slots, and before they had the new values",
               kLossRemedy);
}

// The shares of all members of the last group, in their order.
at::Tensor whole_slot(const at::Tensor& gathered, std::int64_t elements,
                      const std::vector<int>& ranks, std::size_t members) {
  const int holders = static_cast<int>(ranks.size());
  std::vector<std::int64_t> begins(members, 0);
  std::int64_t next = 0;
  for (std::size_t rank = 0; rank < members; ++rank) {
    begins[rank] = next;
    const auto found = std::ranges::find(ranks, static_cast<int>(rank));
    if (found == ranks.end()) continue;
    next += share_of(elements, static_cast<int>(found - ranks.begin()), holders).size();
  }
  const at::Tensor whole = at::empty({elements}, gathered.options());
  for (int holder = 0; holder < holders; ++holder) {
    const ElementRange share = share_of(elements, holder, holders);
    const std::int64_t begin = begins[static_cast<std::size_t>(ranks[holder])];
    elements_of(whole, share).copy_(elements_of(gathered, {begin, begin + share.size()}));
  }
  return whole;
}

}  // namespace

bool collect_shares(MirroredHome& home, collective::Group& group, Deadline deadline) {
  const c10::NoGradGuard no_grad;
  ShardedUpdates* const sharded = home.sharded_updates();
  Report own{.is_whole = home.are_values_whole()};
  if (own.is_whole && sharded != nullptr) {
    own.holder = sharded->holder();
    own.slots = shared_slots(home);
  }
  std::vector<Report> all;
  for (const Bytes& bytes :
       group.exchange(encode_fields(own), "shares of the slots of optimizers", deadline))
    all.push_back(decode_fields<Report>(bytes, "the shares of another worker"));
  const auto has_all = [](const Report& each) {
    return each.is_whole && each.holder.names.empty();
  };
  // A worker with whole slots was not yet in the step of which others have shares, or has collected
  // them before.
  if (std::ranges::any_of(all, has_all)) return has_all(own);
  const auto first = std::ranges::find_if(all, &Report::is_whole);
  if (first == all.end()) return false;
  // Without slots, as for plain SGD, a lost worker takes nothing with it.
  const bool has_slots =
      std::ranges::any_of(all, [](const Report& each) { return !each.slots.empty(); });
  const std::vector<int> ranks = has_slots ? ranks_of_shares(all) : std::vector<int>();
  check_values_are_there(all);
  std::vector<at::Tensor> whole;
  for (std::size_t i = 0; i < first->slots.size(); ++i) {
    const SharedSlot& slot = first->slots[i];
    at::Tensor share = at::empty({0}, at::TensorOptions(slot.type));
    if (own.is_whole) {
      const SharedSlot& mine = own.slots[i];
      const VariableState::Slots& slots = mine.variable->state(0).slots();
      share = slots.find(mine.optimizer)->second.tensors[mine.number].cpu();
    }
    const at::Tensor gathered = group.all_gather(share, 0, deadline);
    if (own.is_whole) whole.push_back(whole_slot(gathered, slot.elements, ranks, all.size()));
  }
  if (!own.is_whole) return false;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const SharedSlot& slot = own.slots[i];
    VariableState& state = slot.variable->state_of_shares();
    const at::Tensor& value = state.value();
    state.replace_slot(slot.optimizer, slot.number,
                       on_device(whole[i].view(value.sizes()), value.device()));
  }
  sharded->forget_shares();
  if (own.holder.is_torn) home.set_values_whole(false);  // until it gets those of another worker
  return !own.holder.is_torn;
}

namespace {

// Throws the same on all workers unless each has its own share of the same slots.
void check_shares(const std::vector<Report>& all) {
  for (std::size_t worker = 0; worker < all.size(); ++worker) {
    const Holder &holder = all[worker].holder, &first = all[0].holder;
    const bool are_of_one_step = holder.names == first.names && holder.steps == first.steps &&
                                 !holder.is_torn && holder.own == static_cast<int>(worker) &&
                                 holder.names.size() == all.size() &&
                                 std::ranges::equal(all[0].slots, all[worker].slots, {},
                                                    &SharedSlot::name, &SharedSlot::name);
    COHORT_CHECK(are_of_one_step, ErrorCode::failed_precondition,
                 "[checkpoint.write] expected shares of the slots of optimizers "
                 "(shard_optimizer_state) of one step on all workers, got those of different ones: "
                 "the last step has failed after a part of the workers had updated theirs; call "
                 "rebuild(), or go on from a checkpoint before");
  }
}

// The elements [begin, end) of a slot of which this worker has `share`, in `range`.
at::Tensor part_of(const at::Tensor& share, ElementRange range, ElementRange wanted) {
  const std::int64_t begin = std::clamp(wanted.begin, range.begin, range.end);
  const std::int64_t end = std::clamp(wanted.end, begin, range.end);
  return elements_of(share, {begin - range.begin, end - range.begin}).detach().cpu();
}

}  // namespace

namespace {

// The slots of which this worker has shares, if all workers have such of one step; else none.
std::vector<SharedSlot> checked_shared_slots(MirroredHome& home, std::string_view call) {
  const ShardedUpdates* const sharded = home.sharded_updates();
  if (sharded == nullptr || !home.has_workers()) return {};
  Report own{.is_whole = true, .holder = sharded->holder(), .slots = shared_slots(home)};
  std::vector<Report> all;
  for (const Bytes& bytes : home.workers()->exchange({.call = call, .combines = false},
                                                     [&]() -> StrategyWorkers::Message {
                                                       return {{}, encode_fields(own)};
                                                     }))
    all.push_back(decode_fields<Report>(bytes, "the shares of another worker"));
  const auto has_slots = [](const Report& each) { return !each.slots.empty(); };
  if (std::ranges::none_of(all, has_slots)) return {};
  check_shares(all);
  return std::move(own.slots);
}

at::Tensor share_of_slot(const SharedSlot& slot) {
  return slot.variable->state(0).slots().find(slot.optimizer)->second.tensors[slot.number];
}

// The share of a worker, in rows of a slot.
struct RowsOfShare {
  RowsOfShare(std::int64_t elements, std::int64_t elements_of_row, int worker, int workers)
      : share(share_of(elements, worker, workers)) {
    const std::int64_t row = std::max<std::int64_t>(1, elements_of_row);
    first = (share.begin + row - 1) / row;
    whole_end = std::max(first, share.end / row);
    end = std::max(first, (share.end + row - 1) / row);
    head = std::min(share.end, first * row) - share.begin;
  }
  ElementRange share;
  std::int64_t first;      // the first row that begins in the share
  std::int64_t whole_end;  // the rows before this one are in it as a whole
  std::int64_t end;        // the rows before this one begin in it
  std::int64_t head;       // elements of a row that begins in an earlier share
};

// The last row that begins in this worker's share, of which others have the rest. `heads`: those of
// all workers, one after the other.
at::Tensor completed_row(const at::Tensor& share, std::span<const RowsOfShare> all, std::size_t own,
                         std::int64_t row, const at::Tensor& heads) {
  const RowsOfShare& mine = all[own];
  const std::int64_t begin = mine.whole_end * row, end = begin + row;
  const at::Tensor whole = at::empty({row}, share.options());
  elements_of(whole, {0, mine.share.end - begin})
      .copy_(elements_of(share, {begin - mine.share.begin, mine.share.size()}));
  std::int64_t offset = 0, next = mine.share.end;
  for (std::size_t worker = 0; worker < all.size(); ++worker) {
    const std::int64_t count = std::min(all[worker].head, end - next);
    if (worker > own && count > 0) {
      elements_of(whole, {next - begin, next - begin + count})
          .copy_(elements_of(heads, {offset, offset + count}));
      next += count;
    }
    offset += all[worker].head;
  }
  COHORT_ASSERT(next == end);
  return whole;
}

}  // namespace

std::vector<StrategyVariables::SlotRows> own_rows_of_shared_slots(MirroredHome& home,
                                                                  std::string_view call) {
  std::vector<StrategyVariables::SlotRows> pieces;
  const c10::NoGradGuard no_grad;
  for (const SharedSlot& slot : checked_shared_slots(home, call)) {
    StrategyWorkers& workers = *home.workers();
    std::vector<std::int64_t> sizes = slot.variable->component(0).sizes().vec();
    const std::int64_t rows = sizes.empty() ? 1 : sizes.front();
    const std::int64_t row = rows == 0 ? 0 : slot.elements / rows;
    std::vector<RowsOfShare> all;
    for (int i = 0; i < workers.count(); ++i)
      all.emplace_back(slot.elements, row, i, workers.count());
    const RowsOfShare& mine = all[static_cast<std::size_t>(workers.own())];
    const at::Tensor share = share_of_slot(slot).detach().cpu();
    at::Tensor heads;
    if (std::ranges::any_of(all, [](const RowsOfShare& each) { return each.head > 0; })) {
      heads = workers.all_gather({.call = call, .combines = false},
                                 elements_of(share, {0, mine.head}), 0);
    }
    const auto add = [&](std::int64_t first_row, std::int64_t count, const at::Tensor& elements) {
      std::vector<std::int64_t> own_sizes = sizes;
      if (!sizes.empty()) own_sizes.front() = count;
      const bool is_there = !sizes.empty() || count > 0;
      pieces.push_back({.variable = slot.variable->name(),
                        .optimizer = slot.optimizer,
                        .rule = slot.rule,
                        .number = slot.number,
                        .spec = {slot.type, sizes},
                        .first_row = first_row,
                        .rows = is_there ? elements.view(own_sizes) : at::Tensor()});
    };
    add(mine.first, mine.whole_end - mine.first,
        elements_of(share, {mine.head, mine.head + (mine.whole_end - mine.first) * row}));
    if (mine.end > mine.whole_end) {
      add(mine.whole_end, 1,
          completed_row(share, all, static_cast<std::size_t>(workers.own()), row, heads));
    }
  }
  return pieces;
}

std::vector<StrategyVariables::GatheredSlot> gather_shared_slots(MirroredHome& home,
                                                                 std::string_view call,
                                                                 std::uint64_t chunk_bytes) {
  std::vector<StrategyVariables::GatheredSlot> gathered;
  const c10::NoGradGuard no_grad;
  for (const SharedSlot& slot : checked_shared_slots(home, call)) {
    StrategyWorkers& workers = *home.workers();
    const at::Tensor share = share_of_slot(slot);
    const ElementRange range = share_of(slot.elements, workers.own(), workers.count());
    StrategyVariables::GatheredSlot& made = gathered.emplace_back(
        StrategyVariables::GatheredSlot{slot.variable->name(), slot.optimizer, slot.number});
    if (workers.own() == 0) {
      made.whole = at::empty({slot.elements}, at::TensorOptions(slot.type));
    }
    const auto chunk = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(chunk_bytes / c10::elementSize(slot.type)));
    for (std::int64_t begin = 0; begin < slot.elements; begin += chunk) {
      const ElementRange wanted{begin, std::min(begin + chunk, slot.elements)};
      // Shares are in the order of the workers.
      const at::Tensor part =
          workers.all_gather({.call = call, .combines = false}, part_of(share, range, wanted), 0);
      if (made.whole.defined()) elements_of(made.whole, wanted).copy_(part);
    }
    if (made.whole.defined()) made.whole = made.whole.view(slot.variable->component(0).sizes());
  }
  return gathered;
}

}  // namespace cohort::internal
