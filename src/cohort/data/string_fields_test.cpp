// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/string_fields.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::HasSubstr;

Nest user_of(const char* city) {
  return Nest::map({{"age", at::zeros({})}, {"city", StringTensor(std::string(city))}});
}

std::string said_of(const Nest& element) {
  return error_of([&] { check_no_strings(element, "server.peek"); }).message();
}

TEST(StringFields, AreNamedWithTheElementAndTheRemedy) {
  const Nest element = Nest::tuple({at::zeros({2}), user_of("Rome")});
  EXPECT_THAT(said_of(element),
              HasSubstr("[server.peek] expected elements of numbers for a step, got strings in "
                        "field [1]['city'] of (float32[2], {age: float32[], city: string[]}); "
                        "turn strings into numbers in the input pipeline"));
  EXPECT_THAT(said_of(user_of("Rome")), HasSubstr("strings in field 'city' of {"));
  EXPECT_THAT(said_of(StringTensor(std::string("x"))), HasSubstr("strings in the element of"));
}

TEST(StringFields, NumbersPass) {
  EXPECT_NO_THROW(check_no_strings(Nest::tuple({at::zeros({2}), at::zeros({})}), "server.peek"));
}

}  // namespace
}  // namespace cohort::data
