// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/registry.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "cohort/core/error.h"

namespace cohort::function {
namespace {

std::vector<at::Tensor> same(std::vector<at::Tensor> inputs) { return inputs; }

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::unknown;
}

TEST(Registry, FindsWhatWasRegistered) {
  register_function("registry_test.same", same);
  EXPECT_TRUE(is_registered_function("registry_test.same"));
  const at::Tensor x = at::ones({2});
  EXPECT_TRUE(registered_function("registry_test.same")({x}).at(0).is_same(x));
}

TEST(Registry, RefusesATakenName) {
  register_function("registry_test.taken", same);
  EXPECT_EQ(code_of([] { register_function("registry_test.taken", same); }),
            ErrorCode::already_exists);
}

TEST(Registry, RefusesAnEmptyNameOrFunction) {
  EXPECT_EQ(code_of([] { register_function("", same); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { register_function("registry_test.empty", {}); }),
            ErrorCode::invalid_argument);
  EXPECT_FALSE(is_registered_function("registry_test.empty"));
}

TEST(Registry, SaysWhatItKnowsWhenAskedForAnotherName) {
  register_function("registry_test.known", same);
  try {
    registered_function("registry_test.unknown");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_NE(error.message().find("registry_test.known"), std::string::npos);
  }
}

TEST(Registry, GivesANameToOneOfManyThreads) {
  std::atomic<int> winners = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      if (code_of([] { register_function("registry_test.race", same); }) == ErrorCode::unknown)
        ++winners;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(winners, 1);
}

}  // namespace
}  // namespace cohort::function
