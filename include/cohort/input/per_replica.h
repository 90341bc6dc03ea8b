// SPDX-License-Identifier: Apache-2.0
// A value with one component for each of this worker's replicas, in the order of their devices
// (tf.distribute's PerReplica). The elements of a distributed dataset are such values.
//
//   auto losses = strategy.run(step, batch);      // PerReplica<at::Tensor>
//   for (const at::Tensor& loss : losses.local_results()) { … }
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/core/nest.h"

namespace cohort {

// A value type; copies share tensors. If the whole job has only one replica, the value is bare: it
// prints as its component. A value with one component converts to that component.
template <class T = Nest>
class PerReplica {
 public:
  using Components = std::vector<T>;
  using Reference = typename Components::const_reference;

  PerReplica() = default;
  explicit PerReplica(Components components) : components_(std::move(components)) {}
  static PerReplica bare(T value) {
    PerReplica result;
    result.components_.push_back(std::move(value));
    result.is_wrapped_ = false;
    return result;
  }

  // Components that are equal by construction (tf's Mirrored), such as a result that was copied to
  // each device.
  static PerReplica mirrored(Components components) {
    PerReplica result(std::move(components));
    result.is_mirrored_ = true;
    return result;
  }

  bool is_wrapped() const { return is_wrapped_; }
  bool is_mirrored() const { return is_mirrored_; }
  std::size_t size() const { return components_.size(); }
  // The component of local replica i. Throws invalid_argument if there is no such replica.
  Reference operator[](std::size_t i) const& {
    COHORT_CHECK(i < components_.size(), ErrorCode::invalid_argument,
                 "[input.per_replica] expected a replica below ", components_.size(), ", got ",
                 static_cast<std::int64_t>(i), "; local replicas are counted from 0");
    return components_[i];
  }
  // By value, so that a reference to a component of a temporary, such as run(…)[0], is safe.
  T operator[](std::size_t i) && { return std::as_const(*this)[i]; }
  const Components& local_results() const& { return components_; }
  // By value, so that a loop over the results of a temporary, such as run(…), is safe.
  Components local_results() && { return std::move(components_); }
  // The only component. Throws failed_precondition if there are several.
  Reference value() const& {
    COHORT_CHECK(components_.size() == 1, ErrorCode::failed_precondition,
                 "[input.per_replica] expected a value of one replica, got one of ",
                 components_.size(), "; take local_results(), or reduce() it");
    return components_.front();
  }
  T value() && { return std::as_const(*this).value(); }
  operator T() const { return value(); }  // NOLINT: a value of one replica is that value

 private:
  Components components_;
  bool is_wrapped_ = true;
  bool is_mirrored_ = false;
};

// The result of run() for a function that returns void. A value type.
template <>
class PerReplica<void> {
 public:
  explicit PerReplica(std::size_t size = 0) : size_(size) {}
  std::size_t size() const { return size_; }

 private:
  std::size_t size_;
};

// "PerReplica:{0: 1, 1: 2}"; a bare one prints as its value.
template <class T>
requires requires(std::ostream& out, const T& value) { out << value; }
std::ostream& operator<<(std::ostream& out, const PerReplica<T>& value) {
  if (!value.is_wrapped()) return out << value.value();
  out << "PerReplica:{";
  for (std::size_t i = 0; i < value.size(); ++i)
    out << (i > 0 ? ", " : "") << i << ": " << value[i];
  return out << "}";
}

// The mini-batches of one step. A replica without data gets an empty batch, which has no rows but
// the right dtypes and shapes; has_data() tells it from data. A value type; copies share tensors.
class COHORT_API DistributedElement : public PerReplica<Nest> {
 public:
  struct Counts {
    std::vector<std::int64_t> examples;               // of each local replica; -1: an empty batch
    std::optional<std::int64_t> global_num_examples;  // of all workers, if they exchanged it
    // Identifies the strategy that has distributed the dataset; nullptr: the default one.
    std::shared_ptr<const void> strategy = {};
  };
  DistributedElement(PerReplica<Nest> components, Counts counts)
      : PerReplica<Nest>(std::move(components)), counts_(std::move(counts)) {}

  // Whether local replica i has data. An empty mini-batch that the pipeline itself yields is data.
  // Throws invalid_argument, like operator[], if there is no such replica; so does num_examples().
  bool has_data(std::size_t i) const;
  // The number of rows of its first field; 1 if that is a scalar, 0 for an empty batch.
  std::int64_t num_examples(std::size_t i) const { return has_data(i) ? counts_.examples[i] : 0; }
  std::int64_t local_num_examples() const;
  // The sum over all replicas in sync, for weighting uneven data exactly; nullopt if the workers
  // exchange no messages in a step and so do not know it.
  std::optional<std::int64_t> global_num_examples() const { return counts_.global_num_examples; }
  // Counts::strategy.
  const void* strategy() const { return counts_.strategy.get(); }

 private:
  Counts counts_;
};

}  // namespace cohort
