// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/initializer.h"

#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "cohort/testing/throws_error.h"
#include "cohort/variable/initializer_recipe.h"

namespace cohort {
namespace {

using testing::throws_error;

TensorSpec floats(std::vector<std::int64_t> sizes) { return {at::kFloat, std::move(sizes)}; }
double mean_of(const at::Tensor& values) { return values.to(at::kDouble).mean().item<double>(); }
double deviation_of(const at::Tensor& values) {
  return values.to(at::kDouble).std().item<double>();
}

std::vector<Initializer> random_ones() {
  return {Initializer::random_uniform(-2, 3), Initializer::random_normal(1, 2),
          Initializer::glorot_uniform()};
}

// The four words of LibTorch's generator for this counter and key.
std::array<std::uint32_t, 4> philox(std::uint64_t low, std::uint64_t high, std::uint64_t key) {
  at::Philox4_32 generator(key, high, low);
  return {generator(), generator(), generator(), generator()};
}

// The known answers that the authors publish with their library Random123 (kat_vectors). If another
// LibTorch gave others, initial values would change.
TEST(Initializer, UsesAGeneratorThatGivesThePublishedAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint64_t kOnes = ~std::uint64_t{0};
  EXPECT_EQ(philox(kOnes, kOnes, kOnes), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x85a308d3243f6a88, 0x0370734413198a2e, 0x299f31d0a4093822),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Initializer, FillsWithAConstant) {
  EXPECT_TRUE(Initializer::zeros().make(floats({2, 3}), "v", 1).eq(0).all().item<bool>());
  EXPECT_TRUE(Initializer::ones().make({at::kInt, {{4}}}, "v", 1).eq(1).all().item<bool>());
  EXPECT_TRUE(Initializer::ones().make({at::kBool, {{4}}}, "v", 1).all().item<bool>());
  const at::Tensor scalar = Initializer::constant(2.5).make({at::kDouble, {{}}}, "v", 1);
  EXPECT_EQ(scalar.dim(), 0);
  EXPECT_EQ(scalar.item<double>(), 2.5);
}

// Recorded values: a change would give every user other initial weights.
TEST(Initializer, StaysWhatItWas) {
  const at::Tensor values = Initializer::random_uniform(0, 1).make({at::kDouble, {{3}}}, "w", 42);
  EXPECT_DOUBLE_EQ(values[0].item<double>(), 0.5799821721602035);
  EXPECT_DOUBLE_EQ(values[1].item<double>(), 0.7502211518500593);
  EXPECT_DOUBLE_EQ(values[2].item<double>(), 0.6073440461598509);
}

TEST(Initializer, DependsOnSeedNameAndIndexAlone) {
  for (const Initializer& initializer : random_ones()) {
    const at::Tensor first = initializer.make(floats({8, 5}), "a", 7);
    const at::Tensor other = initializer.make(floats({8, 5}), "b", 7);
    EXPECT_TRUE(initializer.make(floats({8, 5}), "a", 7).equal(first)) << "made in another order";
    EXPECT_FALSE(other.equal(first));
    EXPECT_FALSE(initializer.make(floats({8, 5}), "a", 8).equal(first));
    EXPECT_FALSE(first[0].equal(first[1]));
  }
}

TEST(Initializer, MakesTheRowsOfTheWholeAnywhere) {
  const TensorSpec spec = floats({7, 3});  // rows of an odd length begin within a block
  std::vector<Initializer> all = random_ones();
  all.push_back(Initializer::constant(4));
  for (const Initializer& initializer : all) {
    const at::Tensor whole = initializer.make(spec, "table", 7);
    for (std::int64_t end = 0; end <= 7; ++end) {
      for (std::int64_t begin = 0; begin <= end; ++begin) {
        const at::Tensor rows =
            initializer.make_rows(spec, {.begin = begin, .end = end}, "table", 7);
        EXPECT_TRUE(rows.equal(whole.slice(0, begin, end))) << begin << " to " << end;
      }
    }
  }
}

TEST(Initializer, HasTheMomentsItPromises) {
  const auto large = [](const Initializer& initializer) {
    return initializer.make(floats({400, 500}), "w", 3);
  };
  const at::Tensor uniform = large(Initializer::random_uniform(-2, 4));
  EXPECT_NEAR(mean_of(uniform), 1, 0.02);
  EXPECT_NEAR(deviation_of(uniform), 6 / std::sqrt(12), 0.02);
  EXPECT_GE(uniform.min().item<double>(), -2);
  EXPECT_LT(uniform.max().item<double>(), 4);
  const at::Tensor normal = large(Initializer::random_normal(3, 2));
  EXPECT_NEAR(mean_of(normal), 3, 0.02);
  EXPECT_NEAR(deviation_of(normal), 2, 0.02);
  const at::Tensor distance = normal.sub(3).abs();
  EXPECT_NEAR(mean_of(distance.lt(2)), 0.6827, 0.005) << "within one deviation";
  EXPECT_NEAR(mean_of(distance.lt(4)), 0.9545, 0.005) << "within two";
  const at::Tensor pairs = normal.sub(3).reshape({-1, 2});
  EXPECT_NEAR(mean_of(pairs.select(1, 0).mul(pairs.select(1, 1))), 0, 0.05)
      << "the two of a block have nothing to do with each other";
}

TEST(Initializer, KnowsTheFansOfLinearAndConvolutionWeights) {
  const auto limit_of = [](std::vector<std::int64_t> sizes) {
    return Initializer::glorot_uniform()
        .make(floats(std::move(sizes)), "w", 3)
        .abs()
        .max()
        .item<double>();
  };
  EXPECT_NEAR(limit_of({100, 200}), std::sqrt(6.0 / 300), 1e-4);
  EXPECT_NEAR(limit_of({32, 16, 3, 5}), std::sqrt(6.0 / (48 * 15)), 1e-4);
}

TEST(Initializer, RoundsTheSameValueToEveryDtype) {
  const Initializer initializer = Initializer::random_normal(0, 1);
  const at::Tensor exact = initializer.make({at::kDouble, {{64}}}, "w", 3);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const at::Tensor values = initializer.make({dtype, {{64}}}, "w", 3);
    EXPECT_EQ(values.scalar_type(), dtype);
    EXPECT_TRUE(values.to(at::kDouble).allclose(exact, 0.01, 0.01)) << dtype_name(dtype);
  }
}

TEST(Initializer, RefusesBoundsThatAreNone) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto refuses = [](const auto& call, const std::string& words) {
    EXPECT_THAT(call, throws_error(ErrorCode::invalid_argument, words));
  };
  refuses([] { Initializer::random_normal(0, -1); }, "stddev of 0 or more, got mean 0 and stddev");
  refuses([] { Initializer::random_normal(std::nan(""), 1); }, "expected a finite mean");
  refuses([] { Initializer::random_uniform(2, 1); }, "min <= max, got min 2 and max 1");
  refuses([&] { Initializer::random_uniform(0, infinity); }, "expected finite numbers");
  refuses([] { Initializer::random_uniform(std::nan(""), 1); }, "expected finite numbers");
  EXPECT_TRUE(Initializer::random_normal(2, 0).make(floats({3}), "v", 1).eq(2).all().item<bool>());
}

TEST(Initializer, RefusesSpecsThatDoNotSuitIt) {
  const auto refuses = [](const Initializer& initializer, const TensorSpec& spec,
                          const std::string& words) {
    EXPECT_THAT([&] { initializer.make(spec, "v", 1); },
                throws_error(ErrorCode::invalid_argument, words));
  };
  for (const Initializer& initializer : random_ones()) {
    refuses(initializer, {at::kLong, {{2, 2}}},
            "floating-point dtype for random values, got int64");
  }
  refuses(Initializer::glorot_uniform(), floats({5}), "at least two dimensions");
  refuses(Initializer::zeros(), floats({5, -1}), "got float32[5, ?] (variable 'v')");
  refuses(Initializer::zeros(), {at::kFloat, {}}, "got float32[...]");
  refuses(Initializer::zeros(), {kString, {{1}}}, "a spec of numbers");
  refuses(Initializer::constant(2.5), {at::kInt, {{1}}}, "a constant that int32 holds, got 2.5");
  refuses(Initializer::constant(300), {at::kByte, {{1}}}, "uint8 holds, got 300");
  refuses(Initializer::constant(1e30), {at::kLong, {{1}}}, "int64 holds");
  refuses(Initializer::constant(2), {at::kBool, {{1}}}, "bool holds, got 2");
  refuses(Initializer::constant(std::nan("")), {at::kInt, {{1}}}, "int32 holds");
}

TEST(Initializer, RefusesRowsThatAreNotThere) {
  const auto rows_of = [](TensorSpec spec, RowRange rows) {
    return [=] { Initializer::zeros().make_rows(spec, rows, "v", 1); };
  };
  const auto refused = [](const std::string& words) {
    return throws_error(ErrorCode::invalid_argument, words);
  };
  EXPECT_THAT(rows_of(floats({4, 2}), {.begin = 1, .end = 5}), refused("got [1, 5)"));
  EXPECT_THAT(rows_of(floats({4, 2}), {.begin = 3, .end = 2}), refused("got [3, 2)"));
  EXPECT_THAT(rows_of(floats({4, 2}), {.begin = -1, .end = 2}), refused("got [-1, 2)"));
  EXPECT_THAT(rows_of(floats({}), {.begin = 0, .end = 0}), refused("expected rows of float32[]"));
}

at::Tensor rows_of_keys(const Initializer& initializer, std::vector<std::int64_t> keys,
                        std::int64_t width) {
  at::Tensor rows = at::zeros({static_cast<std::int64_t>(keys.size()), width});
  InitializerRecipe::fill_rows(initializer, rows, keys, "table", 7);
  return rows;
}

TEST(Initializer, GivesTheRowOfAKeyTheValuesThatItHasInAVariable) {
  for (const Initializer& initializer :
       {Initializer::random_uniform(-2, 3), Initializer::random_normal(1, 2),
        Initializer::constant(4)}) {
    for (const std::int64_t width : {1, 3, 4}) {
      const at::Tensor whole = initializer.make(floats({10, width}), "table", 7);
      const at::Tensor rows = rows_of_keys(initializer, {7, 2, 9, 2}, width);
      EXPECT_TRUE(rows.equal(whole.index_select(0, at::tensor({7, 2, 9, 2})))) << width;
    }
  }
}

TEST(Initializer, GivesEachKeyOf64BitsOtherValues) {
  const auto row = [](std::int64_t key) {
    return rows_of_keys(Initializer::random_normal(0, 1), {key}, 16);
  };
  // With an index of 64 bits the row of 2^60 + 5 would begin where that of 5 does.
  EXPECT_FALSE(row(5).equal(row((std::int64_t{1} << 60) + 5)));
  EXPECT_FALSE(row(-5).equal(row(std::numeric_limits<std::int64_t>::max() - 4)));
  EXPECT_TRUE(row(-5).equal(row(-5)));
  EXPECT_TRUE(row(-5).isfinite().all().item<bool>());
}

TEST(Initializer, RefusesGlorotForRowsOfKeys) {
  EXPECT_THAT(
      [] {
        InitializerRecipe::check_rows(Initializer::glorot_uniform(), floats({1, 4}), "users");
      },
      throws_error(ErrorCode::invalid_argument, "table 'users'); use random_uniform()"));
}

TEST(Initializer, MakesALocalVariable) {
  const Initializer initializer = Initializer::glorot_uniform();
  const Variable kernel = local_variable("kernel", floats({3, 2}), initializer, 7);
  EXPECT_TRUE(kernel.is_trainable());
  EXPECT_TRUE(kernel.read().equal(initializer.make(floats({3, 2}), "kernel", 7)));
  const Variable step =
      local_variable("step", {at::kLong, {{}}}, Initializer::zeros(), 7, /*is_trainable=*/false);
  EXPECT_EQ(step.read().item<std::int64_t>(), 0);
  EXPECT_THAT(
      [] {
        local_variable("step", {at::kLong, {{}}}, Initializer::zeros(), 7);
      },
      throws_error(ErrorCode::invalid_argument, "only those have gradients"));
}

}  // namespace
}  // namespace cohort
