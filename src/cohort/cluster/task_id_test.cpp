// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/cluster_resolver.h"

#include <gmock/gmock.h>

#include <unordered_set>

#include "cohort/core/error.h"

namespace cohort {
namespace {

TEST(TaskId, IsWrittenAndParsedAlike) {
  for (const TaskId& task : {TaskId{"worker", 0}, TaskId{"ps", 12}, TaskId{"a b", 3}}) {
    EXPECT_EQ(TaskId::parse(task.to_string()), task);
  }
  EXPECT_EQ((TaskId{"worker", 1}).to_string(), "worker:1");
}

TEST(TaskId, RefusesOtherTextsAndQuotesThem) {
  for (const char* text : {"", "worker", "worker:", ":1", "worker:x", "worker:-1", "worker:1x",
                           "a:b:1", "worker: 1", "worker:99999999999999999999"}) {
    try {
      TaskId::parse(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.message(), ::testing::HasSubstr(std::string("got \"") + text + "\""));
    }
  }
}

TEST(TaskId, OrdersByJobThenByNumber) {
  EXPECT_LT((TaskId{"ps", 9}), (TaskId{"worker", 0}));
  EXPECT_LT((TaskId{"worker", 2}), (TaskId{"worker", 10}));
}

TEST(TaskId, IsAKeyOfHashTables) {
  const std::unordered_set<TaskId> tasks{{"ps", 0}, {"ps", 1}, {"worker", 0}, {"ps", 1}};
  EXPECT_EQ(tasks.size(), 3U);
  EXPECT_TRUE(tasks.contains({"worker", 0}));
}

}  // namespace
}  // namespace cohort
