// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/inspection.h"
#include "cohort/function/step_scope.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>

#include <thread>

#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

using ::testing::HasSubstr;

// The host of the worker with this index.
class NumberedHost final : public internal::EffectHandler {
 public:
  explicit NumberedHost(std::int64_t index) : index_(index) {}
  Tensors iterator_next(std::int64_t resource) override {
    EXPECT_EQ(resource, kWorkerIndexResource);
    return {worker_index_tensor(index_)};
  }
  void update(internal::Effect) override {}

 private:
  const std::int64_t index_;
};

class WorkerIndexTest : public TraceCase {
 protected:
  void draw_indices() {
    options_.draw = [](std::int64_t resource, int, int pass) {
      EXPECT_EQ(resource, kWorkerIndexResource);
      return Tensors{worker_index_tensor(pass)};
    };
  }
  static std::string outside() {
    try {
      current_worker_index();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
      return error.what();
    }
    return "no error";
  }
};

TEST_F(WorkerIndexTest, AProgramAsksForItAtEveryRun) {
  draw_indices();
  Traced result = traced({at::ones({3})}, {at::full({3}, 2.0)}, [](const Tensors& in) {
    const at::Tensor index = current_worker_index();
    EXPECT_EQ(index.dim(), 0);
    EXPECT_EQ(index.scalar_type(), at::kLong);
    return Tensors{in[0] * 10 + index, current_worker_index()};
  });
  const auto program = PreparedProgram::decode(result.bytes);
  EXPECT_EQ(program->info().draws.size(), 2);
  const Tensors inputs = {at::ones({3})};
  for (const std::int64_t worker : {0, 1, 7}) {
    NumberedHost host(worker);
    const Tensors outputs = program->run(inputs, {}, host, 1);
    EXPECT_TRUE(bits_equal(outputs[0], at::full({3}, 10.0F + static_cast<float>(worker))));
    EXPECT_TRUE(bits_equal(outputs[1], at::scalar_tensor(worker, at::kLong)));
  }
}

TEST_F(WorkerIndexTest, ReadAsANumberOfTheHostItIsRefused) {
  draw_indices();
  EXPECT_THAT(refusal([](at::Tensor x) {
                return x * static_cast<double>(*current_worker_index().data_ptr<std::int64_t>());
              }),
              HasSubstr("is not the same for other values"));
}

TEST_F(WorkerIndexTest, ATraceForNoWorkerIsRefused) {
  EXPECT_THAT(refusal([](at::Tensor x) { return x * current_worker_index(); }),
              HasSubstr("current_worker_index() is for scheduled ones"));
}

TEST_F(WorkerIndexTest, ItIsThatOfTheScopeOnItsThreadAlone) {
  EXPECT_THAT(outside(), HasSubstr("give the function to ClusterCoordinator::schedule()"));
  {
    const WorkerIndexScope worker(3);
    EXPECT_EQ(current_worker_index().item<std::int64_t>(), 3);
    {
      const WorkerIndexScope nested(4);
      EXPECT_EQ(current_worker_index().item<std::int64_t>(), 4);
    }
    EXPECT_EQ(current_worker_index().item<std::int64_t>(), 3);
    std::thread([] { EXPECT_THAT(outside(), HasSubstr("scheduled function")); }).join();
  }
  EXPECT_THAT(outside(), HasSubstr("got one elsewhere"));
}

}  // namespace
}  // namespace cohort::function
