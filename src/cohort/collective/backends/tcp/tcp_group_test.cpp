// SPDX-License-Identifier: Apache-2.0
// These tests see what the conformance test of all backends cannot: large transfers, broken
// connections, and damaged bytes.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/collective/backends/tcp/member.h"
#include "cohort/collective/groups/exchange_only_group.h"
#include "cohort/core/error.h"
#include "cohort/testing/error_of.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/paired_links.h"
#include "cohort/testing/test_seed.h"
#include "cohort/testing/throws_error.h"

namespace cohort::collective::tcp {
namespace {

using ::testing::AnyOf;
using testing::Damage;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::on_workers;
using ::testing::StartsWith;

Deadline late() { return Deadline::after(std::chrono::seconds(60)); }
// Late enough for the other members to begin their calls on a busy machine.
Deadline soon() { return Deadline::after(std::chrono::seconds(2)); }

// The groups of all members, which are threads.
class TcpGroup : public ::testing::Test {
 protected:
  void connect(
      int size, testing::MakePair make_pair = [](int, int, int) { return testing::tcp_pair(); }) {
    groups_.clear();
    sockets_ = std::make_shared<testing::PairedSockets>(size, std::move(make_pair));
    for (int rank = 0; rank < size; ++rank)
      groups_.push_back(join(std::make_shared<testing::PairedLinks>(sockets_, rank)));
  }
  // Damages the frames between the members 0 and 1.
  void connect_damaged(int size, const Damage& damage) {
    groups_.clear();
    relays_ = std::make_unique<testing::Relays>();
    connect(size, [this, damage](int first, int second, int lane) {
      if (first != 0 || second != 1 || lane != 0) return testing::unix_pair();
      return relays_->make(damage);
    });
  }
  int size() const { return static_cast<int>(groups_.size()); }
  std::shared_ptr<Group>& group(int rank) { return groups_[static_cast<std::size_t>(rank)]; }

  template <class R = at::Tensor, class Run>
  std::vector<R> on_members(const Run& run) {
    return on_workers<R>(size(), [&](int rank) { return run(rank, *group(rank)); });
  }
  // "code origin: message" of each member; "" if it has no error.
  template <class Run>
  std::vector<std::string> errors(const Run& run) {
    return on_members<std::string>([&](int rank, Group& member) {
      return testing::error_text_of([&] { run(rank, member); });
    });
  }
  void expect_sum(std::int64_t count) {
    const auto sums = on_members([&](int rank, Group& member) {
      const at::Tensor mine = at::full({count}, rank + 1.0);
      member.all_reduce(mine, ReduceOp::sum, late());
      return mine;
    });
    for (const at::Tensor& sum : sums)
      EXPECT_TRUE(at::equal(sum, at::full({count}, size() * (size() + 1) / 2.0)));
  }

  std::unique_ptr<testing::Relays> relays_;
  std::shared_ptr<testing::PairedSockets> sockets_;
  std::vector<std::shared_ptr<Group>> groups_;
};

TEST_F(TcpGroup, SumsManyMegabytes) {
  for (const int size : {2, 3}) {
    connect(size);
    expect_sum((5 << 20) + 3);
  }
}

// Timers that hold back segments by a measured rate made some groups of one host half as fast.
TEST_F(TcpGroup, DoesNotPaceConnectionsWithinAHost) {
  std::vector<FileDescriptor> frames;  // further descriptors of the sockets of both members
  connect(2, [&](int, int, int lane) {
    auto pair = testing::tcp_pair();
    for (const FileDescriptor& end : pair) {
      if (lane == 0) frames.emplace_back(::dup(end.get()));
    }
    return pair;
  });
  expect_sum(10);
  ASSERT_EQ(frames.size(), 2U);
  for (const FileDescriptor& end : frames) {
    char name[16] = {};
    socklen_t length = sizeof(name);
    EXPECT_EQ(::getsockopt(end.get(), IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
    EXPECT_STREQ(name, "reno");
  }
}

TEST_F(TcpGroup, ExchangesMessagesOfAnySizes) {
  connect(3);
  const std::vector<std::size_t> sizes = {0, 1, 64 << 10, (64 << 10) + 1, 5'000'000};
  for (std::size_t round = 0; round < 10; ++round) {
    const auto message_of = [&](int rank) {
      const auto i = static_cast<std::size_t>(rank);
      return Bytes(sizes[(round + i * (round / 5 + 1)) % 5], static_cast<std::byte>(rank + 1));
    };
    const auto all = on_members<std::vector<Bytes>>([&](int rank, Group& member) {
      return member.exchange(message_of(rank), "a message", late());
    });
    const std::vector<Bytes> expected = {message_of(0), message_of(1), message_of(2)};
    for (const std::vector<Bytes>& got : all) EXPECT_TRUE(got == expected) << round;
  }
}

TEST_F(TcpGroup, SplitsWorkAtTheSameTime) {
  connect(3);
  constexpr int kSplits = 4;
  on_members<int>([&](int rank, Group& member) {
    std::vector<std::shared_ptr<Group>> splits;
    for (int i = 0; i < kSplits; ++i) splits.push_back(member.split());
    on_workers<int>(kSplits, [&](int i) {
      for (int call = 0; call < 30; ++call) {
        const at::Tensor mine = at::full({call * 3000 + 1}, rank + i, at::kInt);
        splits[static_cast<std::size_t>(i)]->all_reduce(mine, ReduceOp::sum, late());
        EXPECT_TRUE(at::equal(mine, at::full(mine.sizes(), 3 + 3 * i, at::kInt)));
      }
      return 0;
    });
    return 0;
  });
}

// Tensors whose bytes are no multiple of the alignment, so that there are gaps between them.
std::vector<at::Tensor> random_tensors(std::mt19937& random, int rank) {
  std::vector<at::Tensor> tensors;
  const auto count = random() % 4 == 0 ? 30 : 1 + random() % 3;
  for (std::size_t i = 0; i < count; ++i) {
    const auto dtype = random() % 2 == 0 ? at::kFloat : at::kBFloat16;
    const std::int64_t length = random() % 3 == 0 ? random() % 300'000 : random() % 3'000;
    const auto factor = static_cast<double>(random() % 1000 + 7);
    const at::Tensor values = at::arange(length, at::kFloat);
    tensors.push_back(values.mul(factor / (rank + 3)).to(dtype));
  }
  return tensors;
}

TEST_F(TcpGroup, HasTheBitsOfTheDefaultOperations) {
  const testing::TestSeed seed;
  for (const int size : {2, 3, 4}) {
    connect(size);
    const InProcessWorkers workers(size);
    on_members<int>([&](int rank, Group& member) {
      ExchangeOnlyGroup other(workers.group(rank));
      std::mt19937 random(seed.value());  // the same values on all members
      for (int call = 0; call < 30; ++call) {
        const auto mine = random_tensors(random, rank);
        std::vector<at::Tensor> expected;
        for (const at::Tensor& tensor : mine) expected.push_back(tensor.clone());
        const int root = static_cast<int>(random() % static_cast<unsigned>(size));
        const auto kind = random() % 3;
        for (Group* const group : {&member, static_cast<Group*>(&other)}) {
          const auto& tensors = group == &member ? mine : expected;
          if (kind == 0) group->all_reduce(tensors, ReduceOp::mean, late());
          if (kind == 1) group->reduce(tensors, ReduceOp::sum, root, late());
          if (kind == 2) group->broadcast(tensors, root, late());
        }
        for (std::size_t i = 0; i < mine.size(); ++i)
          EXPECT_TRUE(at::equal(mine[i], expected[i])) << "call " << call << ", kind " << kind;
      }
      return 0;
    });
  }
}

TEST_F(TcpGroup, LargeCallsThatDifferLeaveTheGroupUsable) {
  connect(3);
  for (int round = 0; round < 3; ++round) {
    const auto all = errors([&](int rank, Group& member) {
      const at::Tensor mine = at::ones({2'000'000 + (rank == round ? 1 : 0)});
      if (rank == round && round == 1) return member.broadcast(mine, 0, late());
      member.all_reduce(mine, ReduceOp::sum, late());
    });
    EXPECT_THAT(all, Each(StartsWith("invalid_argument : ")));
    EXPECT_THAT(all, Each(all[0]));
    expect_sum(500'000);
  }
}

// Regression: with two of them, and in later calls, the error had no origin.
TEST_F(TcpGroup, TheFirstOfSeveralCulpritsIsTheOrigin) {
  connect(3);
  expect_sum(3);
  const auto call = [&](int rank, Group& member) {
    if (rank == 0) member.all_reduce(at::ones({10}), ReduceOp::sum, soon());
  };
  EXPECT_THAT(errors(call)[0], StartsWith("deadline_exceeded worker:1: "));
  EXPECT_THAT(errors(call)[0], StartsWith("aborted worker:1: "));
}

TEST_F(TcpGroup, ADeadlineHasTheSameCulpritOnAllMembers) {
  for (const std::int64_t count : {10, 1'000'000}) {
    connect(3);
    expect_sum(3);
    const auto all = errors([&](int rank, Group& member) {
      if (rank < 2)
        member.all_reduce(at::ones({count}), ReduceOp::sum, rank == 0 ? soon() : late());
    });
    EXPECT_THAT(all[0], StartsWith("deadline_exceeded worker:2: "));
    EXPECT_THAT(all[1], StartsWith("deadline_exceeded worker:2: "));
    EXPECT_THAT(all[1], HasSubstr("worker:0 has waited in vain for worker:2"));
    using Pairs = std::set<std::pair<int, int>>;
    EXPECT_EQ(sockets_->missed(), (Pairs{{0, 2}, {1, 2}}));
    EXPECT_THAT(errors([&](int, Group& member) { member.barrier(late()); }),
                Each(StartsWith("aborted ")));
  }
}

// A member may leave as soon as its call has returned, while others still read what it sent.
TEST_F(TcpGroup, AMemberThatLeavesAfterACallDoesNotBreakThatCall) {
  for (int round = 0; round < 20; ++round) {
    connect(3);
    const int leaver = round % 3;
    const auto sums = on_members([&](int rank, Group& member) {
      const at::Tensor mine = at::full({300'000}, rank + 1.0);
      member.all_reduce(mine, ReduceOp::sum, late());
      if (rank == leaver) group(rank).reset();
      return mine;
    });
    for (const at::Tensor& sum : sums) EXPECT_TRUE(at::equal(sum, at::full({300'000}, 6.0)));
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == leaver) continue;
      EXPECT_THAT(
          [&] { group(rank)->barrier(late()); },
          testing::throws_error(ErrorCode::aborted, "expected worker:" + std::to_string(leaver) +
                                                        " to take part in barrier"));
    }
  }
}

TEST_F(TcpGroup, DamagedBytesNeverGiveAWrongResult) {
  const testing::TestSeed seed;
  std::mt19937 random(seed.value());
  for (int round = 0; round < 60; ++round) {
    const Damage::Kind kinds[] = {Damage::Kind::flip, Damage::Kind::lose, Damage::Kind::repeat,
                                  Damage::Kind::cut};
    const Damage damage{.kind = kinds[random() % 4],
                        .is_to_second = random() % 2 == 0,
                        .position = random() % (random() % 2 == 0 ? 1000 : 1'000'000),
                        .length = 1 + random() % 100,
                        .bit = static_cast<unsigned>(random() % 8)};
    const int size = 2 + static_cast<int>(random() % 2);
    const bool is_large = damage.position > 1000;
    const std::int64_t count = is_large ? 100'000 : 20;
    connect_damaged(size, damage);
    const auto all = errors([&](int rank, Group& member) {
      for (int call = 0; call < 100; ++call) {
        const at::Tensor mine = at::full({count}, rank + call, at::kFloat);
        member.all_reduce(mine, ReduceOp::sum, Deadline::after(std::chrono::milliseconds(500)));
        const at::Tensor sum = at::full({count}, size * (size - 1) / 2 + size * call, at::kFloat);
        EXPECT_TRUE(at::equal(mine, sum)) << "call " << call;
      }
    });
    EXPECT_THAT(all, Each(AnyOf(StartsWith("unavailable worker:"),
                                StartsWith("deadline_exceeded worker:"), StartsWith("aborted "))))
        << "round " << round << " kind " << static_cast<int>(damage.kind) << " position "
        << damage.position;
  }
}

// Regression: it was data_loss, so that programs took it for the end of the job.
TEST_F(TcpGroup, AFlippedBitIsTheLossOfTheConnection) {
  for (const std::size_t position : {5, 70}) {  // of the header, and of the payload
    connect_damaged(3, {.kind = Damage::Kind::flip, .position = position});
    const auto all = errors([&](int, Group& member) {
      member.all_reduce(at::ones({100}), ReduceOp::sum, late());
      member.barrier(late());
    });
    EXPECT_THAT(all[1], StartsWith("unavailable worker:0: "));
    EXPECT_THAT(all[1], HasSubstr("expected what worker:0 sent in all_reduce in call 0"));
    EXPECT_THAT(all[2], HasSubstr("worker:1 got "));
  }
}

TEST_F(TcpGroup, AMemberThatStopsInTheMiddleIsNamedAtTheDeadline) {
  connect_damaged(3, {.kind = Damage::Kind::swallow, .position = 700'000});
  const auto all = errors([&](int rank, Group& member) {
    // All deadlines pass at about the same time, as in a program.
    member.all_reduce(at::ones({2'000'000}), ReduceOp::sum,
                      Deadline::after(std::chrono::milliseconds(2000 + rank)));
  });
  EXPECT_THAT(all[1], StartsWith("deadline_exceeded worker:0: "));
  EXPECT_THAT(all[2], StartsWith("deadline_exceeded worker:0: "));
  EXPECT_THAT(all[0], HasSubstr("worker:1 has waited in vain for worker:0"));
}

// Regression: member 2 waits in a split for member 0, which has noticed in the group of all that
// member 1 has stopped, after this has sent its part to member 2.
TEST_F(TcpGroup, AMemberThatHasFailedInAnotherGroupIsNotBlamed) {
  for (const bool leaves : {true, false}) {
    connect_damaged(3, {.kind = Damage::Kind::swallow, .is_to_second = false, .position = 70});
    auto splits = on_members<std::shared_ptr<Group>>([](int, Group& member) {
      auto split = member.split();
      split->barrier(late());
      member.barrier(late());
      return split;
    });
    const auto all = errors([&](int rank, Group& member) {
      std::shared_ptr<Group>& split = splits[static_cast<std::size_t>(rank)];
      try {
        member.barrier(rank == 0 ? Deadline::after(std::chrono::milliseconds(300)) : late());
      } catch (...) {
        if (leaves) split.reset();
        throw;
      }
      if (rank == 2) split->barrier(leaves ? late() : Deadline::after(std::chrono::seconds(1)));
    });
    EXPECT_THAT(all[0], StartsWith("deadline_exceeded worker:1: "));
    EXPECT_THAT(all[2], StartsWith("deadline_exceeded worker:1: "));
    EXPECT_EQ(sockets_->missed(), (std::set<std::pair<int, int>>{{0, 1}, {2, 1}}));
  }
}

// Regression: member 2 has finished a call in which member 0 still waits for member 1.
TEST_F(TcpGroup, AMemberThatWaitsInTheCallBeforeIsNotBlamed) {
  connect_damaged(3, {.kind = Damage::Kind::swallow, .is_to_second = false, .position = 10});
  const auto all = errors([&](int rank, Group& member) {
    member.barrier(rank == 0 ? Deadline::after(std::chrono::milliseconds(700)) : late());
    if (rank == 2) member.barrier(Deadline::after(std::chrono::milliseconds(500)));
  });
  EXPECT_THAT(all[0], StartsWith("deadline_exceeded worker:1: "));
  EXPECT_THAT(all[2], StartsWith("deadline_exceeded worker:1: "));
  EXPECT_EQ(sockets_->missed(), (std::set<std::pair<int, int>>{{0, 1}, {2, 1}}));
}

}  // namespace
}  // namespace cohort::collective::tcp
