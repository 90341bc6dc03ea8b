// SPDX-License-Identifier: Apache-2.0
// The behaviour of every backend of Group, with 1 to 7 members. A new backend adds a row to
// backends() of groups/every_group_fixture.h.
#include "cohort/collective/group.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor_split.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cohort/collective/groups/call.h"
#include "cohort/collective/groups/every_group_fixture.h"
#include "cohort/core/error.h"
#include "cohort/testing/error_of.h"
#include "cohort/testing/mpi_job.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/test_seed.h"
#include "cohort/testing/throws_error.h"

namespace cohort::collective {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::on_workers;
using testing::throws_error;
using testing::every_group::Backend;
using testing::every_group::backends;
using testing::every_group::Groups;
using testing::every_group::mpi_backends;

// Elements: none, one, few, a shared payload, one and many chunks.
const std::vector<std::int64_t> kCounts = {0, 1, 5, 31, 1000, 70'001};
constexpr at::ScalarType kNumbers[] = {
    at::kByte,  at::kChar,   at::kShort,    at::kInt,          at::kLong,         at::kHalf,
    at::kFloat, at::kDouble, at::kBFloat16, at::kComplexFloat, at::kComplexDouble};

bool is_low(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

at::Tensor tree_sum(std::span<const at::Tensor> all) {
  if (all.size() == 1) return is_low(all[0].scalar_type()) ? all[0].to(at::kFloat) : all[0].clone();
  const std::size_t left = std::bit_floor(all.size() - 1);
  return tree_sum(all.first(left)) += tree_sum(all.subspan(left));
}

// The result that all_reduce() promises: additions in a balanced tree, rounded once.
at::Tensor reduced(const std::vector<at::Tensor>& all, ReduceOp op) {
  const at::ScalarType dtype = all[0].scalar_type();
  at::Tensor sum = tree_sum(all);
  // ATen's division of complex numbers rounds several times.
  at::Tensor parts = sum.is_complex() ? at::view_as_real(sum) : sum;
  if (op == ReduceOp::mean) parts /= static_cast<double>(all.size());
  return sum.to(dtype);
}

at::Tensor random_values(std::mt19937& random, at::IntArrayRef sizes, at::ScalarType dtype) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  // Thirds, so that sums depend on their order.
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = static_cast<double>(random() % 600) / 3;
  return at::from_blob(values.data(), sizes, at::kDouble).to(dtype, false, true);
}

class EveryGroup : public ::testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  static Deadline soon() { return Deadline::after(std::chrono::milliseconds(20)); }
  static Deadline late() { return Deadline::after(std::chrono::seconds(60)); }

  int size() const { return std::get<1>(GetParam()); }
  Groups& groups() { return groups_; }
  Group& member(int rank) { return *groups_[static_cast<std::size_t>(rank)]; }

  // Whether each member is a process of its own, which runs the same test.
  bool is_over_mpi() const { return std::get<0>(GetParam()).name == "mpi"; }

  // Runs a function for each member in a thread; returns the results in the order of ranks.
  template <class R = at::Tensor, class Run>
  std::vector<R> on_members(const Run& run) {
    testing::MpiJob* const job = is_over_mpi() ? &testing::MpiJob::get() : nullptr;
    if (job != nullptr) return job->results<R>(run(job->rank(), member(job->rank())));
    return on_workers<R>(size(), [&](int rank) { return run(rank, member(rank)); });
  }
  // "code origin: message" of each member; "" if it has no error.
  std::vector<std::string> errors(const std::function<void(int, Group&)>& run) {
    return on_members<std::string>(
        [&](int rank, Group& group) { return testing::error_text_of([&] { run(rank, group); }); });
  }
  void expect_usable() {
    for (const at::Tensor& sum : on_members([&](int rank, Group&group) {
           const at::Tensor tensor = at::full({3000}, rank + 1.0);
           group.all_reduce(tensor, ReduceOp::sum, late());
           return tensor;
         }))
      EXPECT_TRUE(at::equal(sum, at::full({3000}, size() * (size() + 1) / 2.0)));
  }
  std::vector<at::Tensor> of_each_member(const std::function<at::Tensor(int rank)>& make) {
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < size(); ++rank) all.push_back(make(rank));
    return all;
  }
  static void expect_all_equal(const std::vector<at::Tensor>& results, const at::Tensor& expected) {
    for (const at::Tensor& result : results) {
      EXPECT_EQ(result.sizes(), expected.sizes());
      EXPECT_TRUE(at::equal(result, expected)) << expected.toString() << expected.sizes();
    }
  }

 private:
  Groups groups_ = std::get<0>(GetParam()).make(size());
};

TEST_P(EveryGroup, AllReduceAddsInTheOrderOfRanks) {
  std::mt19937 random(1);
  for (const at::ScalarType dtype : kNumbers) {
    for (const std::int64_t count : kCounts) {
      const auto all = of_each_member([&](int) { return random_values(random, {count}, dtype); });
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean}) {
        if (op == ReduceOp::mean && at::isIntegralType(dtype, true)) continue;
        expect_all_equal(on_members([&](int rank, Group& group) {
                           const at::Tensor mine = all[static_cast<std::size_t>(rank)].clone();
                           group.all_reduce(mine, op, late());
                           return mine;
                         }),
                         reduced(all, op));
      }
    }
  }
}

TEST_P(EveryGroup, AllReduceTakesManyTensorsAtOnce) {
  using Tensors = std::vector<at::Tensor>;
  const auto results = on_members<Tensors>([&](int rank, Group& group) {
    Tensors mine;
    for (std::int64_t i = 0; i < 40; ++i)
      mine.push_back(at::full({i * i, 7}, rank + i, i % 3 == 0 ? at::kLong : at::kDouble));
    group.all_reduce(mine, ReduceOp::sum, late());
    group.all_reduce(std::span<const at::Tensor>(), ReduceOp::sum, late());
    return mine;
  });
  for (const Tensors& mine : results) {
    for (std::int64_t i = 0; i < 40; ++i) {
      const double sum = static_cast<double>(size() * i) + size() * (size() - 1) / 2.0;
      const at::Tensor& got = mine[static_cast<std::size_t>(i)];
      EXPECT_TRUE(at::equal(got, at::full({i * i, 7}, sum, got.options())));
    }
  }
}

TEST_P(EveryGroup, TensorsMayHaveAnyStrides) {
  std::mt19937 random(2);
  const auto all = of_each_member([&](int) {
    return random_values(random, {60, 70}, at::kComplexDouble);
  });
  // One member's tensor is contiguous, another's is not.
  const auto strided = [&](int rank) {
    const at::Tensor& values = all[static_cast<std::size_t>(rank)];
    if (rank == 0) return values.clone();
    const at::Tensor wide = at::zeros({70, 120}, at::kComplexDouble);
    const at::Tensor view = wide.t().slice(0, 0, 120, 2);
    view.copy_(values);
    return rank == 1 ? view : values.conj().resolve_conj().conj();
  };
  expect_all_equal(on_members([&](int rank, Group& group) {
                     const at::Tensor mine = strided(rank);
                     group.all_reduce(mine, ReduceOp::sum, late());
                     return mine;
                   }),
                   reduced(all, ReduceOp::sum));
  expect_all_equal(on_members([&](int rank, Group& group) {
                     const at::Tensor mine = strided(rank);
                     group.broadcast(mine, size() - 1, late());
                     return mine;
                   }),
                   all.back());
  expect_all_equal(on_members([&](int rank, Group& group) {
                     return group.all_gather(strided(rank), 1, late());
                   }),
                   at::cat(all, 1));
}

TEST_P(EveryGroup, ReduceWritesOnlyTheRootsTensors) {
  std::mt19937 random(3);
  for (const std::int64_t count : {3, 100'000}) {
    for (int root = 0; root < size(); ++root) {
      const auto all =
          of_each_member([&](int) { return random_values(random, {count}, at::kFloat); });
      const auto results = on_members([&](int rank, Group& group) {
        const at::Tensor mine = all[static_cast<std::size_t>(rank)].clone();
        group.reduce(mine, ReduceOp::mean, root, late());
        return mine;
      });
      for (int rank = 0; rank < size(); ++rank) {
        const auto i = static_cast<std::size_t>(rank);
        EXPECT_TRUE(at::equal(results[i], rank == root ? reduced(all, ReduceOp::mean) : all[i]));
      }
    }
  }
}

TEST_P(EveryGroup, BroadcastCopiesTheRootsTensors) {
  for (const std::int64_t count : kCounts) {
    for (int root = 0; root < size(); ++root) {
      expect_all_equal(on_members([&](int rank, Group& group) {
                         const at::Tensor mine = at::full({count}, rank % 2 == 0, at::kBool);
                         const at::Tensor other = at::full({count + 1}, rank, at::kShort);
                         group.broadcast(std::vector{mine, other}, root, late());
                         return at::cat({mine.to(at::kShort), other});
                       }),
                       at::cat({at::full({count}, root % 2 == 0 ? 1 : 0, at::kShort),
                                at::full({count + 1}, root, at::kShort)}));
    }
  }
}

TEST_P(EveryGroup, AllGatherTakesUnevenSizesOnAnyAxis) {
  std::mt19937 random(4);
  for (const std::int64_t width : {0, 3, 500}) {
    for (std::int64_t axis = 0; axis < 3; ++axis) {
      // Member 1 has nothing along the axis, and member 0 much less than the others.
      const auto all = of_each_member([&](int rank) {
        std::vector<std::int64_t> sizes = {4, 2, width};
        sizes[static_cast<std::size_t>(axis)] = rank == 1 ? 0 : 1 + 40 * rank;
        return random_values(random, sizes, at::kInt);
      });
      expect_all_equal(on_members([&](int rank, Group& group) {
                         return group.all_gather(all[static_cast<std::size_t>(rank)], axis, late());
                       }),
                       at::cat(all, axis));
    }
  }
}

TEST_P(EveryGroup, ReduceScatterDistributesRowsAsTensorSplitDoes) {
  std::mt19937 random(5);
  for (const std::int64_t rows : {0, 1, 2, 7, 1001}) {
    for (const at::ScalarType dtype : {at::kLong, at::kHalf}) {
      const auto all = of_each_member([&](int) { return random_values(random, {rows, 9}, dtype); });
      const auto results = on_members([&](int rank, Group& group) {
        return group.reduce_scatter(all[static_cast<std::size_t>(rank)], ReduceOp::sum, late());
      });
      const auto expected = at::tensor_split(reduced(all, ReduceOp::sum), size());
      for (std::size_t i = 0; i < results.size(); ++i)
        EXPECT_TRUE(at::equal(results[i], expected[i])) << results[i].sizes();
    }
  }
}

TEST_P(EveryGroup, BarrierWaitsForAll) {
  if (is_over_mpi()) return;  // MpiGroup has such a test, and for the other two that end here
  std::atomic<int> num_come = 0;
  EXPECT_THAT(on_members<int>([&](int, Group& group) {
                ++num_come;
                group.barrier(late());
                return num_come.load();
              }),
              Each(size()));
}

TEST_P(EveryGroup, SplitsHaveCallsOfTheirOwn) {
  for (int round = 0; round < 3; ++round) {
    const auto sums = on_members<std::int64_t>([&](int rank, Group& group) {
      const auto split = group.split();
      const at::Tensor first = at::full({1}, rank, at::kLong);
      const at::Tensor second = at::full({1}, 1, at::kLong);
      split->all_reduce(first, ReduceOp::sum, late());
      group.all_reduce(second, ReduceOp::sum, late());
      split->barrier(late());
      return first.item().toLong() * 10 + second.item().toLong();
    });
    EXPECT_THAT(sums, Each(size() * (size() - 1) / 2 * 10 + size()));
  }
}

// A different call of the last member, and what the error says.
struct Mismatch {
  std::function<void(Group&, Deadline)> usual;
  std::function<void(Group&, Deadline)> other;
  std::string first;   // of member 0
  std::string second;  // of the last member
};

const std::vector<Mismatch>& mismatches() {
  static const auto sum = [](std::vector<at::Tensor> tensors, ReduceOp op = ReduceOp::sum) {
    return
        [tensors, op](Group& group, Deadline deadline) { group.all_reduce(tensors, op, deadline); };
  };
  static const auto gather = [](at::IntArrayRef sizes, std::int64_t axis) {
    return [tensor = at::zeros(sizes), axis](Group& group, Deadline deadline) {
      group.all_gather(tensor, axis, deadline);
    };
  };
  static const auto broadcast = [](int root) {
    return [root](Group& group, Deadline deadline) {
      group.broadcast(at::zeros({5000}), root, deadline);
    };
  };
  static const auto barrier = [](Group& group, Deadline deadline) { group.barrier(deadline); };
  static const std::vector<Mismatch> all = {
      {sum({at::zeros({3})}), barrier, "all_reduce", "barrier"},
      {barrier, broadcast(0), "barrier", "broadcast"},
      {sum({at::zeros({3})}), sum({at::zeros({3})}, ReduceOp::mean), "sum", "mean"},
      {broadcast(0), broadcast(1), "root 0", "root 1"},
      {gather({2, 2}, 0), gather({2, 2}, 1), "axis 0", "axis 1"},
      {gather({2, 2}, 0), gather({2, 3}, 0), "tensor 0 = float32[2, 2]",
       "tensor 0 = float32[2, 3]"},
      {sum({at::zeros({3})}), sum({at::zeros({3}), at::zeros({3})}), "1 tensors", "2 tensors"},
      {sum({at::zeros({1}), at::zeros({9000})}), sum({at::zeros({1}), at::zeros({8999})}),
       "tensor 1 = float32[9000]", "tensor 1 = float32[8999]"},
      {sum({at::zeros({9000})}), sum({at::zeros({9000}, at::kInt)}), "tensor 0 = float32[9000]",
       "tensor 0 = int32[9000]"},
      {sum({at::zeros({2, 3})}), sum({at::zeros({3, 2})}), "tensor 0 = float32[2, 3]",
       "tensor 0 = float32[3, 2]"},
  };
  return all;
}

TEST_P(EveryGroup, DifferentCallsFailOnAllMembersAndTheGroupStaysUsable) {
  if (size() == 1) return;
  std::uint64_t call = 0;
  for (const Mismatch& mismatch : mismatches()) {
    const std::vector<std::string> all = errors([&](int rank, Group& group) {
      (rank == size() - 1 ? mismatch.other : mismatch.usual)(group, late());
    });
    EXPECT_THAT(all, Each(HasSubstr("expected the same operation from all members in call " +
                                    std::to_string(call) + ", got " + mismatch.first +
                                    " from worker:0 and " + mismatch.second +
                                    " from worker:" + std::to_string(size() - 1))));
    EXPECT_THAT(all, Each(all[0]));
    expect_usable();
    call += 2;
  }
}

// A test calls the protected perform() of any backend by this.
class Performing : public Group {
 public:
  static constexpr auto kPerform = &Performing::perform;
};

// An operation that was added to the enum alone was a sum in one backend; in the other all members
// seemed to agree, whatever their tensors.
TEST_P(EveryGroup, AKindThatMessagesDoNotKnowIsNeitherASumNorAnAgreement) {
  constexpr auto kUnknown = static_cast<CallKind>(static_cast<int>(kLastCallKind) + 1);
  if (size() == 1) return;
  const at::Tensor ones = at::ones({3});
  EXPECT_THAT(errors([&](int rank, Group& group) {
                Call call{.kind = kUnknown, .rank = rank, .size = size()};
                call.add(ones);
                (group.*Performing::kPerform)(call, late());
              }),
              Each(HasSubstr("expected the same operation from all members in call 0, got ")));
  EXPECT_TRUE(at::equal(ones, at::ones({3})));
  expect_usable();
}

// Regression: the strides of an empty tensor that was expanded were taken for shared elements.
TEST_P(EveryGroup, EmptyTensorsMayHaveAnyStrides) {
  on_members<int>([](int, Group& group) {
    group.all_reduce(at::ones({1, 1}).expand({0, 4}), ReduceOp::sum, late());
    return 0;
  });
}

// Each call has one bad argument.
const std::vector<std::pair<std::function<void(Group&, Deadline)>, std::string>>& bad_calls() {
  static const auto sum = [](at::Tensor tensor, ReduceOp op = ReduceOp::sum) {
    return [tensor, op](Group& group, Deadline deadline) {
      group.all_reduce(std::vector{at::ones({2}), tensor}, op, deadline);
    };
  };
  static const std::vector<std::pair<std::function<void(Group&, Deadline)>, std::string>> all = {
      {sum(at::Tensor()),
       "[collective.all_reduce] expected tensors, got an undefined one (tensor 1"},
      {sum(at::ones({2}, at::kBool)), "expected numbers, got bool (tensor 1); convert it first"},
      {sum(at::ones({2}, at::kLong), ReduceOp::mean),
       "got int64 (tensor 1); convert it first with "
       "to(at::kDouble)"},
      {sum(at::ones({2}, at::kByte), ReduceOp::mean), "to(at::kFloat)"},
      {sum(at::ones({2, 2}).to_sparse()), "expected dense tensors"},
      {sum(at::ones({2}, at::kMeta)), "expected tensors on the CPU, got meta"},
      {sum(at::ones({1}).expand({3})), "whose elements have memory of their own, got [0]"},
      {[](Group& group, Deadline deadline) { group.all_gather(at::ones({2}), 1, deadline); },
       "[collective.all_gather] expected a tensor that has axis 1, got float32[2]"},
      {[](Group& group, Deadline deadline) { group.all_gather(at::ones({2}), -1, deadline); },
       "axis -1"},
      {[](Group& group, Deadline deadline) {
         group.reduce_scatter(at::ones({}), ReduceOp::sum, deadline);
       },
       "[collective.reduce_scatter] expected a tensor that has axis 0, got float32[]"},
      {[](Group& group, Deadline deadline) { group.broadcast(at::ones({2}), 9, deadline); },
       "[collective.broadcast] expected a root in [0, "},
      {[](Group& group, Deadline deadline) {
         group.reduce(at::ones({2}), ReduceOp::sum, -1, deadline);
       },
       "), got -1; pass the rank of a member"},
  };
  return all;
}

TEST_P(EveryGroup, WhatOneMemberRefusesFailsOnAllMembers) {
  const std::string last = "worker:" + std::to_string(size() - 1);
  for (const auto& [bad_call, text] : bad_calls()) {
    EXPECT_THAT(errors([&, &bad = bad_call](int rank, Group& group) {
                  rank == size() - 1 ? bad(group, late()) : group.barrier(late());
                }),
                Each(::testing::AllOf(HasSubstr("invalid_argument " + last), HasSubstr(text))));
  }
  expect_usable();
}

TEST_P(EveryGroup, ADeadlineNamesOperationCallAndMissingMembers) {
  if (size() == 1 || is_over_mpi()) return;
  on_members<int>([&](int, Group& group) { return group.barrier(late()), 0; });
  std::string missing;
  for (int rank = 1; rank < size(); ++rank)
    missing += (rank == 1 ? "worker:" : ", worker:") + std::to_string(rank);
  const at::Tensor tensor = at::ones({50'000});
  EXPECT_THAT([&] { member(0).all_reduce(tensor, ReduceOp::sum, soon()); },
              throws_error(ErrorCode::deadline_exceeded,
                           "expected all workers in call 1 to take part in all_reduce in time, got "
                           "nothing from " +
                               missing));
  for (int rank = 0; rank < size(); ++rank) {
    EXPECT_THAT([&] { member(rank).broadcast(tensor, 0, late()); },
                throws_error(ErrorCode::aborted, "worker:0 has waited in vain for " + missing));
  }
  EXPECT_TRUE(at::equal(tensor, at::ones({50'000})));
}

// Members that still have time fail, too, since the call cannot go on; in each backend.
TEST_P(EveryGroup, AMissedDeadlineHasOneCodeAndOriginOnAllWhoWait) {
  if (size() < 3 || size() > 4 || is_over_mpi()) return;
  expect_usable();  // connects those of tcp
  const std::string last = "worker:" + std::to_string(size() - 1);
  std::barrier begin(size() - 1);
  const auto all = errors([&](int rank, Group& group) {
    if (rank == size() - 1) return;
    begin.arrive_and_wait();  // then they are in the call before this deadline
    const Deadline first = Deadline::after(std::chrono::seconds(1));
    group.all_reduce(at::ones({50'000}), ReduceOp::sum, rank == 0 ? first : late());
  });
  const std::vector<std::string> waiting(all.begin(), all.end() - 1);
  EXPECT_THAT(waiting, Each(::testing::StartsWith("deadline_exceeded " + last + ": [")));
  EXPECT_THAT(all[0], HasSubstr("in time, got nothing from " + last));
  for (std::size_t rank = 1; rank < waiting.size(); ++rank)
    EXPECT_THAT(all[rank], HasSubstr("worker:0 has waited in vain for " + last));
  auto later = errors([&](int, Group& group) { group.barrier(late()); });
  EXPECT_THAT(later.back(), ::testing::StartsWith("aborted "));
  later.pop_back();
  EXPECT_THAT(later, Each(::testing::StartsWith("aborted " + last + ": [")));
}

TEST_P(EveryGroup, ADestroyedMemberFailsTheCallsThatNeedIt) {
  if (size() == 1 || is_over_mpi()) return;
  groups().pop_back();
  const std::string gone = "worker:" + std::to_string(size() - 1);
  for (int rank = 0; rank + 1 < size(); ++rank) {
    EXPECT_THAT([&] { member(rank).all_gather(at::ones({2}), 0, late()); },
                throws_error(ErrorCode::aborted,
                             "expected " + gone + " to take part in all_gather in call 0"));
  }
}

// A backward pass that needs the values of before would silently use the new ones.
TEST_P(EveryGroup, AutogradNoticesChangedTensors) {
  const auto changes = on_members<std::vector<std::int64_t>>([&](int, Group& group) {
    const at::Tensor reduced = at::ones({3}).requires_grad_();
    const at::Tensor copied = at::ones({3, 4}).t();
    const at::Tensor gathered = at::ones({3});
    const auto versions = [&] {
      return std::vector{reduced._version(), copied._version(), gathered._version()};
    };
    std::vector<std::int64_t> change = versions();
    group.all_reduce(reduced, ReduceOp::sum, late());
    group.broadcast(copied, 0, late());
    group.all_gather(gathered, 0, late());
    for (std::size_t i = 0; i < change.size(); ++i) change[i] = versions()[i] - change[i];
    return change;
  });
  for (int rank = 0; rank < size(); ++rank)
    EXPECT_THAT(changes[static_cast<std::size_t>(rank)], ElementsAre(1, rank == 0 ? 0 : 1, 0));
}

// Random operations one after the other, against ATen.
TEST_P(EveryGroup, RandomCallsGiveWhatATenGives) {
  const testing::TestSeed own_seed;
  const auto seeds = on_members<std::int64_t>([&](int, Group&) { return own_seed.value(); });
  on_members<int>([&](int rank, Group& group) {
    std::mt19937 random(static_cast<unsigned>(seeds[0]));  // the same values on all members
    for (int call = 0; call < 60; ++call) {
      const at::ScalarType dtype = kNumbers[random() % std::size(kNumbers)];
      const std::int64_t rows = random() % 40;
      const std::int64_t columns = random() % 5 == 0 ? random() % 3000 : random() % 60;
      std::vector<at::Tensor> all;
      for (int i = 0; i < size(); ++i) all.push_back(random_values(random, {rows, columns}, dtype));
      const int root = static_cast<int>(random() % static_cast<unsigned>(size()));
      const bool has_mean = !at::isIntegralType(dtype, true) && random() % 2 == 0;
      const ReduceOp op = has_mean ? ReduceOp::mean : ReduceOp::sum;
      at::Tensor mine = all[static_cast<std::size_t>(rank)].clone();
      if (random() % 3 == 0) mine = mine.t().contiguous().t();
      at::Tensor expected = all[static_cast<std::size_t>(rank)];
      switch (random() % 5) {
        case 0:
          group.all_reduce(mine, op, late());
          expected = reduced(all, op);
          break;
        case 1:
          group.reduce(mine, op, root, late());
          if (rank == root) expected = reduced(all, op);
          break;
        case 2:
          group.broadcast(mine, root, late());
          expected = all[static_cast<std::size_t>(root)];
          break;
        case 3:
          mine = group.all_gather(mine, call % 2, late());
          expected = at::cat(all, call % 2);
          break;
        default:
          mine = group.reduce_scatter(mine, op, late());
          expected = at::tensor_split(reduced(all, op), size())[static_cast<std::size_t>(rank)];
      }
      EXPECT_TRUE(at::equal(mine, expected)) << "call " << call << " of worker:" << rank;
    }
    return 0;
  });
}

// Run by mpirun: see mpi_tests in tests/CMakeLists.txt.
INSTANTIATE_TEST_SUITE_P(Mpi, EveryGroup,
                         ::testing::Combine(::testing::ValuesIn(mpi_backends()),
                                            ::testing::Values(testing::MpiJob::size())));

INSTANTIATE_TEST_SUITE_P(Backends, EveryGroup,
                         ::testing::Combine(::testing::ValuesIn(backends()),
                                            ::testing::Values(1, 2, 3, 4, 7)),
                         [](const auto& instance) {
                           return std::get<0>(instance.param).name + "_" +
                                  std::to_string(std::get<1>(instance.param));
                         });

}  // namespace
}  // namespace cohort::collective
