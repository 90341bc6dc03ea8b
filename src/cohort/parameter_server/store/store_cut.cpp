// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/store_cut.h"

#include <algorithm>

#include "cohort/core/error.h"

namespace cohort::parameter_server {
namespace {

// Longer times are a mistake of the sender.
Duration duration_of(std::uint64_t milliseconds) {
  constexpr std::uint64_t kDay = 24 * 3600 * 1000;
  return std::chrono::milliseconds(std::min(milliseconds, kDay));
}

}  // namespace

std::shared_ptr<CutMemory> StoreCut::open(const rpc::CutRequest& request) {
  COHORT_CHECK(request.cut != 0, ErrorCode::invalid_argument,
               "[server.cut] expected the number of a cut, got 0");
  close(0, "another save has begun");
  const Lock lock(mutex_);
  cut_ = request.cut;
  memory_ = std::make_shared<CutMemory>(request.bytes_max);
  wait_max_ = duration_of(request.wait_max_ms);
  idle_max_ = duration_of(request.idle_max_ms);
  idle_ = Deadline::after(idle_max_);
  is_open_ = true;
  return memory_;
}

bool StoreCut::close(std::uint64_t cut, const std::string& why) {
  const Lock lock(mutex_);
  if (memory_ == nullptr || (cut != 0 && cut != cut_)) return false;
  memory_->end();
  memory_.reset();
  why_ = why;
  is_open_ = false;
  return true;
}

void StoreCut::use(std::uint64_t cut) {
  const Lock lock(mutex_);
  const bool is_this = memory_ != nullptr && cut == cut_;
  COHORT_CHECK(is_this, ErrorCode::aborted,
               "[server.export_state] expected a cut that this server keeps, got one that has "
               "ended: ",
               cut == cut_ ? why_ : std::string("another save has begun"), "; save again");
  idle_ = Deadline::after(idle_max_);
}

StoreCut::Wait StoreCut::wait() const {
  const Lock lock(mutex_);
  return {cut_, memory_, wait_max_, idle_.has_expired()};
}

}  // namespace cohort::parameter_server
