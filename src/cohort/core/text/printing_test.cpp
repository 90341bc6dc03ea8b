// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/text/printing.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "cohort/core/device.h"
#include "cohort/core/tensor_spec.h"

namespace cohort {
namespace {

TEST(Printing, ABatchShowsItsStructureDtypesAndShapes) {
  const Nest batch =
      Nest::map({{"label", at::arange(3)}, {"image", at::zeros({2, 28, 28}, at::kByte)}});
  EXPECT_EQ(to_string(batch), "{image: uint8[2, 28, 28], label: int64[3] [0, 1, 2]}");
}

TEST(Printing, SmallTensorsShowTheirValues) {
  EXPECT_EQ(to_string(at::full({}, 7, at::kInt)), "int32[] 7");
  EXPECT_EQ(to_string(at::tensor({1.5F, -2.F})), "float32[2] [1.5, -2]");
  EXPECT_EQ(to_string(at::tensor({0.25}).to(at::kHalf)), "float16[1] [0.25]");
  EXPECT_EQ(to_string(at::tensor({200}, at::kByte)), "uint8[1] [200]");
  EXPECT_EQ(to_string(at::tensor({1, 0}).to(at::kBool)), "bool[2] [true, false]");
  EXPECT_EQ(to_string(at::arange(16).view({2, 8}).narrow(1, 0, 2)), "int64[2, 2] [[0, 1], [8, 9]]");
  EXPECT_EQ(to_string(at::arange(4).view({2, 2}).t()), "int64[2, 2] [[0, 2], [1, 3]]");
  EXPECT_EQ(to_string(at::arange(17)), "int64[17]");
  EXPECT_EQ(to_string(at::zeros({2, 0})), "float32[2, 0]");
  EXPECT_EQ(to_string(at::zeros({1}, at::kComplexFloat)), "complex64[1]");
  EXPECT_EQ(to_string(at::zeros({2}).to_sparse()), "float32[2]");
}

TEST(Printing, StringsAreQuotedAndShortened) {
  EXPECT_EQ(to_string(StringTensor({2}, {"Lima", "a\"b\n"})),
            "string[2] [\"Lima\", \"a\\\"b\\x0a\"]");
  EXPECT_EQ(to_string(Nest(std::string(100, 'x'))), '"' + std::string(64, 'x') + "\"…");
}

TEST(Printing, HostValuesListsAndTuplesAreShownAsTheyAre) {
  EXPECT_EQ(to_string(Nest::tuple({1, Nest::list({0.5, true}), Nest(), "a"})),
            "(1, [0.5, true], null, \"a\")");
  EXPECT_EQ(to_string(Nest::tuple({1})), "(1,)");
  EXPECT_EQ(to_string(Nest(at::Tensor())), "undefined tensor");
}

template <class T>
concept Printable = requires(std::ostream& out, const T& value) {
  out << value;
};
// A type of another library, in which a type of ours makes its operators known.
template <class T>
struct Foreign {
  std::string to_string() const { return "foreign"; }
};

// Every type with a to_string() had it, also those of other libraries.
TEST(Printing, TheOperatorIsOnlyForOurTypes) {
  static_assert(Printable<Nest> && Printable<TensorSpec> && Printable<Device>);
  static_assert(!Printable<Foreign<int>>);
  static_assert(!Printable<Foreign<Nest>>);
}

TEST(Printing, StreamsTakeNestsAndSpecs) {
  std::ostringstream out;
  out << Nest(3) << ' ' << TensorSpec{at::kFloat, std::vector<std::int64_t>{-1, 4}};
  EXPECT_EQ(out.str(), "3 float32[?, 4]");
}

}  // namespace
}  // namespace cohort
