// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/registry.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "cohort/core/error.h"
#include "cohort/testing/error_of.h"

namespace cohort::function {
namespace {

using testing::code_of;

std::vector<at::Tensor> same(std::vector<at::Tensor> inputs) { return inputs; }

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

TEST(FunctionRegistration, EndsWithItsObject) {
  RegisteredFunction kept;
  {
    const FunctionRegistration registration("registry_test.leaving", same);
    kept = registered_function("registry_test.leaving");
    EXPECT_EQ(kept({at::ones({2})}).size(), 1U);
  }
  EXPECT_FALSE(is_registered_function("registry_test.leaving"));
  EXPECT_EQ(code_of([] { registered_function("registry_test.leaving"); }), ErrorCode::not_found);
  const FunctionRegistration again("registry_test.leaving", same);
  EXPECT_EQ(call_registered_function("registry_test.leaving", {at::ones({2})}).size(), 1U);
}

// A server keeps the function that it has looked up; a call of its unloaded code crashed the
// process.
TEST(FunctionRegistration, ACallAfterItsEndNamesTheFunction) {
  RegisteredFunction kept;
  {
    const FunctionRegistration registration("registry_test.gone", same);
    kept = registered_function("registry_test.gone");
  }
  try {
    kept({});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_NE(error.message().find("'registry_test.gone'"), std::string::npos);
  }
}

TEST(FunctionRegistration, DestroysItsFunctionAtItsEnd) {
  const auto held = std::make_shared<int>(1);
  RegisteredFunction kept;
  {
    const FunctionRegistration registration(
        "registry_test.held", [held](std::vector<at::Tensor> inputs) { return inputs; });
    kept = registered_function("registry_test.held");
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(FunctionRegistration, WaitsForTheCallsThatRun) {
  std::atomic<bool> is_entered = false, may_end = false, has_ended = false;
  auto registration = std::make_unique<FunctionRegistration>("registry_test.slow",
                                                             [&](std::vector<at::Tensor> inputs) {
                                                               is_entered = true;
                                                               is_entered.notify_all();
                                                               may_end.wait(false);
                                                               has_ended = true;
                                                               return inputs;
                                                             });
  std::thread caller([] { call_registered_function("registry_test.slow", {}); });
  is_entered.wait(false);
  std::thread end([&] {
    registration.reset();
    EXPECT_TRUE(has_ended);
  });
  while (is_registered_function("registry_test.slow")) std::this_thread::yield();
  may_end = true;
  may_end.notify_all();
  end.join();
  caller.join();
}

TEST(FunctionRegistration, RefusesATakenName) {
  const FunctionRegistration registration("registry_test.owned", same);
  EXPECT_EQ(code_of([] { FunctionRegistration("registry_test.owned", same); }),
            ErrorCode::already_exists);
  EXPECT_TRUE(is_registered_function("registry_test.owned"));
}

}  // namespace
}  // namespace cohort::function
