// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/hyperparameter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/mutex.h"
#include "cohort/core/tensor_spec.h"

namespace cohort {
namespace {

constexpr std::size_t kChangesMax = 4096;

std::atomic<std::uint64_t> changes_of_all = 0;

// The memory of a tensor of make_hyperparameter(), and its earlier values.
class Cell {
 public:
  explicit Cell(double value) : value_(value) {}
  virtual ~Cell() = default;
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;
  void* data() { return &value_; }
  double get() { return std::atomic_ref<double>(value_).load(std::memory_order_relaxed); }

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

  // Returns false if `time` is too long ago.
  bool get(std::uint64_t time, double& value) {
    const Lock lock(mutex_);
    if (time < forgotten_) return false;
    const auto next =
        std::upper_bound(changes_.begin(), changes_.end(), time,
                         [](std::uint64_t t, const Change& change) { return t < change.time; });
    value = next != changes_.end() ? next->value_before : get();
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
  std::uint64_t forgotten_ COHORT_GUARDED_BY(mutex_) = 0;  // time of the newest dropped change
};

void delete_cell(void* cell) { delete static_cast<Cell*>(cell); }

bool is_hyperparameter(const at::Tensor& value) {
  return value.dim() == 0 && value.scalar_type() == at::ScalarType::Double &&
         value.device().is_cpu();
}

std::atomic_ref<double> number(const at::Tensor& hyperparameter) {
  return std::atomic_ref<double>(*hyperparameter.data_ptr<double>());
}

// nullptr for a tensor made elsewhere.
Cell* cell_of(const at::Tensor& hyperparameter) {
  return hyperparameter.storage().data_ptr().cast_context<Cell>(&delete_cell);
}

at::Tensor constant(double value) {
  at::Tensor result = at::empty({}, at::TensorOptions(at::ScalarType::Double));
  *result.data_ptr<double>() = value;
  return result;
}

at::Tensor tensor_of(std::unique_ptr<Cell> cell) {
  void* data = cell->data();
  return at::for_blob(data, {})
      .context(cell.release(), &delete_cell)
      .options(at::TensorOptions(at::ScalarType::Double))
      .make_tensor();
}

}  // namespace

// Shared by the tensors of a counter, which may outlive it in the programs that captured them.
class UpdateCounter::State {
 public:
  using Taken = CountedUpdates::Taken;
  State(Value value, bool varies) : value_(std::move(value)), varies_(varies) {}

  void add(UpdateCounter::CountedCell& cell) {
    const Lock lock(mutex_);
    cells_.push_back(&cell);
    refresh();
  }
  void remove(UpdateCounter::CountedCell& cell) {
    const Lock lock(mutex_);
    std::erase(cells_, &cell);
  }
  double value() {
    const Lock lock(mutex_);
    return value_of(number_at(0), 0);
  }
  void check() {
    const Lock lock(mutex_);
    for (std::size_t derived = 0; derived <= derived_.size(); ++derived)
      value_of(number_at(0), derived);
  }
  std::size_t derive(Derived derived, bool varies) {
    const Lock lock(mutex_);
    derived_.push_back({std::move(derived), varies});
    return derived_.size();
  }
  void set_value(Value value, bool varies) {
    const Lock lock(mutex_);
    value_.swap(value);
    varies_ = varies;
    refresh();
  }
  bool varies(std::size_t derived) const {
    const Lock lock(mutex_);
    return varies_ || (derived > 0 && derived_[derived - 1].second);
  }
  std::int64_t count() const {
    const Lock lock(mutex_);
    return next_ - static_cast<std::int64_t>(returned_.size());
  }
  std::int64_t next_number() const {
    const Lock lock(mutex_);
    return number_at(0);
  }
  void set_count(std::int64_t count) {
    const Lock lock(mutex_);
    next_ = count;
    returned_.clear();
    ++numbering_;
    refresh();
  }
  void add_one() {
    const Lock lock(mutex_);
    take_number();
    refresh();
  }
  // Fills in the snapshots of this counter's tensors and takes a number for each.
  static void take(const std::shared_ptr<State>& self, std::span<const at::Tensor> hyperparameters,
                   std::vector<at::Tensor>& snapshots, c10::SmallVectorImpl<Taken>& taken);
  static void take_one(const std::shared_ptr<State>& self, c10::SmallVectorImpl<Taken>& taken);
  void give_back(std::int64_t number, std::uint64_t numbering);

 private:
  // The number for update `index` of the next step.
  std::int64_t number_at(std::int64_t index) const COHORT_REQUIRES(mutex_);
  std::int64_t take_number() COHORT_REQUIRES(mutex_);
  double value_of(std::int64_t update, std::size_t derived) COHORT_REQUIRES(mutex_);
  // Computes the values for the next step. Each tensor keeps the exception of its value for that
  // step, since the present one is done.
  void refresh() COHORT_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Value value_ COHORT_GUARDED_BY(mutex_);
  bool varies_ COHORT_GUARDED_BY(mutex_);
  std::vector<std::pair<Derived, bool>> derived_ COHORT_GUARDED_BY(mutex_);
  std::int64_t next_ COHORT_GUARDED_BY(mutex_) = 0;  // above all numbers that are taken
  // Below it, ascending: nobody has them any more.
  std::deque<std::int64_t> returned_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t numbering_ COHORT_GUARDED_BY(mutex_) = 0;  // set_count() begins another one
  std::vector<UpdateCounter::CountedCell*> cells_ COHORT_GUARDED_BY(mutex_);
};

// The memory of a tensor that follows a counter.
class UpdateCounter::CountedCell final : public Cell {
 public:
  CountedCell(std::shared_ptr<State> state, std::size_t index, std::size_t derived)
      : Cell(0.0),
        state_(std::move(state)),
        index_(static_cast<std::int64_t>(index)),
        derived_(derived) {
    state_->add(*this);
  }
  ~CountedCell() override { state_->remove(*this); }
  CountedCell(const CountedCell&) = delete;
  CountedCell& operator=(const CountedCell&) = delete;

  const std::shared_ptr<State>& state() const { return state_; }
  std::int64_t index() const { return index_; }
  std::size_t derived() const { return derived_; }
  std::optional<Error> failure;  // why it has no value; used with the state's mutex locked
  // nullptr for a tensor that follows none.
  static CountedCell* of(const at::Tensor& hyperparameter) {
    if (!is_hyperparameter(hyperparameter)) return nullptr;
    return dynamic_cast<CountedCell*>(cell_of(hyperparameter));
  }

 private:
  const std::shared_ptr<State> state_;
  const std::int64_t index_;
  const std::size_t derived_;
};

double UpdateCounter::State::value_of(std::int64_t update, std::size_t derived) {
  try {
    const double value = value_(update);
    return derived == 0 ? value : derived_[derived - 1].first(update, value);
  } catch (...) {
    throw current_error().during("computing the value for update " + std::to_string(update));
  }
}

void UpdateCounter::State::refresh() {
  for (UpdateCounter::CountedCell* cell : cells_) {
    cell->failure.reset();
    double value = std::numeric_limits<double>::quiet_NaN();
    try {
      value = value_of(number_at(cell->index()), cell->derived());
    } catch (const Error& error) {
      cell->failure = error;
    }
    if (std::bit_cast<std::uint64_t>(value) != std::bit_cast<std::uint64_t>(cell->get()))
      cell->set(value);
  }
}

std::int64_t UpdateCounter::State::number_at(std::int64_t index) const {
  const auto returned = static_cast<std::int64_t>(returned_.size());
  return index < returned ? returned_[static_cast<std::size_t>(index)] : next_ + index - returned;
}

std::int64_t UpdateCounter::State::take_number() {
  const std::int64_t number = number_at(0);
  if (returned_.empty()) {
    ++next_;
  } else {
    returned_.pop_front();
  }
  return number;
}

void UpdateCounter::State::give_back(std::int64_t number, std::uint64_t numbering) {
  const Lock lock(mutex_);
  if (numbering != numbering_) return;
  // Whole queues come back in their order, at the end of it.
  returned_.insert(std::upper_bound(returned_.begin(), returned_.end(), number), number);
  const bool is_next = number <= number_at(static_cast<std::int64_t>(cells_.size()));
  while (!returned_.empty() && returned_.back() == next_ - 1) {
    returned_.pop_back();
    --next_;
  }
  if (is_next) refresh();
}

void UpdateCounter::State::take(const std::shared_ptr<State>& self,
                                std::span<const at::Tensor> hyperparameters,
                                std::vector<at::Tensor>& snapshots,
                                c10::SmallVectorImpl<Taken>& taken) {
  State& state = *self;
  const Lock lock(state.mutex_);
  std::vector<std::pair<std::size_t, double>> values;
  for (std::size_t i = 0; i < hyperparameters.size(); ++i) {
    auto* cell = UpdateCounter::CountedCell::of(hyperparameters[i]);
    if (cell == nullptr || cell->state() != self) continue;
    if (cell->failure) throw Error(*cell->failure);
    values.emplace_back(i, cell->get());
  }
  std::vector<const UpdateCounter::CountedCell*> counted;
  for (const auto& [i, value] : values) {
    snapshots[i] = constant(value);
    const auto* const cell = UpdateCounter::CountedCell::of(hyperparameters[i]);
    if (cell->derived() > 0 || std::ranges::find(counted, cell) != counted.end()) continue;
    counted.push_back(cell);
    taken.push_back({self, state.take_number(), state.numbering_});
  }
  state.refresh();
}

void UpdateCounter::State::take_one(const std::shared_ptr<State>& self,
                                    c10::SmallVectorImpl<Taken>& taken) {
  State& state = *self;
  const Lock lock(state.mutex_);
  taken.push_back({self, state.take_number(), state.numbering_});
  state.refresh();
}

UpdateCounter::UpdateCounter(Value value, bool varies)
    : state_(std::make_shared<State>(std::move(value), varies)) {}
UpdateCounter::~UpdateCounter() = default;
at::Tensor UpdateCounter::hyperparameter(std::size_t index, std::size_t derived) {
  const Lock lock(tensors_mutex_);
  at::Tensor& tensor = tensors_[{derived, index}];
  if (!tensor.defined()) tensor = tensor_of(std::make_unique<CountedCell>(state_, index, derived));
  return tensor;
}
std::size_t UpdateCounter::derive(Derived derived, bool varies) {
  return state_->derive(std::move(derived), varies);
}
double UpdateCounter::value() const { return state_->value(); }
void UpdateCounter::set_value(Value value, bool varies) {
  state_->set_value(std::move(value), varies);
}
void UpdateCounter::check() const { state_->check(); }
std::int64_t UpdateCounter::count() const { return state_->count(); }
std::int64_t UpdateCounter::next_number() const { return state_->next_number(); }
void UpdateCounter::set_count(std::int64_t count) { state_->set_count(count); }
void UpdateCounter::add_one() { state_->add_one(); }

bool varies_with_updates(const at::Tensor& hyperparameter) {
  const auto* cell = UpdateCounter::CountedCell::of(hyperparameter);
  return cell != nullptr && cell->state()->varies(cell->derived());
}

void CountedUpdates::take_also(const at::Tensor& hyperparameter) {
  const auto* cell = UpdateCounter::CountedCell::of(hyperparameter);
  if (cell != nullptr && cell->derived() == 0)
    UpdateCounter::State::take_one(cell->state(), taken_);
}

void CountedUpdates::give_all_back() noexcept {
  for (const Taken& one : taken_) {
    try {
      one.counter->give_back(one.number, one.numbering);
    } catch (...) {  // of too little memory
      log_error("an update that was not made stays counted: ", current_error().what());
    }
  }
  taken_.clear();
}

std::vector<at::Tensor> hyperparameters_of_step(std::span<const at::Tensor> hyperparameters,
                                                CountedUpdates& counted) {
  std::vector<at::Tensor> snapshots(hyperparameters.size());
  CountedUpdates taken;
  for (std::size_t i = 0; i < hyperparameters.size(); ++i) {
    if (snapshots[i].defined()) continue;
    if (auto* cell = UpdateCounter::CountedCell::of(hyperparameters[i])) {
      UpdateCounter::State::take(cell->state(), hyperparameters, snapshots, taken.taken_);
    } else {
      snapshots[i] = hyperparameter_snapshot(hyperparameters[i]);
    }
  }
  counted = std::move(taken);
  return snapshots;
}

at::Tensor make_hyperparameter(double value) { return tensor_of(std::make_unique<Cell>(value)); }

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
