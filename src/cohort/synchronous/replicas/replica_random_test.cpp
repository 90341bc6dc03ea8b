// SPDX-License-Identifier: Apache-2.0
#include "cohort/replicas/replica_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "cohort/function/function.h"
#include "cohort/strategy/synchronous_strategy.h"

namespace cohort::internal {
namespace {

at::Generator& default_generator() {
  static at::Generator generator = at::detail::getDefaultCPUGenerator();
  return generator;
}

void seed(std::uint64_t value) {
  const std::lock_guard<std::mutex> lock(default_generator().mutex());
  default_generator().set_current_seed(value);
}

std::uint64_t draw() {
  const std::lock_guard<std::mutex> lock(default_generator().mutex());
  return at::check_generator<at::CPUGeneratorImpl>(default_generator())->random64();
}

at::Tensor random_numbers() { return at::rand({5}); }

struct ReplicaRandom : ::testing::Test {
  MirroredStrategy strategy{{"CPU:0", "CPU:1"}};

  std::vector<at::Tensor> results(const std::function<at::Tensor()>& body) {
    return strategy.local_results(strategy.run(body));
  }
};

TEST_F(ReplicaRandom, EachReplicaHasAGeneratorThatFollowsFromTheDefaultOne) {
  seed(3);
  const std::uint64_t base = draw();
  for (int repeat = 0; repeat < 20; ++repeat) {
    seed(3);
    const std::vector<at::Tensor> drawn = results(random_numbers);
    for (int replica = 0; replica < 2; ++replica) {
      const at::Generator own = at::detail::createCPUGenerator(replica_seed(base, replica));
      EXPECT_TRUE(at::equal(drawn[static_cast<std::size_t>(replica)], at::rand({5}, own)))
          << replica;
    }
    EXPECT_FALSE(at::equal(drawn[0], drawn[1]));
  }
}

TEST_F(ReplicaRandom, TheNextRunDrawsOtherNumbers) {
  seed(3);
  const at::Tensor first = results(random_numbers)[1];
  EXPECT_FALSE(at::equal(first, results(random_numbers)[1]));
}

TEST_F(ReplicaRandom, ARunWithoutRandomNumbersLeavesTheDefaultGenerator) {
  seed(3);
  const std::uint64_t expected = draw();
  seed(3);
  strategy.run([] { return at::ones({2}); });
  EXPECT_EQ(draw(), expected);
}

// One number, from which the replicas are seeded; the operators' own ones come from elsewhere.
TEST_F(ReplicaRandom, EveryRandomOperatorDrawsFromTheReplicasGenerator) {
  const at::Tensor half = at::full({40}, 0.5);
  const at::Tensor square = at::full({3, 4, 5, 5}, 0.5);
  const std::vector<std::pair<std::string, std::function<at::Tensor()>>> operators = {
      {"rand", [] { return at::rand({40}); }},
      {"randn", [] { return at::randn({40}); }},
      {"randint", [] { return at::randint(1000000, {40}); }},
      {"randperm", [] { return at::randperm(40); }},
      {"rand_like", [&] { return at::rand_like(half); }},
      {"randn_like", [&] { return at::randn_like(half); }},
      {"randint_like", [&] { return at::randint_like(half, 1000000); }},
      {"uniform_", [&] { return half.clone().uniform_(); }},
      {"normal_", [&] { return half.clone().normal_(); }},
      {"exponential_", [&] { return half.clone().exponential_(); }},
      {"geometric_", [&] { return half.clone().geometric_(0.1); }},
      {"cauchy_", [&] { return half.clone().cauchy_(); }},
      {"log_normal_", [&] { return half.clone().log_normal_(); }},
      {"random_", [&] { return half.clone().random_(); }},
      {"bernoulli_", [&] { return half.clone().bernoulli_(0.5); }},
      {"bernoulli", [&] { return at::bernoulli(half); }},
      {"normal", [&] { return at::normal(half, 1.0); }},
      {"multinomial", [&] { return at::multinomial(half, 20); }},
      {"poisson", [&] { return at::poisson(half * 9); }},
      {"binomial", [&] { return at::binomial(half * 40, half); }},
      {"gamma", [&] { return at::_standard_gamma(half); }},
      {"dirichlet", [&] { return at::_sample_dirichlet(half); }},
      {"dropout", [&] { return at::dropout(half, 0.5, true); }},
      {"native_dropout", [&] { return std::get<0>(at::native_dropout(half, 0.5, true)); }},
      {"feature_dropout", [&] { return at::feature_dropout(square, 0.5, true); }},
      {"alpha_dropout", [&] { return at::alpha_dropout(half, 0.5, true); }},
      {"rrelu", [&] { return at::rrelu(-half, 0.1, 0.9, true); }},
  };
  for (const auto& [name, body] : operators) {
    SCOPED_TRACE(name);
    seed(5);
    const std::uint64_t base = draw();
    const std::uint64_t next = draw();
    seed(5);
    const std::vector<at::Tensor> drawn = results(body);
    EXPECT_EQ(draw(), next);
    for (int replica = 0; replica < 2; ++replica) {
      seed(replica_seed(base, replica));
      EXPECT_TRUE(at::equal(drawn[static_cast<std::size_t>(replica)], body())) << replica;
    }
  }
}

TEST_F(ReplicaRandom, AGeneratorThatIsGivenIsUsed) {
  const at::Tensor expected = at::rand({5}, at::detail::createCPUGenerator(8));
  seed(3);
  const std::uint64_t next = draw();
  seed(3);
  for (const at::Tensor& drawn :
       results([] { return at::rand({5}, at::detail::createCPUGenerator(8)); }))
    EXPECT_TRUE(at::equal(drawn, expected));
  EXPECT_EQ(draw(), next);
}

TEST_F(ReplicaRandom, OneReplicaDrawsAsThePlainProgramDoes) {
  MirroredStrategy one({"CPU:0"});
  seed(3);
  const at::Tensor expected = random_numbers();
  seed(3);
  EXPECT_TRUE(at::equal(one.local_results(one.run(random_numbers))[0], expected));
}

// The inner run begins with a number of replica 0, on whose thread replicas merge.
TEST_F(ReplicaRandom, ARunInsideAMergeCallIsRepeatableToo) {
  const auto body = [&] {
    const at::Tensor before = random_numbers();
    const at::Tensor within = get_replica_context()->merge_call(
        [&](Strategy&) { return at::cat(results(random_numbers)); });
    return at::cat({before, within, random_numbers()}).view({4, 5});
  };
  seed(3);
  const std::vector<at::Tensor> first = results(body);
  for (int repeat = 0; repeat < 5; ++repeat) {
    seed(3);
    const std::vector<at::Tensor> again = results(body);
    EXPECT_TRUE(at::equal(again[0], first[0]));
    EXPECT_TRUE(at::equal(again[1], first[1]));
  }
  const at::Tensor all = at::cat({first[0], first[1]});
  EXPECT_EQ(std::get<0>(at::unique_dim(all, 0)).size(0), 6) << "both have the inner run's numbers";
}

TEST_F(ReplicaRandom, TheThreadIsAsBeforeAfterTheRun) {
  results(random_numbers);
  EXPECT_EQ(ReplicaRandomScope::current(), nullptr);
  seed(3);
  const std::uint64_t first = draw();
  seed(3);
  const at::Tensor plain = random_numbers();
  EXPECT_TRUE(at::equal(plain, at::rand({5}, at::detail::createCPUGenerator(3))));
  EXPECT_NE(draw(), first);
}

// The default generator is seeded before the run, not inside it; the second case is only warned of.
TEST_F(ReplicaRandom, SeedingTheDefaultGeneratorInsideARunIsNoticed) {
  RunSeed seeds;
  EXPECT_FALSE(seeds.was_default_seeded());
  seed(11);
  seed(12);
  EXPECT_TRUE(seeds.was_default_seeded());
}

}  // namespace
}  // namespace cohort::internal
