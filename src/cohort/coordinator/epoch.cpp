// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/epoch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

#include <string>
#include <utility>

#include "cohort/coordinator/runtime/runtime.h"
#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"

namespace cohort {
namespace {

// A number as a 0-dim tensor; undefined for values that have no sum.
at::Tensor summand_of(const Nest& leaf) {
  switch (leaf.kind()) {
    case Nest::Kind::integer:
      return at::scalar_tensor(leaf.integer(), at::kLong);
    case Nest::Kind::real:
      return at::scalar_tensor(leaf.real(), at::kDouble);
    case Nest::Kind::boolean:
      return at::scalar_tensor(leaf.boolean() ? 1 : 0, at::kLong);
    case Nest::Kind::tensor:
      break;
    default:
      return {};
  }
  const at::Tensor& tensor = leaf.tensor();
  if (StringTensor::is(tensor)) return {};
  if (tensor.is_complex()) return tensor.to(at::kComplexDouble);
  return tensor.to(tensor.is_floating_point() ? at::kDouble : at::kLong);
}

// "['loss'][0]" for each leaf, in flatten order.
void add_paths(const Nest& nest, const std::string& path, std::vector<std::string>& paths) {
  if (nest.is_leaf()) {
    paths.push_back("the step's result" + path);
  } else if (nest.kind() == Nest::Kind::map) {
    for (const auto& [key, value] : nest.entries())
      add_paths(value, path + "['" + key + "']", paths);
  } else {
    for (std::size_t i = 0; i < nest.items().size(); ++i)
      add_paths(nest.items()[i], path + "[" + std::to_string(i) + "]", paths);
  }
}

at::Tensor sum_of(const at::Tensor& before, const at::Tensor& value, const std::string& metric) {
  at::Tensor sum = before.add(value);
  if (value.scalar_type() != at::kLong) return sum;
  // A sum has wrapped around if its sign differs from that of both summands.
  const at::Tensor is_wrapped = before.bitwise_xor(sum).bitwise_and(value.bitwise_xor(sum)).lt(0);
  COHORT_CHECK(!is_wrapped.any().item<bool>(), ErrorCode::out_of_range,
               "[coordinator.run_epoch] expected a sum of ", metric,
               " over the steps that fits into int64, got a greater one; let the step return "
               "floating-point values or smaller counts");
  return sum;
}

}  // namespace

// Sums up the results of steps. Thread-compatible.
class Epoch::Metrics {
 public:
  explicit Metrics(std::size_t workers) { result_.steps_per_worker.resize(workers); }

  // Throws invalid_argument for a result whose structure differs from the first one. That happens
  // if steps run eagerly or were traced again.
  void add(const EpochStep& step) {
    if (result_.steps > 0)
      Nest::check_same_structure(structure_, step.result,
                                 "[coordinator.run_epoch] the result of step " +
                                     std::to_string(step.index) +
                                     " of worker:" + std::to_string(step.worker) +
                                     ", which must have the structure of the first one's,");
    ++result_.steps;
    ++result_.steps_per_worker[step.worker];
    result_.examples += step.examples;
    result_.duration = Clock::system().now() - begin_;
    const std::vector<Nest> leaves = step.result.flatten();
    if (result_.steps == 1) {
      structure_ = step.result;
      sums_.resize(leaves.size());
      add_paths(structure_, "", paths_);
    }
    for (std::size_t i = 0; i < leaves.size(); ++i)
      sums_[i].add(summand_of(leaves[i]), static_cast<double>(step.examples), paths_[i]);
  }

  EpochResult result() const {
    EpochResult result = result_;
    result.sum = filled([](const Sums& sums) { return sums.plain; });
    const auto examples = static_cast<double>(result_.examples);
    result.mean = filled([examples](const Sums& sums) { return sums.weighted.div(examples); });
    return result;
  }

 private:
  struct Sums {
    at::Tensor plain;
    at::Tensor weighted;
    bool is_void = false;  // no sum exists

    void add(const at::Tensor& value, double weight, const std::string& metric) {
      is_void = is_void || !value.defined() || (plain.defined() && plain.sizes() != value.sizes());
      if (is_void) return;
      const at::Tensor share = value.mul(at::scalar_tensor(weight, at::kDouble));
      // An empty batch counts nothing, even if its value is NaN, which is the mean of no rows.
      if (weight == 0) share.zero_();
      plain = plain.defined() ? sum_of(plain, value, metric) : value.clone();
      weighted = weighted.defined() ? weighted.add(share) : share;
    }
  };

  template <class F>
  Nest filled(F value_of) const {
    if (sums_.empty()) return {};
    std::size_t next = 0;
    return structure_.map_leaves([&](const Nest&) -> Nest {
      const Sums& sums = sums_[next++];
      return sums.is_void ? Nest() : Nest(value_of(sums));
    });
  }

  const TimePoint begin_ = Clock::system().now();
  EpochResult result_;
  Nest structure_;
  std::vector<Sums> sums_;
  std::vector<std::string> paths_;  // of the sums, for messages
};

Epoch::Epoch(std::shared_ptr<coordinator::Runtime> runtime,
             std::shared_ptr<coordinator::EpochRun> run)
    : runtime_(std::move(runtime)),
      run_(std::move(run)),
      metrics_(std::make_unique<Metrics>(runtime_->strategy().home()->connection().num_workers())) {
}

Epoch::Epoch(Epoch&&) noexcept = default;

Epoch::~Epoch() {
  if (run_ != nullptr) runtime_->give_up(*run_);
}

std::optional<EpochStep> Epoch::try_next() {
  std::optional<EpochStep> step = runtime_->next_step(run_);
  if (!step) return step;
  try {
    metrics_->add(*step);
  } catch (...) {
    runtime_->give_up(*run_, current_error());
    throw;
  }
  return step;
}

EpochResult Epoch::result() const { return metrics_->result(); }

}  // namespace cohort
