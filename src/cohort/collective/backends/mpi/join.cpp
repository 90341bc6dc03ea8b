// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/collective/backends/mpi/mpi_channel.h"
#include "cohort/collective/backends/mpi/world.h"
#include "cohort/collective/backends/tcp/member.h"
#include "cohort/collective/links.h"
#include "cohort/collective/mpi_group.h"
#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"

namespace cohort::collective::mpi {
namespace {

using std::chrono::microseconds;

// Nothing wakes a process when a message of MPI comes, so a member that waits looks for it, less
// and less often. The processor goes to others in between.
constexpr microseconds kYieldTime(200);
constexpr microseconds kSleepMin(20);
constexpr microseconds kSleepMax(1000);

// Ranks and names. Thread-safe.
class MpiLinks final : public Links {
 public:
  explicit MpiLinks(const World& world, std::vector<std::string> names)
      : rank_(world.rank()), names_(std::move(names)) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(names_.size()); }
  const std::string& member_name(int rank) const override {
    return names_[static_cast<std::size_t>(rank)];
  }
  // Members share nothing but MPI.
  const std::string& host(int rank) const override { return member_name(rank); }
  std::int64_t process(int) const override { return 0; }
  std::vector<FileDescriptor> open(const SplitPath&, int, Deadline) override {
    internal::throw_error(ErrorCode::internal, "[collective.open] expected a group over sockets");
  }
  // There is no next formation.
  void missed(int, std::string_view) override {}

 private:
  const int rank_;
  const std::vector<std::string> names_;
};

// As Carrier.
class MpiCarrier final : public tcp::Carrier {
 public:
  explicit MpiCarrier(World& world) : Carrier(world.num_here()), world_(world) {}

  tcp::Channels connect(const SplitPath& path, Deadline) override {
    Message::reap();
    const int tags = world_.new_tags();
    tcp::Channels channels(static_cast<std::size_t>(world_.size()));
    for (int rank = 0; rank < world_.size(); ++rank) {
      if (rank != world_.rank())
        channels[static_cast<std::size_t>(rank)] =
            std::make_unique<MpiChannel>(world_, path, rank, tags);
    }
    world_.say_hello(path, tags);
    return channels;
  }

  void sleep(const tcp::Channels&, TimePoint idle_since, TimePoint until) override {
    const TimePoint now = Clock::system().now();
    const Duration idle = now - idle_since;
    if (idle < kYieldTime) return std::this_thread::yield();
    const Duration pause = std::clamp<Duration>(idle / 8, kSleepMin, kSleepMax);
    std::this_thread::sleep_for(std::min<Duration>(pause, until - now));
  }

  void leave(const SplitPath& path) noexcept override {
    try {
      if (World::is_alive()) world_.say_hello(path, World::kLeft);
    } catch (...) {
      // Without memory for it the others wait until their deadline.
    }
  }

 private:
  World& world_;
};

std::vector<std::string> names_of(const MpiTasks& tasks, const World& world) {
  std::vector<std::string> names = tasks.names;
  if (names.empty()) {
    for (int rank = 0; rank < world.size(); ++rank)
      names.push_back("worker:" + std::to_string(rank));
    return names;
  }
  COHORT_CHECK(static_cast<int>(names.size()) == world.size() && tasks.self == world.rank(),
               ErrorCode::invalid_argument, "[collective.form] expected process ", tasks.self,
               " of ", names.size(), ", as TF_CONFIG says, got ", world.rank(), " of ",
               world.size(),
               " from MPI; unset TF_CONFIG, or give each process that of the task with its rank");
  return names;
}

}  // namespace
}  // namespace cohort::collective::mpi

namespace cohort::collective {

std::shared_ptr<Group> mpi_group(const MpiTasks& tasks, Deadline deadline) {
  mpi::World& world = mpi::World::get();
  std::vector<std::string> names = mpi::names_of(tasks, world);
  world.connect(deadline);
  static std::atomic<std::uint64_t> num_groups = 0;
  return std::make_shared<tcp::FrameMember>(
      std::make_shared<mpi::MpiLinks>(world, std::move(names)),
      std::make_shared<mpi::MpiCarrier>(world), SplitPath{num_groups++});
}

}  // namespace cohort::collective
