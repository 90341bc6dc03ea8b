// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/example.h"

#include <gmock/gmock.h>

#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

std::string hex_of(Features features) { return to_hex(Example{std::move(features)}.serialize()); }

Features parsed(std::string_view hex) { return Example::parse(from_hex(hex)).features; }

ErrorCode code_of(std::string_view hex) {
  return error_of([&] { parsed(hex); }).code();
}

TEST(Example, WritesTheBytesOfTheFormat) {
  EXPECT_EQ(hex_of({{"a", Int64List{1, 2, 300}}}), "0a0f0a0d0a016112081a060a040102ac02");
  EXPECT_EQ(hex_of({{"a", Int64List{-1}}}), "0a150a130a0161120e1a0c0a0affffffffffffffffff01");
  EXPECT_EQ(hex_of({{"f", FloatList{0.5F, -1.0F}}}), "0a130a110a0166120c120a0a080000003f000080bf");
  EXPECT_EQ(hex_of({}), "0a00");
  EXPECT_EQ(hex_of({{"a", Feature()}}), "0a070a050a01611200");
  EXPECT_EQ(hex_of({{"k", Int64List{0, INT64_MIN, INT64_MAX, 128}}}),
            "0a210a1f0a016b121a1a180a160080808080808080808001ffffffffffffffff7f8001");
}

TEST(Example, ReadsWhatItWrote) {
  const Example example{{{"bytes", BytesList{"x", "", std::string("\0\xff", 2)}},
                         {"floats", FloatList{1.5F, -0.0F}},
                         {"int64s", Int64List{-1, 0, INT64_MAX}},
                         {"nothing", Feature()},
                         {"", Int64List{}},
                         {"no bytes", BytesList{}},
                         {"no floats", FloatList{}}}};
  EXPECT_EQ(Example::parse(example.serialize()), example);
}

TEST(Example, ReadsListsThatAreNotPacked) {
  EXPECT_THAT(parsed("0a0d0a0b0a016112061a0408010802"),
              ElementsAre(Pair("a", Feature(Int64List{1, 2}))));
  EXPECT_THAT(parsed("0a0e0a0c0a0161120712050d0000003f"),
              ElementsAre(Pair("a", Feature(FloatList{0.5F}))));
}

TEST(Example, MergesAsProtocolBuffersDo) {
  // The last entry of a key is valid.
  EXPECT_THAT(parsed("0a180a0a0a016112051a030a01010a0a0a016112051a030a0102"),
              ElementsAre(Pair("a", Feature(Int64List{2}))));
  // The last kind of list of a feature is valid.
  EXPECT_THAT(parsed("0a130a110a0161120c1a030a01010a050a03616263"),
              ElementsAre(Pair("a", Feature(BytesList{"abc"}))));
  // Two lists of one kind are concatenated.
  EXPECT_THAT(parsed("0a110a0f0a0161120a1a030a01011a030a0102"),
              ElementsAre(Pair("a", Feature(Int64List{1, 2}))));
}

TEST(Example, WantsNamesInUtf8) {
  EXPECT_EQ(code_of("0a0b0a090a01ff12041a020a00"), ErrorCode::invalid_argument);
}

TEST(Example, PassesOverFieldsItDoesNotKnow) {
  EXPECT_THAT(parsed("0a0c0a0a0a016112051a030a01011a03616263"),
              ElementsAre(Pair("a", Feature(Int64List{1}))));
  EXPECT_THAT(parsed("0a0c0a0a12051a030a01010a0161"),
              ElementsAre(Pair("a", Feature(Int64List{1}))));
}

TEST(Example, MayBeEmpty) {
  EXPECT_THAT(parsed(""), ElementsAre());
  EXPECT_THAT(parsed("0a00"), ElementsAre());
  EXPECT_THAT(parsed("0a070a050a01611200"), ElementsAre(Pair("a", Feature())));
}

TEST(Example, RefusesEveryPartOfItself) {
  const std::string whole = Example{{{"a", Int64List{300}}, {"b", FloatList{1}}}}.serialize();
  for (std::size_t size = 1; size < whole.size(); ++size) {
    EXPECT_EQ(code_of(to_hex(whole.substr(0, size))), ErrorCode::invalid_argument) << size;
  }
}

TEST(Example, RefusesBytesThatAreNone) {
  EXPECT_EQ(code_of("ff"), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of("00"), ErrorCode::invalid_argument);                          // tag 0
  EXPECT_EQ(code_of("0a0b0a090a0161120412020a03"), ErrorCode::invalid_argument);  // cut off
  EXPECT_EQ(code_of("0a0d0a0b0a01611206120"
                    "40a020102"),
            ErrorCode::invalid_argument);                                   // 2 bytes
  EXPECT_EQ(code_of(std::string(2000, 'b')), ErrorCode::invalid_argument);  // nested groups
}

TEST(SequenceExample, ReadsWhatItWrote) {
  const SequenceExample example{
      .context = {{"id", Int64List{7}}},
      .feature_lists = {{"words", {BytesList{"a"}, BytesList{}, Feature()}}, {"none", {}}}};
  EXPECT_EQ(SequenceExample::parse(example.serialize()), example);
  EXPECT_EQ(to_hex(SequenceExample{}.serialize()), "0a001200");
}

TEST(SequenceExample, RefusesBytesThatAreNone) {
  const std::string whole =
      SequenceExample{.context = {}, .feature_lists = {{"w", {FloatList{1}}}}}.serialize();
  for (std::size_t size = 3; size < whole.size(); ++size) {
    EXPECT_EQ(error_of([&] { SequenceExample::parse(whole.substr(0, size)); }).code(),
              ErrorCode::invalid_argument)
        << size;
  }
}

}  // namespace
}  // namespace cohort::data
