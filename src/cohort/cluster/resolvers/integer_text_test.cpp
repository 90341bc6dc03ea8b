// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/resolvers/integer_text.h"

#include <gtest/gtest.h>

namespace cohort::internal {
namespace {

TEST(IntegerOfText, ReadsWhatPythonReads) {
  const std::pair<const char*, std::int64_t> rows[] = {
      {"1", 1},  {"07", 7},   {" 2 ", 2},      {"\t3\n", 3},
      {"+4", 4}, {"-5", -5},  {"1_000", 1000}, {"0", 0},
      {"-0", 0}, {"0000", 0}, {"\r 8", 8},     {"9223372036854775807", INT64_MAX}};
  for (const auto& [text, value] : rows) EXPECT_EQ(integer_of_text(text), value) << text;
}

TEST(IntegerOfText, RefusesWhatPythonRefuses) {
  for (const char* text : {"", " ", "x", "1x", "x1", "1.5", "1e3", "0x10", "+", "-", "--1", "+-1",
                           "- 1", "1 2", "_1", "1_", "1__0", "-_1", "None"}) {
    EXPECT_FALSE(integer_of_text(text)) << text;
  }
}

TEST(IntegerOfText, RefusesWhatDoesNotFit) { EXPECT_FALSE(integer_of_text("9223372036854775808")); }

TEST(Quote, KeepsShortTextAndShortensLongText) {
  EXPECT_EQ(quote("abc"), "\"abc\"");
  const std::string shortened = quote("begin" + std::string(1000, 'x') + "end");
  EXPECT_LT(shortened.size(), 220U);
  EXPECT_EQ(shortened.substr(0, 6), "\"begin");
  EXPECT_EQ(shortened.substr(shortened.size() - 4), "end\"");
}

}  // namespace
}  // namespace cohort::internal
