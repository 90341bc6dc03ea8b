// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/bytes.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "cohort/core/error.h"
#include "cohort/core/random.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

std::string failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data_loss);
    return error.message();
  }
  return "nothing thrown";
}

Bytes bytes(std::initializer_list<int> values) {
  Bytes result;
  for (const int value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}

TEST(Bytes, ReadBackWhatWasWritten) {
  ByteWriter writer;
  writer.u8(255);
  writer.u64(0x0123456789abcdefULL);
  writer.f64(-0.5);
  writer.text("héllo");
  writer.blob(bytes({1, 2}));
  writer.sizes(std::vector<std::int64_t>{2, -1, 0});
  const Bytes written = writer.take();
  ByteReader reader(written, "test");
  EXPECT_EQ(reader.u8(), 255);
  EXPECT_EQ(reader.u64(), 0x0123456789abcdefULL);
  EXPECT_EQ(reader.f64(), -0.5);
  EXPECT_EQ(reader.text(), "héllo");
  EXPECT_EQ(reader.blob().size(), 2U);
  EXPECT_EQ(reader.sizes(), (std::vector<std::int64_t>{2, -1, 0}));
  EXPECT_NO_THROW(reader.expect_end());
}

TEST(Bytes, IntegersSurviveAtTheirLimits) {
  using Limits = std::numeric_limits<std::int64_t>;
  for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{63},
                                   std::int64_t{-64}, Limits::min(), Limits::max()}) {
    ByteWriter writer;
    writer.zigzag(value);
    writer.varint(static_cast<std::uint64_t>(value));
    ByteReader reader(writer.bytes(), "test");
    EXPECT_EQ(reader.zigzag(), value);
    EXPECT_EQ(reader.varint(), static_cast<std::uint64_t>(value));
  }
}

TEST(Bytes, AreLittleEndianLeb128) {
  ByteWriter writer;
  writer.varint(300);
  writer.u64(1);
  EXPECT_EQ(writer.bytes(), bytes({0xac, 0x02, 1, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(Bytes, KeepNotANumber) {
  ByteWriter writer;
  writer.f64(std::nan(""));
  ByteReader reader(writer.bytes(), "test");
  EXPECT_TRUE(std::isnan(reader.f64()));
}

TEST(BrokenBytes, NameTheFormatAndTheOffset) {
  const Bytes data = bytes({1, 0x80});
  ByteReader reader(data, "push message");
  reader.u8();
  EXPECT_THAT(failure_of([&] { reader.varint(); }), HasSubstr("broken push message"));
  EXPECT_THAT(failure_of([&] { ByteReader(data, "x").u64(); }), HasSubstr("at byte 0 of 2"));
}

TEST(BrokenBytes, AreNotReadPastTheEnd) {
  const Bytes data = bytes({5, 1, 2});
  EXPECT_NE(failure_of([&] { ByteReader(data, "x").text(); }), "nothing thrown");
  EXPECT_NE(failure_of([&] { ByteReader(data, "x").sizes(); }), "nothing thrown");
  EXPECT_NE(failure_of([&] { ByteReader(data, "x").f64(); }), "nothing thrown");
  EXPECT_NE(failure_of([&] { ByteReader({}, "x").u8(); }), "nothing thrown");
}

TEST(BrokenBytes, MayNotAskForMoreThingsThanFit) {
  const Bytes data = bytes({3, 0, 0, 0});
  EXPECT_EQ(ByteReader(data, "x").count(1), 3U);
  EXPECT_NE(failure_of([&] { ByteReader(data, "x").count(2); }), "nothing thrown");
}

TEST(BrokenBytes, RefuseAnIntegerOfMoreThan64Bits) {
  Bytes data(10, std::byte{0xff});
  EXPECT_NE(failure_of([&] { ByteReader(data, "x").varint(); }), "nothing thrown");
  data.back() = std::byte{0x01};
  EXPECT_EQ(ByteReader(data, "x").varint(), std::numeric_limits<std::uint64_t>::max());
}

TEST(BrokenBytes, RefuseWhatComesAfterTheEnd) {
  const Bytes data = bytes({1});
  EXPECT_THAT(failure_of([&] { ByteReader(data, "x").expect_end(); }), HasSubstr("the end"));
}

TEST(BrokenBytes, GiveDataLossAndNothingElseWhateverTheyAre) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Bytes data(mix_seed(seed, "length") % 20);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = std::byte(mix_seed(seed, i) & 0xff);
    ByteReader reader(data, "fuzz");
    try {
      reader.text();
      reader.sizes();
      reader.blob();
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::data_loss) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace cohort
