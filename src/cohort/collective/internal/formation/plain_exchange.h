// SPDX-License-Identifier: Apache-2.0
// A group that only exchanges bytes, without care for speed: for tests of the links.
// Used from one thread at a time, but for split().
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/collective/internal/links.h"
#include "cohort/core/detail/file_descriptor.h"
#include "cohort/core/detail/mutex.h"

namespace cohort::collective::formation {

class PlainExchange final : public Group {
 public:
  PlainExchange(std::shared_ptr<Links> links, SplitPath path)
      : links_(std::move(links)), path_(std::move(path)) {}

  int rank() const override { return links_->rank(); }
  int size() const override { return links_->size(); }
  std::string member_name(int rank) const override { return links_->member_name(rank); }
  std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) override;
  std::shared_ptr<Group> split() override;

 private:
  const std::shared_ptr<Links> links_;  // of all splits
  const SplitPath path_;
  std::vector<FileDescriptor> sockets_;
  Mutex mutex_;
  std::uint64_t num_splits_ COHORT_GUARDED_BY(mutex_) = 0;
};

}  // namespace cohort::collective::formation
