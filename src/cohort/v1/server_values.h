// SPDX-License-Identifier: Apache-2.0
// Variables of a strategy whose values the servers of a job keep.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/synchronous/central_values.h"
#include "cohort/v1/job.h"

namespace cohort::detail::v1 {

// Thread-safe.
class COHORT_API ServerValues final : public internal::CentralValues {
 public:
  explicit ServerValues(std::shared_ptr<Job> job) : job_(std::move(job)) {}

  std::vector<at::Tensor> add(std::span<const internal::CentralRequest> requests) override;
  std::vector<at::Tensor> read(std::span<const Variable> variables) override;
  std::vector<internal::CentralValue> read_newer(std::span<const Variable> variables,
                                                 std::span<const std::uint64_t> known) override;
  std::vector<internal::CentralValue> change(std::vector<internal::CentralChange> changes,
                                             std::size_t unread) override;
  void export_state(std::span<const Variable> variables, const StateWalk& walk,
                    const TakeRecord& take) override;
  void import_state(const Variable& variable, const VariableRecord& record) override;
  bool keeps_newer_values() const override { return job_->keeps_newer_values(); }
  void about_to_run() override;
  std::vector<std::string> devices_of(const Variable& variable) const override;

 private:
  // Makes the changes, if there are any, and returns the values of their variables afterwards,
  // undefined for the first `unread` ones.
  std::vector<internal::CentralValue> exchange(std::span<const Variable> variables,
                                               std::span<const internal::Effect> effects,
                                               std::size_t unread,
                                               std::span<const std::uint64_t> known,
                                               const std::string& what);
  std::vector<Variable> remotes_of(std::span<const Variable> variables) const;

  const std::shared_ptr<Job> job_;
};

}  // namespace cohort::detail::v1
