// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/hyperparameter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/core/tensor_spec.h"

namespace cohort {
namespace {

constexpr std::size_t kChangesMax = 4096;

std::atomic<std::uint64_t> changes_of_all = 0;

// The memory of a tensor of make_hyperparameter(), and what was there before.
class Cell {
 public:
  explicit Cell(double value) : value_(value) {}
  void* data() { return &value_; }

  void set(double value) {
    const std::atomic_ref<double> now(value_);
    const Lock lock(mutex_);
    if (changes_.size() == kChangesMax) {
      forgotten_ = changes_.front().time;
      changes_.pop_front();
    }
    changes_.push_back({++changes_of_all, now.load(std::memory_order_relaxed)});
    now.store(value, std::memory_order_relaxed);
  }

  // False: too long ago.
  bool get(std::uint64_t time, double& value) {
    const Lock lock(mutex_);
    if (time < forgotten_) return false;
    const auto next =
        std::upper_bound(changes_.begin(), changes_.end(), time,
                         [](std::uint64_t t, const Change& change) { return t < change.time; });
    value = next != changes_.end()
                ? next->value_before
                : std::atomic_ref<double>(value_).load(std::memory_order_relaxed);
    return true;
  }

 private:
  struct Change {
    std::uint64_t time;
    double value_before;
  };
  double value_;
  Mutex mutex_;
  std::deque<Change> changes_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t forgotten_ COHORT_GUARDED_BY(mutex_) = 0;  // time of the newest change that is gone
};

void delete_cell(void* cell) { delete static_cast<Cell*>(cell); }

bool is_hyperparameter(const at::Tensor& value) {
  return value.dim() == 0 && value.scalar_type() == at::ScalarType::Double &&
         value.device().is_cpu();
}

std::atomic_ref<double> number(const at::Tensor& hyperparameter) {
  return std::atomic_ref<double>(*hyperparameter.data_ptr<double>());
}

// None: a tensor of another origin.
Cell* cell_of(const at::Tensor& hyperparameter) {
  return hyperparameter.storage().data_ptr().cast_context<Cell>(&delete_cell);
}

at::Tensor constant(double value) {
  at::Tensor result = at::empty({}, at::TensorOptions(at::ScalarType::Double));
  *result.data_ptr<double>() = value;
  return result;
}

}  // namespace

at::Tensor make_hyperparameter(double value) {
  auto cell = std::make_unique<Cell>(value);
  void* data = cell->data();
  return at::for_blob(data, {})
      .context(cell.release(), &delete_cell)
      .options(at::TensorOptions(at::ScalarType::Double))
      .make_tensor();
}

void set_hyperparameter(const at::Tensor& hyperparameter, double value) {
  COHORT_ASSERT(is_hyperparameter(hyperparameter));
  if (Cell* cell = cell_of(hyperparameter)) {
    cell->set(value);
  } else {
    number(hyperparameter).store(value, std::memory_order_relaxed);
  }
}

double hyperparameter_value(const at::Tensor& hyperparameter) {
  COHORT_CHECK(
      hyperparameter.defined() && hyperparameter.dim() == 0, ErrorCode::invalid_argument,
      "[variable.apply] expected hyperparameters as scalar tensors, got ",
      hyperparameter.defined() ? TensorSpec::of(hyperparameter).to_string() : "an undefined one");
  if (!is_hyperparameter(hyperparameter)) return hyperparameter.item<double>();
  return number(hyperparameter).load(std::memory_order_relaxed);
}

at::Tensor hyperparameter_snapshot(const at::Tensor& value) {
  if (!is_hyperparameter(value)) return value.detach().clone();
  return constant(hyperparameter_value(value));
}

std::uint64_t hyperparameter_time() noexcept { return changes_of_all; }

at::Tensor hyperparameter_snapshot(const at::Tensor& value, std::uint64_t time) {
  Cell* cell = is_hyperparameter(value) ? cell_of(value) : nullptr;
  if (cell == nullptr) return hyperparameter_snapshot(value);
  double number = 0;
  return cell->get(time, number) ? constant(number) : at::Tensor();
}

}  // namespace cohort
