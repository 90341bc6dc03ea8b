// SPDX-License-Identifier: Apache-2.0
// Files of saved values, byte by byte.
#include "cohort/variable/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <random>

#include "cohort/core/crc32c.h"
#include "cohort/function/trace.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/test_seed.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/replica_count.h"
#include "cohort/variable/saved_values.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using testing::throws_error;

std::string file_of(std::string_view header, std::string_view data) {
  const std::uint64_t size = header.size();
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes.append(header).append(data);
}

template <class T>
std::string bytes_of(std::initializer_list<T> values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), std::data(values), bytes.size());
  return bytes;
}

Variable make(const std::string& name, const at::Tensor& value) {
  return local_variable(name, value, /*is_trainable=*/false);
}

class SavedValuesTest : public ::testing::Test {
 protected:
  void damaged(const std::string& bytes, const std::string& words) const {
    SCOPED_TRACE(words);
    EXPECT_THAT([&] { SavedValues(folder_.write("damaged", bytes)); },
                throws_error(ErrorCode::data_loss, words));
  }
  void damaged_header(const std::string& header, const std::string& words) const {
    damaged(file_of(header, "12345678"), words);
  }
  testing::TemporaryFolder folder_;
};

TEST_F(SavedValuesTest, ReadsAFileOfAnotherProgram) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]},)"
      R"("a":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("none":{"dtype":"BF16","shape":[0,3],"data_offsets":[16,16]},)"
      R"("t":{"dtype":"BOOL","shape":[2],"data_offsets":[16,18]}}   )";
  const std::string data = bytes_of<std::int64_t>({-5}) + bytes_of<float>({1.5F, 2.5F});
  const SavedValues values(folder_.write("file", file_of(header, data + '\x02' + '\0')));
  EXPECT_THAT(values.keys(), ElementsAre("a", "b", "none", "t"));
  EXPECT_EQ(TensorSpec::of(values.value("a")).to_string(), "int64[]");
  EXPECT_EQ(values.value("a").item<std::int64_t>(), -5);
  EXPECT_EQ(TensorSpec::of(values.value("b")).to_string(), "float32[2, 1]");
  EXPECT_EQ(values.value("b").sum().item<double>(), 4);
  EXPECT_EQ(TensorSpec::of(values.value("none")).to_string(), "bfloat16[0, 3]");
  EXPECT_TRUE(values.value("t")[0].item<bool>()) << "every byte but 0 is true";
  EXPECT_FALSE(values.value("t")[1].item<bool>());
  EXPECT_THAT([&] { values.value("c"); },
              throws_error(ErrorCode::not_found, "one of the keys 'a', 'b', 'none', 't'"));
}

TEST_F(SavedValuesTest, WritesWhatTheFormatSays) {
  const std::string path = folder_.file("file");
  save_values(path, {{"byte", make("b", at::full({3}, 7, at::TensorOptions(at::kByte)))},
                     {"double", make("d", at::full({2}, 0.5, at::TensorOptions(at::kDouble)))}});
  const std::string bytes = "\x07\x07\x07", doubles = bytes_of<double>({0.5, 0.5});
  std::string header =
      R"({"__metadata__":{"crc32c:byte":")" + std::to_string(crc32c(bytes)) +
      R"(","crc32c:double":")" + std::to_string(crc32c(doubles)) +
      R"(","format":"pt"},"byte":{"data_offsets":[16,19],"dtype":"U8","shape":[3]},)"
      R"("double":{"data_offsets":[0,16],"dtype":"F64","shape":[2]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(folder_.read("file"), file_of(header, doubles + bytes));
  EXPECT_THAT(folder_.names(), ElementsAre("file"));
}

TEST_F(SavedValuesTest, EveryTypeComesBack) {
  std::map<std::string, Variable> saved, restored;
  for (const at::ScalarType type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt,
                                    at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const std::string name = dtype_name(type);
    saved.emplace(name, make(name, at::arange(6, at::kFloat).reshape({2, 3}).to(type)));
    restored.emplace(name, make(name, at::zeros({2, 3}, type)));
  }
  save_values(folder_.file("file"), saved);
  restore_values(folder_.file("file"), restored);
  for (const auto& [name, variable] : saved)
    EXPECT_TRUE(variable.read().equal(restored.at(name).read())) << name;
  save_values(folder_.file("empty"), {});
  EXPECT_TRUE(SavedValues(folder_.file("empty")).keys().empty());
}

TEST_F(SavedValuesTest, AnOpenFileStaysReadableWhenItIsReplaced) {
  const std::string path = folder_.file("file");
  const Variable v = make("v", at::full({2}, 1.0));
  save_values(path, {{"v", v}});
  const SavedValues before(path);
  v.assign(at::full({2}, 2.0));
  save_values(path, {{"v", v}});
  EXPECT_EQ(before.value("v")[0].item<double>(), 1);
  before.restore("v", v);
  EXPECT_EQ(v.read()[0].item<double>(), 1);
}

TEST_F(SavedValuesTest, AllOrNoVariablesAreRestored) {
  const std::string path = folder_.file("file");
  save_values(path, {{"a", make("a", at::full({2}, 1.0))}, {"b", make("b", at::full({2}, 1.0))}});
  const Variable a = make("a", at::zeros({2}));
  const auto refused = [&](const std::string& key, const Variable& other, ErrorCode code,
                           const std::string& words) {
    EXPECT_THAT(([&] {
                  restore_values(path, {{"a", a}, {key, other}});
                }),
                throws_error(code, words));
    EXPECT_EQ(a.read().sum().item<double>(), 0);
  };
  refused("b", make("b", at::zeros({3})), ErrorCode::invalid_argument,
          "expected float32[3], got float32[2] (variable 'b')");
  refused("b", make("b", at::zeros({2}, at::kDouble)), ErrorCode::invalid_argument,
          "expected float64[2]");
  refused("c", make("c", at::zeros({2})), ErrorCode::not_found, "got 'c'");
}

TEST_F(SavedValuesTest, WhatTheFormatDoesNotHaveIsRefusedAndLeavesTheOldFile) {
  folder_.write("file", "before");
  const Variable v = make("v", at::zeros({2}));
  const auto refused = [&](const std::string& key, const Variable& variable,
                           const std::string& words) {
    EXPECT_THAT(([&] {
                  save_values(folder_.file("file"), {{key, variable}});
                }),
                throws_error(ErrorCode::invalid_argument, words));
    EXPECT_EQ(folder_.read("file"), "before");
    EXPECT_THAT(folder_.names(), ElementsAre("file"));
  };
  refused("c", make("c", at::zeros({2}, at::kComplexFloat)), "a dtype that safetensors has");
  refused("__metadata__", v, "keeps for itself");
  refused("\xff", v, "valid UTF-8");
}

TEST_F(SavedValuesTest, StepsAndReplicasAreRefused) {
  const Variable v = make("v", at::zeros({2}));
  const std::string path = folder_.file("file");
  const auto both_refused = [&] {
    EXPECT_THAT(([&] {
                  save_values(path, {{"v", v}});
                }),
                throws_error(ErrorCode::failed_precondition, "outside of run() and of steps"));
    EXPECT_THAT(([&] {
                  restore_values(path, {{"v", v}});
                }),
                throws_error(ErrorCode::failed_precondition, "[variable.restore_values]"));
  };
  save_values(path, {{"v", v}});
  {
    const variable::ReplicaCount two(2);
    both_refused();
  }
  function::trace({at::zeros({1})}, {at::zeros({1})},
                  [&](const std::vector<at::Tensor>& inputs) {
                    both_refused();
                    return std::vector{inputs[0].clone()};
                  },
                  {});
}

TEST_F(SavedValuesTest, AChangedBitIsDataLoss) {
  const std::string path = folder_.file("file");
  save_values(path, {{"v", make("v", at::full({4}, 1.0))}});
  const std::string good = folder_.read("file");
  for (std::size_t bit = 0; bit < 16 * 8; bit += 5) {
    std::string bytes = good;
    bytes[bytes.size() - 1 - bit / 8] ^= static_cast<char>(1U << bit % 8);
    const SavedValues values(folder_.write("changed", bytes));
    EXPECT_THAT([&] { values.value("v"); },
                throws_error(ErrorCode::data_loss, "the file is damaged"));
  }
}

TEST_F(SavedValuesTest, AMissingFileAndAFolderAreErrors) {
  // Regression: it was read for ever.
  ASSERT_EQ(::mkfifo(folder_.file("pipe").c_str(), 0600), 0);
  EXPECT_THAT([&] { SavedValues(folder_.file("pipe")); },
              throws_error(ErrorCode::invalid_argument, "which is none"));
  EXPECT_THAT([&] { SavedValues(folder_.file("none")); },
              throws_error(ErrorCode::not_found, "No such file"));
  EXPECT_THAT([&] { SavedValues(folder_.file(".")); },
              throws_error(ErrorCode::invalid_argument, "which is none"));
}

TEST_F(SavedValuesTest, DamagedFilesAreRefused) {
  damaged("", "got 0 bytes");
  damaged("1234567", "got 7 bytes");
  damaged(std::string(8, '\xff'), "a header of 18446744073709551615 bytes");
  damaged(bytes_of<std::uint64_t>({100'000'001}), "a header of 100000001 bytes");
  damaged(bytes_of<std::uint64_t>({1}), "got 8 bytes");
  damaged(file_of("", ""), "no JSON object");
  damaged_header(" {}", "no JSON object");
  damaged_header("[]", "no JSON object");
  damaged_header("{} {}", "no JSON object");
  damaged_header("{\"a\":", "no JSON object");
  damaged_header(std::string("{\0}", 3), "no JSON object");
  damaged_header(std::string(100'000, '['), "no JSON object");
  damaged_header("{}", "8 bytes of data, but tensors with 0");
  damaged_header(R"({"__metadata__":{"a":1}})", "no map of texts");
  damaged_header(R"({"__metadata__":{"crc32c:a":"1"}})", "tensors with 0");
  damaged_header(
      R"({"__metadata__":{"crc32c:b":"1"},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
      "a checksum 'crc32c:b' of nothing");
  damaged_header(
      R"({"__metadata__":{"crc32c:a":"x"},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
      "a checksum 'crc32c:a'");
  damaged_header(R"({"a":1})", "no dtype, shape and data_offsets");
}

TEST_F(SavedValuesTest, WrongTensorsAreRefused) {
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
    return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
           offsets + "}}";
  };
  const SavedValues good(folder_.write("good", file_of(one("F32", "[2]", "[0,8]"), "12345678")));
  EXPECT_THAT(good.keys(), ::testing::ElementsAre("a"));
  damaged_header(one("F32", "2", "[0,8]"), "no shape of 'a'");
  damaged_header(one("F32", "[-2]", "[0,8]"), "no number of elements");
  damaged_header(one("F32", "[2.0]", "[0,8]"), "no number of elements");
  damaged_header(one("F32", "[9223372036854775808]", "[0,8]"), "no number of elements");
  damaged_header(one("F32", "[2305843009213693952]", "[0,8]"), "too many elements");
  damaged_header(one("F32", "[4294967296,4294967296]", "[0,8]"), "too many elements");
  damaged_header(one("F32", "[0,4611686018427387904,4]", "[0,0]"), "too many elements");
  std::string deep = "[1";
  for (int i = 0; i < 64; ++i) deep += ",1";
  damaged_header(one("F32", deep + "]", "[0,4]"), "65 dimensions");
  damaged_header(one("F32", "[3]", "[0,8]"), "8 bytes of 'a', whose shape has 12");
  damaged_header(one("F32", "[2]", "[8,0]"), "no two data_offsets");
  damaged_header(one("F32", "[2]", "[0]"), "no two data_offsets");
  damaged_header(one("F32", "[2]", "[-8,0]"), "no two data_offsets");
  damaged_header(one("F32", "[2]", "[8,16]"), "a tensor at byte 8 after one that ends at 0");
  damaged_header(one("F32", "[1]", "[0,4]"), "8 bytes of data, but tensors with 4");
  damaged_header(one("F32", "[4]", "[0,16]"), "8 bytes of data, but tensors with 16");
  damaged_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                 R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                 "a tensor at byte 0 after one that ends at 4");
  damaged_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                 R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                 "a key that occurs twice");
  EXPECT_THAT([&] { SavedValues(folder_.write("new", file_of(one("F4", "[2]", "[0,1]"), "1"))); },
              throws_error(ErrorCode::unimplemented, "'F4' of 'a'"));
  const SavedValues eight(folder_.write("u16", file_of(one("U16", "[4]", "[0,8]"), "12345678")));
  EXPECT_THAT([&] { eight.value("a"); }, throws_error(ErrorCode::unimplemented, "U16"));
}

TEST_F(SavedValuesTest, AFileThatShrinksIsDataLoss) {
  const std::string path = folder_.file("file");
  save_values(path, {{"v", make("v", at::zeros({100}))}});
  const SavedValues values(path);
  std::filesystem::resize_file(path, 200);
  EXPECT_THAT([&] { values.value("v"); }, throws_error(ErrorCode::data_loss, "it was changed"));
}

// Whatever the bytes are, they are a file or an Error.
TEST_F(SavedValuesTest, ChangedBytesAreReadOrRefused) {
  const testing::TestSeed seed;
  std::mt19937 random(seed.value());
  save_values(folder_.file("file"), {{"a", make("a", at::zeros({2, 3}))},
                                     {"b", make("b", at::zeros({4}, at::kBool))},
                                     {"c", make("c", at::zeros({}, at::kLong))}});
  const std::string good = folder_.read("file");
  int read = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string bytes = good;
    for (auto n = random() % 3; n-- > 0;)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    try {
      const SavedValues values(folder_.write("changed", bytes));
      for (const std::string& key : values.keys()) values.value(key);
      ++read;
    } catch (const Error& error) {
      EXPECT_THAT(error.code(), ::testing::AnyOf(ErrorCode::data_loss, ErrorCode::unimplemented));
    }
  }
  EXPECT_GT(read, 0);
}

}  // namespace
}  // namespace cohort
