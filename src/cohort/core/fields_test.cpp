// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/fields.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

struct Inner {
  std::string text;
  std::vector<at::Tensor> tensors;
};
enum class Color : std::uint8_t { red, green, blue };
struct Everything {
  bool yes = false;
  std::uint8_t small = 0;
  std::uint32_t middle = 0;
  std::uint64_t large = 0;
  std::uint64_t fixed = 0;
  std::int64_t negative = 0;
  double real = 0;
  Bytes bytes;
  Duration duration{};
  Color color = Color::red;
  TensorSpec spec;
  std::optional<std::uint64_t> none;
  std::optional<std::uint64_t> some;
  std::optional<Error> error;
  std::vector<Inner> inner;
  at::Tensor last;
};

template <class Codec>
void fields(Codec& codec, Inner& inner) {
  codec(inner.text, inner.tensors);
}

template <class Codec>
void fields(Codec& codec, Everything& all) {
  codec(all.yes, all.small, all.middle, all.large, Fixed{all.fixed}, all.negative, all.real,
        all.bytes, all.duration, Choice(all.color, Color::blue, "a color"), all.spec, all.none,
        all.some, all.error, all.inner, all.last);
}

at::Tensor scalar(double value) { return at::full({}, value); }

class FieldsTest : public ::testing::Test {
 protected:
  FieldsTest() {
    Everything all{.yes = true,
                   .small = 200,
                   .middle = 4'000'000'000,
                   .large = ~0ULL,
                   .fixed = 1ULL << 63,
                   .negative = -5,
                   .real = 0.25,
                   .bytes = {std::byte{0}, std::byte{255}},
                   .duration = std::chrono::milliseconds(-3),
                   .color = Color::blue,
                   .spec = {at::kFloat, {{-1, 2}}},
                   .none = {},
                   .some = 0,
                   .error = Error(ErrorCode::aborted, "why").at("ps:0"),
                   .inner = {{"a", {scalar(1), scalar(2)}}, {"b", {}}},
                   .last = scalar(3)};
    FieldWriter out;
    fields(out, all);
    bytes_ = out.take_bytes();
    tensors_ = out.take_tensors();
  }
  Everything read(const Bytes& bytes, const std::vector<at::Tensor>& tensors) {
    FieldReader in(bytes, "test message", tensors);
    Everything all;
    fields(in, all);
    in.expect_end();
    return all;
  }

  Bytes bytes_;
  std::vector<at::Tensor> tensors_;
};

TEST_F(FieldsTest, AllComeBack) {
  const Everything all = read(bytes_, tensors_);
  EXPECT_TRUE(all.yes);
  EXPECT_EQ(all.small, 200);
  EXPECT_EQ(all.middle, 4'000'000'000U);
  EXPECT_EQ(all.large, ~0ULL);
  EXPECT_EQ(all.fixed, 1ULL << 63);
  EXPECT_EQ(all.negative, -5);
  EXPECT_EQ(all.real, 0.25);
  EXPECT_EQ(all.bytes, (Bytes{std::byte{0}, std::byte{255}}));
  EXPECT_EQ(all.duration, std::chrono::milliseconds(-3));
  EXPECT_EQ(all.color, Color::blue);
  EXPECT_EQ(all.spec, (TensorSpec{at::kFloat, {{-1, 2}}}));
  EXPECT_FALSE(all.none);
  EXPECT_EQ(all.some, 0U);
  EXPECT_EQ(all.error.value().origin(), "ps:0");
  ASSERT_EQ(all.inner.size(), 2U);
  EXPECT_EQ(all.inner[0].tensors.at(1).item<double>(), 2);
  EXPECT_EQ(all.inner[1].text, "b");
  EXPECT_EQ(all.last.item<double>(), 3);
}

TEST_F(FieldsTest, BytesThatEndEarlyAreRefused) {
  for (std::size_t size = 0; size < bytes_.size(); ++size) {
    const Bytes cut(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THAT([&] { read(cut, tensors_); }, throws_error(ErrorCode::data_loss, "test message"));
  }
  Bytes more = bytes_;
  more.push_back(std::byte{0});
  EXPECT_THAT([&] { read(more, tensors_); }, throws_error(ErrorCode::data_loss, "test message"));
}

TEST_F(FieldsTest, MissingAndForeignTensorsAreRefused) {
  for (std::size_t count = 0; count < tensors_.size(); ++count) {
    const std::vector<at::Tensor> few(tensors_.begin(),
                                      tensors_.begin() + static_cast<std::ptrdiff_t>(count));
    EXPECT_THAT([&] { read(bytes_, few); },
                throws_error(ErrorCode::data_loss, "broken test message: expected"));
  }
  tensors_.push_back(scalar(4));
  EXPECT_THAT([&] { read(bytes_, tensors_); },
              throws_error(ErrorCode::data_loss, "expected 3 tensors, got 4"));
}

TEST(Fields, NumbersOutsideTheirTypesAreRefused) {
  const auto read = [](const Bytes& bytes, auto& value) {
    FieldReader in(bytes, "test message");
    in(value);
  };
  bool yes = false;
  EXPECT_THAT([&] { read({std::byte{2}}, yes); }, throws_error(ErrorCode::data_loss, "0 or 1"));
  std::uint32_t middle = 0;
  ByteWriter out;
  out.varint(1ULL << 32);
  EXPECT_THAT([&] { read(out.bytes(), middle); },
              throws_error(ErrorCode::data_loss, "at most 32 bits"));
  Color color = Color::red;
  Choice choice(color, Color::blue, "a color");
  EXPECT_THAT([&] { read({std::byte{3}}, choice); }, throws_error(ErrorCode::data_loss, "a color"));
  std::vector<std::uint64_t> list;
  EXPECT_THAT(
      [&] {
        read({std::byte{9}, std::byte{1}}, list);
      },
      throws_error(ErrorCode::data_loss, "a count that fits"));
}

}  // namespace
}  // namespace cohort
