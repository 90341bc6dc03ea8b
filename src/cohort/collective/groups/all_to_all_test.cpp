// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "cohort/collective/group.h"
#include "cohort/core/error.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/test_seed.h"
#include "cohort/testing/throws_error.h"

namespace cohort::collective {
namespace {

using testing::on_workers;
using testing::throws_error;
using Rows = std::vector<std::int64_t>;

Deadline a_minute_later() { return Deadline::after(std::chrono::seconds(60)); }

TEST(AllToAll, EachMemberGetsTheRowsThatAreForIt) {
  const testing::TestSeed seed;
  std::mt19937 random(static_cast<unsigned>(seed.value()));
  for (const int size : {1, 2, 3, 5}) {
    const InProcessWorkers workers(size);
    std::vector<Rows> rows(static_cast<std::size_t>(size), Rows(static_cast<std::size_t>(size)));
    std::vector<at::Tensor> sent;
    for (Rows& of_member : rows) {
      std::int64_t sum = 0;
      for (std::int64_t& count : of_member) sum += count = static_cast<std::int64_t>(random() % 4);
      const auto first = static_cast<std::int64_t>(1000 * sent.size());
      sent.push_back(at::arange(first, first + sum * 6, at::kLong).view({sum, 3, 2}));
    }
    const auto got = on_workers<at::Tensor>(size, [&](int rank) {
      const auto own = static_cast<std::size_t>(rank);
      // Not contiguous.
      const at::Tensor tensor = sent[own].transpose(1, 2).contiguous().transpose(1, 2);
      return workers.group(rank)->all_to_all(tensor, rows[own], a_minute_later());
    });
    for (std::size_t to = 0; to < got.size(); ++to) {
      std::vector<at::Tensor> expected;
      for (std::size_t from = 0; from < got.size(); ++from)
        expected.push_back(sent[from].split_with_sizes(rows[from])[to]);
      EXPECT_TRUE(at::equal(got[to], at::cat(expected))) << size << ", " << to;
    }
  }
}

// Calls of member 1 that all members refuse.
void expect_refused(const at::Tensor& tensor, const Rows& rows, const std::string& text) {
  const InProcessWorkers workers(2);
  const std::vector<std::shared_ptr<Group>> groups = {workers.group(0), workers.group(1)};
  on_workers<int>(2, [&](int rank) {
    const auto call = [&] {
      if (rank == 1) return groups[1]->all_to_all(tensor, rows, a_minute_later());
      return groups[0]->all_to_all(at::zeros({2, 3}), Rows{1, 1}, a_minute_later());
    };
    EXPECT_THAT(call, throws_error(ErrorCode::invalid_argument, text));
    // The group stays usable.
    groups[static_cast<std::size_t>(rank)]->barrier(a_minute_later());
    return 0;
  });
}

TEST(AllToAll, RefusesBadArgumentsOnAllMembers) {
  expect_refused(at::zeros({2, 3}), {2}, "rows for each of 2 members in rows_of_each, got 1");
  expect_refused(at::zeros({2, 3}), {1, 2}, "sum up to the 2 rows of the tensor, got 2 after 1");
  expect_refused(at::zeros({2, 3}), {1, -1}, "got -1 after 1");
  expect_refused(at::zeros({2, 3}), {1, 0}, "sum up to the 2 rows of the tensor, got 1");
  expect_refused(at::zeros({}), {0, 0}, "that has axis 0");
  expect_refused(at::Tensor(), {0, 0}, "got an undefined one");
  expect_refused(at::zeros({2, 4}), {1, 1},
                 "float32[2, 3] from worker:0 and float32[2, 4] from worker:1");
  expect_refused(at::zeros({2, 3}, at::kDouble), {1, 1}, "float64[2, 3] from worker:1");
}

}  // namespace
}  // namespace cohort::collective
