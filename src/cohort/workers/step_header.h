// SPDX-License-Identifier: Apache-2.0
// The numbers by which workers find out that they make different steps.
#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace cohort::internal {

// Numbers that are summed over the workers beside the gradients of a step. Used by one thread.
class StepHeader {
 public:
  // In each pair, what must be alike on all workers, and its square: if all have the same h, the
  // sums are n h and n h²; workers with others have both only by chance, with 64 bits.
  static constexpr std::size_t kSteps = 0, kValues = 2;
  static constexpr std::size_t kSurprises = 4;  // workers that have what the plan does not contain
  static constexpr std::size_t kWritten = 5;    // workers on which something has written values
  static constexpr std::size_t kRandom = 6;     // workers that draw random numbers in this run
  static constexpr std::size_t kStop = 7;       // workers that are to stop: StopFlag
  static constexpr std::size_t kFirstMask = 8;  // of each variable: workers with a gradient

  // `is_early`: with early() and unready().
  StepHeader(std::size_t variables, std::uint64_t workers, bool is_early)
      : size_(kFirstMask + variables),
        tensor_(at::zeros({static_cast<std::int64_t>(size_ + (is_early ? 2 : 0))}, at::kLong)),
        numbers_(tensor_.data_ptr<std::int64_t>()),
        workers_(workers) {}

  const at::Tensor& tensor() const { return tensor_; }
  std::size_t early() const { return size_; }        // workers whose gradients travel early
  std::size_t unready() const { return size_ + 1; }  // workers whose gradients could not do so
  std::int64_t get(std::size_t place) const { return numbers_[place]; }
  void set(std::size_t place, bool value) { numbers_[place] = value ? 1 : 0; }
  void set_alike(std::size_t place, std::uint64_t value) {
    own_[place] = value;
    numbers_[place] = static_cast<std::int64_t>(value);
    numbers_[place + 1] = static_cast<std::int64_t>(value * value);
  }
  bool are_alike(std::size_t place) const {
    const std::uint64_t own = own_[place];
    return numbers_[place] == static_cast<std::int64_t>(own * workers_) &&
           numbers_[place + 1] == static_cast<std::int64_t>(own * own * workers_);
  }

 private:
  std::size_t size_;
  at::Tensor tensor_;
  std::int64_t* numbers_;
  std::uint64_t workers_;
  std::array<std::uint64_t, kSurprises> own_ = {};
};

}  // namespace cohort::internal
