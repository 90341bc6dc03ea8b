// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <utility>

#include "cohort/workers/early_gradients.h"

namespace cohort::internal {

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
  std::fill(missing_.begin(), missing_.end(), 0);
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

}  // namespace cohort::internal
