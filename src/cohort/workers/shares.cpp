// SPDX-License-Identifier: Apache-2.0
#include "cohort/workers/shares.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::internal {
namespace {

// A number of 64 bits travels as its bytes, whose sums over 2^16 workers are exact in float32. The
// sum of the numbers modulo 2^64 follows from them.
constexpr std::size_t kDigits = 8;

struct HeaderNumbers {
  std::span<std::int64_t> all = {};
  std::size_t wide = 0;

  std::size_t places() const { return all.empty() ? 0 : wide * kDigits + (all.size() - wide); }
  template <class T>
  void write(T* out) const {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto number = static_cast<std::uint64_t>(all[i]);
      if (i >= wide) {
        *out++ = static_cast<T>(number);
        continue;
      }
      for (std::size_t d = 0; d < kDigits; ++d) *out++ = static_cast<T>((number >> (8 * d)) & 0xff);
    }
  }
  template <class T>
  void read(const T* in) const {
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::uint64_t number = 0;
      const std::size_t digits = i < wide ? kDigits : 1;
      for (std::size_t d = 0; d < digits; ++d)
        number += static_cast<std::uint64_t>(*in++) << (8 * d);
      all[i] = static_cast<std::int64_t>(number);
    }
  }
};

// One call for tensors of one dtype. Each worker's rows are the header and its shares.
template <class T>
void sum_shares_of(StrategyWorkers& workers, const WorkerRequest& request,
                   const HeaderNumbers& header, const std::vector<at::Tensor*>& tensors) {
  const int count = workers.count();
  const auto places = static_cast<std::int64_t>(header.places());
  std::int64_t rows = 0;
  for (int worker = 0; worker < count; ++worker) {
    std::int64_t of_worker = places;
    for (const at::Tensor* each : tensors)
      of_worker += share_of(each->numel(), worker, count).size();
    rows = std::max(rows, of_worker);
  }
  const at::Tensor flat =
      at::empty({rows * count}, at::TensorOptions(c10::CppTypeToScalarType<T>()));
  T* const begin = flat.data_ptr<T>();
  for (int worker = 0; worker < count; ++worker) {
    T* next = begin + rows * worker;
    header.write(next);
    next += places;
    for (const at::Tensor* each : tensors) {
      const ElementRange share = share_of(each->numel(), worker, count);
      const T* const from = each->data_ptr<T>();
      next = std::copy(from + share.begin, from + share.end, next);
    }
    std::fill(next, begin + rows * (worker + 1), T{});
  }
  const at::Tensor own = workers.reduce_scatter(request, flat);
  header.read(own.data_ptr<T>());
  std::int64_t next = places;
  for (at::Tensor* each : tensors) {
    const std::int64_t size = share_of(each->numel(), workers.own(), count).size();
    *each = elements_of(own, {next, next + size});
    next += size;
  }
}

}  // namespace

ElementRange share_of(std::int64_t elements, int worker, int workers) {
  return {elements * worker / workers, elements * (worker + 1) / workers};
}

void sum_shares(StrategyWorkers& workers, const WorkerRequest& request, const at::Tensor& header,
                std::size_t wide, std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor*> of_float, of_double;
  for (at::Tensor& each : tensors) {
    COHORT_ASSERT(each.scalar_type() == at::kFloat || each.scalar_type() == at::kDouble);
    (each.scalar_type() == at::kFloat ? of_float : of_double).push_back(&each);
  }
  HeaderNumbers numbers;
  if (header.defined()) {
    numbers = {{header.data_ptr<std::int64_t>(), static_cast<std::size_t>(header.numel())}, wide};
  }
  const bool has_double_only = of_float.empty() && !of_double.empty();
  if (!of_float.empty() || (of_double.empty() && header.defined()))
    sum_shares_of<float>(workers, request, numbers, of_float);
  if (!of_double.empty()) {
    sum_shares_of<double>(workers, request, has_double_only ? numbers : HeaderNumbers(), of_double);
  }
}

SharesToGather::SharesToGather(at::ScalarType type, std::vector<std::int64_t> elements,
                               const StrategyWorkers& workers)
    : elements_(std::move(elements)), count_(workers.count()) {
  std::int64_t next = 0;
  for (int worker = 0; worker < count_; ++worker) {
    const std::int64_t first = next;
    of_.emplace_back();
    for (const std::int64_t each : elements_) {
      const std::int64_t size = share_of(each, worker, count_).size();
      of_.back().push_back(next);
      if (worker == workers.own()) own_.push_back({next - first, next - first + size});
      next += size;
    }
  }
  flat_ = at::empty({own_.empty() ? 0 : own_.back().end}, at::TensorOptions(type));
}

void SharesToGather::gather(StrategyWorkers& workers, const WorkerRequest& request) {
  gathered_ = workers.all_gather(request, flat_, 0);
}

void SharesToGather::write(std::size_t i, const at::Tensor& target) const {
  if (!target.is_cpu()) {
    const at::Tensor whole = at::empty(target.sizes(), at::TensorOptions(target.scalar_type()));
    write(i, whole);
    const at::AutoDispatchBelowADInplaceOrView raw;  // as an update: autograd knows nothing of it
    target.copy_(whole);
    return;
  }
  const std::size_t bytes = target.itemsize();
  auto* const to = static_cast<std::byte*>(target.data_ptr());
  const auto* const from = static_cast<const std::byte*>(gathered_.data_ptr());
  for (int worker = 0; worker < count_; ++worker) {
    const ElementRange share = share_of(elements_[i], worker, count_);
    if (share.size() == 0) continue;
    const auto begin = static_cast<std::size_t>(of_[static_cast<std::size_t>(worker)][i]);
    std::memcpy(to + static_cast<std::size_t>(share.begin) * bytes, from + begin * bytes,
                static_cast<std::size_t>(share.size()) * bytes);
  }
}

}  // namespace cohort::internal
