// SPDX-License-Identifier: Apache-2.0
#include "cohort/workers/pack_sender.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "cohort/core/start_thread.h"
#include "cohort/replicas/compute_share.h"

namespace cohort::internal {

at::ScalarType type_of_sum(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

at::Tensor nothing_to_add(const std::vector<std::int64_t>& sizes, at::ScalarType type) {
  return at::full(sizes, -0.0, at::TensorOptions(type_of_sum(type)));
}

PackSender::PackSender(std::shared_ptr<collective::Group> group, const Options& options)
    : options_(options),
      thread_(start_thread("that sends gradients",
                           [this, own = std::move(group)]() mutable { loop(std::move(own)); })) {}

PackSender::~PackSender() {
  stop();
  thread_.join();
}

void PackSender::send(std::shared_ptr<GradientPack> pack) {
  const Lock lock(mutex_);
  if (is_stopped_) return;
  queue_.push_back(std::move(pack));
  changed_.notify_all();
}

void PackSender::wait() {
  const Lock lock(mutex_);
  changed_.wait(mutex_, Deadline(), [this]() COHORT_REQUIRES(mutex_) {
    return is_stopped_ || (queue_.empty() && !is_sending_);
  });
  if (error_) throw *error_;
  COHORT_CHECK(!is_stopped_, ErrorCode::aborted,
               "[strategy.run] expected workers that send all gradients of a step, got a call that "
               "has failed while some were on their way; run the step again");
}

void PackSender::stop() {
  const Lock lock(mutex_);
  is_stopped_ = true;
  queue_.clear();
  changed_.notify_all();
  changed_.wait(mutex_, Deadline(), [this]() COHORT_REQUIRES(mutex_) { return !is_reading_; });
}

bool PackSender::is_in_order() const {
  const Lock lock(mutex_);
  return !is_stopped_;
}

std::shared_ptr<GradientPack> PackSender::next() {
  const Lock lock(mutex_);
  changed_.wait(mutex_, Deadline(),
                [this]() COHORT_REQUIRES(mutex_) { return is_stopped_ || !queue_.empty(); });
  if (is_stopped_) return nullptr;
  std::shared_ptr<GradientPack> pack = std::move(queue_.front());
  queue_.pop_front();
  is_sending_ = true;
  is_reading_ = true;
  return pack;
}

void PackSender::loop(std::shared_ptr<collective::Group> group) {
  const c10::NoGradGuard no_grad;
  // LibTorch would start other threads to copy large tensors, beside those of the backward pass.
  const ComputeShare::OfThread one(1);
  while (std::shared_ptr<GradientPack> pack = next()) {
    std::optional<Error> error;
    try {
      reduce(*group, *pack);
    } catch (...) {
      error = current_error();
    }
    pack.reset();  // the last one that has the gradients may be another thread
    const Lock lock(mutex_);
    is_sending_ = false;
    is_reading_ = false;
    if (error) {
      error_ = std::move(error);
      is_stopped_ = true;
    }
    changed_.notify_all();
  }
}

// The bits of one call for all gradients, since elements do not depend on each other.
void PackSender::reduce(collective::Group& group, GradientPack& pack) {
  std::vector<at::Tensor> sent;
  for (PackedGradient& each : pack) {
    const at::ScalarType type = type_of_sum(each.type);
    // A gradient of autograd may be in memory that others read, and in another order than
    // row-major.
    each.sum = each.own.defined() ? at::empty(each.sizes, at::TensorOptions(type)).copy_(each.own)
                                  : nothing_to_add(each.sizes, type);
    const bool is_rounded = options_.sends_bfloat16 && type == at::kFloat;
    sent.push_back(is_rounded ? each.sum.to(at::kBFloat16) : each.sum);
  }
  {
    const Lock lock(mutex_);
    is_reading_ = false;
    changed_.notify_all();
  }
  group.all_reduce(sent, ReduceOp::sum, Deadline::after(options_.timeout));
  for (std::size_t i = 0; i < sent.size(); ++i) {
    if (!sent[i].is_same(pack[i].sum)) pack[i].sum.copy_(sent[i]);
  }
}

}  // namespace cohort::internal
