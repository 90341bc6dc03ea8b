// SPDX-License-Identifier: Apache-2.0
// Which programs of a step are sent to the workers, and how often.
#include <ATen/TensorOperators.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "cohort/data/iterator.h"
#include "cohort/testing/coordinator_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using End = rpc::ClosureEnd;

// A worker that draws elements of ever other lengths. A step of the coordinator gets a program for
// each.
class CoordinatorPrograms : public testing::CoordinatorFixture {
 protected:
  struct Sent {
    std::uint32_t before;
    std::size_t programs;
    std::size_t bytes;
  };

  CoordinatorPrograms() {
    worker.answers = false;
    worker.on_peek = [](const rpc::PeekRequest&) {
      return rpc::PeekReply{.fields = 1, .tensors = {at::ones({1}), at::ones({1}).mul(2)}};
    };
    worker.on_register = [this](const rpc::FunctionBody& body) {
      Sent sent{body.programs_before, body.programs.size(), 0};
      for (const Bytes& program : body.programs) sent.bytes += program.size();
      const Lock lock(mutex_);
      sent_.push_back(sent);
    };
  }
  std::vector<Sent> sent() {
    const Lock lock(mutex_);
    return sent_;
  }
  void use(const CoordinatorOptions& options = {}) {
    coordinator_.emplace(strategy(), options);
    iterator_.emplace(
        coordinator_->create_per_worker_dataset(Dataset::range(7).batch(4)).iterator());
  }
  // A closure whose element has `length` rows, for which there is no program yet.
  void draw(std::int64_t length) {
    coordinator_->schedule(step_, *iterator_);
    const std::uint64_t id = ++closures_;
    ASSERT_TRUE(worker.await_closures(++calls_));
    worker.end({{.closure_id = id,
                 .status = End::Status::needs_program,
                 .tensors = {at::ones({length})}}});
    const std::size_t again = ++calls_;
    ASSERT_TRUE(await([&] {
      coordinator_->done();
      return worker.closures().size() >= again;
    }));
    worker.end({{.closure_id = id}});
    ASSERT_TRUE(await([&] { return coordinator_->done(); }));
  }

 private:
  Mutex mutex_;
  std::vector<Sent> sent_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t closures_ = 0;
  std::size_t calls_ = 0;

 protected:
  const Function step_{[](Iterator& it) { return it.next<at::Tensor>() * 2; }, {.name = "twice"}};
  std::optional<ClusterCoordinator> coordinator_;
  std::optional<PerWorkerIterator> iterator_;
};

// Regression: each new program was sent together with all earlier ones.
TEST_F(CoordinatorPrograms, EachIsSentOnce) {
  use();
  constexpr std::uint32_t kShapes = 40;
  for (std::uint32_t i = 1; i <= kShapes; ++i) draw(1 + i);
  const std::vector<Sent> sent = this->sent();
  ASSERT_EQ(sent.size(), 1U + kShapes);
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; i <= kShapes; ++i) {
    EXPECT_EQ(sent[i].before, i);
    EXPECT_EQ(sent[i].programs, 1U);
    bytes += sent[i].bytes;
  }
  EXPECT_LT(bytes, 2 * (1 + kShapes) * sent[0].bytes);
}

TEST_F(CoordinatorPrograms, AShapeThatHasOneIsNotSentAgain) {
  use();
  draw(2);
  const std::size_t before = sent().size();
  draw(2);
  EXPECT_EQ(sent().size(), before);
  EXPECT_EQ(coordinator_->statistics().traces, 2U);
}

TEST_F(CoordinatorPrograms, AllAreSentToAWorkerThatHasLostThem) {
  const auto note = worker.on_register;
  std::atomic<bool> is_empty = false;
  worker.on_register = [&](const rpc::FunctionBody& body) {
    if (body.programs_before > 0 && is_empty)
      throw Error(ErrorCode::not_found, "no such function", ErrorCause::function_missing);
    note(body);
  };
  use();
  draw(2);
  is_empty = true;
  draw(3);
  ASSERT_EQ(sent().size(), 3U);
  EXPECT_EQ(sent().back().before, 0U);
  EXPECT_EQ(sent().back().programs, 3U);
}

TEST_F(CoordinatorPrograms, MoreShapesThanTheOptionAllowsAreAnErrorThatNamesThem) {
  use({.max_traces_per_step = 2});
  draw(2);
  draw(3);
  draw(2);
  coordinator_->schedule(step_, *iterator_);
  ASSERT_TRUE(worker.await_closures(7));
  worker.end({{.closure_id = 4, .status = End::Status::needs_program, .tensors = {at::ones({4})}}});
  try {
    coordinator_->join(std::chrono::seconds(60));
    FAIL() << "no bound";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("at most 2 more shapes"), HasSubstr("'twice'"),
                                    HasSubstr("was float32[3] and is now float32[4]"),
                                    HasSubstr("CoordinatorOptions::max_traces_per_step")));
  }
}

}  // namespace
}  // namespace cohort
