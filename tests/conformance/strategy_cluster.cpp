// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/strategy_cluster.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/error.h"
#include "cohort/server/server.h"

namespace cohort::conformance::strategy {
namespace {

// Shorter than the library's own timeouts, since a lost server must be noticed within the deadline
// of a case.
constexpr Duration kClusterTimeout = std::chrono::seconds(20);

constexpr std::size_t kMostKept = 3;

// The clusters of the last cases, the newest one last. Never destroyed, since the process that runs
// the cases ends without destructors.
std::vector<std::shared_ptr<CaseCluster>>& kept_clusters() {
  static auto& kept = *new std::vector<std::shared_ptr<CaseCluster>>;
  return kept;
}

}  // namespace

std::shared_ptr<CaseCluster> cluster_of_size(int workers, int ps, const std::string& program) {
  auto& kept = kept_clusters();
  std::erase_if(kept, [](const auto& each) { return !each->is_intact(); });
  const auto found = std::find_if(kept.begin(), kept.end(), [&](const auto& each) {
    return each.use_count() == 1 && each->workers() == workers && each->ps() == ps;
  });
  std::shared_ptr<CaseCluster> cluster;
  if (found == kept.end()) {
    cluster = std::make_shared<CaseCluster>(workers, ps, program);
  } else {
    cluster = *found;
    kept.erase(found);
  }
  if (kept.size() == kMostKept) kept.erase(kept.begin());
  kept.push_back(cluster);
  return cluster;
}

void forget_clusters() { kept_clusters().clear(); }

int serve_as_process() {
  try {
    return Server(TfConfigResolver()).join();
  } catch (const Error& error) {
    return exit_code_of(error);
  }
}

CaseCluster::CaseCluster(int workers, int ps, const std::string& program)
    : workers_(workers), ps_(ps), thread_(&CaseCluster::do_orders, this) {
  order([&] {
    servers_ = std::make_unique<testing::TestCluster>(testing::TestClusterOptions{
        .workers = workers, .ps = ps, .command = {program, "--server"}});
  });
  try {
    finish();
  } catch (...) {
    end();
    throw;
  }
}

CaseCluster::~CaseCluster() { end(); }

void CaseCluster::end() noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::unique_ptr<ParameterServerStrategy> CaseCluster::make_strategy(Partitioner partitioner) const {
  return std::make_unique<ParameterServerStrategy>(
      servers_->resolver(), ParameterServerOptions{.cluster = {.timeout = kClusterTimeout,
                                                               .data_timeout = kClusterTimeout},
                                                   .partitioner = std::move(partitioner)});
}

void CaseCluster::kill(const std::string& task) {
  is_intact_ = false;
  order([this, task] { servers_->kill(task); });
  finish();
}

void CaseCluster::restart(const std::string& task, std::chrono::milliseconds delay) {
  order([this, task, delay] {
    if (!is_ended_within(delay)) servers_->restart(task);
  });
  if (delay.count() == 0) finish();
}

bool CaseCluster::is_ended_within(std::chrono::milliseconds delay) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, delay, [this] { return is_ending_; });
}

void CaseCluster::order(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back(std::move(work));
  }
  changed_.notify_all();
}

// Waits until all orders are done, and throws the first error.
void CaseCluster::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return orders_.empty() && !is_busy_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void CaseCluster::do_orders() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_ending_ || !orders_.empty(); });
    if (is_ending_) break;
    const std::function<void()> work = std::move(orders_.front());
    orders_.pop_front();
    is_busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure_ == nullptr) failure_ = failure;
    is_busy_ = false;
    changed_.notify_all();
  }
  lock.unlock();
  servers_.reset();
}

}  // namespace cohort::conformance::strategy
