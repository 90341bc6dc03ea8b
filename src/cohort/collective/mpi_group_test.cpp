// SPDX-License-Identifier: Apache-2.0
// Groups of processes that mpirun has started, where the tests of every backend need threads. All
// processes run the same tests; without mpirun they are skipped.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cohort/collective/mpi_group.h"
#include "cohort/core/error.h"
#include "cohort/testing/mpi_job.h"
#include "cohort/testing/throws_error.h"

namespace cohort::collective {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::MpiJob;
using ::testing::StartsWith;
using testing::throws_error;

class MpiGroup : public ::testing::Test {
 protected:
  void SetUp() override {
    if (MpiJob::size() < 2) GTEST_SKIP() << "mpirun -n 2 collective_test starts it";
    group_ = MpiJob::group();
  }
  static MpiJob& job() { return MpiJob::get(); }
  static Deadline late() { return MpiJob::late(); }
  static Deadline soon() { return Deadline::after(std::chrono::milliseconds(20)); }
  std::shared_ptr<Group>& group() { return group_; }
  bool is_first() const { return job().rank() == 0; }
  static std::string last() { return "worker:" + std::to_string(MpiJob::size() - 1); }
  static std::string all_but_first() {
    std::string names;
    for (int rank = 1; rank < MpiJob::size(); ++rank)
      names += (rank == 1 ? "worker:" : ", worker:") + std::to_string(rank);
    return names;
  }

 private:
  std::shared_ptr<Group> group_;
};

TEST_F(MpiGroup, HasTheRanksOfMpi) {
  EXPECT_EQ(group()->size(), MpiJob::size());
  EXPECT_EQ(std::to_string(group()->rank()), std::getenv("OMPI_COMM_WORLD_RANK"));
  EXPECT_EQ(group()->member_name(group()->rank()), "worker:" + std::to_string(group()->rank()));
}

TEST_F(MpiGroup, BarrierWaitsForTheLastOne) {
  using Time = std::chrono::steady_clock::time_point;
  group()->barrier(late());
  // One clock for all processes of a host.
  const Time come = std::chrono::steady_clock::now();
  group()->barrier(late());
  const Time gone = std::chrono::steady_clock::now();
  const auto number = [](Time time) -> std::int64_t { return time.time_since_epoch().count(); };
  EXPECT_THAT(job().results(number(gone)),
              Each(::testing::Ge(std::ranges::max(job().results(number(come))))));
}

TEST_F(MpiGroup, LargeTensorsHaveTheirSum) {
  const std::int64_t count = 25 << 20;  // 100 MiB
  const at::Tensor mine = at::arange(count).remainder(1000).to(at::kFloat);
  const at::Tensor expected =
      mine.mul(MpiJob::size()).add(MpiJob::size() * (MpiJob::size() - 1) / 2);
  mine.add_(job().rank());
  group()->all_reduce(mine, ReduceOp::sum, late());
  EXPECT_TRUE(at::equal(mine, expected));
}

TEST_F(MpiGroup, LargeMessagesAreExchanged) {
  const std::size_t bytes = 3'000'001;
  const std::vector<Bytes> all =
      group()->exchange(Bytes(bytes, static_cast<std::byte>(job().rank())), "bytes", late());
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    EXPECT_EQ(all[rank], Bytes(bytes, static_cast<std::byte>(rank)));
}

// Members that have values on their way when the deadline passes, and a member that comes later.
TEST_F(MpiGroup, ADeadlineNamesTheMissingAndEndsTheGroup) {
  group()->barrier(late());
  for (const std::int64_t count : {3, 5'000'000}) {
    const std::shared_ptr<Group> split = group()->split();
    const at::Tensor tensor = at::ones({count});
    if (is_first()) {
      EXPECT_THAT([&] { split->all_reduce(tensor, ReduceOp::sum, soon()); },
                  throws_error(ErrorCode::deadline_exceeded,
                               "expected all workers in call 0 to take part in all_reduce in time, "
                               "got nothing from " +
                                   all_but_first()));
    }
    job().meet();
    for (int call = 0; call < 2; ++call) {
      EXPECT_THAT(
          [&] { split->all_reduce(tensor, ReduceOp::sum, late()); },
          throws_error(ErrorCode::aborted, "worker:0 has waited in vain for " + all_but_first()));
    }
    EXPECT_TRUE(at::equal(tensor, at::ones({count})));
    job().meet();
  }
  group()->barrier(late());  // others go on
}

TEST_F(MpiGroup, ALateMemberIsNamedByAllWhoWait) {
  if (MpiJob::size() < 3) GTEST_SKIP() << "needs three processes";
  group()->barrier(late());
  if (job().rank() + 1 < MpiJob::size()) {
    // All of these come before it passes, also on a busy machine.
    const Deadline deadline = Deadline::after(std::chrono::seconds(10));
    std::string text = "none";
    try {
      group()->barrier(deadline);
    } catch (const Error& error) {
      text = std::string(name_of(error.code())) + ": " + error.message();
    }
    // Who hears of it before its own deadline has the first one's reason.
    EXPECT_THAT(text, AllOf(StartsWith("deadline_exceeded: "),
                            AnyOf(EndsWith("got nothing from " + last()),
                                  HasSubstr("has waited in vain for " + last() + ";"))));
    job().meet();
    return;
  }
  job().meet();
  EXPECT_THAT([&] { group()->barrier(late()); },
              throws_error(ErrorCode::aborted, "has waited in vain for " + last()));
}

TEST_F(MpiGroup, AMemberThatLeavesFailsTheCallsThatNeedIt) {
  for (const bool is_used : {false, true}) {
    std::shared_ptr<Group> split = group()->split();
    if (is_used) split->barrier(late());
    if (job().rank() + 1 == MpiJob::size()) {
      split.reset();
    } else {
      EXPECT_THAT([&] { split->all_gather(at::ones({2}), 0, late()); },
                  throws_error(ErrorCode::aborted,
                               "expected " + last() + " to take part in all_gather in call "));
    }
    job().meet();
  }
}

TEST_F(MpiGroup, SplitsAreUsedByThreadsAtTheSameTime) {
  std::vector<std::thread> threads;
  std::vector<at::Tensor> sums;
  for (int i = 0; i < 4; ++i) sums.push_back(at::full({100'000}, job().rank() + i));
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([split = group()->split(), sum = sums[static_cast<std::size_t>(i)]] {
      for (int call = 0; call < 5; ++call) split->barrier(late());
      split->all_reduce(sum, ReduceOp::sum, late());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const int n = MpiJob::size();
  for (int i = 0; i < 4; ++i)
    EXPECT_TRUE(
        at::equal(sums[static_cast<std::size_t>(i)], at::full({100'000}, n * i + n * (n - 1) / 2)));
}

TEST_F(MpiGroup, TasksOfAnotherJobAreRefused) {
  const auto names = [](int count) {
    std::vector<std::string> all;
    for (int i = 0; i < count; ++i) all.push_back("task:" + std::to_string(i));
    return all;
  };
  const int n = MpiJob::size();
  EXPECT_THAT([&] { mpi_group({.names = names(n + 1), .self = job().rank()}, late()); },
              throws_error(ErrorCode::invalid_argument, "as TF_CONFIG says, got "));
  EXPECT_THAT([&] { mpi_group({.names = names(n), .self = (job().rank() + 1) % n}, late()); },
              throws_error(ErrorCode::invalid_argument, "unset TF_CONFIG"));
  const auto named = mpi_group({.names = names(n), .self = job().rank()}, late());
  EXPECT_EQ(named->member_name(0), "task:0");
  named->barrier(late());
}

#ifdef COHORT_WITHOUT_MPI
TEST(WithoutMpi, AGroupOfMpiIsUnimplemented) {
  EXPECT_THAT([] { mpi_group({}, Deadline()); },
              throws_error(ErrorCode::unimplemented, "build Cohort where CMake finds MPI"));
}
#endif

}  // namespace
}  // namespace cohort::collective
