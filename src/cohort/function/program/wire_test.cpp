// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/program/wire.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <random>

#include "cohort/core/error.h"
#include "cohort/function/program/program_builder_for_tests.h"
#include "cohort/function/program/wire_format.h"
#include "cohort/testing/error_of.h"
#include "cohort/testing/test_seed.h"

namespace cohort::function {
namespace {

using testing::code_of;

bool is_broken(std::span<const std::byte> bytes) {
  return code_of([&] { decode_program(bytes); }) == ErrorCode::data_loss;
}
bool is_broken(const Program& program) { return is_broken(encode(program)); }

// A program with draws, effects, lists, constants, in-place ops and a random op.
Program rich_program() {
  ProgramBuilder p;
  const auto drawn = p.draw(0, {{at::kFloat, {{2, 3}}}, {at::kLong, {{2}}}});
  const int x = p.input({2, 3});
  const int w = p.variable("dense/kernel", {3, 4});
  p.program().variables[0].is_read = true;
  const int c = p.constant(at::tensor({1.0F, 2.0F, 3.0F}));
  const int seven = p.constant(at::full({}, 7.0), true);
  const int sum = p.op("aten::add.Tensor", {value(x), value(drawn[0]), integer(1)});
  p.in_place("aten::add_.Tensor", sum, {value(c), real(0.5)});
  const int product = p.op("aten::mm", {value(sum), value(w)});
  const int noisy = p.op("aten::bernoulli.p", {value(product), real(0.5), none()});
  const auto parts = p.list_op("aten::split.Tensor", {value(noisy), integer(2), integer(1)}, 2);
  const int joined = p.op("aten::cat", {values(parts), integer(1)});
  const int picked = p.op("aten::index.Tensor", {value(joined), values({-1, drawn[1]})});
  const int scaled = p.op("aten::div.Tensor_mode", {value(picked), value(seven), text("floor")});
  const int zeros = p.op("aten::zeros", {integers({2, 2}), integer(6), none(),
                                         argument(Arg::Kind::device, c10::Device(c10::kCPU))});
  p.effect("cohort::apply",
           {text("sgd"), text("sgd_1"), integer(0), value(zeros), values({seven})});
  p.output(scaled);
  p.output(-1);
  p.program().is_random = true;
  return std::move(p.program());
}

struct Wire : ::testing::Test {
  Program program = rich_program();
  Bytes bytes = encode(program);
};

TEST_F(Wire, RoundTripGivesTheSameBytes) { EXPECT_EQ(encode(decode_program(bytes)), bytes); }

TEST_F(Wire, RoundTripKeepsTheInterface) {
  const Program decoded = decode_program(bytes);
  ASSERT_EQ(decoded.inputs.size(), 1U);
  EXPECT_EQ(decoded.inputs[0].spec, program.inputs[0].spec);
  ASSERT_EQ(decoded.variables.size(), 1U);
  EXPECT_EQ(decoded.variables[0].name, "dense/kernel");
  EXPECT_EQ(decoded.draws.at(0).fields, program.draws[0].fields);
  EXPECT_EQ(decoded.outputs, program.outputs);
  EXPECT_EQ(decoded.value_count, program.value_count);
  EXPECT_TRUE(decoded.is_random);
}

TEST_F(Wire, RoundTripKeepsWhatAVariableIsFor) {
  for (const bool is_read : {false, true}) {
    for (const bool is_handle_only : {false, true}) {
      ProgramBuilder p;
      p.variable("v", {});
      p.program().variables[0].is_read = is_read;
      p.program().variables[0].is_handle_only = is_handle_only;
      const Program decoded = decode_program(encode(p.program()));
      EXPECT_EQ(decoded.variables[0].is_read, is_read);
      EXPECT_EQ(decoded.variables[0].is_handle_only, is_handle_only);
    }
  }
}

TEST_F(Wire, RoundTripKeepsConstants) {
  const Program decoded = decode_program(bytes);
  ASSERT_EQ(decoded.constants.size(), 2U);
  EXPECT_TRUE(at::equal(decoded.constants[0].value, program.constants[0].value));
  EXPECT_FALSE(decoded.constants[0].is_wrapped_number);
  EXPECT_TRUE(decoded.constants[1].is_wrapped_number);
}

TEST_F(Wire, RoundTripKeepsEveryArgumentKind) {
  c10::List<at::Scalar> scalars;
  for (const at::Scalar& s : {at::Scalar(1), at::Scalar(2.5), at::Scalar(true)})
    scalars.push_back(s);
  ProgramBuilder p;
  p.effect(
      "aten::any",
      {none(), integer(-5), real(-0.0), boolean(false), boolean(true), text("a\0b"),
       integers({-1, 1LL << 40}), argument(Arg::Kind::reals, std::vector<double>{1, 2}),
       argument(Arg::Kind::booleans, c10::List<bool>({true, false})),
       argument(Arg::Kind::complex, c10::complex<double>(1, -2)),
       argument(Arg::Kind::scalars, scalars), argument(Arg::Kind::device, c10::Device("cuda:1"))});
  const Op decoded = decode_program(encode(p.program())).ops.at(0);
  const Op& original = p.program().ops[0];
  ASSERT_EQ(decoded.args.size(), original.args.size());
  for (std::size_t i = 0; i < decoded.args.size(); ++i) {
    EXPECT_EQ(decoded.args[i].kind, original.args[i].kind) << i;
    if (!original.args[i].constant.isNone()) {
      EXPECT_EQ(decoded.args[i].constant, original.args[i].constant) << i;
    }
  }
}

TEST_F(Wire, RoundTripKeepsEveryFlagOfAnOperator) {
  for (std::uint8_t flag : {Op::writes, Op::random, Op::effect, Op::without_gradients}) {
    program.ops[1].flags = flag;
    EXPECT_EQ(decode_program(encode(program)).ops[1].flags, flag);
  }
}

TEST_F(Wire, TheTailThatEqualsTheDefaultsIsLeftOut) {
  const Program decoded = decode_program(bytes);
  EXPECT_EQ(decoded.ops[1].args.size(), 2U) << "alpha = 1 is the default of add";
  EXPECT_EQ(decoded.ops[2].args.size(), 3U) << "alpha = 0.5 is not";
}

TEST_F(Wire, EveryTruncationIsRefused) {
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(is_broken(std::span(bytes).first(size))) << size;
  }
}

TEST_F(Wire, TrailingBytesAreRefused) {
  bytes.push_back(std::byte{0});
  EXPECT_TRUE(is_broken(bytes));
}

TEST_F(Wire, AnotherMagicOrVersionIsRefused) {
  for (std::size_t i = 0; i < 5; ++i) {
    Bytes other = bytes;
    other[i] ^= std::byte{0x20};
    EXPECT_TRUE(is_broken(other)) << i;
  }
}

TEST_F(Wire, RandomMutationsAreRefusedOrLoad) {
  const testing::TestSeed seed(20240501);
  std::mt19937 random(seed.value());
  int loaded = 0;
  for (int round = 0; round < 20'000; ++round) {
    Bytes mutant = bytes;
    for (auto edits = 1 + random() % 3; edits > 0; --edits) {
      mutant[random() % mutant.size()] = static_cast<std::byte>(random());
    }
    if (random() % 4 == 0)
      mutant.erase(mutant.begin() + static_cast<std::ptrdiff_t>(random() % mutant.size()));
    const ErrorCode code = code_of([&] { PreparedProgram::decode(mutant); });
    loaded += code == ErrorCode::unknown ? 1 : 0;
    ASSERT_TRUE(code == ErrorCode::unknown || code == ErrorCode::data_loss ||
                code == ErrorCode::unimplemented)
        << "round " << round << ": " << name_of(code);
  }
  EXPECT_GT(loaded, 0) << "no mutant was harmless: the mutations test nothing but the magic";
  EXPECT_LT(loaded, 10'000);
}

// The beginning of every program, up to its count of values.
void write_header(ByteWriter& out, std::string_view producer) {
  for (const char c : wire::kMagic) out.u8(static_cast<std::uint8_t>(c));
  out.u8(wire::kVersion);
  out.u8(0);
  out.text(producer);
}

// Bytes up to the count that a test makes huge.
struct HugeCount : ::testing::Test {
  HugeCount() { write_header(out, "1.13.0"); }
  bool is_refused(std::uint64_t count) {
    out.varint(count);
    for (int i = 0; i < 64; ++i) out.u8(0);
    return is_broken(out.bytes());
  }
  ByteWriter out;
};

TEST_F(HugeCount, OfValuesIsRefused) { EXPECT_TRUE(is_refused(std::uint64_t{1} << 40)); }
TEST_F(HugeCount, OfNamesIsRefused) {
  out.varint(1);
  EXPECT_TRUE(is_refused(~std::uint64_t{0}));
}
TEST_F(HugeCount, OfInputsIsRefused) {
  out.varint(1);
  out.varint(0);
  EXPECT_TRUE(is_refused(std::uint64_t{1} << 33));
}
TEST_F(HugeCount, OfDimensionsIsRefused) {
  for (const std::uint64_t field : {1, 0, 1, 0}) out.varint(field);
  out.u8(static_cast<std::uint8_t>(at::kFloat));
  EXPECT_TRUE(is_refused(60'000));
}

// A program of one constant of float[`size`, `size`] with `data_bytes` bytes.
Bytes with_constant(std::uint64_t size, std::size_t data_bytes, at::ScalarType dtype = at::kFloat) {
  ByteWriter out;
  write_header(out, "");
  for (const std::uint64_t count : {1, 0, 0, 0, 0, 1, 0}) out.varint(count);
  out.u8(static_cast<std::uint8_t>(dtype));
  for (const std::uint64_t field : {std::uint64_t{2}, size, size, std::uint64_t{0}})
    out.varint(field);
  out.blob(Bytes(data_bytes, std::byte{3}));
  out.varint(0);
  out.varint(0);
  return out.take();
}

TEST(WireConstant, OfTheRightSizeLoads) {
  EXPECT_EQ(decode_program(with_constant(2, 16)).constants.size(), 1U);
}
TEST(WireConstant, OfAnotherSizeIsRefused) { EXPECT_TRUE(is_broken(with_constant(2, 12))); }
TEST(WireConstant, WhoseSizesOverflowIsRefused) {
  EXPECT_TRUE(is_broken(with_constant(std::uint64_t{1} << 31, 0)));
  EXPECT_TRUE(is_broken(with_constant(std::uint64_t{1} << 62, 0)));
}
TEST(WireConstant, OfBooleansThatAreNoneIsRefused) {
  EXPECT_TRUE(is_broken(with_constant(2, 4, at::kBool)));
}
TEST(WireConstant, OfAQuantizedDtypeIsRefused) {
  EXPECT_TRUE(is_broken(with_constant(2, 4, at::kQInt8)));
}

// Each operator of four bytes has its own copy of its name.
TEST(WireNames, OfOperatorsThatAreVeryLongAreRefused) {
  ProgramBuilder p;
  const int x = p.input({1});
  p.op("aten::" + std::string(121, 'x'), {value(x)});
  EXPECT_FALSE(is_broken(p.program()));
  p.op("aten::" + std::string(122, 'x'), {value(x)});
  EXPECT_TRUE(is_broken(p.program()));
}

TEST(WireValues, UsedBeforeTheyAreDefinedAreRefused) {
  ProgramBuilder p;
  const int x = p.input({1});
  p.op("aten::add.Tensor", {value(x), value(2)});
  p.op("aten::relu", {value(x)});
  EXPECT_TRUE(is_broken(p.program()));
}

TEST(WireValues, DefinedTwiceAreRefused) {
  ProgramBuilder p;
  p.input({1});
  p.input({1});
  p.program().inputs[1].id = 0;
  EXPECT_TRUE(is_broken(p.program()));
}

TEST(WireValues, OfAnOutputMustBeDefined) {
  ProgramBuilder p;
  p.program().value_count = 1;
  p.output(0);
  EXPECT_TRUE(is_broken(p.program()));
}

TEST(WireValues, OfADrawMustMatchItsSpecs) {
  ProgramBuilder p;
  p.draw(0, {{at::kFloat, {{1}}}});
  p.program().draws[0].fields.push_back({at::kFloat, {{1}}});
  EXPECT_TRUE(is_broken(p.program()));
  p.program().draws.clear();
  EXPECT_TRUE(is_broken(p.program()));
}

TEST(Encode, RefusesUnknownSizes) {
  ProgramBuilder p;
  p.input({-1});
  EXPECT_EQ(code_of([&] { encode(p.program()); }), ErrorCode::invalid_argument);
}

TEST(Identity, IsTheFirstHalfOfSha256) {
  constexpr std::string_view kText = "abc";
  EXPECT_EQ(identity_of(std::as_bytes(std::span(kText))), "ba7816bf8f01cfea414140de5dae2223");
  EXPECT_EQ(identity_of({}), "e3b0c44298fc1c149afbf4c8996fb924");
}

}  // namespace
}  // namespace cohort::function
