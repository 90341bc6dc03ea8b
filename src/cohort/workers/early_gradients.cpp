// SPDX-License-Identifier: Apache-2.0
#include "cohort/workers/early_gradients.h"

#include <ATen/core/TensorBody.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cohort/collective/group.h"
#include "cohort/core/bytes.h"
#include "cohort/workers/strategy_workers.h"

namespace cohort::internal {
namespace {

// Below this the calls cost more than they save.
constexpr std::int64_t kBytesMin = std::int64_t{1} << 20;
constexpr std::int64_t kBytesOfPack = std::int64_t{4} << 20;

std::int64_t bytes_of(const EarlyKind& kind, std::size_t i) {
  std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(type_of_sum(kind.types[i])));
  for (const std::int64_t size : kind.sizes[i]) bytes *= size;
  return bytes;
}

// All dense variables: first those of `arrived` in their order, then the others. The last layers'
// gradients come first, so without an order it is that from the last variable to the first.
std::vector<std::size_t> whole_order(const EarlyKind& kind,
                                     const std::vector<std::size_t>& arrived) {
  std::vector<bool> is_left(kind.names.size(), false);
  for (const std::size_t i : kind.dense) is_left[i] = true;
  std::vector<std::size_t> order;
  const auto add = [&](std::size_t i) {
    if (i >= is_left.size() || !is_left[i]) return;
    is_left[i] = false;
    order.push_back(i);
  };
  for (const std::size_t i : arrived) add(i);
  for (std::size_t i = is_left.size(); i-- > 0;) add(i);
  return order;
}

std::vector<std::vector<std::size_t>> packs_in(const EarlyKind& kind,
                                               const std::vector<std::size_t>& order,
                                               std::int64_t bytes_per_pack) {
  std::vector<std::int64_t> sizes;
  for (const std::size_t i : order) sizes.push_back(bytes_of(kind, i));
  std::vector<std::vector<std::size_t>> packs;
  auto next = order.begin();
  for (const std::vector<std::int64_t>& pack : packs_of(sizes, bytes_per_pack)) {
    const auto end = next + static_cast<std::ptrdiff_t>(pack.size());
    packs.emplace_back(next, end);
    next = end;
  }
  return packs;
}

// A worker sends this in agree().
struct OrderOffer {
  bool needs_sender = false;
  std::uint64_t splits = 0;
  std::vector<std::size_t> order;

  Bytes bytes() const {
    ByteWriter writer;
    writer.u8(needs_sender ? 1 : 0);
    writer.u64(splits);
    writer.u64(order.size());
    for (const std::size_t i : order) writer.u64(i);
    return writer.take();
  }
  static OrderOffer of(const Bytes& bytes) {
    ByteReader reader(bytes, "the order of gradients");
    OrderOffer offer{.needs_sender = reader.u8() != 0, .splits = reader.u64(), .order = {}};
    for (std::uint64_t left = reader.u64(); left > 0; --left) offer.order.push_back(reader.u64());
    return offer;
  }
};

}  // namespace

bool EarlyKind::is_of(std::string_view of_step, std::span<const Variable> variables) const {
  return what == of_step && std::ranges::equal(variables, names, {}, &Variable::name);
}

EarlyPass::EarlyPass(EarlyGradients& owner, std::shared_ptr<const EarlyKind> kind,
                     std::shared_ptr<PackSender> sender)
    : owner_(owner), kind_(std::move(kind)), sender_(std::move(sender)) {
  positions_.resize(kind_->names.size());
  if (sender_ == nullptr) return;
  for (std::size_t pack = 0; pack < kind_->packs.size(); ++pack) {
    const std::vector<std::size_t>& members = kind_->packs[pack];
    packs_.push_back(std::make_shared<GradientPack>());
    for (std::size_t place = 0; place < members.size(); ++place) {
      const std::size_t i = members[place];
      positions_[i] = {pack, place, /*travels=*/true};
      packs_.back()->push_back({.own = {}, .sizes = kind_->sizes[i], .type = kind_->types[i]});
    }
    missing_.push_back(members.size());
  }
}

EarlyPass::~EarlyPass() {
  owner_.close(this);
  if (sender_ != nullptr && num_sent_ > 0 && !is_over_) sender_->stop();
}

// A gradient that differs from the agreement of the workers waits for sums().
void EarlyPass::take(std::size_t i, const at::Tensor& gradient) {
  if (!gradient.defined() || i >= positions_.size()) return;
  order_.push_back(i);
  const Position position = positions_[i];
  if (!position.travels) return;
  PackedGradient& own = packs_[position.pack]->at(position.place);
  const bool is_plain = gradient.layout() == at::kStrided && gradient.device().is_cpu() &&
                        gradient.scalar_type() == own.type && gradient.sizes() == own.sizes;
  if (!is_plain || own.own.defined()) return;
  own.own = gradient;
  --missing_[position.pack];
  send_complete();
}

void EarlyPass::send_complete() {
  while (num_sent_ < packs_.size() && missing_[num_sent_] == 0) {
    sender_->send(packs_[num_sent_]);
    ++num_sent_;
  }
}

std::vector<at::Tensor> EarlyPass::sums(const std::vector<at::Tensor>& own) {
  for (std::size_t pack = num_sent_; pack < packs_.size(); ++pack) {
    for (std::size_t place = 0; place < packs_[pack]->size(); ++place) {
      PackedGradient& each = packs_[pack]->at(place);
      if (!each.own.defined()) each.own = own[kind_->packs[pack][place]];
    }
  }
  std::ranges::fill(missing_, 0);
  send_complete();
  sender_->wait();
  is_over_ = true;
  std::vector<at::Tensor> sums(positions_.size());
  for (std::size_t i = 0; i < positions_.size(); ++i) {
    const Position& position = positions_[i];
    if (position.travels) sums[i] = packs_[position.pack]->at(position.place).sum;
  }
  return sums;
}

EarlyGradients::EarlyGradients(std::shared_ptr<StrategyWorkers> workers)
    : workers_(std::move(workers)), process_(::getpid()) {
  workers_->on_new_epoch([this] { stop(); });
}

EarlyGradients::~EarlyGradients() {
  workers_->on_new_epoch(nullptr);
  const Lock lock(mutex_);
  forget_those_of_the_parent();
}

// A thread of the parent process does not exist here, so nothing can wait for it, nor join it.
void EarlyGradients::forget_those_of_the_parent() {
  const int process = ::getpid();
  if (process == process_) return;
  process_ = process;
  kinds_.clear();
  if (sender_) (void)new std::shared_ptr<PackSender>(std::move(sender_));
}

std::unique_ptr<GradientSink> EarlyGradients::begin(std::string_view what,
                                                    std::span<const Variable> variables) {
  if (!options_.is_wanted) return nullptr;
  const Lock lock(mutex_);
  forget_those_of_the_parent();
  if (open_ != nullptr || epoch_ != workers_->epoch()) return nullptr;
  const auto found =
      std::ranges::find_if(kinds_, [&](const auto& kind) { return kind->is_of(what, variables); });
  if (found == kinds_.end()) return nullptr;
  const bool can_send = !(*found)->packs.empty() && sender_ && sender_->is_in_order();
  auto pass = std::make_unique<EarlyPass>(*this, *found, can_send ? sender_ : nullptr);
  open_ = pass.get();
  return pass;
}

void EarlyGradients::close(const EarlyPass* pass) {
  const Lock lock(mutex_);
  if (open_ == pass) open_ = nullptr;
}

EarlyPass* EarlyGradients::finished(std::string_view what, std::span<const Variable> variables) {
  const Lock lock(mutex_);
  const bool is_here = open_ != nullptr && open_->thread() == std::this_thread::get_id() &&
                       open_->has_finished() && open_->kind()->is_of(what, variables);
  return is_here ? open_ : nullptr;
}

std::shared_ptr<const EarlyKind> EarlyGradients::expect(std::string_view what,
                                                        std::span<const Variable> variables,
                                                        std::vector<std::size_t> dense) {
  if (!options_.is_wanted) return nullptr;
  auto kind = std::make_shared<EarlyKind>();
  kind->what = what;
  for (const Variable& each : variables) {
    kind->names.push_back(each.name());
    kind->sizes.push_back(*each.spec().sizes);
    kind->types.push_back(each.spec().dtype);
  }
  kind->dense = std::move(dense);
  std::int64_t bytes = 0;
  for (const std::size_t i : kind->dense) bytes += bytes_of(*kind, i);
  const bool is_large =
      options_.bytes_per_pack > 0 ? bytes > options_.bytes_per_pack : bytes >= kBytesMin;
  const Lock lock(mutex_);
  std::erase_if(kinds_, [&](const auto& each) { return each->is_of(what, variables); });
  if (!is_large) return nullptr;
  epoch_ = workers_->epoch();
  kinds_.push_back(kind);
  return kind;
}

void EarlyGradients::forget_all() {
  const Lock lock(mutex_);
  kinds_.clear();
}

bool EarlyGradients::is_ready(const EarlyKind& kind) const {
  const Lock lock(mutex_);
  return !kind.packs.empty() && sender_ && sender_->is_in_order();
}

void EarlyGradients::stop() {
  const Lock lock(mutex_);
  if (sender_ && process_ == ::getpid()) sender_->stop();
}

std::shared_ptr<const EarlyKind> EarlyGradients::agree(const std::shared_ptr<const EarlyKind>& kind,
                                                       const EarlyPass* pass) {
  if (group_number_ != workers_->group_number()) {
    group_number_ = workers_->group_number();
    num_splits_ = 0;
    stop();
  }
  const auto make = [&]() -> StrategyWorkers::Message {
    OrderOffer offer{.needs_sender = true, .splits = num_splits_, .order = {}};
    if (pass != nullptr) offer.order = pass->order();
    const Lock lock(mutex_);
    offer.needs_sender = !sender_ || !sender_->is_in_order();
    return {"", offer.bytes()};
  };
  const std::vector<Bytes> all =
      workers_->exchange({.call = kApplyCall, .text = "the order in which gradients travel"}, make);
  std::uint64_t splits = 0;
  bool needs_sender = false;
  for (const Bytes& bytes : all) {
    const OrderOffer offer = OrderOffer::of(bytes);
    splits = std::max(splits, offer.splits);
    needs_sender = needs_sender || offer.needs_sender;
  }
  if (needs_sender) renew_sender(splits);
  auto agreed = std::make_shared<EarlyKind>(*kind);
  agreed->packs = packs_in(*agreed, whole_order(*agreed, OrderOffer::of(all.front()).order),
                           options_.bytes_per_pack > 0 ? options_.bytes_per_pack : kBytesOfPack);
  const Lock lock(mutex_);
  std::ranges::replace(kinds_, kind, std::shared_ptr<const EarlyKind>(agreed));
  return agreed;
}

// All workers are here, and stop their senders. A pack that still is on its way of one of them has
// not been begun by another one, which leaves its group: so none waits for long.
void EarlyGradients::renew_sender(std::uint64_t splits_of_all) {
  std::shared_ptr<PackSender> last;
  {
    const Lock lock(mutex_);
    last = std::move(sender_);
    sender_ = nullptr;
  }
  if (last) last->stop();
  last.reset();
  // Splits are matched by their numbers.
  std::shared_ptr<collective::Group> group;
  for (; num_splits_ <= splits_of_all; ++num_splits_) group = workers_->split();
  auto next = std::make_shared<PackSender>(
      std::move(group), PackSender::Options{.timeout = workers_->timeout(),
                                            .sends_bfloat16 = options_.sends_bfloat16});
  const Lock lock(mutex_);
  sender_ = std::move(next);
}

}  // namespace cohort::internal
