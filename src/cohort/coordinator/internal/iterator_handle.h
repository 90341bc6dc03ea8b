// SPDX-License-Identifier: Apache-2.0
// What stands for a resource among the arguments of a scheduled function.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "cohort/coordinator/per_worker.h"

namespace cohort::coordinator {

// One iterator on every worker. Thread-safe.
class IteratorHandle final : public Handle {
 public:
  IteratorHandle(std::uint64_t id, ElementSpec spec,
                 std::shared_ptr<const std::vector<Bytes>> datasets, std::weak_ptr<Runtime> runtime)
      : id_(id),
        spec_(std::move(spec)),
        datasets_(std::move(datasets)),
        runtime_(std::move(runtime)) {}
  ~IteratorHandle() override;
  IteratorHandle(const IteratorHandle&) = delete;
  IteratorHandle& operator=(const IteratorHandle&) = delete;

  std::string_view handle_kind() const override { return "per-worker iterator"; }
  std::uint64_t id() const { return id_; }
  const ElementSpec& spec() const { return spec_; }
  bool is_of(const Runtime& runtime) const { return runtime_.lock().get() == &runtime; }
  const Bytes& dataset_of(std::uint32_t worker) const {
    return (*datasets_)[worker % datasets_->size()];
  }

 private:
  const std::uint64_t id_;
  const ElementSpec spec_;
  const std::shared_ptr<const std::vector<Bytes>> datasets_;
  const std::weak_ptr<Runtime> runtime_;
};

}  // namespace cohort::coordinator
