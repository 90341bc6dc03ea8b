// SPDX-License-Identifier: Apache-2.0
// These tests are about properties that only groups that share memory have. The members are threads
// of this process; with processes: tests/fault/group_loss_test.cpp.
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <barrier>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/collective/backends/shared_memory/member.h"
#include "cohort/collective/groups/exchange_only_group.h"
#include "cohort/core/error.h"
#include "cohort/testing/error_of.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/paired_links.h"
#include "cohort/testing/test_seed.h"
#include "cohort/testing/throws_error.h"

namespace cohort::collective::shared_memory {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::error_text_of;
using ::testing::HasSubstr;
using testing::on_workers;
using ::testing::Pair;
using testing::throws_error;

using Groups = std::vector<std::shared_ptr<Group>>;

Deadline in_a_moment() { return Deadline::after(std::chrono::milliseconds(30)); }
Deadline in_a_minute() { return Deadline::after(std::chrono::seconds(60)); }

class SharedMemory : public ::testing::Test {
 protected:
  void begin(int size) {
    sockets = std::make_shared<testing::PairedSockets>(size);
    groups = on_workers<std::shared_ptr<Group>>(size, [&](int rank) {
      return join(std::make_shared<testing::PairedLinks>(sockets, rank), in_a_minute());
    });
  }
  // The first call connects it.
  std::shared_ptr<Group> unconnected(int rank) const {
    return std::make_shared<Member>(
        std::make_shared<Memory>(std::make_shared<testing::PairedLinks>(sockets, rank)));
  }
  Group& member(int rank) { return *groups[static_cast<std::size_t>(rank)]; }
  template <class R = at::Tensor, class Run>
  std::vector<R> on_members(const Run& run) {
    return on_workers<R>(static_cast<int>(groups.size()),
                         [&](int rank) { return run(rank, member(rank)); });
  }

  std::shared_ptr<testing::PairedSockets> sockets;
  Groups groups;
};

TEST_F(SharedMemory, AMissedDeadlineNamesTheSameMemberOnAllOthers) {
  begin(3);
  const Deadline in_a_second = Deadline::after(std::chrono::seconds(1));
  const std::vector<std::string> errors = on_workers<std::string>(
      2, [&](int rank) { return error_text_of([&] { member(rank).barrier(in_a_second); }); });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("deadline_exceeded worker:2"),
                                 HasSubstr("got nothing from worker:2;"))));
  EXPECT_THAT(error_text_of([&] { member(2).barrier(in_a_minute()); }),
              AllOf(HasSubstr("aborted "), HasSubstr("has waited in vain for worker:2")));
  EXPECT_THAT(sockets->missed(), ElementsAre(Pair(0, 2), Pair(1, 2)));
}

// Both gave up in the same moment, and each took the other for missing. A member that a busy
// machine does not run before the deadline is missing, so such a round gets more time.
TEST_F(SharedMemory, MembersThatGiveUpTogetherBlameOnlyWhoIsMissing) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> errors;
    for (const int time : {2, 50, 2000}) {
      begin(4);
      Deadline deadline;
      std::barrier started(
          3, [&]() noexcept { deadline = Deadline::after(std::chrono::milliseconds(time)); });
      errors = on_workers<std::string>(3, [&](int rank) {
        started.arrive_and_wait();
        return error_text_of([&] { member(rank).barrier(deadline); });
      });
      if (::testing::Value(errors, Each(HasSubstr("got nothing from worker:3;")))) break;
    }
    EXPECT_THAT(errors, Each(HasSubstr("got nothing from worker:3;")));
  }
}

TEST_F(SharedMemory, AMemberThatIsDestroyedWakesThoseThatWait) {
  begin(3);
  const std::vector<std::string> errors = on_workers<std::string>(3, [&](int rank) {
    if (rank < 2)
      return error_text_of(
          [&] { member(rank).all_reduce(at::ones({5}), ReduceOp::sum, in_a_minute()); });
    groups[2].reset();
    return std::string("aborted worker:2");
  });
  EXPECT_THAT(errors, Each(HasSubstr("aborted worker:2")));
  EXPECT_TRUE(sockets->missed().empty());
}

TEST_F(SharedMemory, AnUnusedSplitOfAMemberThatIsDestroyedFails) {
  begin(2);
  const auto split = groups[0]->split();
  groups[1].reset();
  EXPECT_THAT(error_text_of([&] { split->barrier(in_a_minute()); }), HasSubstr("aborted worker:1"));
}

TEST_F(SharedMemory, MessagesMayHaveAnySizes) {
  begin(3);
  constexpr std::size_t kSizes[] = {0, 1, 480, 481, 4096, 5000, 65'536, 65'537, 3'000'000};
  const auto message = [](std::size_t size, int rank) {
    Bytes bytes(size);
    for (std::size_t i = 0; i < size; ++i)
      bytes[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(rank));
    return bytes;
  };
  on_members<int>([&](int rank, Group& group) {
    for (std::size_t i = 0; i < std::size(kSizes); ++i) {
      for (const std::size_t shift : {0, 1, 4}) {
        const auto size_of = [&](int other) {
          return kSizes[(i + shift * static_cast<std::size_t>(other)) % std::size(kSizes)];
        };
        const auto all = group.exchange(message(size_of(rank), rank), "bytes", in_a_minute());
        for (int other = 0; other < 3; ++other)
          EXPECT_TRUE(all[static_cast<std::size_t>(other)] == message(size_of(other), other));
      }
    }
    return 0;
  });
}

TEST_F(SharedMemory, SplitsWorkAtTheSameTime) {
  begin(2);
  on_members<int>([&](int rank, Group& group) {
    Groups splits;
    for (int i = 0; i < 4; ++i) splits.push_back(group.split());
    return on_workers<int>(
               4,
               [&](int i) {
                 Group& split = *splits[static_cast<std::size_t>(i)];
                 for (int call = 0; call < 20; ++call) {
                   const at::Tensor tensor = at::full({call * 700 + 1}, rank + i);
                   split.all_reduce(tensor, ReduceOp::sum, in_a_minute());
                   EXPECT_TRUE(at::equal(tensor, at::full({call * 700 + 1}, 2 * i + 1)));
                 }
                 return 0;
               })
        .front();
  });
}

TEST_F(SharedMemory, RoomsOfSplitsThatAreOverAreUsedAgain) {
  begin(2);
  on_members<int>([&](int rank, Group& group) {
    std::shared_ptr<Group> before;
    for (int i = 0; i < 300; ++i) {
      const auto split = group.split();
      if (i % 100 != 0) {
        const at::Tensor tensor = at::full({1}, rank + i);
        split->all_reduce(tensor, ReduceOp::sum, in_a_minute());
        EXPECT_EQ(tensor.item<float>(), static_cast<float>(2 * i + 1));
      }
      before = split;
    }
    return 0;
  });
}

TEST_F(SharedMemory, TheFirstCallConnectsTheMembers) {
  sockets = std::make_shared<testing::PairedSockets>(2);
  for (int rank = 0; rank < 2; ++rank) groups.push_back(unconnected(rank));
  on_members<int>([&](int, Group& group) {
    const Groups both = {group.split(), group.split()};
    on_workers<int>(2, [&](int i) {
      both[static_cast<std::size_t>(i)]->barrier(in_a_minute());
      return 0;
    });
    group.barrier(in_a_minute());
    return 0;
  });
}

TEST_F(SharedMemory, MembersThatNeverConnectEndTheGroup) {
  sockets = std::make_shared<testing::PairedSockets>(2);
  const auto group = unconnected(0);
  EXPECT_THAT([&] { group->barrier(in_a_moment()); },
              throws_error(ErrorCode::deadline_exceeded, "worker:1"));
  EXPECT_THAT([&] { group->barrier(in_a_minute()); },
              throws_error(ErrorCode::aborted, "got the failure of an earlier try"));
}

// Regression: a member that ended while others opened its memory was no lost member for them, but
// a wrong set-up of the processes.
TEST_F(SharedMemory, AFirstMemberThatEndsBeforeOthersOpenItsMemoryIsLost) {
  testing::SocketPair to_first, to_second;
  sockets = std::make_shared<testing::PairedSockets>(2, [&](int, int, int) {
    to_first = testing::unix_pair();
    to_second = testing::unix_pair();
    return testing::SocketPair{std::move(to_first[1]), std::move(to_second[1])};
  });
  std::string error;
  std::thread second([&] {
    error = error_text_of(
        [&] { join(std::make_shared<testing::PairedLinks>(sockets, 1), in_a_minute()); });
  });
  // Its group ends at once.
  const Deadline soon = Deadline::after(std::chrono::seconds(1));
  (void)error_text_of([&] { join(std::make_shared<testing::PairedLinks>(sockets, 0), soon); });
  char invitation[256];
  const ssize_t size = ::recv(to_first[0].get(), invitation, sizeof invitation, MSG_DONTWAIT);
  EXPECT_GT(size, 0);
  EXPECT_EQ(::send(to_second[0].get(), invitation, static_cast<std::size_t>(size), 0), size);
  to_second[0] = FileDescriptor();
  second.join();
  EXPECT_THAT(error, HasSubstr("unavailable worker:0: [collective.open]"));
}

TEST_F(SharedMemory, WorkersOfSeveralHostsAreRefused) {
  sockets = std::make_shared<testing::PairedSockets>(2);
  const std::vector<std::string> hosts = {"a", "b"};
  const auto group = std::make_shared<Member>(
      std::make_shared<Memory>(std::make_shared<testing::PairedLinks>(sockets, 0, hosts)));
  EXPECT_THAT([&] { group->barrier(in_a_minute()); },
              throws_error(ErrorCode::invalid_argument,
                           "expected all workers on one host, got worker:0 on a and worker:1 on b; "
                           "choose GroupBackend::tcp"));
}

std::size_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

TEST_F(SharedMemory, NothingIsLeftWhenTheMembersHaveGone) {
  const std::size_t before = open_files();
  begin(3);
  on_members<int>([&](int, Group& group) {
    const auto split = group.split();
    split->barrier(in_a_minute());
    group.barrier(in_a_minute());
    return 0;
  });
  EXPECT_GT(open_files(), before);
  groups.clear();
  sockets.reset();
  EXPECT_EQ(open_files(), before);
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  EXPECT_THAT(text, ::testing::Not(HasSubstr("cohort-shared")));
}

// One random call; equal on all members for equal random numbers.
at::Tensor perform(Group& group, std::mt19937& random) {
  constexpr at::ScalarType kTypes[] = {at::kFloat, at::kHalf, at::kInt, at::kComplexDouble};
  const at::ScalarType dtype = kTypes[random() % std::size(kTypes)];
  const std::int64_t longest = random() % 4 == 0 ? 300'000 : random() % 2 == 0 ? 3000 : 40;
  const std::int64_t rows = 1 + static_cast<std::int64_t>(random() % 7);
  const std::int64_t columns = static_cast<std::int64_t>(random()) % longest / rows;
  const int root = static_cast<int>(random() % static_cast<unsigned>(group.size()));
  const auto seed = random();
  std::mt19937 values(seed + static_cast<unsigned>(group.rank()));
  at::Tensor first = at::ones({rows, columns}, at::kDouble);
  double* const data = first.data_ptr<double>();
  for (std::int64_t i = 0; i < first.numel(); ++i)
    data[i] = static_cast<double>(values() % 999) / 7;
  first = first.to(dtype);
  const at::Tensor second = first.t().slice(0, 0, columns, 3).clone();
  const std::vector<at::Tensor> both = {first, second};
  switch (seed % 6) {
    case 0:
      return group.all_gather(first, static_cast<std::int64_t>(seed % 2), in_a_minute());
    case 1:
      return group.reduce_scatter(first, ReduceOp::sum, in_a_minute());
    case 2:
      group.broadcast(both, root, in_a_minute());
      break;
    case 3:
      group.reduce(both, ReduceOp::sum, root, in_a_minute());
      break;
    case 4:
      group.barrier(in_a_minute());
      break;
    default:
      group.all_reduce(both, ReduceOp::sum, in_a_minute());
  }
  return at::cat({first.flatten(), second.flatten()});
}

TEST_F(SharedMemory, RandomCallsGiveTheBitsOfTheDefaults) {
  const testing::TestSeed seed;
  for (int size = 2; size <= 4; ++size) {
    begin(size);
    const InProcessWorkers workers(size);
    on_members<int>([&](int rank, Group& group) {
      ExchangeOnlyGroup plain(workers.group(rank));
      std::mt19937 random(seed.value());
      std::mt19937 same = random;
      for (int call = 0; call < 30; ++call) {
        const at::Tensor got = perform(group, random);
        EXPECT_TRUE(at::equal(got, perform(plain, same))) << "call " << call << " of " << size;
      }
      return 0;
    });
  }
}

}  // namespace
}  // namespace cohort::collective::shared_memory
