// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/device.h"

#include <gmock/gmock.h>

#include "cohort/core/error.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

struct Accepted {
  std::string text;
  Device device;
  std::string canonical;
};

TEST(Device, ParsesEveryForm) {
  const Accepted rows[] = {{"CPU:0", {"CPU", 0}, "CPU:0"},
                           {"cpu:1", {"CPU", 1}, "CPU:1"},
                           {"GPU", {"GPU", 0}, "GPU:0"},
                           {"/CPU:3", {"CPU", 3}, "CPU:3"},
                           {"/device:GPU:2", {"GPU", 2}, "GPU:2"},
                           {"/device:XLA_CPU:0", {"XLA_CPU", 0}, "XLA_CPU:0"},
                           {"/job:ps/task:2/CPU:0", {"CPU", 0, "ps", 2}, "/job:ps/task:2/CPU:0"},
                           {"job:ps/task:2", {"CPU", 0, "ps", 2}, "/job:ps/task:2/CPU:0"},
                           {"/job:worker/replica:0/task:1/device:GPU:3",
                            {"GPU", 3, "worker", 1},
                            "/job:worker/task:1/GPU:3"}};
  for (const Accepted& row : rows) {
    EXPECT_EQ(Device::parse(row.text), row.device) << row.text;
    EXPECT_EQ(row.device.to_string(), row.canonical);
    EXPECT_EQ(Device::parse(row.canonical), row.device);
  }
}

TEST(Device, RefusesEverythingElseAndQuotesIt) {
  for (const char* text : {"",
                           "/",
                           ":",
                           "CPU:",
                           "CPU:x",
                           "CPU:-1",
                           "CPU:1:2",
                           "1",
                           "C PU:0",
                           "CPU:0/GPU:0",
                           "CPU:0/",
                           "/job:ps",
                           "/task:1",
                           "/job:/task:1",
                           "/job:ps/task:x",
                           "/job:ps/task",
                           "/device",
                           "/job:ps/task:1/task:2",
                           "/replica:1/CPU:0",
                           "CPU:99999999999",
                           "//CPU:0"}) {
    try {
      Device::parse(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.message(), HasSubstr(std::string("\"") + text + "\""));
    }
  }
}

TEST(Device, IsLocalWithoutAJob) {
  EXPECT_TRUE(Device::parse("GPU:1").is_local());
  EXPECT_FALSE(Device::parse("/job:ps/task:0").is_local());
}

TEST(Device, OrdersByItsFields) {
  EXPECT_LT(Device::parse("CPU:0"), Device::parse("CPU:1"));
  EXPECT_LT(Device::parse("CPU:1"), Device::parse("GPU:0"));
}

}  // namespace
}  // namespace cohort
