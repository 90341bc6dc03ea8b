// SPDX-License-Identifier: Apache-2.0
// These tests see what the conformance test of all backends cannot: who adds what, how many bytes
// pass between hosts, and failures in the middle of a call.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/collective/backends/hierarchical/blocks.h"
#include "cohort/collective/backends/hierarchical/member.h"
#include "cohort/collective/backends/tcp/member.h"
#include "cohort/collective/groups/exchange_only_group.h"
#include "cohort/core/error.h"
#include "cohort/testing/error_of.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/paired_links.h"
#include "cohort/testing/test_seed.h"

namespace cohort::collective::hierarchical {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::on_workers;
using testing::PairedLinks;
using testing::PairedSockets;
using ::testing::StartsWith;

using Pairs = std::set<std::pair<int, int>>;

Deadline late() { return Deadline::after(std::chrono::seconds(60)); }

// A letter for each member: "AABB".
std::vector<std::string> names_of(const std::string& hosts) {
  std::vector<std::string> names;
  for (const char host : hosts) names.emplace_back(1, host);
  return names;
}

// "0-1 2-3"
std::string blocks_text(const std::string& hosts) {
  const int size = static_cast<int>(hosts.size());
  const PairedLinks links(std::make_shared<PairedSockets>(size), 0, names_of(hosts));
  std::string text;
  for (const Block& block : blocks_of(links))
    text += (text.empty() ? "" : " ") + std::to_string(block.first) + "-" +
            std::to_string(block.last - 1);
  return text + (is_useful(links) ? "" : " useless");
}

TEST(Blocks, AreTheLargestSubtreesThatAreOnOneHost) {
  EXPECT_EQ(blocks_text("AABB"), "0-1 2-3");
  EXPECT_EQ(blocks_text("AAAABB"), "0-3 4-5");
  EXPECT_EQ(blocks_text("AABBB"), "0-1 2-3 4-4");
  EXPECT_EQ(blocks_text("AABC"), "0-1 2-2 3-3");
  EXPECT_EQ(blocks_text("AAABBB"), "0-1 2-2 3-3 4-5");
  EXPECT_EQ(blocks_text("AAAABBB"), "0-3 4-6");
  EXPECT_EQ(blocks_text("AABBBBAA"), "0-1 2-3 4-5 6-7");
  EXPECT_EQ(blocks_text("ABB"), "0-0 1-1 2-2 useless");
  EXPECT_EQ(blocks_text("ABABAB"), "0-0 1-1 2-2 3-3 4-4 5-5 useless");
  EXPECT_EQ(blocks_text("AAA"), "0-2 useless");
  EXPECT_EQ(blocks_text("A"), "0-0 useless");
}

// The groups of all members, which are threads.
class Hierarchical : public ::testing::Test {
 protected:
  void connect(
      const std::string& hosts,
      testing::MakePair make_pair = [](int, int, int) { return testing::tcp_pair(); }) {
    groups.clear();
    sockets = std::make_shared<PairedSockets>(static_cast<int>(hosts.size()), std::move(make_pair));
    groups = on_workers<std::shared_ptr<Group>>(sockets->size(), [&](int rank) {
      return join(std::make_shared<PairedLinks>(sockets, rank, names_of(hosts)), late());
    });
  }
  template <class R, class Run>
  std::vector<R> on_members(const Run& run) {
    return on_workers<R>(static_cast<int>(groups.size()), [&](int rank) {
      return run(rank, *groups[static_cast<std::size_t>(rank)]);
    });
  }
  // "code origin: message" of each member; "" if it has no error.
  template <class Run>
  std::vector<std::string> errors(const Run& run) {
    return on_members<std::string>([&](int rank, Group& member) {
      return testing::error_text_of([&] { run(rank, member); });
    });
  }
  void expect_sum(std::int64_t count) {
    const auto size = static_cast<int>(groups.size());
    const auto sums = on_members<at::Tensor>([&](int rank, Group& member) {
      const at::Tensor mine = at::full({count}, rank + 1.0);
      member.all_reduce(mine, ReduceOp::sum, late());
      return mine;
    });
    for (const at::Tensor& sum : sums)
      EXPECT_TRUE(at::equal(sum, at::full({count}, size * (size + 1) / 2.0)));
  }

  std::shared_ptr<PairedSockets> sockets;
  std::unique_ptr<testing::Relays> relays;
  std::vector<std::shared_ptr<Group>> groups;
};

// Values whose sums depend on their order, with gaps between tensors in the payload.
std::vector<at::Tensor> random_tensors(std::mt19937& random, int rank) {
  constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kComplexFloat};
  std::vector<at::Tensor> tensors;
  const auto count = 1 + random() % 3;
  for (std::size_t i = 0; i < count; ++i) {
    const auto dtype = kTypes[random() % std::size(kTypes)];
    const std::int64_t length = random() % 300'000;
    const auto factor = static_cast<double>(random() % 1000 + 7);
    tensors.push_back(at::arange(length, at::kFloat).mul(factor / (rank + 3)).to(dtype));
  }
  return tensors;
}

TEST_F(Hierarchical, HasTheBitsOfTheDefaultOperations) {
  const testing::TestSeed seed;
  for (const std::string hosts :
       {"AAB", "AABB", "AABBB", "AABC", "AAABBB", "AAAABBB", "ABBBAAAA"}) {
    connect(hosts);
    const InProcessWorkers workers(sockets->size());
    on_members<int>([&](int rank, Group& member) {
      ExchangeOnlyGroup other(workers.group(rank));
      std::mt19937 random(seed.value());  // the same values on all members
      for (int call = 0; call < 12; ++call) {
        const auto mine = random_tensors(random, rank);
        std::vector<at::Tensor> expected;
        for (const at::Tensor& tensor : mine) expected.push_back(tensor.clone());
        const int root = static_cast<int>(random() % hosts.size());
        const auto kind = random() % 4;
        for (Group* const group : {&member, static_cast<Group*>(&other)}) {
          const auto& tensors = group == &member ? mine : expected;
          if (kind == 0) group->all_reduce(tensors, ReduceOp::mean, late());
          if (kind == 1) group->all_reduce(tensors, ReduceOp::sum, late());
          if (kind == 2) group->broadcast(tensors, root, late());
          if (kind == 3) group->reduce(tensors, ReduceOp::mean, root, late());
        }
        for (std::size_t i = 0; i < mine.size(); ++i)
          EXPECT_TRUE(at::equal(mine[i], expected[i]))
              << hosts << ", call " << call << ", kind " << kind << ", worker:" << rank;
      }
      return 0;
    });
  }
}

TEST_F(Hierarchical, SplitsWorkAtTheSameTime) {
  connect("AABB");
  constexpr int kSplits = 3;
  on_members<int>([&](int rank, Group& member) {
    std::vector<std::shared_ptr<Group>> splits;
    for (int i = 0; i < kSplits; ++i) splits.push_back(member.split());
    on_workers<int>(kSplits, [&](int i) {
      for (int call = 0; call < 10; ++call) {
        const at::Tensor mine = at::full({call * 9000 + 1}, rank + i, at::kInt);
        splits[static_cast<std::size_t>(i)]->all_reduce(mine, ReduceOp::sum, late());
        EXPECT_TRUE(at::equal(mine, at::full(mine.sizes(), 6 + 4 * i, at::kInt)));
      }
      return 0;
    });
    return 0;
  });
}

// Copies of one end of each connection between hosts, which know how much it has received.
class Counter {
 public:
  testing::SocketPair make(bool is_counted) {
    testing::SocketPair pair = testing::tcp_pair();
    if (is_counted) ends_.emplace_back(::dup(pair[0].get()));
    return pair;
  }
  std::int64_t num_bytes() const {
    std::int64_t sum = 0;
    for (const FileDescriptor& end : ends_) {
      // The kernel's tcp_info has this field, but glibc's ends before tcpi_bytes_received.
      constexpr int kTcpInfo = 11;
      std::uint64_t info[17] = {};
      socklen_t size = sizeof(info);
      EXPECT_EQ(::getsockopt(end.get(), IPPROTO_TCP, kTcpInfo, info, &size), 0);
      EXPECT_EQ(size, sizeof(info));
      sum += static_cast<std::int64_t>(info[16]);
    }
    return sum;
  }

 private:
  std::vector<FileDescriptor> ends_;
};

// The bytes that members of lower ranks receive from other hosts in a call; the others receive as
// many, since the hosts are alike.
template <class Run>
std::int64_t bytes_between_hosts(const std::string& hosts, bool is_hierarchical, const Run& run) {
  Counter counter;
  const int size = static_cast<int>(hosts.size());
  const auto sockets = std::make_shared<PairedSockets>(size, [&](int first, int second, int) {
    return counter.make(hosts[static_cast<std::size_t>(first)] !=
                        hosts[static_cast<std::size_t>(second)]);
  });
  const auto groups = on_workers<std::shared_ptr<Group>>(size, [&](int rank) {
    auto links = std::make_shared<PairedLinks>(sockets, rank, names_of(hosts));
    return is_hierarchical ? join(std::move(links), late()) : tcp::join(std::move(links));
  });
  std::int64_t before = 0;
  for (int call = 0; call < 2; ++call) {
    before = counter.num_bytes();
    on_workers<int>(size,
                    [&](int rank) { return run(*groups[static_cast<std::size_t>(rank)]), 0; });
  }
  return counter.num_bytes() - before;
}

TEST_F(Hierarchical, HostsExchangeASumOnce) {
  const auto sum = [](at::ScalarType dtype) {
    return [dtype](Group& group) {
      group.all_reduce(at::ones({1 << 20}, dtype), ReduceOp::sum, late());
    };
  };
  const auto bytes = [&](const std::string& hosts, const auto& run) {
    const auto of_tcp = static_cast<double>(bytes_between_hosts(hosts, false, run));
    return static_cast<double>(bytes_between_hosts(hosts, true, run)) / of_tcp;
  };
  EXPECT_NEAR(bytes("AABB", sum(at::kFloat)), 1.0 / 2, 0.01);
  EXPECT_NEAR(bytes("AAAABBBB", sum(at::kFloat)), 1.0 / 4, 0.01);
  // Sums of these types travel as float32.
  EXPECT_LE(bytes("AABB", sum(at::kBFloat16)), 1.01);
  EXPECT_LE(bytes("AAAABBBB", sum(at::kBFloat16)), 0.51);
  EXPECT_NEAR(bytes("BBAA", [](Group& group) { group.broadcast(at::ones({1 << 20}), 3, late()); }),
              1.0 / 2, 0.01);
}

TEST_F(Hierarchical, LargeCallsThatDifferLeaveTheGroupUsable) {
  connect("AABB");
  for (int round = 0; round < 4; ++round) {
    const auto all = errors([&](int rank, Group& member) {
      const at::Tensor mine = at::ones({200'000 + (rank == round ? 1 : 0)});
      if (rank == round && round == 1) return member.broadcast(mine, 0, late());
      // One that is not large, and a call that has no stages.
      if (rank == round && round == 2)
        return member.all_reduce(at::ones({3}), ReduceOp::sum, late());
      if (rank == round && round == 3) return member.reduce(mine, ReduceOp::sum, 0, late());
      member.all_reduce(mine, ReduceOp::sum, late());
    });
    EXPECT_THAT(all, Each(StartsWith("invalid_argument : ")));
    EXPECT_THAT(all, Each(HasSubstr("in call " + std::to_string(2 * round) + ", got ")));
    EXPECT_THAT(all, Each(all[0]));
    expect_sum(500'000);
  }
}

TEST_F(Hierarchical, ADeadlineHasTheSameCulpritOnAllMembers) {
  connect("AABB");
  expect_sum(300'000);
  const auto all = errors([&](int rank, Group& member) {
    if (rank == 3) return;
    member.all_reduce(at::ones({300'000}), ReduceOp::sum,
                      rank == 0 ? Deadline::after(std::chrono::seconds(2)) : late());
  });
  for (int rank = 0; rank < 3; ++rank) {
    const std::string& error = all[static_cast<std::size_t>(rank)];
    EXPECT_THAT(error, StartsWith("deadline_exceeded worker:3: [collective.all_reduce] "));
    EXPECT_THAT(error, HasSubstr("call 1"));
  }
  EXPECT_EQ(sockets->missed(), (Pairs{{0, 3}, {1, 3}, {2, 3}}));
  EXPECT_THAT(errors([&](int, Group& member) { member.barrier(late()); }),
              Each(StartsWith("aborted ")));
}

// In the middle of a call: the lane of the frames between the leaders.
TEST_F(Hierarchical, ALeaderThatStopsInTheMiddleIsNamedOnAllHosts) {
  for (const testing::Damage::Kind kind :
       {testing::Damage::Kind::swallow, testing::Damage::Kind::flip, testing::Damage::Kind::cut}) {
    groups.clear();
    relays = std::make_unique<testing::Relays>();
    connect("AABB", [&](int first, int second, int lane) {
      if (first != 0 || second != 2 || lane != 2) return testing::tcp_pair();
      return relays->make({.kind = kind, .position = 700'000});
    });
    // Only what is swallowed is noticed by the deadline.
    const bool ends_late = kind == testing::Damage::Kind::swallow;
    const auto all = errors([&](int, Group& member) {
      member.all_reduce(at::ones({1'000'000}), ReduceOp::sum,
                        ends_late ? Deadline::after(std::chrono::seconds(2)) : late());
    });
    const std::string code = ends_late ? "deadline_exceeded " : "unavailable ";
    EXPECT_THAT(all, Each(HasSubstr("call 0")));
    // The members 1 and 3 know it only from the leaders. If a connection breaks, either end may be
    // the first to say so.
    const std::string culprit = kind == testing::Damage::Kind::cut ? "worker:" : "worker:0: ";
    EXPECT_THAT(all[1], StartsWith(code + culprit));
    EXPECT_EQ(all[3], all[1]);
    if (kind == testing::Damage::Kind::cut) continue;
    EXPECT_THAT(all[0], StartsWith("aborted worker:0: "));
    EXPECT_THAT(all[2], StartsWith(code + culprit));
    EXPECT_THAT(errors([&](int, Group& member) { member.barrier(late()); }),
                Each(StartsWith("aborted ")));
  }
}

// The leader of the second host gets only a part of the values, and waits for the rest, as does its
// block. Meanwhile those of the first host have finished the call, and wait in a split.
TEST_F(Hierarchical, MembersThatWaitInAnotherGroupAreNotBlamed) {
  relays = std::make_unique<testing::Relays>();
  connect("AABB", [&](int first, int second, int lane) {
    if (first != 0 || second != 2 || lane != 2) return testing::tcp_pair();
    return relays->make({.kind = testing::Damage::Kind::swallow, .position = 700'000});
  });
  const auto splits =
      on_members<std::shared_ptr<Group>>([](int, Group& member) { return member.split(); });
  const auto all = errors([&](int rank, Group& member) {
    const auto time = std::chrono::seconds(2);
    member.broadcast(at::ones({1'000'000}), 1, Deadline::after(time));
    splits[static_cast<std::size_t>(rank)]->barrier(Deadline::after(time));
  });
  EXPECT_THAT(all[0], StartsWith("aborted worker:0: [collective.barrier] "));
  EXPECT_THAT(all[1], StartsWith("deadline_exceeded worker:0: [collective.barrier] "));
  EXPECT_THAT(all[2], StartsWith("deadline_exceeded worker:0: [collective.broadcast] "));
  EXPECT_THAT(all[3], StartsWith("deadline_exceeded worker:0: [collective.broadcast] "));
  EXPECT_EQ(sockets->missed(), (Pairs{{1, 0}, {2, 0}, {3, 0}}));
}

}  // namespace
}  // namespace cohort::collective::hierarchical
