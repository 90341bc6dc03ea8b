// SPDX-License-Identifier: Apache-2.0
// What stands for a resource among the arguments of a scheduled function.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "cohort/coordinator/internal/per_worker_data.h"
#include "cohort/coordinator/per_worker.h"
#include "cohort/core/random.h"
#include "cohort/rpc/control.h"

namespace cohort::coordinator {

// One iterator on every worker. Thread-safe.
class IteratorHandle final : public Handle {
 public:
  // `epoch`: it is for that pass over the dataset alone.
  IteratorHandle(std::uint64_t id, std::shared_ptr<const PerWorkerData> data,
                 std::optional<std::uint64_t> epoch, std::weak_ptr<Runtime> runtime)
      : id_(id), data_(std::move(data)), epoch_(epoch), runtime_(std::move(runtime)) {}
  ~IteratorHandle() override;
  IteratorHandle(const IteratorHandle&) = delete;
  IteratorHandle& operator=(const IteratorHandle&) = delete;

  std::string_view handle_kind() const override { return "per-worker iterator"; }
  std::uint64_t id() const { return id_; }
  const ElementSpec& spec() const { return data_->spec; }
  bool is_of(const Runtime& runtime) const { return runtime_.lock().get() == &runtime; }
  // What this worker gets.
  rpc::IteratorSpec spec_for(std::uint32_t worker, std::uint64_t job_seed) const {
    return {
        .id = id_, .dataset = data_->of(worker), .seed = mix_seed(job_seed, id_), .epoch = epoch_};
  }

 private:
  const std::uint64_t id_;
  const std::shared_ptr<const PerWorkerData> data_;
  const std::optional<std::uint64_t> epoch_;
  const std::weak_ptr<Runtime> runtime_;
};

}  // namespace cohort::coordinator
